"""Go's text forms of durations, integers and booleans. Expected values were printed by Go."""

import pytest

from pyqd.primitives import durations
from pyqd.primitives.durations import format_duration, parse_bool, parse_duration, parse_int


@pytest.mark.parametrize(
    ("text", "duration_ns"),
    [
        ("0", 0),
        ("-0", 0),
        ("+0", 0),
        ("0s", 0),
        ("250ms", 250_000_000),
        ("1h30m", 5_400_000_000_000),
        ("1.5s", 1_500_000_000),
        ("-1.5s", -1_500_000_000),
        ("+5s", 5_000_000_000),
        (".5s", 500_000_000),
        ("5.s", 5_000_000_000),
        ("1us", 1_000),
        ("1\u00b5s", 1_000),
        ("1\u03bcs", 1_000),
        ("3ns", 3),
        ("0.9ns", 0),
        ("1s1s", 2_000_000_000),
        ("302.307488ms", 302_307_488),
        ("0.100000000000000000000h", 360_000_000_000),
        ("9223372036854775807ns", 2**63 - 1),
        ("-9223372036854775808ns", -(2**63)),
        ("2562047h47m16.854775807s", 2**63 - 1),
        ("0000000000000000000000000000001s", 1_000_000_000),
    ],
)
def test_a_duration_is_read_as_go_reads_it(text: str, duration_ns: int) -> None:
    assert parse_duration(text) == duration_ns


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", 'time: invalid duration ""'),
        ("-", 'time: invalid duration "-"'),
        ("5", 'time: missing unit in duration "5"'),
        ("00", 'time: missing unit in duration "00"'),
        ("1s5", 'time: missing unit in duration "1s5"'),
        ("5d", 'time: unknown unit "d" in duration "5d"'),
        ("1e3s", 'time: unknown unit "e" in duration "1e3s"'),
        ("1 s", 'time: unknown unit " s" in duration "1 s"'),
        (" 1s", 'time: invalid duration " 1s"'),
        (".s", 'time: invalid duration ".s"'),
        ("1.2.3s", 'time: missing unit in duration "1.2.3s"'),
        ("\u0661s", 'time: invalid duration "\u0661s"'),
        ("9223372036854775808ns", 'time: invalid duration "9223372036854775808ns"'),
        ("-9223372036854775809ns", 'time: invalid duration "-9223372036854775809ns"'),
        ("99999999999999999999999999h", 'time: invalid duration "99999999999999999999999999h"'),
    ],
)
def test_a_wrong_duration_is_refused_in_gos_words(text: str, reason: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is compared whole
        parse_duration(text)
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1_100, "1.1\u00b5s"),
        (250_000_000, "250ms"),
        (302_307_488, "302.307488ms"),
        (999_999_999, "999.999999ms"),
        (1_500_000_000, "1.5s"),
        (2_000_000_000, "2s"),
        (60_000_000_000, "1m0s"),
        (900_000_000_000, "15m0s"),
        (3_600_000_000_000, "1h0m0s"),
        (3_661_000_000_001, "1h1m1.000000001s"),
        (-1_500_000, "-1.5ms"),
        (2**63 - 1, "2562047h47m16.854775807s"),
        (-(2**63), "-2562047h47m16.854775808s"),
    ],
)
def test_a_duration_is_printed_as_go_prints_it(duration_ns: int, text: str) -> None:
    assert format_duration(duration_ns) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-0", 0),
        ("+12", 12),
        ("-5", -5),
        ("0x1F", 31),
        ("0X_f", 15),
        ("-0x10", -16),
        ("0b101", 5),
        ("0o17", 15),
        ("017", 15),
        ("0_17", 15),
        ("00", 0),
        ("1_000_000", 1_000_000),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ("0x" + "0" * 5000 + "1", 1),
    ],
)
def test_an_integer_is_read_as_a_go_literal(text: str, value: int) -> None:
    assert parse_int(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "-", "a", "1.0", "1e3", " 1", "1 ", "1\n", "08", "0x", "0b2", "0b", "_1", "1_", "1__0", "--1", "\u0661"],
)
def test_an_invalid_integer_is_a_parse_error(text: str) -> None:
    with pytest.raises(ValueError, match=f"^{durations.PARSE_ERROR}$"):
        parse_int(text)


@pytest.mark.parametrize(
    "text", ["9223372036854775808", "-9223372036854775809", "0x8000000000000000", "99999999999999999999", "9" * 5000]
)
def test_an_integer_beyond_int64_is_out_of_range(text: str) -> None:
    with pytest.raises(ValueError, match=f"^{durations.RANGE_ERROR}$"):
        parse_int(text)


def test_the_words_of_parse_bool_and_no_others_are_booleans() -> None:
    assert all(parse_bool(word) is True for word in ("1", "t", "T", "true", "TRUE", "True"))
    assert all(parse_bool(word) is False for word in ("0", "f", "F", "false", "FALSE", "False"))
    for word in ("", "yes", "no", "tRUE", "2", " true"):
        with pytest.raises(ValueError, match=f"^{durations.PARSE_ERROR}$"):
            parse_bool(word)
