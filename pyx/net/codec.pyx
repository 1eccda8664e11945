"""Codec: encryption or compression of a connection's two byte streams.

A codec transforms bytes and holds no others than it needs for that. It knows nothing of full sockets, of bytes to be
sent again, or of greenlets: pyx/net/transport.pyx.
"""


cdef class Codec:
    """Interface of Tls, Snappy and Deflate."""

    cdef bytes encode(self, const char* data, uint64_t size_bytes, uint64_t* used):
        raise AssertionError("an interface encodes nothing")

    cdef bytes finish_encoding(self):
        return b""

    cdef int take(self, const char* data, uint64_t size_bytes) except -1:
        raise AssertionError("an interface decodes nothing")

    cdef ssize_t decode(self, char* into, uint64_t capacity) except -1:
        raise AssertionError("an interface decodes nothing")

    cdef bytes end(self):
        return self.finish_encoding()
