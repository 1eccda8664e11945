"""What a connection sends.

Frames of one turn are built in a scratch buffer that all connections share, as the loop runs one turn at a time, and
leave in one send; a large body leaves from where it lies in the log. Only what the socket does not take is copied to a
buffer of the connection's own, and given back once it is gone. So an idle connection holds no buffer, and a busy loop
writes to memory that is in the cache.

Invariants: 1. between turns a connection that owns no buffer has nothing to send (`start == end`).
2. `end <= capacity`. No pointer into the scratch is kept over a greenlet switch.
"""

from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove

from pyqd.hot.net.buffers cimport buffer_freed, buffer_grown
from pyqd.hot.net.sockets cimport send_some, send_two
from pyqd.hot.wire.frames cimport FRAME_HEADER_BYTES, put_frame

from pyqd.hot.net.transport import TransportError

cdef uint64_t SCRATCH_BYTES = 256 << 10
cdef char* scratch = <char*> malloc(SCRATCH_BYTES)
if scratch == NULL:
    raise MemoryError

cdef char* OK_FRAME = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
cdef enum:
    OK_FRAME_BYTES = 10


cdef class Outbox(Consumer):
    """The sending half of a connection."""

    def __cinit__(self, *args, **kwargs):
        self.base = scratch
        self.capacity = SCRATCH_BYTES
        self.fd = -1

    def __dealloc__(self):
        if self.owned:
            free(self.base)
            buffer_freed(self.capacity)

    cdef char* room(self, uint64_t size_bytes) except NULL:
        """Return where `size_bytes` more can be written; the caller then adds them to `end`. Raises: MemoryError."""
        if self.capacity - self.end < size_bytes:
            if not self.owned and not self.withholding:
                self.flush()
            if self.capacity - self.end < size_bytes:
                self.keep(self.end - self.start + size_bytes)
        return self.base + self.end

    cdef int put(self, FrameType frame_type, const char* data, uint32_t size_bytes) except -1:
        """Queue a frame."""
        put_frame(self.room(FRAME_HEADER_BYTES + size_bytes), frame_type, data, size_bytes)
        self.end += FRAME_HEADER_BYTES + size_bytes
        return 0

    cdef int put_ok(self) except -1:
        """Queue the answer OK."""
        memcpy(self.room(OK_FRAME_BYTES), OK_FRAME, OK_FRAME_BYTES)
        self.end += OK_FRAME_BYTES
        return 0

    cdef int flush(self) except -1:
        """Send what is queued. Returns: 1 when nothing is left, 0 when the socket takes no more for now."""
        cdef ssize_t sent
        assert not self.withholding
        while self.start < self.end:
            if self.broken:
                break
            if self.transport is None:
                sent = send_some(self.fd, self.base + self.start, self.end - self.start)
            else:
                sent = self.send_through(self.base + self.start, self.end - self.start)
            if sent > 0:
                self.start += <uint64_t> sent
                self.sent_bytes += <uint64_t> sent
            elif sent == 0:
                if not self.owned:
                    self.keep(self.end - self.start)
                return 0
            else:
                self.broken = True
        self.release()
        return 1 if self.transport is None or self.broken else self.flush_transport()

    cdef int send_in_place(self, const char* data, uint64_t size_bytes) except -1:
        """Send what is queued and the data behind it without copying them; keep what the socket does not take."""
        cdef uint64_t queued = self.end - self.start
        cdef uint64_t rest
        cdef ssize_t sent
        assert self.transport is None and not self.withholding and not self.owned
        sent = send_two(self.fd, self.base + self.start, queued, data, size_bytes)
        if sent < 0:
            self.broken = True
            return self.release()
        self.sent_bytes += <uint64_t> sent
        if <uint64_t> sent == queued + size_bytes:
            return self.release()
        rest = size_bytes if <uint64_t> sent < queued else queued + size_bytes - <uint64_t> sent
        self.start += min(<uint64_t> sent, queued)
        self.keep(self.end - self.start + rest)
        memcpy(self.base + self.end, data + (size_bytes - rest), rest)
        self.end += rest
        return 0

    cdef ssize_t send_through(self, const char* data, uint64_t size_bytes) except -2:
        """Give the transport some bytes to send. Returns: how many; 0 when the socket is full; -1 when it is over."""
        try:
            return self.transport.send(data, size_bytes)
        except TransportError:
            return -1

    cdef int flush_transport(self) except -1:
        """Send what the transport still has. Returns: as flush."""
        cdef int flushed
        try:
            flushed = self.transport.flush()
        except TransportError:
            flushed = -1
        if flushed < 0:
            self.broken = True
        return flushed != 0

    cdef int keep(self, uint64_t capacity) except -1:
        """Move what is queued to an own buffer of at least that capacity."""
        cdef uint64_t queued = self.end - self.start
        cdef char* grown
        capacity = max(capacity, <uint64_t> 4096)
        if self.owned:
            memmove(self.base, self.base + self.start, queued)
            if capacity > self.capacity:
                capacity = max(capacity, 2 * self.capacity)
                grown = <char*> realloc(self.base, capacity)
                if grown == NULL:
                    raise MemoryError
                buffer_grown(capacity - self.capacity)
                self.base = grown
                self.capacity = capacity
        else:
            grown = <char*> malloc(capacity)
            if grown == NULL:
                raise MemoryError
            memcpy(grown, self.base + self.start, queued)
            self.base = grown
            self.capacity = capacity
            self.owned = True
            buffer_grown(capacity)
        self.start = 0
        self.end = queued
        return 0

    cdef int begin_withholding(self) except -1:
        """Let nothing leave from now on."""
        if not self.withholding:
            self.withholding = True
            self.true_bytes = self.end - self.start
        return 0

    cdef int drop_withheld(self) except -1:
        """End withholding, and drop what was queued meanwhile. The rest of a frame that is half sent stays."""
        assert self.withholding and self.true_bytes <= self.end - self.start
        self.withholding = False
        self.end = self.start + self.true_bytes
        return 0

    cdef int drop_queued(self) except -1:
        """Forget what is queued."""
        self.start = self.end
        self.release()
        return 0

    cdef int release(self) except -1:
        if self.owned:
            free(self.base)
            buffer_freed(self.capacity)
            self.owned = False
            self.base = scratch
            self.capacity = SCRATCH_BYTES
        self.start = 0
        self.end = 0
        return 0
