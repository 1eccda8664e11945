"""Tests of pyqd.hot.primitives.heap."""

import random

import pytest

from pyqd.hot.primitives.heap import DeadlineHeap
from tests.support.structures import Heap

ABSENT = 2**32 - 1
NEVER_NS = 2**63 - 1


def filled(deadlines):
    heap = Heap(len(deadlines))
    for slot, due_ns in enumerate(deadlines):
        heap.push(slot, due_ns)
    return heap


def drained(heap):
    popped = []
    while len(heap):
        due_ns = heap.peek_due()
        assert heap.peek_slot() < heap.slot_count_max
        popped.append((due_ns, heap.pop()))
        heap.check()
    return popped


def test_a_new_heap_has_no_slots_and_no_entries():
    heap = Heap()
    assert (len(heap), heap.slot_count_max) == (0, 0)
    assert heap.peek_due() == NEVER_NS
    assert heap.peek_slot() == ABSENT
    assert 0 not in heap
    heap.check()
    assert DeadlineHeap().count == 0


@pytest.mark.parametrize("order", ["ascending", "descending", "shuffled"])
def test_many_slots_come_out_by_deadline(order):
    deadlines = list(range(1000))
    if order == "descending":
        deadlines.reverse()
    elif order == "shuffled":
        random.Random(1).shuffle(deadlines)
    assert [due_ns for due_ns, _ in drained(filled(deadlines))] == list(range(1000))


@pytest.mark.slow
def test_a_heap_that_grows_over_a_mebibyte_keeps_its_entries():
    heap = Heap(1000)
    deadlines = list(range(200_000))
    random.Random(2).shuffle(deadlines)
    for slot, due_ns in enumerate(deadlines):
        if slot == heap.slot_count_max:
            heap.reserve(slot + slot // 8)
        heap.push(slot, due_ns)
    heap.check()
    assert [heap.pop() for _ in range(len(deadlines))] == sorted(range(200_000), key=deadlines.__getitem__)


def test_reserving_fewer_slots_changes_nothing():
    heap = filled([3, 1, 2])
    heap.reserve(1)
    assert heap.slot_count_max == 3
    assert len(heap) == 3


def test_the_mark_for_absence_cannot_be_a_slot():
    with pytest.raises(AssertionError):
        Heap().reserve(ABSENT)


@pytest.mark.parametrize("waiting_count", [3, 200, 1000])
def test_after_clear_there_are_no_entries_and_all_slots_are_free(waiting_count):
    heap = Heap(1000)
    for slot in range(waiting_count):
        heap.push(slot, -slot)
    heap.clear()
    heap.check()
    assert len(heap) == 0
    assert not any(slot in heap for slot in range(1000))
    for slot in range(1000):
        heap.push(slot, slot)
    assert [slot for _, slot in drained(heap)] == list(range(1000))


def test_a_slot_cannot_wait_twice():
    heap = filled([1, 2])
    with pytest.raises(AssertionError, match="waits already"):
        heap.push(1, 5)
    heap.check()
    assert heap.due_of(1) == 2


@pytest.mark.parametrize("slot", [2, 3, ABSENT])
def test_a_slot_that_is_not_reserved_is_refused(slot):
    heap = filled([1, 2])
    assert slot not in heap
    with pytest.raises(AssertionError, match="not reserved"):
        heap.push(slot, 5)
    with pytest.raises(AssertionError, match="does not wait"):
        heap.remove(slot)
    with pytest.raises(AssertionError, match="does not wait"):
        heap.update(slot, 5)


def test_an_absent_slot_cannot_be_removed_moved_or_queried():
    heap = Heap(2)
    with pytest.raises(AssertionError, match="does not wait"):
        heap.remove(0)
    with pytest.raises(AssertionError, match="does not wait"):
        heap.update(0, 1)
    with pytest.raises(KeyError):
        heap.due_of(0)
    with pytest.raises(IndexError):
        heap.pop()
