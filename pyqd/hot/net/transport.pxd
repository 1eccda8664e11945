# Layer between a connection's buffers and its socket that encrypts or compresses. Notes: pyx/net/transport.pyx.
cimport cython
from libc.stdint cimport uint64_t

from pyqd.hot.net.codec cimport Codec

@cython.final
cdef class Transport:
    cdef int fd
    cdef Codec codec
    cdef Transport below                 # None: the socket
    cdef bytes early                     # bytes received before this transport was installed
    cdef bytes encoded                   # encoded[encoded_at:] waits for the layer below
    cdef uint64_t encoded_at
    cdef char* scratch                   # bytes received from below, until they are decoded or copied
    cdef uint64_t counted_bytes          # part of `buffers`

    cdef ssize_t receive(self, char* into, uint64_t capacity) except -3
    cdef ssize_t receive_below(self, char* into, uint64_t capacity) except -3
    cdef bint has_more(self) noexcept
    cdef ssize_t send(self, const char* data, uint64_t size_bytes) except -2
    cdef int flush(self) except -2
    cdef int push(self) except -2
    cdef int put_encoded(self, bytes piece) except -1
    cdef int count_bytes(self) except -1
    cdef uint64_t held_bytes(self) noexcept
