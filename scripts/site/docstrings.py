"""Griffe extension: parameters, attributes and errors that a docstring names in its sentences become tables."""

from __future__ import annotations

import re
from typing import Any

from griffe import Attribute, Class, Extension, Function, Module, Object

from scripts.site.google_style import google_style


class MarkedSentences(Extension):
    """Rewrites the docstrings of a package when it is loaded."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        self._rewrite(pkg)

    def _rewrite(self, parent: Object) -> None:
        for member in parent.members.values():
            if member.is_alias or not isinstance(member, Object):
                continue
            if member.docstring is not None:
                parameters = set()
                attributes = {name for name, each in member.members.items() if isinstance(each, Attribute)}
                if isinstance(member, Class | Function):
                    parameters = {each.name for each in member.parameters} - {"self"}
                if "__slots__" in member.members:
                    attributes |= set(re.findall(r"\w+", str(member.members["__slots__"].value)))
                member.docstring.value = google_style(member.docstring.value, parameters, attributes - parameters)
            self._rewrite(member)
