from libc.stdint cimport INT64_MAX, int64_t, uint64_t

from pyqd.hot.primitives.arrays cimport Array
from pyqd.hot.primitives.debug cimport debug_require

cdef struct DueEntry:
    int64_t due_ns                       # the owner's clock
    uint64_t ref                         # the owner's business

cdef inline bint precedes(const DueEntry* entry, const DueEntry* other) noexcept nogil:
    # No branch: which of two entries is earlier cannot be predicted.
    return (entry.due_ns < other.due_ns) | ((entry.due_ns == other.due_ns) & (entry.ref < other.ref))

cdef class DueHeap:
    cdef DueEntry* entries               # entries[:count], a heap by (due_ns, ref); moves with each push
    cdef Array memory
    cdef readonly uint64_t count

    cdef int reserve(self, uint64_t count) except -1
    cdef uint64_t pop(self) noexcept
    cdef void clear(self) noexcept
    cdef int check(self) except -1

    cdef inline void push(self, int64_t due_ns, uint64_t ref) noexcept:
        # Add an entry, for which memory is reserved. Cost: O(log count), O(1) if no entry is greater.
        cdef DueEntry entry = DueEntry(due_ns=due_ns, ref=ref)
        cdef uint64_t index = self.count
        cdef uint64_t parent
        debug_require((index + 1) * sizeof(DueEntry) <= self.memory.bytes)
        self.count += 1
        while index > 0:
            parent = (index - 1) >> 1
            if not precedes(&entry, &self.entries[parent]):
                break
            self.entries[index] = self.entries[parent]
            index = parent
        self.entries[index] = entry

    cdef inline int64_t peek_due(self) noexcept:
        # Return the least due time; INT64_MAX if the heap is empty.
        return self.entries[0].due_ns if self.count else INT64_MAX

    cdef inline uint64_t peek_ref(self) noexcept:
        # Return the reference of the least entry; the heap has one.
        return self.entries[0].ref
