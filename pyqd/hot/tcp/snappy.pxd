# A connection compressed with snappy, in its framing format. Design notes: pyx/tcp/snappy.pyx.
cimport cython
from libc.stdint cimport uint8_t, uint64_t

from pyqd.hot.net.transport cimport Codec

@cython.final
cdef class Snappy(Codec):
    cdef bint begun                      # this side has sent its stream identifier
    cdef bint identified                 # the peer has
    cdef bytes undecoded

    cdef ssize_t decode_chunk(
        self, uint8_t chunk_type, const char* body, uint64_t size_bytes, char* into, uint64_t capacity) except -2
    cdef ssize_t decode_data(
        self, uint8_t chunk_type, const char* body, uint64_t size_bytes, char* into, uint64_t capacity) except -2
    cdef int decode_block(self, const char* stored, uint64_t stored_bytes, char* into, int block_bytes) except -1
