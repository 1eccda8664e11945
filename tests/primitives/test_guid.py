"""Tests of pyqd.hot.primitives.guid: ids, their growth, and their hex form."""

import pytest

from pyqd.hot.primitives import guid
from pyqd.hot.primitives.guid import GuidFactory

EPOCH_TICKS = 1288834974288
TICK_NS = 1 << 20
NOW_NS = 1_760_000_000_000_000_000
NOW_TICKS = (NOW_NS >> 20) - EPOCH_TICKS


def parts(value):
    return value >> 22, value >> 12 & 0x3FF, value & 0xFFF


def test_an_id_has_the_layout_of_nsqd():
    assert GuidFactory(617).next(NOW_NS) == NOW_TICKS << 22 | 617 << 12
    assert parts(0x18A1DD4F60A69000)[1:] == (617, 0)


def test_the_sequence_counts_within_a_tick_and_starts_again_in_the_next():
    factory = GuidFactory(5)
    first_ns = NOW_TICKS + EPOCH_TICKS << 20
    assert parts(factory.next(first_ns)) == (NOW_TICKS, 5, 0)
    assert parts(factory.next(first_ns + 1)) == (NOW_TICKS, 5, 1)
    assert parts(factory.next(first_ns + TICK_NS - 1)) == (NOW_TICKS, 5, 2)
    assert parts(factory.next(first_ns + TICK_NS)) == (NOW_TICKS + 1, 5, 0)


def test_a_used_up_sequence_runs_ahead_of_the_clock():
    factory = GuidFactory(1023)
    ids = [factory.next(NOW_NS) for _ in range(3 * 4096 + 1)]
    expected = [(NOW_TICKS + index // 4096, 1023, index % 4096) for index in range(len(ids))]
    assert [parts(value) for value in ids] == expected


def test_after_running_ahead_the_clock_is_followed_again():
    factory = GuidFactory(7)
    for _ in range(4097):
        factory.next(NOW_NS)
    assert parts(factory.next(NOW_NS + TICK_NS)) == (NOW_TICKS + 1, 7, 1)
    assert parts(factory.next(NOW_NS + 2 * TICK_NS)) == (NOW_TICKS + 2, 7, 0)


@pytest.mark.parametrize("clock_ns", [-(2**63), -1, 0, EPOCH_TICKS * TICK_NS - 1, 2**62 + 2**60, 2**63 - 1])
def test_a_clock_out_of_range_counts_as_standing_still(clock_ns):
    factory = GuidFactory(7)
    factory.next(NOW_NS)
    assert parts(factory.next(clock_ns)) == (NOW_TICKS, 7, 1)


@pytest.mark.parametrize("node_id", [0, 1, 1023])
@pytest.mark.parametrize("clock_ns", [0, EPOCH_TICKS * TICK_NS])
def test_the_first_id_is_never_zero_even_without_a_clock(node_id, clock_ns):
    value = GuidFactory(node_id).next(clock_ns)
    assert value > 0
    assert parts(value)[1] == node_id


def test_resuming_after_a_smaller_id_changes_nothing():
    factory = GuidFactory(7)
    last_id = factory.next(NOW_NS)
    factory.resume(last_id - 1)
    assert factory.last_id == last_id
    factory.resume(0)
    assert factory.last_id == last_id


@pytest.mark.parametrize("last_id", [2**63, 2**64 - 1])
def test_resuming_after_an_impossible_id_is_refused(last_id):
    factory = GuidFactory(7)
    with pytest.raises(ValueError, match=r"2\*\*63"):
        factory.resume(last_id)
    assert factory.last_id == 0


@pytest.mark.parametrize("node_id", [-1, 1024, 2**40])
def test_a_node_id_out_of_range_is_refused(node_id):
    with pytest.raises(ValueError, match=r"^--node-id must be \[0,1024\)$"):
        GuidFactory(node_id)


def test_the_factory_shows_its_node_and_its_last_id():
    factory = GuidFactory(9)
    assert (factory.node_id, factory.last_id) == (9, 0)
    assert factory.next(NOW_NS) == factory.last_id


def test_exactly_the_lowercase_hex_digits_are_read_at_every_place():
    for place in range(16):
        for byte in range(256):
            text = bytearray(b"0123456789abcdef")
            text[place] = byte
            if byte in b"0123456789abcdef":
                assert guid.from_hex(bytes(text)) == int(text, 16)
            else:
                with pytest.raises(ValueError, match="hex"):
                    guid.from_hex(bytes(text))


@pytest.mark.parametrize("text", [b"", b"0", b"0" * 15, b"0" * 17, b"0x00000000000000"])
def test_text_that_is_no_id_is_refused(text):
    with pytest.raises(ValueError, match="16 lowercase hex digits"):
        guid.from_hex(text)


@pytest.mark.parametrize("value", [-1, 2**64])
def test_a_value_that_is_no_id_is_refused(value):
    with pytest.raises(OverflowError):
        guid.to_hex(value)


@pytest.mark.parametrize("text", [None, "0" * 16, bytearray(16)])
def test_only_bytes_are_read(text):
    with pytest.raises(TypeError):
        guid.from_hex(text)
