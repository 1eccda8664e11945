"""Tests of pyqd.hot.primitives.idtable."""

import random

import pytest

from pyqd.hot.primitives.idtable import IdTable
from tests.support.structures import Table

MULTIPLIER = 0xC4677F8B5D699E3B
# The odd multiplier has an inverse modulo 2**64; with it an id for any wanted hash can be computed.
INVERSE = pow(MULTIPLIER, -1, 2**64)


def id_at_home(home, capacity, nth):
    """Return the nth of many ids whose home is this cell in a table of that capacity."""
    return ((home * (2**64 // capacity) + nth + 1) * INVERSE) % 2**64


def guids(per_tick, count, node_id=617, first_tick=393_000_000_000):
    return [(first_tick + index // per_tick) << 22 | node_id << 12 | index % per_tick for index in range(count)]


def test_a_new_table_is_empty():
    table = Table()
    assert len(table) == 0
    assert table.get(1) == -1
    assert table.take(1) == -1
    table.check()
    assert IdTable().count == 0


def test_zero_is_no_id():
    table = Table()
    with pytest.raises(AssertionError):
        table.put(0, 1)
    assert table.get(0) == -1
    assert table.take(0) == -1
    assert len(table) == 0


def test_an_id_cannot_be_put_twice():
    table = Table()
    table.put(5, 1)
    with pytest.raises(KeyError):
        table.put(5, 2)
    assert table.get(5) == 1


def test_the_table_doubles_at_half_load():
    table = Table()
    for guid in range(1, 10_001):
        table.put(guid, guid)
        assert 2 * len(table) <= table.capacity
    assert table.capacity == 32_768
    table.check()
    assert all(table.get(guid) == guid for guid in range(1, 10_001))


@pytest.mark.slow
def test_memory_returns_when_the_ids_have_gone():
    table = Table()
    ids = guids(1000, 100_000)
    for slot, guid in enumerate(ids):
        table.put(guid, slot)
    grown = table.capacity
    for slot, guid in enumerate(ids):
        assert table.take(guid) == slot
        assert table.capacity <= 16384 or 8 * len(table) >= table.capacity
    assert (grown, table.capacity) == (262_144, 16384)
    table.check()


def test_a_count_that_swings_about_a_limit_does_not_change_the_size_each_time():
    table = Table()
    for guid in range(1, 1026):
        table.put(guid, 0)
    capacity = table.capacity
    for _ in range(100):
        table.take(1025)
        assert table.capacity == capacity
        table.put(1025, 0)
        assert table.capacity == capacity


@pytest.mark.parametrize(
    ("count", "capacity"), [(0, 16), (8, 16), (9, 32), (5000, 16384), (8192, 16384), (8193, 16), (40_000, 16)]
)
def test_a_cleared_table_is_as_good_as_new_and_a_large_one_returns_its_memory(count, capacity):
    table = Table()
    ids = guids(1000, 40_000)
    for slot, guid in enumerate(ids[:count]):
        table.put(guid, slot)
    for _ in range(2):
        table.clear()
        assert (len(table), table.capacity) == (0, capacity)
        table.check()
        assert all(table.get(guid) == table.take(guid) == -1 for guid in ids)
    # More than ever before, so that each size on the way is used; then others, so that nothing old is met.
    for slot, guid in enumerate(reversed(ids)):
        table.put(guid, slot)
    table.check()
    assert len(table) == len(ids)
    assert [table.take(guid) for guid in reversed(ids)] == list(range(len(ids)))
    assert len(table) == 0
    table.check()


@pytest.mark.parametrize("home", [0, 7, 13, 14, 15])
def test_ids_of_one_home_are_found_after_any_of_them_left_also_around_the_end(home):
    capacity = Table().capacity
    ids = [id_at_home(home, capacity, nth) for nth in range(5)]
    for left in ids:
        table = Table()
        for slot, guid in enumerate(ids):
            table.put(guid, slot)
        assert sorted(table.probe_lengths()) == [1, 2, 3, 4, 5]
        table.take(left)
        table.check()
        assert [table.get(guid) for guid in ids] == [-1 if guid == left else slot for slot, guid in enumerate(ids)]
        assert sorted(table.probe_lengths()) == [1, 2, 3, 4]


def test_an_id_in_its_home_stays_there_when_a_gap_opens_before_it():
    capacity = Table().capacity
    table = Table()
    before = id_at_home(14, capacity, 0)
    at_home = id_at_home(15, capacity, 0)
    pushed_on = id_at_home(14, capacity, 1)
    for slot, guid in enumerate([before, at_home, pushed_on]):
        table.put(guid, slot)
    assert sorted(table.probe_lengths()) == [1, 1, 3]
    table.take(before)
    table.check()
    assert sorted(table.probe_lengths()) == [1, 1]
    assert (table.get(at_home), table.get(pushed_on)) == (1, 2)


@pytest.mark.parametrize("per_tick", [1, 3, 50, 1000, 4096])
@pytest.mark.parametrize("count", [100, 1000, 8000, 60_000])
def test_ids_as_the_factory_makes_them_are_spread(per_tick, count):
    table = Table()
    for guid in guids(per_tick, count):
        table.put(guid, 0)
    lengths = table.probe_lengths()
    assert len(lengths) == count
    # A random hash reads 1.5 cells on average at load 1/2.
    assert sum(lengths) / count < 1.5


def test_a_window_of_ids_that_moves_on_leaves_no_trace():
    table = Table()
    ids = guids(700, 30_000)
    for index, guid in enumerate(ids):
        table.put(guid, index)
        if index >= 300:
            assert table.take(ids[index - 300]) == index - 300
    assert len(table) == 300
    assert table.capacity == 1024
    table.check()


def test_a_large_table_is_copied_by_the_operations_that_follow_and_finds_everything_meanwhile():
    table = Table()
    ids = guids(700, 60_000)
    copying = 0
    for index, guid in enumerate(ids):
        table.put(guid, index)
        copying += table.old_capacity != 0
        if table.old_capacity and index % 50 == 0:
            assert all(table.get(ids[at]) == at for at in range(0, index + 1, 97))
            assert table.get(ids[index] + 1) == -1
        if index % 5000 == 0:
            table.check()
    assert copying > 1000
    copying = 0
    for index, guid in enumerate(ids):
        assert table.take(guid) == index
        assert table.get(guid) == -1
        copying += table.old_capacity != 0
        if index % 5000 == 0:
            table.check()
    assert copying > 500
    assert (len(table), table.old_capacity) == (0, 0)


@pytest.mark.parametrize("seed", range(5))
def test_ids_around_the_end_of_an_array_that_is_copied_agree_with_a_dict(seed):
    chance = random.Random(seed)
    table = Table(0)
    model: dict[int, int] = {}
    for step in range(20_000):
        # The homes of a third of the ids are the last cells, whatever the capacity.
        near_end = (2**64 - chance.randrange(1, 200) * 2**40) * INVERSE % 2**64
        guid = near_end if chance.random() < 0.3 else chance.randrange(1, 3000) << 22
        is_growing = step // 2000 % 2 == 0
        if guid in model and (not is_growing or chance.random() < 0.2):
            assert table.take(guid) == model.pop(guid)
        elif guid not in model and is_growing:
            table.put(guid, step)
            model[guid] = step
        else:
            assert table.get(guid) == model.get(guid, -1)
        if step % 50 == 0:
            table.check()
    assert all(table.get(guid) == slot for guid, slot in model.items())
    assert len(table) == len(model)
