"""What a connection sends.

Frames of one turn are built in a scratch buffer that all connections share, as the loop runs one turn at a time, and
leave in one send. Only what the socket does not take is copied to a buffer of the connection's own, and given back
once it is gone. So an idle connection holds no buffer, and a busy loop writes to memory that is in the cache.

Invariants: 1. between turns a connection that owns no buffer has nothing to send (`start == end`).
2. `end <= capacity`. No pointer into the scratch is kept over a greenlet switch.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove

from pyqd.hot.frames cimport FRAME_HEADER_BYTES, put_frame

cdef extern from "<sys/socket.h>" nogil:
    ssize_t send(int fd, const void* data, size_t size_bytes, int flags)
    enum:
        MSG_DONTWAIT
        MSG_NOSIGNAL

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
            sent = self.send_some(self.base + self.start, self.end - self.start)
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
        return 1

    cdef ssize_t send_some(self, const char* data, uint64_t size_bytes) except -2:
        """Send some bytes. Returns: how many; 0 when the socket is full; -1 when the peer is gone. Source: send(2)."""
        cdef ssize_t sent
        while True:
            sent = send(self.fd, data, size_bytes, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent >= 0 or errno != EINTR:
                break
        if sent < 0:
            return 0 if errno == EAGAIN else -1
        return sent

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
        self.start = 0
        self.end = queued
        return 0

    cdef int drop_queued(self) except -1:
        """Forget what is queued."""
        self.start = self.end
        self.release()
        return 0

    cdef int release(self) except -1:
        if self.owned:
            free(self.base)
            self.owned = False
            self.base = scratch
            self.capacity = SCRATCH_BYTES
        self.start = 0
        self.end = 0
        return 0
