"""Ids and their hex form against arithmetic on Python's integers."""

from hypothesis import given
from hypothesis import strategies as st

from pyqd.hot.primitives import guid

EPOCH_TICKS = 1288834974288
TICKS_MAX = 2**41 - 1
NOW_NS = 1_760_000_000_000_000_000

node_ids = st.integers(0, 1023)
clocks_ns = st.one_of(
    st.integers(NOW_NS, NOW_NS + 5 * 2**20),
    st.integers(NOW_NS - 10**12, NOW_NS + 10**12),
    st.integers(-(2**63), 2**63 - 1),
)


def next_id(last_id, node_id, clock_ns):
    """Model: the start of the clock's tick if that is ahead, else the next id of this node after last_id."""
    ticks = (clock_ns >> 20) - EPOCH_TICKS
    first = ticks << 22 | node_id << 12
    if 0 <= ticks <= TICKS_MAX and first > last_id:
        return first
    following = last_id + 1
    if following >> 12 & 0x3FF == node_id:
        return following
    return (last_id >> 22) + 1 << 22 | node_id << 12


@given(node_ids, st.one_of(st.just(0), st.integers(0, 2**62)), st.lists(clocks_ns, max_size=50))
def test_ids_agree_with_the_model_whatever_the_clock_does(node_id, last_id, clocks):
    factory = guid.GuidFactory(node_id)
    factory.resume(last_id)
    for clock_ns in clocks:
        expected = next_id(last_id, node_id, clock_ns)
        assert factory.next(clock_ns) == expected
        assert last_id < expected < 2**63
        assert expected >> 12 & 0x3FF == node_id
        last_id = expected


@given(node_ids, st.one_of(st.just(0), st.integers(0, 2**62)), clocks_ns, st.integers(1, 10_000))
def test_ids_of_one_timestamp_are_consecutive(node_id, last_id, clock_ns, count):
    factory = guid.GuidFactory(node_id)
    factory.resume(last_id)
    ids = [factory.next(clock_ns) for _ in range(count)]
    assert ids == [guid.id_after(ids[0], step) for step in range(count)]
    assert guid.id_after(ids[-1], 1 - count) == ids[0]
    # The rule as the documentation gives it to clients.
    first = ids[0]
    for step in {0, 1, count // 2, count - 1}:
        n = (first & 0xFFF) + step
        assert guid.id_after(first, step) == (first & ~0xFFF) + (n >> 12 << 22) + (n & 0xFFF)


@given(st.integers(0, 2**64 - 1))
def test_hex_agrees_with_python_and_reads_back(value):
    text = guid.to_hex(value)
    assert text == b"%016x" % value
    assert guid.from_hex(text) == value


@given(st.binary(min_size=16, max_size=16))
def test_any_16_bytes_are_an_id_or_refused(text):
    is_hex = all(byte in b"0123456789abcdef" for byte in text)
    try:
        value = guid.from_hex(text)
    except ValueError:
        assert not is_hex
    else:
        assert is_hex
        assert value == int(text, 16)
