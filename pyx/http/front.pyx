"""Receiving half of an HTTP connection: waits, reads, and offers each read to the connection's short path.

A short path is a compiled object that answers requests of a few fixed forms directly from the received bytes, before
the parser sees them. It runs in the loop's callback: a switch to the connection's greenlet would cost more than the
answer. All answers to one read leave in one send. The rest of the read (another request, or a part of one) goes to the
greenlet, the parser and the routes.

All connections read into one buffer and answer from one scratch.

Invariants:

1. No pointer into the shared buffers lives over a switch. The one exception is the rest that the callback hands to the
   greenlet: nothing runs between the two.
2. The watcher is active only while the greenlet waits in `next_bytes`. Elsewhere the greenlet waits for other events,
   and the watcher must not wake it.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING
from libc.errno cimport errno

from pyqd.hot.net.sockets cimport READ_EVENT, RECEIVE_BROKEN, receive_some, send_some
from pyqd.hot.primitives.clock cimport NS_PER_S, mono_ns

import os

from greenlet import getcurrent

cdef enum:
    READ_BYTES = 64 << 10
    ANSWERS_BYTES = 64 << 10

cdef bytearray read_object = bytearray(READ_BYTES)
cdef char* read_buffer = PyByteArray_AS_STRING(read_object)
cdef object read_view = memoryview(read_object)
cdef bytearray answers_object = bytearray(ANSWERS_BYTES)
cdef char* answers_buffer = PyByteArray_AS_STRING(answers_object)


cdef class ShortPath:
    """Interface of a connection's short path; this base class answers nothing."""

    cdef uint64_t answer(self, const char* at, uint64_t size_bytes, Answers* answers) except? 0xFFFFFFFFFFFFFFFF:
        """Append the answers to the requests at `at`, as long as both bytes and space last. Must not switch.

        Returns: the bytes of the answered requests, which are whole and at the start.
        """
        return 0


cdef class HttpFront:
    """The receiving half of one connection.

    fd: a nonblocking socket. short_path: of this connection alone; None if every request goes to the routes.
    """

    def __init__(self, int fd, hub, ShortPath short_path=None):
        self.fd = fd
        self.hub = hub
        self.short_path = short_path
        self.watcher = hub.loop.io(fd, READ_EVENT)

    def next_bytes(self, bint between_requests):
        """Return the received bytes that are not answered yet: a view, valid until the next switch; empty at the end.

        None: everything was answered, but the socket was full; the rest of the answers is in `unsent`.
        between_requests: no request is half read and no answer waits. Raises: OSError. Switches: yes, before it reads,
        so that each connection gets its turn.
        """
        self.greenlet = getcurrent()
        self.short_path_open = between_requests and self.short_path is not None
        self.arrived = False
        self.watcher.start(self.on_readable)
        try:
            while not self.arrived:
                self.hub.switch()
        finally:
            self.watcher.stop()
            self.greenlet = None
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        if self.rest_at == self.rest_end and self.unsent is not None:
            return None
        return read_view[self.rest_at:self.rest_end]

    def on_readable(self):
        """Read, answer by the short path, and wake the greenlet if anything remains. Runs in the loop's callback."""
        try:
            self.arrived = self.take()
        except BaseException as error:
            self.error = error
            self.arrived = True
        if self.arrived:
            self.greenlet.switch()

    cdef bint take(self) except -1:
        """Read, and answer by the short path. Returns: whether the greenlet has work."""
        cdef int64_t count = self.read()
        cdef uint64_t used = 0
        if count < 0:
            return False
        if self.short_path_open:
            used = self.answer_short(read_buffer, <uint64_t> count)
        self.rest_at = used
        self.rest_end = <uint64_t> count
        return count == 0 or used < <uint64_t> count or self.unsent is not None

    def close_short_path(self):
        """Send all further requests to the routes. A shut socket still yields the bytes that the kernel holds."""
        self.short_path = None
        self.short_path_open = False

    def close_front(self):
        """Release the watcher and the short path."""
        self.watcher.close()
        self.close_short_path()

    cdef int64_t read(self) except -2:
        """Read into the shared buffer. Returns: bytes; 0 at the end; RECEIVE_NONE. Raises: OSError."""
        cdef ssize_t count = receive_some(self.fd, read_buffer, READ_BYTES)
        if count == RECEIVE_BROKEN:
            raise OSError(errno, os.strerror(errno))
        return count

    cdef uint64_t answer_short(self, const char* at, uint64_t size_bytes) except? 0xFFFFFFFFFFFFFFFF:
        """Offer bytes to the short path and send its answers. Returns: the bytes that it answered."""
        cdef Answers answers = Answers(at=answers_buffer, size_bytes=ANSWERS_BYTES, used_bytes=0)
        cdef uint64_t used = self.short_path.answer(at, size_bytes, &answers)
        assert used <= size_bytes and answers.used_bytes <= ANSWERS_BYTES
        if answers.used_bytes != 0:
            self.deadline_s = mono_ns() / <double> NS_PER_S + self.idle_s
            self.send_answers(answers_buffer, answers.used_bytes)
        return used

    cdef int send_answers(self, const char* at, uint64_t size_bytes) except -1:
        """Send answers; `unsent` keeps the bytes that the socket does not take."""
        cdef ssize_t sent = send_some(self.fd, at, size_bytes)
        if sent < 0:
            raise OSError(errno, os.strerror(errno))
        if <uint64_t> sent < size_bytes:
            self.unsent = at[sent:size_bytes]
        return 0
