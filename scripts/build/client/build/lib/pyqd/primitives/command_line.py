"""Parser for the command lines of tools, on argparse. The daemon's own flags have Go's syntax: `goflags`."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any, NoReturn

from pyqd.primitives.goflags import exit_with_mistake, suggestion


class CommandParser(argparse.ArgumentParser):
    """Parser that reports a mistake in one line, and names the nearest flag for a misspelt one."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse the arguments. Unlike argparse, report an unknown flag before a missing argument."""
        given = list(sys.argv[1:] if args is None else args)
        # Flags after a command's name belong to that command's parser.
        own: Iterable[str] = given if self._subparsers is None else takewhile(lambda word: word.startswith("-"), given)
        self.require_known(takewhile(lambda word: word != "--", own))
        return super().parse_known_args(given, namespace)

    def require_known(self, words: Iterable[str]) -> None:
        """Exit with an error if a flag is neither known nor, where abbreviations are allowed, the beginning of a known
        one.
        """
        known = [name.removeprefix("--") for name in self._option_string_actions if name.startswith("--")]
        for word in words:
            name = word.partition("=")[0].removeprefix("--")
            if not word.startswith("--") or name in known:
                continue
            if not self.allow_abbrev or not any(each.startswith(name) for each in known):
                self.error(f"unknown flag --{name}{suggestion(name, known, '--')}")

    def error(self, message: str) -> NoReturn:
        """Report the mistake in one line, without the usage, and exit with code 2."""
        exit_with_mistake(self.prog, message)
