"""Binary heap of deadlines, which knows the place of each slot.

The owner numbers what can wait (a note, a timer) by slots, small integers. The heap holds (deadline,
slot) by value and, per slot, the place of its entry, so that a deadline can be removed or moved without a search:

    entries   [ due, slot | due, slot | ... ]      entries[i].due_ns <= entries[2i+1].due_ns, entries[2i+2].due_ns
    index_of  [ i | ABSENT | i | ... ]             by slot

Invariants
    1. entries[:count] is a heap by due_ns.
    2. count <= slot_count_max, as a slot waits at most once; both arrays have slot_count_max entries.
    3. index_of[entries[i].slot] == i for i < count, and exactly count places of index_of are not ABSENT.

Among equal deadlines the order is unspecified. Deadlines of messages in flight come mostly in order, and have a ring
before the heap: pyx/primitives/deadlines.pyx.

Rejected: a pairing heap or a tree (a pointer chase per step); a timer wheel (deadlines go from milliseconds to an hour,
and TOUCH wants them exact); marking removed entries and dropping them when due (at a million messages a second and a
timeout of 60 s that is 60 million dead entries).
"""

cimport cython
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memset

from pyqd.hot.primitives.arrays cimport array_release, array_reserve
from pyqd.hot.primitives.debug cimport PYQD_DEBUG, debug_require

# A debug build checks heaps of up to this many slots after every change, and larger ones once in as many changes.
cdef enum:
    CHECKED_SLOT_COUNT_MAX = 64


# Moves the entry towards the root until its parent is not later. The content of `index` is overwritten.
cdef inline void sift_up(Entry* entries, uint32_t* index_of, uint32_t index, Entry entry) noexcept nogil:
    cdef uint32_t parent
    while index > 0:
        parent = (index - 1) >> 1
        if entries[parent].due_ns <= entry.due_ns:
            break
        entries[index] = entries[parent]
        index_of[entries[index].slot] = index
        index = parent
    entries[index] = entry
    index_of[entry.slot] = index


# Moves the entry away from the root until no child is earlier. The content of `index` is overwritten.
cdef inline void sift_down(
    Entry* entries, uint32_t* index_of, uint32_t count, uint32_t index, Entry entry
) noexcept nogil:
    # 64 bits, so that 2 * index + 1 cannot wrap.
    cdef size_t child = 2 * <size_t>index + 1
    while child + 1 < count:
        # An addition instead of a branch, because the earlier child cannot be predicted. Measured with 2500 entries: 24
        # instead of 40 ns for a removal of the root with a push.
        child += entries[child + 1].due_ns < entries[child].due_ns
        if entry.due_ns <= entries[child].due_ns:
            break
        entries[index] = entries[child]
        index_of[entries[index].slot] = index
        index = <uint32_t>child
        child = 2 * <size_t>index + 1
    if child + 1 == count and entries[child].due_ns < entry.due_ns:
        entries[index] = entries[child]
        index_of[entries[index].slot] = index
        index = <uint32_t>child
    entries[index] = entry
    index_of[entry.slot] = index


# Puts the entry at its place: at `index`, or above or below it.
cdef inline void settle(Entry* entries, uint32_t* index_of, uint32_t count, uint32_t index, Entry entry) noexcept nogil:
    if index > 0 and entry.due_ns < entries[(index - 1) >> 1].due_ns:
        sift_up(entries, index_of, index, entry)
    else:
        sift_down(entries, index_of, count, index, entry)


@cython.final
cdef class DeadlineHeap:
    """Heap of slots ordered by deadline; empty and without slots until `reserve`."""

    def __cinit__(self):
        self.entries = NULL
        self.index_of = NULL
        self.count = 0
        self.slot_count_max = 0
        self.unchecked_count = 0

    def __dealloc__(self):
        array_release(&self.entries_memory)
        array_release(&self.index_memory)

    cdef int reserve(self, uint32_t slot_count) except -1:
        """Make slots 0 to slot_count - 1 usable; never shrinks. Cost: O(slot_count). Raises: MemoryError."""
        cdef uint32_t slot
        if slot_count <= self.slot_count_max:
            return 0
        assert slot_count < ABSENT, "ABSENT is not a slot"
        # The larger block is kept at once, so that a failure of the second one loses nothing.
        if array_reserve(&self.entries_memory, <size_t> slot_count * sizeof(Entry)) != 0:
            raise MemoryError(f"not enough memory for {slot_count} deadlines")
        self.entries = <Entry*> self.entries_memory.base
        if array_reserve(&self.index_memory, <size_t> slot_count * sizeof(uint32_t)) != 0:
            raise MemoryError(f"not enough memory for {slot_count} deadlines")
        self.index_of = <uint32_t*> self.index_memory.base
        for slot in range(self.slot_count_max, slot_count):
            self.index_of[slot] = ABSENT
        self.slot_count_max = slot_count
        return 0

    cdef int push(self, uint32_t slot, int64_t due_ns) except -1:
        """Add a slot. Cost: O(log count), O(1) if no deadline is later."""
        assert slot < self.slot_count_max, "the slot is not reserved"
        assert self.index_of[slot] == <uint32_t>ABSENT, "the slot waits already"
        sift_up(self.entries, self.index_of, self.count, Entry(due_ns=due_ns, slot=slot))
        self.count += 1
        if PYQD_DEBUG:
            self.check_often()
        return 0

    cdef int update(self, uint32_t slot, int64_t due_ns) except -1:
        assert self.contains(slot), "the slot does not wait"
        settle(self.entries, self.index_of, self.count, self.index_of[slot], Entry(due_ns=due_ns, slot=slot))
        if PYQD_DEBUG:
            self.check_often()
        return 0

    cdef int remove(self, uint32_t slot) except -1:
        """Remove a slot that waits. Cost: O(log count), O(1) for the last entry."""
        cdef uint32_t index
        assert self.contains(slot), "the slot does not wait"
        index = self.index_of[slot]
        self.index_of[slot] = ABSENT
        self.count -= 1
        if index != self.count:
            settle(self.entries, self.index_of, self.count, index, self.entries[self.count])
        if PYQD_DEBUG:
            self.check_often()
        return 0

    cdef uint32_t pop(self) noexcept:
        """Remove the least deadline. Returns: its slot; ABSENT for an empty heap, which a debug build refuses."""
        cdef uint32_t slot
        debug_require(self.count > 0)
        if self.count == 0:
            return ABSENT
        slot = self.entries[0].slot
        self.index_of[slot] = ABSENT
        self.count -= 1
        if self.count > 0:
            sift_down(self.entries, self.index_of, self.count, 0, self.entries[self.count])
        return slot

    cdef int shift_odd(self, int64_t by_ns) except -1:
        """Add an even number to all odd deadlines. Cost: O(count)."""
        cdef uint32_t index
        assert by_ns & 1 == 0, "odd deadlines stay odd"
        for index in range(self.count):
            self.entries[index].due_ns += by_ns * (self.entries[index].due_ns & 1)
        for index in range(self.count >> 1, 0, -1):
            sift_down(self.entries, self.index_of, self.count, index - 1, self.entries[index - 1])
        if PYQD_DEBUG:
            self.check()
        return 0

    cdef void clear(self) noexcept:
        """Remove all slots; the memory stays. Cost: O(count)."""
        cdef uint32_t index
        if self.count > self.slot_count_max >> 4:
            # One pass in order. Slots in the order of the heap miss the cache.
            memset(self.index_of, 0xff, self.slot_count_max * sizeof(uint32_t))
        else:
            for index in range(self.count):
                self.index_of[self.entries[index].slot] = ABSENT
        self.count = 0

    cdef int check(self) except -1:
        """Assert the invariants. Cost: O(slot_count_max)."""
        cdef uint32_t index
        cdef uint32_t slot
        cdef uint32_t waiting = 0
        assert self.count <= self.slot_count_max, "invariant 2"
        for index in range(self.count):
            assert self.entries[index].slot < self.slot_count_max, "invariant 2"
            assert self.index_of[self.entries[index].slot] == index, "invariant 3"
            if index > 0:
                assert self.entries[(index - 1) >> 1].due_ns <= self.entries[index].due_ns, "invariant 1"
        for slot in range(self.slot_count_max):
            waiting += self.index_of[slot] != <uint32_t>ABSENT
        assert waiting == self.count, "invariant 3"
        return 0

    cdef int check_often(self) except -1:
        """Check at intervals that keep a debug build linear."""
        self.unchecked_count += 1
        if self.slot_count_max <= CHECKED_SLOT_COUNT_MAX or self.unchecked_count >= self.slot_count_max:
            self.unchecked_count = 0
            self.check()
        return 0
