"""Tests of pyqd.primitives.timestamps."""

import pytest

from pyqd.primitives.durations import HOUR_NS, SECOND_NS
from pyqd.primitives.timestamps import parse_timestamp

NOW_NS = 1_795_177_302 * SECOND_NS


@pytest.mark.parametrize(
    ("text", "moment_ns"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2026-11-20T12:21:42Z", NOW_NS),
        ("2026-11-20t12:21:42.000000001z", NOW_NS + 1),
        ("2026-11-20T12:21:42.1234567899Z", NOW_NS + 123_456_789),
        ("2026-11-20T13:21:42+01:00", NOW_NS),
        ("2026-11-20T13:21:42 01:00", NOW_NS),
        ("2026-11-20T06:51:42-05:30", NOW_NS),
        ("1795177302s", NOW_NS),
        ("1795177302000ms", NOW_NS),
        ("1795177302000000000ns", NOW_NS),
        ("0s", 0),
        ("-1h", NOW_NS - HOUR_NS),
        ("-1000000h", 0),
    ],
)
def test_a_due_time_is_read_in_each_of_its_forms(text, moment_ns):
    assert parse_timestamp(text, NOW_NS) == moment_ns


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "-0",
        "now",
        "1795177302",
        "2026-11-20",
        "2026-11-20T12:21:42",
        "2026-11-20T12:21Z",
        "2026-13-20T12:21:42Z",
        "2026-11-20T24:21:42Z",
        "2026-11-20T12:21:42+24:00",
        "1969-12-31T23:59:59Z",
        "2300-01-01T00:00:00Z",
        "1h-",
        "9" * 400 + "s",
    ],
)
def test_anything_else_is_no_timestamp(text):
    with pytest.raises(ValueError, match=r"timestamp|duration|offset|day|month|hour"):
        parse_timestamp(text, NOW_NS)
