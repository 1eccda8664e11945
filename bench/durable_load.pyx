"""Requests on connected sockets for a given time, one epoll loop in C: for brokers of any protocol with short answers.

The requests are built before the load and sent in a cycle. So the loop knows only the form of the protocol's answers:
NSQ's frames, or lines with given beginnings. Answers are assumed to come in the order of the requests.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from pyqd.hot.tools.histogram cimport Histogram, histogram_add, summarize
from pyqd.hot.tools.load_sockets cimport (
    EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLLET, EPOLLIN, EPOLLOUT, MSG_DONTWAIT, MSG_NOSIGNAL, close, epoll_create1,
    epoll_event, epoll_wait_ns, monotonic_ns, recv, send, ssize_t, watch,
)

from pyqd.hot.tools.loadgen import LoadError
from pyqd.tools.bench.outcome import DurableReport

cdef enum:
    INPUT_BYTES = 65536
    EVENT_COUNT = 256
    PREFIX_COUNT_MAX = 2
    PREFIX_BYTES_MAX = 15
    FRAME_HEADER_BYTES = 8
    ERROR_FRAME = 1
    HEARTBEAT_BYTES = 15           # size word of a frame with "_heartbeat_"

cdef int64_t SLICE_NS = 10_000_000
cdef int64_t DRAIN_NS = 20_000_000_000


cdef struct Asker:
    int fd
    uint32_t request_count         # requests in the buffer: one turn, and `outstanding` of the next
    uint32_t turn_count            # requests of one turn
    const char* output
    uint32_t* ends                 # end of each request in the buffer
    uint32_t next_request          # index within the turn of the next request to queue
    uint32_t queued_begin          # bytes of output that are queued and not sent
    uint32_t queued_end
    uint32_t outstanding           # requests queued and not answered
    uint32_t answers_of_request    # answers that have come of the oldest of them
    int64_t* begun_ns              # ring of the times at which they were queued
    uint32_t begun_first
    uint32_t place                 # bytes seen of the current line or frame
    uint32_t line                  # index of the line within the answer
    uint32_t frame_bytes
    bint skipped                   # the current line is not an answer


# Its methods run without the interpreter's lock, which the debug build's check of `self` would need.
@cython.nonecheck(False)
cdef class DurableLoad:
    """One load over `fds`, which stay the caller's. It runs once.

    requests: for each fd the requests that it sends in a cycle. outstanding: open requests of a
    connection. answers: number of answers to a request. lines: the beginning of each line of one answer, 1 or 2 of at
    most 15 bytes; (): an answer is a frame of NSQ's.
    """

    cdef list kept
    cdef Asker* askers
    cdef uint32_t asker_count
    cdef uint32_t outstanding_max
    cdef uint32_t answers
    cdef char[PREFIX_COUNT_MAX][PREFIX_BYTES_MAX + 1] prefixes
    cdef uint32_t line_count
    cdef int epoll_fd
    cdef Histogram histogram
    cdef uint64_t answered
    cdef bint closing
    cdef char[INPUT_BYTES] input
    cdef uint32_t input_bytes

    def __cinit__(self, fds, requests, *, uint32_t outstanding, uint32_t answers=1, tuple lines=()):
        cdef uint32_t index
        self.epoll_fd = -1
        if len(fds) != len(requests) or not fds or outstanding < 1 or answers < 1 or len(lines) > PREFIX_COUNT_MAX:
            raise ValueError("a load needs fds, requests for each, and at least one answer of one outstanding request")
        self.kept = []
        self.outstanding_max = outstanding
        self.answers = answers
        self.line_count = len(lines)
        for index in range(self.line_count):
            if len(lines[index]) > PREFIX_BYTES_MAX:
                raise ValueError(f"the beginning of a line has at most {PREFIX_BYTES_MAX} bytes: {lines[index]!r}")
            # The bytes behind it are 0, as all of a new object.
            memcpy(self.prefixes[index], <const char*><bytes>lines[index], len(lines[index]))
        self.askers = <Asker*>calloc(len(fds), sizeof(Asker))
        self.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        if self.askers == NULL or self.epoll_fd < 0:
            raise MemoryError
        for fd, turn in zip(fds, requests, strict=True):
            self.add(fd, turn)

    def __dealloc__(self):
        cdef uint32_t index
        for index in range(self.asker_count):
            free(self.askers[index].ends)
            free(self.askers[index].begun_ns)
        free(self.askers)
        if self.epoll_fd >= 0:
            close(self.epoll_fd)

    cdef int add(self, int fd, turn) except -1:
        """Add a connection. Its buffer repeats the cycle until any `outstanding` requests are contiguous."""
        cdef Asker* asker = &self.askers[self.asker_count]
        cdef uint32_t index, end = 0
        cdef uint32_t count = len(turn) + self.outstanding_max
        cdef bytes output = b"".join([turn[index % len(turn)] for index in range(count)])
        self.kept.append(output)
        asker.fd = fd
        asker.output = output
        asker.turn_count = len(turn)
        asker.request_count = count
        asker.ends = <uint32_t*>calloc(count, sizeof(uint32_t))
        asker.begun_ns = <int64_t*>calloc(self.outstanding_max, sizeof(int64_t))
        self.asker_count += 1
        if asker.ends == NULL or asker.begun_ns == NULL:
            raise MemoryError
        for index in range(count):
            end += <uint32_t>len(turn[index % len(turn)])
            asker.ends[index] = end
        if watch(self.epoll_fd, EPOLL_CTL_ADD, fd, self.asker_count - 1, EPOLLIN | EPOLLOUT | EPOLLET) < 0:
            raise OSError(errno, "epoll_ctl")
        return 0

    cdef int ask(self, Asker* asker) noexcept nogil:
        """Queue as many requests as may be outstanding, and send. Returns: -1 when the connection is broken."""
        cdef uint32_t count, index
        cdef ssize_t sent
        cdef int64_t now_ns
        while True:
            if asker.queued_begin == asker.queued_end:
                count = 0 if self.closing else self.outstanding_max - asker.outstanding
                if count == 0:
                    return 0
                now_ns = monotonic_ns()
                for index in range(count):
                    asker.begun_ns[(asker.begun_first + asker.outstanding + index) % self.outstanding_max] = now_ns
                asker.queued_begin = asker.ends[asker.next_request - 1] if asker.next_request else 0
                asker.queued_end = asker.ends[asker.next_request + count - 1]
                asker.next_request = (asker.next_request + count) % asker.turn_count
                asker.outstanding += count
            sent = send(
                asker.fd, asker.output + asker.queued_begin, asker.queued_end - asker.queued_begin,
                MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent < 0:
                return 0 if errno in (EAGAIN, EINTR) else -1
            asker.queued_begin += <uint32_t>sent

    cdef int take(self, Asker* asker, int64_t now_ns) noexcept nogil:
        """Count one answer. Returns: -1 when nothing was asked."""
        if asker.outstanding == 0:
            return -1
        self.answered += 1
        asker.answers_of_request += 1
        if asker.answers_of_request == self.answers:
            asker.answers_of_request = 0
            histogram_add(&self.histogram, now_ns - asker.begun_ns[asker.begun_first])
            asker.begun_first = (asker.begun_first + 1) % self.outstanding_max
            asker.outstanding -= 1
        return 0

    cdef int scan_frames(self, Asker* asker, int64_t now_ns) noexcept nogil:
        """Count the frames that have come whole. Returns: -1 for an error frame, or an answer to nothing."""
        cdef uint32_t index
        for index in range(self.input_bytes):
            if asker.place < 4:
                asker.frame_bytes = (asker.frame_bytes << 8) | <unsigned char>self.input[index]
            elif asker.place == FRAME_HEADER_BYTES - 1 and self.input[index] == ERROR_FRAME:
                return -1
            asker.place += 1
            if asker.place >= FRAME_HEADER_BYTES and asker.place == asker.frame_bytes + 4:
                if asker.frame_bytes != HEARTBEAT_BYTES and self.take(asker, now_ns) < 0:
                    return -1
                asker.place = asker.frame_bytes = 0
        return 0

    cdef int scan_lines(self, Asker* asker, int64_t now_ns) noexcept nogil:
        """Count the complete lines; a PING of NATS does not count. Returns: -1 for a line with another beginning."""
        cdef uint32_t index
        cdef char byte, wanted
        for index in range(self.input_bytes):
            byte = self.input[index]
            if asker.place == 0 and asker.line == 0:
                asker.skipped = byte == b"P"
            wanted = self.prefixes[asker.line][asker.place] if asker.place < PREFIX_BYTES_MAX else <char>0
            if wanted == 0:
                # The rest of the line is free.
                asker.place = PREFIX_BYTES_MAX
            elif byte != wanted and not asker.skipped:
                return -1
            else:
                asker.place += 1
            if byte != b"\n":
                continue
            asker.place = 0
            asker.line = 0 if asker.skipped else (asker.line + 1) % self.line_count
            if asker.line == 0 and not asker.skipped and self.take(asker, now_ns) < 0:
                return -1
        return 0

    cdef int hear(self, Asker* asker) noexcept nogil:
        """Read all that has come. Returns: -1 when the connection is broken, -2 for a wrong answer."""
        cdef ssize_t size
        cdef int state
        cdef int64_t now_ns
        while True:
            size = recv(asker.fd, self.input, INPUT_BYTES, MSG_DONTWAIT)
            if size < 0:
                return 0 if errno in (EAGAIN, EINTR) else -1
            if size == 0:
                return -1
            self.input_bytes = <uint32_t>size
            now_ns = monotonic_ns()
            state = self.scan_lines(asker, now_ns) if self.line_count else self.scan_frames(asker, now_ns)
            if state < 0:
                return -2
            if size < INPUT_BYTES:
                return 0

    cdef int run_slice(self, int64_t end_ns, bint spin, int64_t* worked_ns) noexcept nogil:
        """Serve events until end_ns. Returns: the result of `hear`."""
        cdef epoll_event[EVENT_COUNT] events
        cdef int count, index, state
        cdef int64_t now_ns, begun_ns = monotonic_ns()
        while begun_ns < end_ns:
            count = epoll_wait_ns(self.epoll_fd, events, EVENT_COUNT, 0 if spin else end_ns - begun_ns)
            now_ns = monotonic_ns() if count > 0 else 0
            for index in range(count):
                state = self.hear(&self.askers[events[index].data.u32])
                if state == 0:
                    state = self.ask(&self.askers[events[index].data.u32])
                if state < 0:
                    return state
            begun_ns = monotonic_ns()
            if count > 0:
                worked_ns[0] += begun_ns - now_ns
        return 0

    cdef int run_until(self, int64_t end_ns, bint spin, int64_t* worked_ns) except -1:
        cdef int state
        while monotonic_ns() < end_ns and not (self.closing and self.idle()):
            with nogil:
                state = self.run_slice(min(end_ns, monotonic_ns() + SLICE_NS), spin, worked_ns)
            PyErr_CheckSignals()
            if state == -1:
                raise LoadError("the server closed a connection")
            if state < 0:
                raise LoadError(f"an answer that is no OK: {self.input[:min(self.input_bytes, 200)]!r}")
        return 0

    cdef bint idle(self):
        cdef uint32_t index
        for index in range(self.asker_count):
            if self.askers[index].outstanding:
                return False
        return True

    def run(self, *, double seconds, double warm_s=0.0, bint spin=False):
        """Load for warm_s, then for the measured `seconds`, and wait for the rest of the answers.

        spin: poll instead of sleeping. Returns: DurableReport. Raises: LoadError for any answer other than OK.
        """
        cdef int64_t worked_ns = 0
        cdef int64_t begun_ns, end_ns
        cdef uint64_t before
        self.run_until(monotonic_ns() + <int64_t>(warm_s * 1e9), spin, &worked_ns)
        memset(&self.histogram, 0, sizeof(Histogram))
        worked_ns = 0
        before = self.answered
        begun_ns = monotonic_ns()
        self.run_until(begun_ns + <int64_t>(seconds * 1e9), spin, &worked_ns)
        end_ns = monotonic_ns()
        measured = self.answered - before
        latency = summarize(&self.histogram)
        worked = worked_ns / <double>(end_ns - begun_ns)
        self.closing = True
        self.run_until(end_ns + DRAIN_NS, False, &worked_ns)
        if not self.idle():
            raise LoadError("answers were missing long after the load had ended")
        return DurableReport(
            measured=measured, seconds=(end_ns - begun_ns) / 1e9, latency=latency, answered=self.answered, busy=worked,
        )
