"""Short path of an HTTP connection: stores and answers plain publishes by C code alone.

`scan_plain_publish` (pyx/api/plain_scan.pyx) recognises them. Each body is copied from the received bytes into the log
of its topic, and the answer is written to the connection's scratch. pyx/http/front.pyx reads and sends.

The path is open for a topic if `find_topic` returns it: then only the message decides whether it is accepted. A publish
that cannot be stored here goes to the routes, which try again and answer with the reason. So does one whose `Host`
`accepts_host` refuses. Browsers mark their publishes with headers that are not plain.

Source: docs/nsq/http-api.md, "POST /pub" and "POST /mpub".
"""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from pyqd.hot.api.plain_scan cimport (
    PLAIN_BINARY,
    PLAIN_PUB,
    PlainLimits,
    PlainPublish,
    scan_plain_publish,
    user_agent_in,
)
from pyqd.hot.broker.topic cimport TopicCore
from pyqd.hot.broker.trace cimport TraceClient
from pyqd.hot.http.front cimport Answers, ShortPath
from pyqd.hot.primitives.clock cimport NS_PER_S, wall_ns
from pyqd.hot.primitives.guid cimport HEX_SIZE, id_after_steps, id_to_hex
from pyqd.hot.wire.bodies cimport Frames, lines_framed
from pyqd.hot.wire.scanner cimport SCAN_READY, Batch, Text, scan_batch, text_of

from email.utils import formatdate

from pyqd.http.messages import header_lines
from pyqd.primitives import nsq_compat
from pyqd.primitives.errors import StorageError

cdef enum:
    ANSWER_BYTES_MAX = 512
    SIZE_BYTES = 4
    COUNT_DIGITS_MAX = 20
    NOT_STORED = -1

# An answer is its head, an id, for an /mpub COUNT and the number, and its tail.
cdef bytes HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n%sX-NSQ-Message-Id: "
    % header_lines([nsq_compat.API_VERSION_HEADER]).encode("ascii")
)
cdef bytes COUNT = b"\r\nX-NSQ-Message-Count: "
cdef bytes tail = b""
cdef int64_t tail_second = -1


cdef int renew_tail(int64_t second) except -1:
    """Make the tail with the Date header of this second."""
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
    """Write the answer OK with the id of the first message. count: of an /mpub; 0 for a /pub. Returns: its end."""
    at = put(at, HEAD)
    id_to_hex(last_id if count == 0 else id_after_steps(last_id, 1 - count), at)
    at += HEX_SIZE
    if count != 0:
        at = put_number(put(at, COUNT), count)
    return put(at, tail)


cdef class PlainPublisher(ShortPath):
    """The short path of one connection.

    msg_bytes_max: of one message. body_bytes_max, batch_count_max: of an /mpub. find_topic: takes a valid name as
    bytes and returns the topic, or None if the publish needs more than storing it. remote: address of the client.
    accepts_host: returns whether a value of `Host` is accepted; None accepts all.
    """

    cdef PlainLimits limits
    cdef int64_t batch_count_max
    cdef object find_topic               # bytes -> TopicCore, or None: leave the publish to the routes
    cdef TopicCore topic                 # of the last plain publish
    cdef bytes topic_name
    cdef str remote                      # address of the client
    cdef TraceClient traced              # the client in trace events, with this user agent; None: not needed yet
    cdef bytes user_agent
    cdef object accepts_host             # str -> bool; None: all are accepted
    cdef bytes host                      # the last accepted one

    def __init__(
        self, int64_t msg_bytes_max, int64_t body_bytes_max, int64_t batch_count_max, find_topic,
        str remote not None="", accepts_host=None,
    ):
        self.limits.msg_bytes_max = msg_bytes_max
        self.limits.body_bytes_max = body_bytes_max
        self.batch_count_max = batch_count_max
        self.find_topic = find_topic
        self.remote = remote
        self.accepts_host = accepts_host

    cdef uint64_t answer(self, const char* at, uint64_t size_bytes, Answers* answers) except? 0xFFFFFFFFFFFFFFFF:
        """Store and answer the plain publishes at `at`. Returns: their bytes."""
        cdef PlainPublish found
        cdef uint64_t done = 0
        cdef uint64_t queued = 0
        cdef int64_t used, count
        cdef int64_t now_ns = wall_ns()
        if now_ns // NS_PER_S != tail_second:
            renew_tail(now_ns // NS_PER_S)
        while done < size_bytes and answers.size_bytes - queued >= ANSWER_BYTES_MAX:
            used = scan_plain_publish(at + done, size_bytes - done, &self.limits, &found)
            if used == 0:
                break
            count = self.accept(&found, now_ns)
            if count == NOT_STORED:
                break
            done += <uint64_t> used
            queued = put_answer(answers.at + queued, self.topic.guids.last_id, count) - answers.at
        answers.used_bytes = queued
        return done

    cdef int64_t accept(self, PlainPublish* found, int64_t now_ns) except -2:
        """Store a publish. Returns: as `store`; NOT_STORED also after a StorageError, and the routes try again."""
        if not self.is_host_accepted(&found.host):
            return NOT_STORED
        cdef TopicCore topic = self.topic_for(found)
        if topic is None or topic.exiting or topic.busy:
            return NOT_STORED
        if topic.trace is not None:
            topic.trace.publisher = self.traced_client(&found.headers)
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
            if scan_batch(found.body.at, found.body.size_bytes, self.limits.msg_bytes_max,
                          self.batch_count_max, 0, &batch) != SCAN_READY:
                return NOT_STORED
            topic.publish_batch(found.body.at + SIZE_BYTES, batch.count, batch.body_words, now_ns)
            return batch.count
        frames = lines_framed(found.body.at, found.body.size_bytes, <uint64_t> self.limits.msg_bytes_max)
        if frames is None or frames.count == 0:
            return NOT_STORED
        topic.publish_batch(PyBytes_AS_STRING(frames.data) + frames.start, frames.count, frames.words, now_ns)
        return frames.count

    cdef TraceClient traced_client(self, const Text* headers):
        """Return the client in trace events: the last one again, unless it describes itself otherwise now."""
        cdef Text found = user_agent_in(headers)
        if (
            self.traced is None or <uint32_t> len(self.user_agent) != found.size_bytes
            or memcmp(<const char*> self.user_agent, found.at, found.size_bytes) != 0
        ):
            self.user_agent = text_of(&found)
            self.traced = TraceClient(self.remote, self.user_agent.decode("ascii"))
        return self.traced

    cdef bint is_host_accepted(self, const Text* host) except -1:
        """Return whether `Host` is accepted; the last accepted one is, again."""
        if self.accepts_host is None:
            return True
        if (
            self.host is not None and <uint32_t> len(self.host) == host.size_bytes
            and memcmp(<const char*> self.host, host.at, host.size_bytes) == 0
        ):
            return True
        name = text_of(host)
        if not self.accepts_host(name.decode("ascii")):
            return False
        self.host = name
        return True

    cdef TopicCore topic_for(self, PlainPublish* found):
        """Return the topic of a publish: the last one's again, or the one that `find_topic` returns."""
        if (
            self.topic is None or self.topic.exiting or <uint32_t> len(self.topic_name) != found.topic.size_bytes
            or memcmp(<const char*> self.topic_name, found.topic.at, found.topic.size_bytes) != 0
        ):
            name = found.topic.at[:found.topic.size_bytes]
            self.topic = self.find_topic(name)
            self.topic_name = name
        return self.topic
