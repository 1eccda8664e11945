"""Tests of pyqd.hot.wire.scanner."""

import struct

import pytest

from tests.support.structures import check_batch, digits_value, name_is_valid, split_line

LINE_BYTES_MAX = 16384
NEED_MORE, READY, TOO_LONG, BAD_COUNT, BAD_SIZE, TOO_BIG = range(6)
COMMANDS = ["FIN", "PUB", "MPUB", "DPUB", "RDY", "REQ", "TOUCH", "NOP", "SUB", "IDENTIFY", "AUTH", "CLS"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_known_by_its_exact_name(name):
    raw = name.encode()
    assert split_line(raw + b"\n") == (name, [], len(raw) + 1)
    for other in (raw.lower(), raw[:-1], raw + b"X", b" " + raw, raw + b"\x00", raw + b"\t"):
        assert split_line(other + b"\n")[0] is None


@pytest.mark.parametrize(
    ("line", "params"),
    [
        (b"SUB topic channel\n", [b"topic", b"channel"]),
        (b"SUB topic channel\r\n", [b"topic", b"channel"]),
        (b"SUB topic channel\r\r\n", [b"topic", b"channel\r"]),
        (b"SUB  channel\n", [b"", b"channel"]),
        (b"SUB \n", [b""]),
        (b"SUB a b c d\n", [b"a", b"b"]),
        (b"SUB\n", []),
        (b"SUB \r\n", [b""]),
        (b"SUB a\rb c\n", [b"a\rb", b"c"]),
    ],
)
def test_parameters_are_split_on_every_single_space(line, params):
    assert split_line(line) == ("SUB", params, len(line))


@pytest.mark.parametrize("line", [b"\n", b"\r\n", b" \n", b"  \n"])
def test_an_empty_line_is_an_unknown_command(line):
    assert split_line(line)[0] is None
    assert split_line(line)[2] == len(line)


def test_bytes_after_the_line_are_untouched():
    assert split_line(b"NOP\nFIN 1\n") == ("NOP", [], 4)


def test_a_line_without_its_end_needs_more_until_it_is_too_long():
    assert split_line(b"") is None
    assert split_line(b"PUB topic") is None
    assert split_line(b"x" * (LINE_BYTES_MAX - 1)) is None
    assert split_line(b"x" * LINE_BYTES_MAX) is False
    assert split_line(b"x" * LINE_BYTES_MAX + b"\n") is False
    assert split_line(b"x" * (LINE_BYTES_MAX - 1) + b"\n") == (None, [], LINE_BYTES_MAX)


def batch(*bodies):
    return struct.pack(">i", len(bodies)) + b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def test_a_whole_batch_is_ready():
    data = batch(b"one", b"twotwotwo", b"x" * 16)
    assert check_batch([data], 100, 100) == (READY, 3, len(data), 1 + 2 + 2)
    assert check_batch([data + b"NOP\n"], 100, 100) == (READY, 3, len(data), 5)


def test_every_part_of_a_batch_needs_more():
    data = batch(b"one", b"two")
    for size in range(len(data)):
        assert check_batch([data[:size]], 100, 100)[0] == NEED_MORE


@pytest.mark.parametrize(("count", "scan"), [(-1, BAD_COUNT), (0, BAD_COUNT), (5, NEED_MORE), (6, BAD_COUNT)])
def test_the_count_is_refused_as_soon_as_it_is_there(count, scan):
    assert check_batch([struct.pack(">i", count)], 100, 5)[0] == scan


@pytest.mark.parametrize(
    ("size", "scan"), [(-1, BAD_SIZE), (0, BAD_SIZE), (-(2**31), BAD_SIZE), (100, NEED_MORE), (101, TOO_BIG)]
)
def test_a_message_size_is_refused_before_its_body_is_there(size, scan):
    head = struct.pack(">i", 2) + struct.pack(">i", 1) + b"x"
    assert check_batch([head + struct.pack(">i", size)], 100, 5)[:2] == (scan, 1)


@pytest.mark.parametrize(
    "name", [b"a", b"A.b_c-9", b"." * 64, b"x#ephemeral", b"x" * 54 + b"#ephemeral", b"...#ephemeral"]
)
def test_valid_names_of_topics_and_channels_are_accepted(name):
    assert name_is_valid(name)


@pytest.mark.parametrize(
    "name",
    [
        b"", b"x" * 65, b"x" * 55 + b"#ephemeral", b"#ephemeral", b"a b", b"a#", b"a#ephemera", b"#ephemeral#ephemeral",
        b"a#ephemeral ", b"\xff", b"a\x00", b"a/b", b"a\n", b"x#ephemeral#ephemeral",
    ],
)  # fmt: skip
def test_names_that_are_none(name):
    assert not name_is_valid(name)


def test_names_allow_the_bytes_of_the_rule_and_no_other():
    allowed = b".abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
    assert bytes(byte for byte in range(256) if name_is_valid(bytes([byte]))) == bytes(sorted(allowed))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"", 0), (b"0", 0), (b"007", 7), (b"9223372036854775807", 2**63 - 1), (b"9223372036854775808", -(2**63)),
        (b"18446744073709551616", 0), (b"18446744073709551615", -1),
        (b"-1", None), (b"+1", None), (b" 1", None), (b"1 ", None), (b"1e3", None), (b"\xb2", None), (b"1\r", None),
    ],
)  # fmt: skip
def test_digits_stand_for_a_number_of_64_bits_that_wraps(text, value):
    assert digits_value(text) == value
