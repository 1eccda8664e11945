# Encryption or compression of a connection's two byte streams. Design notes: pyx/net/codec.pyx.
from libc.stdint cimport uint64_t

cdef class Codec:
    cdef bint more                       # decode stopped because the caller's buffer was full
    cdef bint ended                      # the peer has ended its stream
    cdef uint64_t state_bytes            # memory of the codec, with the bytes that it has not decoded

    # Encode some of the bytes, one at least. Returns: the result. used: becomes the number of encoded bytes. Raises:
    # TransportError.
    cdef bytes encode(self, const char* data, uint64_t size_bytes, uint64_t* used)
    # Return the bytes that the peer needs to decode everything encoded so far.
    cdef bytes finish_encoding(self)
    # Take bytes to decode; the caller reuses their memory after the call. Raises: TransportError.
    cdef int take(self, const char* data, uint64_t size_bytes) except -1
    # Decode as much as fits. Returns: how many bytes. Sets `more` and `ended`. Raises: TransportError.
    cdef ssize_t decode(self, char* into, uint64_t capacity) except -1
    # Return the bytes that end this side of the stream.
    cdef bytes end(self)
