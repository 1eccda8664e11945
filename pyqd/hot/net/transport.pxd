# Layer between a connection's buffers and its socket that encrypts or compresses. Notes: pyx/net/transport.pyx.
cimport cython
from libc.stdint cimport uint64_t


cdef class StreamCodec:
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

@cython.final
cdef class CodecTransport:
    cdef int fd
    cdef StreamCodec codec
    cdef CodecTransport below                 # None: the socket
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
