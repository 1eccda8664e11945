from libc.stdint cimport uint32_t, uint64_t

cdef class Frames:
    cdef readonly bytes data
    cdef readonly uint64_t start
    cdef readonly uint32_t count
    cdef readonly uint64_t words

cdef Frames lines_framed(const char* at, uint64_t body_bytes, uint64_t line_bytes_max)
