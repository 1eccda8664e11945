# The messages in the body of POST /mpub, framed as an MPUB has them. Design notes: pyx/bodies.pyx.
from libc.stdint cimport uint32_t, uint64_t

cdef class Frames:
    cdef readonly bytes data
    cdef readonly uint64_t start
    cdef readonly uint32_t count
    cdef readonly uint64_t words
