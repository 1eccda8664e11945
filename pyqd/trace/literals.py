"""Forms that values take on their way into a database: Python objects, or text of a statement or of COPY.

Names are converted once for each distinct name of a batch, and times once for each distinct time, so that a row is
written without a call per value.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

SECOND_US: Final = 1_000_000
# Most seconds whose text is kept.
SECONDS_MAX: Final = 4096


@dataclass(frozen=True)
class Literals:
    """Forms of values for one database.

    null: in place of None. text: of a text. quote: before and after a text of ASCII without special characters, such as
    a time. body: of bytes.
    """

    null: Any
    text: Callable[[str], Any]
    quote: str
    body: Callable[[bytes], Any]
    # PostgreSQL would read a time without a zone as one of the session's zone.
    zone: str = ""

    def plain(self, value: str) -> str:
        """Return the form of a text of ASCII without special characters."""
        return f"{self.quote}{value}{self.quote}"

    def texts(self, values: Iterable[str | None], chars: int) -> list[Any]:
        """Return the forms of texts, cut to a length. NUL, which PostgreSQL cannot keep, becomes U+FFFD."""
        return [self.null if value is None else self.text(value[:chars].replace("\0", "\ufffd")) for value in values]

    def times(self, values_us: Iterable[int]) -> list[str]:
        """Return the forms of timestamps in Unix microseconds."""
        start, end = self.quote, self.zone + self.quote
        seconds: dict[int, str] = {}
        forms: list[str] = []
        last_us, last = -1, ""
        for value_us in values_us:
            # Events of one pass have the same time.
            if value_us != last_us:
                second = value_us // SECOND_US
                text = seconds.get(second)
                if text is None:
                    if len(seconds) > SECONDS_MAX:
                        seconds.clear()
                    text = seconds[second] = start + time.strftime("%Y-%m-%d %H:%M:%S.", time.gmtime(second))
                last_us, last = value_us, f"{text}{value_us % SECOND_US:06d}{end}"
            forms.append(last)
        return forms


def same(value: Any) -> Any:
    return value


VALUES: Final = Literals(None, same, "", same)

_COPY_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def _copy_text(value: str) -> str:
    return value.translate(_COPY_ESCAPES)


def _copy_body(value: bytes) -> str:
    return f"\\\\x{value.hex()}"


# Source: PostgreSQL's documentation of COPY, text format.
COPY_TEXT: Final = Literals("\\N", _copy_text, "", _copy_body, zone="+00")


def _sql_body(value: bytes) -> str:
    return f"x'{value.hex()}'"


def statement_text(escape: Callable[[str], str]) -> Literals:
    """Return the forms of values in a statement of MySQL. escape: the connection's, which adds the quotes."""
    return Literals("NULL", escape, "'", _sql_body)
