from libc.stdint cimport int64_t, uint64_t

cdef int buffer_grown(uint64_t size_bytes) except -1
cdef void buffer_freed(uint64_t size_bytes) noexcept nogil
