"""Properties of pyqd.hot.wire.scanner against plain Python."""

import itertools
import struct

from hypothesis import given
from hypothesis import strategies as st

from pyqd.primitives.names import is_valid_name
from tests.support.structures import check_batch, digits_value, name_is_valid, split_line

COMMANDS = ["FIN", "PUB", "MPUB", "DPUB", "DMPUB", "RDY", "REQ", "TOUCH", "NOP", "SUB", "IDENTIFY", "AUTH", "CLS"]
TOKENS = st.one_of(
    st.sampled_from([name.encode() for name in COMMANDS]),
    st.binary(max_size=12).map(lambda raw: raw.replace(b"\n", b"").replace(b" ", b"")),
)
LINES = st.tuples(st.lists(TOKENS, min_size=1, max_size=5).map(b" ".join), st.sampled_from([b"\n", b"\r\n"]))
BODIES = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=12)
NEED_MORE, READY, TOO_LONG, BAD_COUNT, BAD_SIZE, TOO_BIG = range(6)


def split_in_python(line):
    text = line[:-1]
    name, *params = text.removesuffix(b"\r").split(b" ")
    return (name.decode() if name.decode("latin1") in COMMANDS else None), params[:2], len(line)


def split_at(data, cuts):
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


@given(st.lists(LINES, min_size=1, max_size=6))
def test_a_stream_of_lines_reads_the_same_wherever_it_is_cut(lines):
    stream = b"".join(text + end for text, end in lines)
    expected = [split_in_python(text + end) for text, end in lines]
    for cut in range(len(stream) + 1):
        found, start = [], 0
        for available in (cut, len(stream)):
            while (line := split_line(stream[start:available])) is not None:
                assert line is not False
                found.append(line)
                start += line[2]
        assert found == expected
        assert start == len(stream)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_line_or_need_more(data):
    end = data.find(b"\n")
    assert split_line(data) == (None if end < 0 else split_in_python(data[: end + 1]))


@given(BODIES, st.lists(st.integers(0, 600), max_size=8), st.binary(max_size=5))
def test_a_batch_is_walked_the_same_in_any_chunks(bodies, cuts, behind):
    data = struct.pack(">i", len(bodies)) + b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    words = sum((len(body) + 7) // 8 for body in bodies)
    assert check_batch(split_at(data + behind, cuts), 40, 12) == (READY, len(bodies), len(data), words)
    assert check_batch([bytes([byte]) for byte in data], 40, 12) == (READY, len(bodies), len(data), words)
    assert check_batch(split_at(data[:-1], cuts), 40, 12)[0] == NEED_MORE


@given(BODIES, st.integers(1, 12), st.lists(st.integers(0, 800), max_size=8))
def test_the_bytes_before_each_size_are_skipped(bodies, lead_bytes, cuts):
    lead = b"\xff" * lead_bytes
    data = struct.pack(">i", len(bodies)) + b"".join(lead + struct.pack(">i", len(body)) + body for body in bodies)
    words = sum((len(body) + 7) // 8 for body in bodies)
    assert check_batch(split_at(data, cuts), 40, 12, lead_bytes) == (READY, len(bodies), len(data), words)
    assert check_batch(split_at(data[:-1], cuts), 40, 12, lead_bytes)[0] == NEED_MORE


@given(BODIES, st.data())
def test_a_bad_size_is_found_in_any_chunks(bodies, data):
    bad = data.draw(st.integers(0, len(bodies) - 1))
    size = data.draw(st.one_of(st.integers(-(2**31), 0), st.integers(41, 2**31 - 1)))
    raw = struct.pack(">i", len(bodies))
    for index, body in enumerate(bodies):
        raw += struct.pack(">i", size if index == bad else len(body)) + body
    cuts = data.draw(st.lists(st.integers(0, len(raw)), max_size=8))
    scan, index, _, _ = check_batch(split_at(raw, cuts), 40, 12)
    assert (scan, index) == (BAD_SIZE if size < 1 else TOO_BIG, bad)


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_no_bytes_at_all_make_the_walk_differ_by_their_chunks(data, cuts):
    whole = check_batch([data], 50, 10)
    assert check_batch(split_at(data, cuts), 50, 10) == whole
    assert whole[2] <= len(data)


@given(st.one_of(st.binary(max_size=70), st.from_regex(rb"[.a-zA-Z0-9_-]{0,60}(#ephemeral)?", fullmatch=True)))
def test_names_follow_the_rule_of_the_python_half(name):
    assert name_is_valid(name) == is_valid_name(name)


@given(st.integers(0, 2**80))
def test_digits_wrap_at_64_bits(number):
    value = number & (2**64 - 1)
    assert digits_value(str(number).encode()) == (value if value < 2**63 else value - 2**64)
