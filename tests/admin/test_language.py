"""Texts of the web admin in other languages."""

from __future__ import annotations

import re

import pytest

from pyqd.admin.pages.language import CATALOGUES, NAMES
from scripts.pages.translations import extracted

PLACEHOLDER = re.compile(r"%\(\w+\)[a-z]")


@pytest.mark.slow
@pytest.mark.parametrize("language", [name for name in NAMES if name != "en"])
def test_all_texts_are_translated_with_their_placeholders(language: str) -> None:
    catalogue = CATALOGUES[language]
    for message in extracted():
        if not message.id:
            continue
        texts = message.id if isinstance(message.id, (tuple, list)) else (message.id,)
        one, many = texts[0], texts[-1]
        found = catalogue.ngettext(one, many, 2) if one != many else catalogue.gettext(one)
        assert found != many or not re.search("[a-z]{3}", many) or many == "Lookup", f"no translation: {one!r}"
        assert sorted(PLACEHOLDER.findall(found)) == sorted(PLACEHOLDER.findall(many)), one
