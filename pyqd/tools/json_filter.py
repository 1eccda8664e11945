"""Filters of messages in JSON: a field that a message must have, its value, and the fields to keep.

Source: docs/nsq/admin-and-tools.md, "nsq_to_nsq".
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, Final, NoReturn

# Numbers of the command line, in Go's syntax. Other words, such as 1_000, are not numbers.
NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?inf(?:inity)?", re.IGNORECASE)
INT64: Final = range(-(1 << 63), 1 << 63)
# Go's encoder writes these so that JSON may stand in HTML.
ESCAPES: Final = (
    ("<", "\\u003c"),
    (">", "\\u003e"),
    ("&", "\\u0026"),
    ("\u2028", "\\u2028"),
    ("\u2029", "\\u2029"),
)


class Verdict(Enum):
    """Treatment of a message."""

    PASS = auto()
    DROP = auto()
    REQUEUE = auto()


class NoJsonObjectError(ValueError):
    """A message is no JSON object."""


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


def _float_of(text: str) -> float | int:
    """Return a number with a point or an exponent; a whole one as an int, so that 3.0 becomes 3. Raises: ValueError."""
    number = float(text)
    if not math.isfinite(number):
        # JSON has no word for infinity: the message could not be written again.
        raise ValueError(f"{text} is out of range")
    if number.is_integer() and int(number) in INT64:
        return int(number)
    return number


# Built once: json.loads() would build it for each message.
_DECODER = json.JSONDecoder(parse_float=_float_of, parse_constant=_refuse_constant)


def decode_object(body: bytes) -> dict[str, Any]:
    """Return a JSON object; null is one without fields. Raises: NoJsonObjectError."""
    try:
        found = _DECODER.decode(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise NoJsonObjectError(str(error)) from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise NoJsonObjectError("no object")
    return found


def encode_object(fields: dict[str, Any]) -> bytes:
    """Return an object as Go's encoder writes it: sorted, without spaces, and safe in HTML."""
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    for char, escape in ESCAPES:
        text = text.replace(char, escape)
    # A lone surrogate of an escape in the message is no character.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


class JsonFilter:
    """Filter of objects. field: required; value: that it must have; kept: fields to keep. Empty ones have no effect."""

    def __init__(self, field: str, value: str, kept: Sequence[str]) -> None:
        self._field = field
        self._value = value
        self._number = float(value) if NUMBER.fullmatch(value) else None
        self._kept = kept

    @property
    def is_active(self) -> bool:
        return bool(self._field or self._kept)

    def apply(self, body: bytes) -> tuple[Verdict, bytes]:
        """Return the treatment of a message, and its new body. Raises: NoJsonObjectError."""
        fields = decode_object(body)
        verdict = self._verdict(fields)
        if verdict is Verdict.PASS and self._kept:
            body = encode_object({name: fields[name] for name in self._kept if name in fields})
        return verdict, body

    def _verdict(self, fields: dict[str, Any]) -> Verdict:
        if not self._field:
            return Verdict.PASS
        if self._field not in fields:
            return Verdict.REQUEUE if self._value else Verdict.DROP
        if not self._value or self._is_value(fields[self._field]):
            return Verdict.PASS
        return Verdict.DROP

    def _is_value(self, found: Any) -> bool:
        if isinstance(found, str):
            return found == self._value
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            return False
        try:
            return self._number is not None and float(found) == self._number
        except OverflowError:
            return False
