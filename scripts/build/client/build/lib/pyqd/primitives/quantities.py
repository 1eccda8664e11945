"""Sizes and lengths of time as people read and write them. Go's forms of durations are in `durations`."""

import re
from typing import Final

from pyqd.primitives.durations import HOUR_NS, MICROSECOND_NS, MILLISECOND_NS, MINUTE_NS, SECOND_NS

DAY_NS: Final = 24 * HOUR_NS

_SIZE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_FACTORS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?) *([kmgt]?)(?:i?b)?", re.IGNORECASE | re.ASCII)
# Limit of a unit, the unit, and its name. At the limit, three digits would no longer suffice.
_SHORT_UNITS: Final = (
    (999.5 * MICROSECOND_NS, MICROSECOND_NS, "us"),
    (999.5 * MILLISECOND_NS, MILLISECOND_NS, "ms"),
    (59.95 * SECOND_NS, SECOND_NS, "s"),
)
_LONG_UNITS: Final = ((DAY_NS, "d"), (HOUR_NS, "h"), (MINUTE_NS, "min"), (SECOND_NS, "s"))


def format_size(byte_count: float) -> str:
    """Return a number of bytes with its binary unit: 512 B, 3.4 KiB, 120 GiB."""
    index = 0
    while byte_count >= 1024 and index < len(_SIZE_UNITS) - 1:
        byte_count /= 1024
        index += 1
    digits = 0 if index == 0 or byte_count >= 100 else 1
    return f"{byte_count:.{digits}f} {_SIZE_UNITS[index]}"


def parse_size(text: str) -> int:
    """Return the bytes of a size such as `4096`, `500M`, `1.5 GiB`; all units are binary. Raises: ValueError."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no size such as 500M or 20G")
    number = float(match[1]) if "." in match[1] else int(match[1])
    return round(number * _FACTORS[match[2].lower()])


def format_span(span_ns: float) -> str:
    """Return a length of time: 340 us, 12 ms, 3.4 s, 5 min 20 s, 2 h 5 min, 3 d 4 h.

    Below a minute it has three digits, from a minute on the two greatest units.
    """
    sign, left_ns = ("-", -span_ns) if span_ns < 0 else ("", span_ns)
    for limit_ns, unit_ns, name in _SHORT_UNITS:
        if left_ns < limit_ns:
            return f"{sign}{left_ns / unit_ns:.3g} {name}"
    left = round(left_ns / SECOND_NS) * SECOND_NS
    numbers = []
    for unit_ns, name in _LONG_UNITS:
        number, left = divmod(left, unit_ns)
        numbers.append((number, name))
    first = next(index for index, (number, _) in enumerate(numbers) if number)
    return sign + " ".join(f"{number} {name}" for number, name in numbers[first : first + 2] if number)
