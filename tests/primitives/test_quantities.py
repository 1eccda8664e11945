"""Sizes and lengths of time as people read and write them."""

import pytest

from pyqd.primitives.quantities import format_size, format_span, parse_size


@pytest.mark.parametrize(
    ("byte_count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (53.4 * (1 << 30), "53.4 GiB"),
        (100 << 20, "100 MiB"),
        (1 << 30, "1.0 GiB"),
        (2**70, "1048576 PiB"),
    ],
)
def test_a_size_has_a_binary_unit(byte_count: float, text: str) -> None:
    assert format_size(byte_count) == text


@pytest.mark.parametrize(
    ("text", "byte_count"),
    [
        ("4096", 4096),
        ("500M", 500 << 20),
        ("10 GiB", 10 << 30),
        ("1.5m", 3 << 19),
        ("2kB", 2048),
        ("0", 0),
        (str(2**63 - 1), 2**63 - 1),
    ],
)
def test_a_size_may_have_a_unit(text: str, byte_count: int) -> None:
    assert parse_size(text) == byte_count


@pytest.mark.parametrize("text", ["", "G", "2 apples", "-1", "1e3", "1..5M"])
def test_other_texts_are_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="is no size such as 500M or 20G"):
        parse_size(text)


@pytest.mark.parametrize(
    ("span_ns", "text"),
    [
        (0, "0 us"),
        (340e3, "340 us"),
        (999_600, "1 ms"),
        (12e6, "12 ms"),
        (999.6e6, "1 s"),
        (3.4e9, "3.4 s"),
        (59.96e9, "1 min"),
        (60e9, "1 min"),
        (320e9, "5 min 20 s"),
        (3_599.9e9, "1 h"),
        (7_500e9, "2 h 5 min"),
        (3_605e9, "1 h"),
        (90_061e9, "1 d 1 h"),
        (3e14, "3 d 11 h"),
        (-12e6, "-12 ms"),
    ],
)
def test_a_span_has_three_digits_or_its_two_greatest_units(span_ns: float, text: str) -> None:
    assert format_span(span_ns) == text
