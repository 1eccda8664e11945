"""Tests of pyqd.hot.primitives.bitmap."""

import pytest

from tests.support.structures import Ring

CAPACITIES = [64, 128, 256]
# Windows that begin at a word, within one, before the end of the ring, and far along the row.
STARTS = [0, 1, 37, 63, 64, 100, 127, 2**40 + 63]


def ones(ring, start, end):
    return [position for position in range(start, end) if ring.test(position)]


@pytest.mark.parametrize("capacity_bits", [0, 1, 32, 63, 65, 96, 192])
def test_a_capacity_that_is_no_power_of_two_or_too_small_is_refused(capacity_bits):
    with pytest.raises(ValueError, match="power of two"):
        Ring(capacity_bits)


def test_memory_that_is_not_there_is_reported():
    with pytest.raises(MemoryError):
        Ring(2**63)


def test_a_new_ring_holds_zeros():
    ring = Ring(128)
    assert ring.capacity_bits == 128
    assert ring.count(0, 128) == 0
    assert ring.next_one(5, 133) == 133
    assert ring.next_zero(5, 133) == 5


def test_positions_one_capacity_apart_share_a_bit():
    ring = Ring(64)
    ring.set(5)
    assert ring.test(5 + 64)
    assert ring.test(5 + 64 * 10**9)


@pytest.mark.parametrize("capacity_bits", CAPACITIES)
@pytest.mark.parametrize("start", STARTS)
def test_a_range_is_set_and_cleared_exactly(capacity_bits, start):
    for length in [0, 1, 2, 27, 63, 64, 65, 90, 127, 128, 200, 256]:
        if length > capacity_bits:
            continue
        ring = Ring(capacity_bits)
        end = start + length
        ring.set_range(start, end)
        assert ones(ring, start, start + capacity_bits) == list(range(start, end))
        assert ring.count(start, end) == length
        assert ring.run_of_ones(start, end) == length
        assert ring.run_of_ones(start, start + capacity_bits) == length
        ring.set_range(0, capacity_bits)
        ring.clear_range(start, end)
        assert ones(ring, start, start + capacity_bits) == list(range(end, start + capacity_bits))


def test_a_search_does_not_look_beyond_its_end():
    ring = Ring(64)
    ring.set(10)
    assert ring.next_one(0, 10) == 10
    assert ring.next_one(0, 5) == 5
    assert ring.next_one(11, 74) == 74
    assert ring.next_one(11, 75) == 74
    ring.set_range(0, 64)
    assert ring.run_of_ones(3, 20) == 17


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("grown_bits", [128, 256, 1024])
def test_a_copy_keeps_the_window_and_is_zero_elsewhere(start, grown_bits):
    ring = Ring(128)
    end = start + 128
    for position in range(start, end, 3):
        ring.set(position)
    grown = ring.copied(grown_bits, start, end)
    assert ones(grown, start, start + grown_bits) == list(range(start, end, 3))
    assert ones(ring, start, end) == list(range(start, end, 3))


@pytest.mark.parametrize(("start", "end"), [(0, 65), (1, 0), (2**40, 2**40 + 65)])
def test_a_range_that_is_no_window_is_refused(start, end):
    ring = Ring(64)
    for method in [ring.set_range, ring.clear_range, ring.count, ring.next_one, ring.next_zero, ring.run_of_ones]:
        with pytest.raises(ValueError, match="must be a range"):
            method(start, end)
    with pytest.raises(ValueError, match="must be a range"):
        ring.copied(128, start, end)


def test_a_copy_to_a_ring_that_is_too_small_is_refused():
    with pytest.raises(ValueError, match="must be a range"):
        Ring(128).copied(64, 0, 65)
