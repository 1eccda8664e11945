cimport cython
from libc.stdint cimport INT64_MAX, int64_t, uint32_t

from pyqd.hot.primitives.arrays cimport Array
from pyqd.hot.primitives.heap cimport ABSENT, DeadlineHeap, Entry

cdef enum:
    RING_MAX = 1 << 17                 # entries, 2 MiB


@cython.final
cdef class DeadlineQueue:
    cdef DeadlineHeap heap             # of the slots that are not in the ring
    cdef Entry* ring                   # ring_size entries; owned
    cdef uint32_t ring_size            # a power of two, or 0
    cdef uint32_t head                 # index of the oldest entry
    cdef uint32_t used                 # entries from there on, dropped ones included
    cdef uint32_t kept                 # of these, not dropped
    cdef uint32_t* index_of            # by slot: index of its entry in the ring; ABSENT if it has none
    cdef Array index_memory
    cdef uint32_t slot_count_max

    cdef int reserve(self, uint32_t slot_count) except -1
    cdef int push(self, uint32_t slot, int64_t due_ns) except -1
    cdef int update(self, uint32_t slot, int64_t due_ns) except -1
    cdef int remove(self, uint32_t slot) except -1
    cdef int clear(self) noexcept
    cdef int check(self) except -1
    cdef bint copy_ring(self, uint32_t size) noexcept

    cdef inline uint32_t count(self) noexcept:
        return self.kept + self.heap.count

    cdef inline bint is_in_ring(self, uint32_t slot) noexcept:
        return slot < self.slot_count_max and self.index_of[slot] != <uint32_t> ABSENT

    cdef inline bint contains(self, uint32_t slot) noexcept:
        return self.is_in_ring(slot) or self.heap.contains(slot)

    cdef inline int64_t due_of(self, uint32_t slot) noexcept:
        # The slot must wait.
        return self.ring[self.index_of[slot]].due_ns if self.is_in_ring(slot) else self.heap.due_of(slot)

    cdef inline int skip_dropped(self) noexcept:
        # Move the head to an entry that is not dropped. Amortised O(1).
        while self.used != 0 and self.index_of[self.ring[self.head].slot] != self.head:
            self.head = (self.head + 1) & (self.ring_size - 1)
            self.used -= 1
        return 0

    cdef inline int64_t peek_due(self) noexcept:
        # Return the least deadline; INT64_MAX if no slot waits.
        self.skip_dropped()
        return min(self.ring[self.head].due_ns, self.heap.peek_due()) if self.used != 0 else self.heap.peek_due()

    cdef inline uint32_t peek_slot(self) noexcept:
        # Return the slot of the least deadline; ABSENT if no slot waits.
        self.skip_dropped()
        if self.used != 0 and self.ring[self.head].due_ns <= self.heap.peek_due():
            return self.ring[self.head].slot
        return self.heap.peek_slot()
