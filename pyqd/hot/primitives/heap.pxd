# pyqd/hot/primitives/heap.pxd: deadlines of in-flight and parked messages. Design notes: pyx/primitives/heap.pyx.

cimport cython
from libc.stdint cimport INT64_MAX, int64_t, uint32_t

from pyqd.hot.primitives.arrays cimport Array

cdef enum:
    ABSENT = 0xFFFFFFFF                # no slot, no index


cdef struct Entry:
    int64_t due_ns                     # the owner's clock
    uint32_t slot                      # index into the owner's slot table


@cython.final
cdef class DeadlineHeap:
    cdef Entry* entries                # entries[:count], a heap by due_ns; capacity slot_count_max
    cdef uint32_t* index_of            # by slot: its place in entries; ABSENT if the slot does not wait
    cdef Array entries_memory
    cdef Array index_memory
    cdef readonly uint32_t count
    cdef readonly uint32_t slot_count_max
    cdef uint32_t unchecked_count      # changes since the last check; counted in debug builds only

    # Makes slots 0 to slot_count - 1 usable; keeps the entries; never shrinks. O(slot_count). Raises MemoryError.
    cdef int reserve(self, uint32_t slot_count) except -1
    # The slot must not wait yet. O(log count), O(1) if no deadline is later.
    cdef int push(self, uint32_t slot, int64_t due_ns) except -1
    # The slot must wait. O(log count).
    cdef int update(self, uint32_t slot, int64_t due_ns) except -1
    # The slot must wait. O(log count), O(1) for the last entry.
    cdef int remove(self, uint32_t slot) except -1
    # Removes the least deadline and returns its slot. The heap must not be empty (else ABSENT; a debug build aborts).
    cdef uint32_t pop(self) noexcept
    # Adds an even number to all odd deadlines. O(count).
    cdef int shift_odd(self, int64_t by_ns) except -1
    # Removes all slots; the memory stays. O(count).
    cdef void clear(self) noexcept
    # Checks every entry; AssertionError for a broken invariant. O(slot_count_max).
    cdef int check(self) except -1
    # Checks at intervals that keep a debug build linear.
    cdef int check_often(self) except -1

    cdef inline bint contains(self, uint32_t slot) noexcept:
        return slot < self.slot_count_max and self.index_of[slot] != <uint32_t>ABSENT

    # The slot must wait.
    cdef inline int64_t due_of(self, uint32_t slot) noexcept:
        return self.entries[self.index_of[slot]].due_ns

    # The least deadline; INT64_MAX if the heap is empty.
    cdef inline int64_t peek_due(self) noexcept:
        return self.entries[0].due_ns if self.count else INT64_MAX

    # The slot of the least deadline; ABSENT if the heap is empty.
    cdef inline uint32_t peek_slot(self) noexcept:
        return self.entries[0].slot if self.count else <uint32_t>ABSENT
