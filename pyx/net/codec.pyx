"""Codec: encryption or compression of a connection's two byte streams.

A codec only transforms bytes. Full sockets, bytes to be sent again, and greenlets are the transport's concern
(pyx/net/transport.pyx).
"""


cdef class Codec:
    """Interface of Tls, Snappy and Deflate."""

    cdef bytes encode(self, const char* data, uint64_t size_bytes, uint64_t* used):
        raise AssertionError(f"{type(self).__name__} does not implement encode")

    cdef bytes finish_encoding(self):
        return b""

    cdef int take(self, const char* data, uint64_t size_bytes) except -1:
        raise AssertionError(f"{type(self).__name__} does not implement take")

    cdef ssize_t decode(self, char* into, uint64_t capacity) except -1:
        raise AssertionError(f"{type(self).__name__} does not implement decode")

    cdef bytes end(self):
        return self.finish_encoding()
