"""Parser of timestamps from operators and programs: RFC 3339, a duration since 1970, or a duration before now.

Also their form for people, and the difference between the wall clock and the monotonic clock.
"""

import datetime
import re
import time

from pyqd.primitives.durations import INT64_MAX, MILLISECOND_NS, SECOND_NS, parse_duration

_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9})\d*)?(?:[Zz]|([+\- ])(\d\d):(\d\d))", re.ASCII
)
_EPOCH = datetime.datetime(1970, 1, 1)


def parse_timestamp(text: str, now_ns: int) -> int:
    """Return a timestamp in nanoseconds since 1970.

    text: RFC 3339 (a space before the offset is a `+` that a URL lost); a duration since 1970 with its unit, such as
    1795177302s or 1795177302123ms; or a negative duration, which counts back from `now_ns`. Raises: ValueError.
    """
    match = _RFC3339.fullmatch(text)
    if match is None:
        if text in ("0", "+0", "-0"):
            raise ValueError("a timestamp of 0 needs a unit, such as 0s")
        duration_ns = parse_duration(text)
        return max(0, now_ns + duration_ns) if text.startswith("-") else duration_ns
    year, month, day, hour, minute, second, fraction, sign, hours, minutes = match.groups()
    timestamp = datetime.datetime(int(year), int(month), int(day), int(hour), int(minute), int(second))
    offset_s = 0
    if sign is not None:
        if int(hours) > 23 or int(minutes) > 59:
            raise ValueError("the offset of a time zone must be less than a day")
        offset_s = (int(hours) * 60 + int(minutes)) * (-60 if sign == "-" else 60)
    since = timestamp - _EPOCH
    timestamp_ns = (since.days * 86400 + since.seconds - offset_s) * SECOND_NS + int((fraction or "").ljust(9, "0"))
    if not 0 <= timestamp_ns <= INT64_MAX:
        raise ValueError("a timestamp must be of 1970 to 2262")
    return timestamp_ns


def wall_ahead_ns() -> int:
    """Return the difference that makes the Unix time of a time of the monotonic clock, by the present wall clock."""
    return time.time_ns() - time.monotonic_ns()


def format_timestamp(timestamp_ns: int) -> str:
    """Return a timestamp as people read it: UTC, to the millisecond."""
    at = _EPOCH + datetime.timedelta(seconds=timestamp_ns // SECOND_NS)
    return f"{at:%Y-%m-%d %H:%M:%S}.{timestamp_ns % SECOND_NS // MILLISECOND_NS:03d}"
