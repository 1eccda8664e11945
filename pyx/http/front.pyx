"""Front of an HTTP connection: waits, reads, and answers plain publishes before the parser sees them.

All connections read into one shared buffer. While no request is half read, the front answers the plain publishes at the
buffer's start (pyx/http/scan.pyx) in C code alone: record into the log, answer into a scratch buffer, one send for all
of them. This happens in the callback of the loop, without a switch to the connection's greenlet, which would cost more
than the rest. Remaining bytes, the rest of a publish or another request, go to the greenlet, the parser and the routes:
the slow path.

The fast path is open for a topic if `find_topic` returns the topic; then only the message decides whether it is
accepted. A message that could not be stored takes the slow path, which tries again and reports the error.

Invariants: 1. No pointer into the shared buffers survives a switch, except the pointer with which the callback passes
on the bytes read: nothing runs in between. 2. The watcher is active only while the greenlet waits in `next_bytes`.
Elsewhere the greenlet waits for other events, and the watcher must not wake it.

Source: docs/nsq/http-api.md, "POST /pub" and "POST /mpub".
"""

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING
from libc.errno cimport EAGAIN, EINTR, errno
from libc.string cimport memcmp, memcpy, memset

from pyqd.hot.http.scan cimport PLAIN_BINARY, PLAIN_PUB, scan_plain_publish
from pyqd.hot.net.sockets cimport READ_EVENT
from pyqd.hot.primitives.clock cimport mono_ns, wall_ns
from pyqd.hot.primitives.guid cimport HEX_SIZE, id_stepped, id_to_hex
from pyqd.hot.wire.bodies cimport Frames, lines_framed
from pyqd.hot.wire.scanner cimport SCAN_READY, Batch, scan_batch

import os
from email.utils import formatdate

from greenlet import getcurrent

from pyqd.primitives.errors import StorageError

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int fd, void* data, size_t size_bytes, int flags)
    ssize_t send(int fd, const void* data, size_t size_bytes, int flags)
    enum:
        MSG_DONTWAIT
        MSG_NOSIGNAL

cdef enum:
    READ_BYTES = 64 << 10
    ANSWERS_BYTES = 64 << 10
    ANSWER_BYTES_MAX = 512
    SIZE_BYTES = 4
    COUNT_DIGITS_MAX = 20
    NOT_STORED = -1
    NS_PER_S = 1000000000

cdef bytearray read_object = bytearray(READ_BYTES)
cdef char* read_buffer = PyByteArray_AS_STRING(read_object)
cdef object read_view = memoryview(read_object)
cdef bytearray answers_object = bytearray(ANSWERS_BYTES)
cdef char* answers = PyByteArray_AS_STRING(answers_object)

# An answer consists of its head, an id, for an /mpub COUNT and the number, and its tail.
cdef bytes HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nX-Nsq-Content-Type: nsq; version=1.0\r\n"
    b"X-NSQ-Message-Id: "
)
cdef bytes COUNT = b"\r\nX-NSQ-Message-Count: "
cdef bytes tail = b""
cdef int64_t tail_second = -1


cdef int renew_tail(int64_t second) except -1:
    """Format the tail with the Date header of this second."""
    global tail, tail_second
    tail = b"\r\nDate: %s\r\nContent-Length: 2\r\n\r\nOK" % formatdate(second, usegmt=True).encode()
    assert len(HEAD) + HEX_SIZE + len(COUNT) + COUNT_DIGITS_MAX + len(tail) <= ANSWER_BYTES_MAX
    tail_second = second
    return 0


cdef char* put(char* at, bytes text) noexcept:
    memcpy(at, PyBytes_AS_STRING(text), len(text))
    return at + len(text)


cdef char* put_number(char* at, int64_t number) noexcept:
    cdef char[COUNT_DIGITS_MAX] digits
    cdef int first = COUNT_DIGITS_MAX
    while True:
        first -= 1
        digits[first] = <char> (c"0" + number % 10)
        number //= 10
        if number == 0:
            break
    memcpy(at, &digits[first], COUNT_DIGITS_MAX - first)
    return at + (COUNT_DIGITS_MAX - first)


cdef char* put_answer(char* at, uint64_t last_id, int64_t count) noexcept:
    """Write the answer OK with the id of the first message. count: of an /mpub; 0 for a /pub. Returns: the answer's
    end.
    """
    at = put(at, HEAD)
    id_to_hex(last_id if count == 0 else id_stepped(last_id, 1 - count), at)
    at += HEX_SIZE
    if count != 0:
        at = put_number(put(at, COUNT), count)
    return put(at, tail)


cdef class PlainPublisher:
    """Settings of the fast path, shared by the connections of a server.

    msg_bytes_max: of one message; body_bytes_max, batch_count_max: of an /mpub. find_topic: takes a valid name as bytes
    and returns the topic, or None if a publish must take the slow path. enabled: may be turned off at any time.
    """

    def __init__(self, int64_t msg_bytes_max, int64_t body_bytes_max, int64_t batch_count_max, find_topic):
        self.enabled = True
        self.limits.msg_bytes_max = msg_bytes_max
        self.limits.body_bytes_max = body_bytes_max
        self.batch_count_max = batch_count_max
        self.find_topic = find_topic


cdef class HttpFront:
    """Reading half of a connection. fd: non-blocking. publisher: None if every request takes the slow path."""

    def __init__(self, int fd, hub, PlainPublisher publisher=None):
        self.fd = fd
        self.hub = hub
        self.publisher = publisher
        self.watcher = hub.loop.io(fd, READ_EVENT)

    def next_bytes(self, bint between_requests):
        """Return the unanswered bytes as a view that is valid until the next switch; the view is empty at the end.

        None: all requests were answered, but the socket was full, and the rest of the answers is queued.
        between_requests: no request is half read and no answer is waiting. Raises: OSError. Switches: yes, before it
        reads, so that each connection gets its turn.
        """
        self.greenlet = getcurrent()
        self.plain_wanted = between_requests and self.publisher is not None
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
        if self.rest_at == self.rest_end and self.behind:
            return None
        return read_view[self.rest_at:self.rest_end]

    def on_readable(self):
        """Read and answer plain publishes; wake the greenlet if bytes remain. Runs on the loop itself."""
        try:
            self.arrived = self.take()
        except BaseException as error:
            self.error = error
            self.arrived = True
        if self.arrived:
            self.greenlet.switch()

    cdef bint take(self) except -1:
        """Read and answer plain publishes. Returns: whether the greenlet has work to do."""
        cdef int64_t count = self.read()
        cdef uint64_t used = 0
        if count < 0:
            return False
        self.behind = False
        if self.plain_wanted and self.publisher.enabled:
            used = self.answer_plain(read_buffer, <uint64_t> count)
        self.rest_at = used
        self.rest_end = <uint64_t> count
        return count == 0 or used < <uint64_t> count or self.behind

    def close_front(self):
        """Release the watcher that the event loop holds for the connection."""
        self.watcher.close()
        self.topic = None

    cdef int64_t read(self) except -2:
        """Read into the shared buffer. Returns: bytes; 0 at the end; -1 if there are none yet. Raises: OSError."""
        cdef ssize_t count
        while True:
            count = recv(self.fd, read_buffer, READ_BYTES, MSG_DONTWAIT)
            if count >= 0:
                return count
            if errno == EAGAIN:
                return -1
            if errno != EINTR:
                raise OSError(errno, os.strerror(errno))

    cdef uint64_t answer_plain(self, const char* at, uint64_t size_bytes) except? 0xFFFFFFFFFFFFFFFF:
        """Accept and answer the plain publishes at `at`. Returns: their bytes."""
        cdef PlainPublish found
        cdef uint64_t done = 0
        cdef uint64_t queued = 0
        cdef int64_t used, count
        cdef int64_t now_ns = wall_ns()
        if now_ns // NS_PER_S != tail_second:
            renew_tail(now_ns // NS_PER_S)
        while done < size_bytes and ANSWERS_BYTES - queued >= ANSWER_BYTES_MAX:
            used = scan_plain_publish(at + done, size_bytes - done, &self.publisher.limits, &found)
            if used == 0:
                break
            count = self.accept(&found, now_ns)
            if count == NOT_STORED:
                break
            done += <uint64_t> used
            queued = put_answer(answers + queued, self.topic.guids.last_id, count) - answers
            self.plain_count += 1
        self.behind = False
        if queued != 0:
            self.deadline_s = mono_ns() / 1e9 + self.idle_s
            self.send_answers(queued)
        return done

    cdef int64_t accept(self, PlainPublish* found, int64_t now_ns) except -2:
        """Store a publish. Returns: as `store`; a publish that was not stored takes the slow path."""
        cdef TopicCore topic = self.topic_for(found)
        if topic is None or topic.busy:
            return NOT_STORED
        try:
            return self.store(topic, found, now_ns)
        except StorageError:
            return NOT_STORED

    cdef int64_t store(self, TopicCore topic, PlainPublish* found, int64_t now_ns) except -2:
        """Store a publish. Returns: the number of messages of an /mpub, 0 for a /pub, or NOT_STORED."""
        cdef Batch batch
        cdef Frames frames
        if found.form == PLAIN_PUB:
            topic.publish(found.body.at, found.body.size_bytes, now_ns, 0)
            return 0
        if found.form == PLAIN_BINARY:
            memset(&batch, 0, sizeof(Batch))
            if scan_batch(found.body.at, found.body.size_bytes, self.publisher.limits.msg_bytes_max,
                          self.publisher.batch_count_max, 0, &batch) != SCAN_READY:
                return NOT_STORED
            topic.publish_batch(found.body.at + SIZE_BYTES, batch.count, batch.body_words, now_ns)
            return batch.count
        frames = lines_framed(found.body.at, found.body.size_bytes, <uint64_t> self.publisher.limits.msg_bytes_max)
        if frames is None or frames.count == 0:
            return NOT_STORED
        topic.publish_batch(PyBytes_AS_STRING(frames.data) + frames.start, frames.count, frames.words, now_ns)
        return frames.count

    cdef TopicCore topic_for(self, PlainPublish* found):
        if (
            self.topic is None or self.topic.exiting or <uint32_t> len(self.topic_name) != found.topic.size_bytes
            or memcmp(<const char*> self.topic_name, found.topic.at, found.topic.size_bytes) != 0
        ):
            self.topic_name = found.topic.at[:found.topic.size_bytes]
            self.topic = self.publisher.find_topic(self.topic_name)
        return self.topic

    cdef int send_answers(self, uint64_t size_bytes) except -1:
        """Send the answers; the part that the socket does not take is queued before the answers of the slow path."""
        cdef ssize_t sent
        while True:
            sent = send(self.fd, answers, size_bytes, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent >= 0 or errno != EINTR:
                break
        if sent < 0:
            if errno != EAGAIN:
                raise OSError(errno, os.strerror(errno))
            sent = 0
        if <uint64_t> sent < size_bytes:
            self.behind = True
            self.queue_answers(answers[sent:size_bytes])
        return 0

    def queue_answers(self, data):
        raise NotImplementedError("the connection sends what could not leave at once")
