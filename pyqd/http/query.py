"""Parser of a URL's query by the rules of Go's servers.

The first value of a name wins. A `;` or a malformed escape makes the whole query invalid. Escaped bytes that are not
UTF-8 are kept as lone surrogates, which no valid name contains.
"""

import logging
import re
from urllib.parse import unquote

logger = logging.getLogger(__name__)

_BAD_ESCAPE = re.compile("%(?![0-9a-fA-F]{2})")


class UrlQuery:
    """Parameters of a query. Raises: ValueError for a malformed query."""

    __slots__ = ("_value_of",)

    def __init__(self, text: str) -> None:
        self._value_of: dict[str, str] = {}
        if not text:
            return
        if ";" in text:
            logger.warning("HTTP: query with a semicolon, which is not a separator: %s", text)
            raise ValueError("a semicolon in the query")
        for part in text.split("&"):
            name, _, value = part.partition("=")
            if part:
                self._value_of.setdefault(unescape(name, plus_is_space=True), unescape(value, plus_is_space=True))

    def get(self, name: str) -> str | None:
        """Return a parameter's value; None if the parameter is missing."""
        return self._value_of.get(name)

    def flag(self, name: str) -> bool:
        """Return whether a parameter is on. Every value but `false` and `0` is on, and so is a missing parameter."""
        return self._value_of.get(name) not in ("false", "0")


def unescape(text: str, *, plus_is_space: bool = False) -> str:
    """Return text with its %-escapes decoded. Raises: ValueError for a malformed escape."""
    if plus_is_space and "+" in text:
        text = text.replace("+", " ")
    if "%" not in text:
        return text
    if _BAD_ESCAPE.search(text):
        raise ValueError("a malformed escape")
    return unquote(text, errors="surrogateescape")
