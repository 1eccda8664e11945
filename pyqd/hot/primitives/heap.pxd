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

    cdef int reserve(self, uint32_t slot_count) except -1
    cdef int push(self, uint32_t slot, int64_t due_ns) except -1
    cdef int update(self, uint32_t slot, int64_t due_ns) except -1
    cdef int remove(self, uint32_t slot) except -1
    cdef uint32_t pop(self) noexcept
    cdef int shift_odd(self, int64_t by_ns) except -1
    cdef void clear(self) noexcept
    cdef int check(self) except -1
    cdef int check_often(self) except -1

    cdef inline bint contains(self, uint32_t slot) noexcept:
        return slot < self.slot_count_max and self.index_of[slot] != <uint32_t>ABSENT

    cdef inline int64_t due_of(self, uint32_t slot) noexcept:
        # The slot must wait.
        return self.entries[self.index_of[slot]].due_ns

    cdef inline int64_t peek_due(self) noexcept:
        # Return the least deadline; INT64_MAX if the heap is empty.
        return self.entries[0].due_ns if self.count else INT64_MAX

    cdef inline uint32_t peek_slot(self) noexcept:
        # Return the slot of the least deadline; ABSENT if the heap is empty.
        return self.entries[0].slot if self.count else <uint32_t>ABSENT
