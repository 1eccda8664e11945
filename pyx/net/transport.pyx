"""CodecTransport: layer between a connection's buffers and its socket that encrypts or compresses.

A plain connection has none and uses its socket directly. An upgraded one has one CodecTransport, or two stacked:

    ClientOutput, IoLoop  ->  CodecTransport of Snappy or Deflate  ->  CodecTransport of Tls  ->  socket

A CodecTransport holds the buffers and handles full sockets. Its codec is a pure transformation of two byte streams.

Sending: `send` accepts bytes while less than WAITING_BYTES of encoded bytes wait. `flush` completes the encoding so
far, so that the peer can decode all of it, and passes it down. Both return 0 if the socket is full; the caller repeats
the call when the socket is writable. The waiting bytes of one transport are bounded by WAITING_BYTES and one chunk.

Receiving: `receive` reads from below once and decodes no more than fits the caller's buffer. A few bytes that expand to
gigabytes cost a pass each 192 KiB, not memory. The next call decodes the rest, for which the socket does not become
readable: `has_more` returns whether that is so.

Memory: waiting bytes and the codec's state are part of `buffers`, so that --max-buffer-bytes bounds them. The size of a
codec's state is measured, because no library reports it.

Rejected: OpenSSL on the socket itself. It wants the same bytes again after each partial write, sends a record per call,
and reads a record in two; with its memory buffers a pass is one call and one send.
"""

from libc.stdlib cimport malloc
from libc.string cimport memcpy

from pyqd.hot.net.buffers cimport buffer_freed, buffer_grown
from pyqd.hot.net.sockets cimport RECEIVE_NONE, receive_some, send_some

cdef enum:
    SCRATCH_BYTES = 64 << 10
    CHUNK_BYTES = 128 << 10
    WAITING_BYTES = 64 << 10

# Buffers of a transport on the socket, and of a transport on a transport: both are empty between two calls.
cdef char* lower_scratch = <char*> malloc(SCRATCH_BYTES)
cdef char* upper_scratch = <char*> malloc(SCRATCH_BYTES)
if lower_scratch == NULL or upper_scratch == NULL:
    raise MemoryError


class TransportError(Exception):
    """The peer's bytes cannot be decoded; the connection cannot go on. str() of it is the reason."""


cdef class StreamCodec:
    """Encryption or compression of a connection's two byte streams: the interface of Tls, Snappy and Deflate."""

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


cdef class CodecTransport:
    """One layer. fd: of the socket, whose owner closes it. codec: of this layer alone.

    early: bytes received before this layer was installed.
    """

    def __init__(self, int fd, StreamCodec codec not None, *, CodecTransport below=None, bytes early=b""):
        self.fd = fd
        self.codec = codec
        self.below = below
        self.early = early
        self.encoded = b""
        self.scratch = lower_scratch if below is None else upper_scratch

    def __dealloc__(self):
        buffer_freed(self.counted_bytes)

    cdef int count_bytes(self) except -1:
        """Update the count of held memory in `buffers`. Called at the end of a call from above: once per pass."""
        cdef uint64_t before = self.counted_bytes
        self.counted_bytes = self.codec.state_bytes + <uint64_t> len(self.encoded) + <uint64_t> len(self.early)
        if self.counted_bytes > before:
            buffer_grown(self.counted_bytes - before)
        else:
            buffer_freed(before - self.counted_bytes)
        return 0

    cdef uint64_t held_bytes(self) noexcept:
        """Return the memory of this transport and those below it."""
        return self.counted_bytes + (0 if self.below is None else self.below.held_bytes())

    cdef ssize_t receive(self, char* into, uint64_t capacity) except -3:
        """Receive some bytes. Returns: how many; 0 at the end; RECEIVE_NONE; RECEIVE_BROKEN. Raises: TransportError."""
        cdef ssize_t decoded = 0
        cdef ssize_t received
        if self.codec.more:
            self.codec.more = False
            decoded = self.codec.decode(into, capacity)
        if decoded == 0 and not self.codec.ended:
            received = self.receive_below(self.scratch, SCRATCH_BYTES)
            if received < 0:
                return received
            if received == 0:
                self.codec.ended = True
            else:
                self.codec.take(self.scratch, <uint64_t> received)
                decoded = self.codec.decode(into, capacity)
        self.count_bytes()
        if decoded == 0 and not self.codec.ended:
            return RECEIVE_NONE
        return decoded

    cdef ssize_t receive_below(self, char* into, uint64_t capacity) except -3:
        cdef uint64_t size_bytes
        if self.early:
            size_bytes = min(capacity, <uint64_t> len(self.early))
            memcpy(into, <const char*> self.early, size_bytes)
            self.early = self.early[size_bytes:]
            return <ssize_t> size_bytes
        if self.below is not None:
            return self.below.receive(into, capacity)
        return receive_some(self.fd, into, capacity)

    cdef bint has_more(self) noexcept:
        """Return whether bytes, or the end, may be ready without the socket becoming readable."""
        if self.codec.more or self.codec.ended or self.early:
            return True
        return self.below is not None and self.below.has_more()

    cdef ssize_t send(self, const char* data, uint64_t size_bytes) except -2:
        """Accept some bytes for sending. Returns: how many; 0 if the socket is full; -1 if the peer is gone."""
        cdef int pushed
        cdef uint64_t used = 0
        if <uint64_t> len(self.encoded) - self.encoded_at >= WAITING_BYTES:
            pushed = self.push()
            if pushed != 1:
                return pushed
        self.put_encoded(self.codec.encode(data, min(size_bytes, <uint64_t> CHUNK_BYTES), &used))
        self.count_bytes()
        assert 0 < used <= size_bytes
        return <ssize_t> used

    cdef int flush(self) except -2:
        """Send all accepted bytes. Returns: 1; 0 if the socket is full; -1 if the peer is gone."""
        cdef int pushed
        self.put_encoded(self.codec.finish_encoding())
        pushed = self.push()
        self.count_bytes()
        if pushed == 1 and self.below is not None:
            return self.below.flush()
        return pushed

    cdef int push(self) except -2:
        """Pass the encoded bytes down. Returns: as flush."""
        cdef const char* data = self.encoded
        cdef uint64_t size_bytes = <uint64_t> len(self.encoded)
        cdef ssize_t sent
        while self.encoded_at < size_bytes:
            if self.below is not None:
                sent = self.below.send(data + self.encoded_at, size_bytes - self.encoded_at)
            else:
                sent = send_some(self.fd, data + self.encoded_at, size_bytes - self.encoded_at)
            if sent <= 0:
                return <int> sent
            self.encoded_at += <uint64_t> sent
        self.encoded = b""
        self.encoded_at = 0
        return 1

    cdef int put_encoded(self, bytes piece) except -1:
        if self.encoded_at == <uint64_t> len(self.encoded):
            self.encoded = piece
        elif piece:
            self.encoded = self.encoded[self.encoded_at:] + piece
        else:
            return 0
        self.encoded_at = 0
        return 0

    def finish(self):
        """End this side of the stream, as far as the socket takes it now. Switches: no."""
        self.put_encoded(self.codec.end())
        self.flush()

    def release(self):
        """Remove this transport's memory from the count: its connection is over."""
        buffer_freed(self.counted_bytes)
        self.counted_bytes = 0
        if self.below is not None:
            self.below.release()
