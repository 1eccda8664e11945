from libc.stdint cimport INT64_MAX, int64_t, uint64_t

from pyqd.hot.primitives.arrays cimport Array

cdef struct DueEntry:
    int64_t due_ns                       # the owner's clock
    uint64_t ref                         # the owner's business

cdef class DueHeap:
    cdef DueEntry* entries               # entries[:count], a heap by (due_ns, ref); moves with each push
    cdef Array memory
    cdef readonly uint64_t count

    cdef int push(self, int64_t due_ns, uint64_t ref) except -1
    cdef uint64_t pop(self) noexcept
    cdef void clear(self) noexcept
    cdef int check(self) except -1

    cdef inline int64_t peek_due(self) noexcept:
        # Return the least due time; INT64_MAX if the heap is empty.
        return self.entries[0].due_ns if self.count else INT64_MAX

    cdef inline uint64_t peek_ref(self) noexcept:
        # Return the reference of the least entry; the heap has one.
        return self.entries[0].ref
