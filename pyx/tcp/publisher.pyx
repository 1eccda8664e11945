"""What a connection publishes: PUB, MPUB, DPUB and DMPUB, checked, stored and answered.

The bodies are copied once, from the buffer at hand into the topic's log; a body that is not complete costs nothing but
another look when more has come, and a batch is walked once however it trickles in.

Checks and their order, codes and texts are those of nsqd: docs/nsq/tcp-protocol.md, "PUB", "MPUB", "DPUB". One limit
is ours: a batch whose inner sizes add up to more than twice --max-body-size is refused, or it could fill the memory.
DMPUB and the ids in an OK are ours altogether: docs/protocol-extensions.md.

MPUBs to one topic that lie one behind the other in a pass are one batch of the log, closed by whatever else comes and
by the end of the pass, before their answers leave: a large write costs less than many. Where it cannot be written, the
first of them is refused, which ends the connection, and none of them was stored.

A large batch is queued (pyx/broker/intake.pyx), and so is whatever is published to a topic while one is stored. The
messages stay in a buffer of their own, and the connection executes nothing more until the answer is there.

Where clients have to AUTH, the permission for the topic published to last is kept until it expires, so that what comes
next costs a comparison. Where it has to be renewed, which waits for a server, the command is left in the buffer and
looked at again afterwards.
"""

from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

from pyqd.hot.broker.intake cimport enqueue, is_large
from pyqd.hot.net.buffers cimport buffer_freed
from pyqd.hot.primitives.guid cimport HEX_SIZE, id_stepped, id_to_hex
from pyqd.hot.wire.frames cimport FRAME_RESPONSE
from pyqd.hot.wire.scanner cimport (
    SCAN_BAD_COUNT,
    SCAN_BAD_SIZE,
    SCAN_READY,
    SCAN_TOO_BIG,
    is_name,
    parse_digits,
    read_be32,
    read_be64,
    scan_batch,
)

from pyqd.primitives.errors import ClientError, StorageError
from pyqd.primitives.goquote import go_quote

cdef enum:
    NS_PER_MS = 1000000
    INNER_BODIES_MAX = 2                 # nsqd knows no bound, whatever the outer size says
    MESSAGE_BYTES_MIN = 5                # of a batch's body: a size and one byte
    KNOWN_TOPICS_MAX = 128               # a deleted one may be kept in memory by the connection that knows it
    DUE_BYTES = 8                        # before each message of a DMPUB that gives each its own time


# No commands of a client: their names have a space.
cdef bytes RENEW_PERMISSIONS = b" renew"
cdef bytes STORE_QUEUED = b" store"
cdef tuple SINGLE_COMMANDS = (b"PUB", b"DPUB")
cdef bytes EACH_DELAY = b"each"
cdef bytes EACH_MOMENT = b"@each"


cdef class Publisher(Pump):
    """A connection's publishing half. `pyqd.hot.tcp.ioloop.IoLoop` reads what it publishes."""

    def __dealloc__(self):
        free(self.queued_block)
        buffer_freed(self.queued_block_bytes)
        free(self.queued_dues)

    cdef int accepted(self, TopicCore topic, uint64_t last_id, uint32_t count, bint is_batch) except -1:
        """Queue the OK of a publish, to leave with the pass, or after the sync that covers it."""
        self.topic_count += count
        if self.limits.sync_each and not topic.ephemeral:
            self.begin_withholding()
            self.unsynced[topic] = None
        if self.tells_ids:
            self.put_ok_with_ids(last_id, count, is_batch)
        else:
            self.put_ok()
        return 0

    cdef int put_ok_with_ids(self, uint64_t last_id, uint32_t count, bint is_batch) except -1:
        """Queue `OK <id>`, of a batch `OK <first id> <count>`. last_id: of the messages accepted.

        Source: docs/protocol-extensions.md, "Ids of published messages".
        """
        cdef char[HEX_SIZE] digits
        id_to_hex(id_stepped(last_id, 1 - <int64_t> count), digits)
        answer = b"OK " + digits[:HEX_SIZE]
        if is_batch:
            answer += b" %d" % count
        self.put(FRAME_RESPONSE, answer, <uint32_t> len(answer))
        return 0

    cdef TopicCore topic_for(self, const Text* name):
        """Return the topic, made if it is missing. The name is valid. Raises: StorageError, ClientError."""
        cdef TopicCore topic
        if (
            self.topic is not None and name.size_bytes == self.topic_name_bytes
            and memcmp(name.at, self.topic_name, name.size_bytes) == 0 and not self.topic.exiting
        ):
            return self.topic
        key = text_of(name)
        topic = None if self.known_topics is None else self.known_topics.get(key)
        if topic is None or topic.exiting:
            topic = self.find_topic(key)
            if self.known_topics is None or len(self.known_topics) >= KNOWN_TOPICS_MAX:
                self.known_topics = {}
            self.known_topics[key] = topic
        if self.open_topic is not None:
            # What they published still counts under the former name.
            self.close_batches()
        self.note_published()
        self.topic = topic
        memcpy(self.topic_name, name.at, name.size_bytes)
        self.topic_name_bytes = name.size_bytes
        return self.topic

    cdef bint is_permitted(self, CommandLine* line) except -1:
        """Return whether the client may publish to the topic; False: not known before the slow call has been made.

        Raises: ClientError. Source: docs/nsq/tcp-protocol.md, "Authorisation".
        """
        cdef Text* name = &line.params[0]
        cdef int64_t until_ns
        if (
            self.pass_ns < self.permitted_until_ns and name.size_bytes == self.permitted_topic_bytes
            and memcmp(name.at, self.permitted_topic, name.size_bytes) == 0
        ):
            return True
        command = text_of(&line.name)
        until_ns = self.permission_until(command, text_of(name))
        if until_ns <= self.pass_ns:
            self.slow_call = (RENEW_PERMISSIONS, [command], None)
            return False
        memcpy(self.permitted_topic, name.at, name.size_bytes)
        self.permitted_topic_bytes = name.size_bytes
        self.permitted_until_ns = until_ns
        return True

    def note_published(self):
        """Add what was published to the current topic to the counts by topic."""
        if self.topic_count != 0:
            name = self.topic_name[:self.topic_name_bytes].decode("ascii")
            self.publish_counts[name] = self.publish_counts.get(name, 0) + self.topic_count
            self.topic_count = 0

    cdef int64_t publish(self, CommandLine* line, const char* at, uint64_t size_bytes, bint deferred) except -1:
        """PUB and DPUB. Source: docs/nsq/tcp-protocol.md, "PUB", "DPUB"."""
        cdef int32_t size
        cdef int64_t due_ns = 0
        cdef TopicCore topic
        if line.param_count < (2 if deferred else 1) or not is_name(line.params[0].at, line.params[0].size_bytes):
            self.refuse_publish(line, "DPUB" if deferred else "PUB", 2 if deferred else 1)
        if deferred:
            due_ns = self.due_of("DPUB", text_of(&line.params[1]))
        if size_bytes < 4:
            return self.incomplete(line, "E_BAD_MESSAGE", "failed to read message body size")
        size = read_be32(at)
        if size <= 0 or size > self.limits.max_msg_bytes:
            self.refuse_size("E_BAD_MESSAGE", text_of(&line.name), "message body", "message", size,
                             self.limits.max_msg_bytes)
        if size_bytes - 4 < <uint64_t> size:
            return self.incomplete(line, "E_BAD_MESSAGE", "failed to read message body")
        if self.auth_needed and not self.is_permitted(line):
            return -2
        try:
            topic = self.topic_for(&line.params[0])
            if topic.busy:
                return self.queue_batch(
                    line, topic, at, 4 + size, 1, (<uint64_t> size + 7) >> 3, due_ns, NULL)
            topic.publish(at + 4, <uint32_t> size, self.wall_now_ns, due_ns)
        except StorageError as error:
            self.refuse_write(text_of(&line.name), error)
        self.accepted(topic, topic.guids.last_id, 1, False)
        return 4 + size

    cdef int64_t publish_batch(self, CommandLine* line, const char* at, uint64_t size_bytes) except -1:
        """MPUB. Source: docs/nsq/tcp-protocol.md, "MPUB"."""
        cdef int64_t used
        cdef TopicCore topic
        if line.param_count < 1 or not is_name(line.params[0].at, line.params[0].size_bytes):
            self.refuse_publish(line, "MPUB", 1)
        if self.auth_needed and not self.is_permitted(line):
            return -2
        try:
            topic = self.topic_for(&line.params[0])
        except StorageError as error:
            self.refuse_write(b"MPUB", error)
        used = self.check_batch(line, at, size_bytes, 0)
        if used < 0:
            return used
        if topic.busy or is_large(self.batch.count, self.batch.body_words):
            return self.queue_batch(
                line, topic, at + 8, used, self.batch.count, self.batch.body_words, 0, NULL)
        if self.open_topic is not None and not (
            topic is self.open_topic and topic.joins(self.batch.count, self.batch.body_words)
        ):
            self.close_batches()
        try:
            topic.add_batch(at + 8, self.batch.count, self.batch.body_words, self.wall_now_ns)
        except StorageError as error:
            # Of a batch that was open nothing is left either.
            self.open_topic = None
            self.refuse_write(b"MPUB", error)
        if self.open_topic is None:
            self.open_topic = topic
            self.open_batches = self.open_messages = 0
        self.open_batches += 1
        self.open_messages += self.batch.count
        memset(&self.batch, 0, sizeof(Batch))
        if self.tells_ids:
            self.close_batches()
        return used

    cdef int close_batches(self) except -1:
        """Store the MPUBs that are open, and queue their answers. Raises: ClientError (none of them was stored)."""
        cdef TopicCore topic = self.open_topic
        self.open_topic = None
        try:
            topic.commit_batches()
        except StorageError as error:
            self.refuse_write(b"MPUB", error)
        self.accepted(topic, topic.guids.last_id, self.open_messages, True)
        for _ in range(self.open_batches - 1):
            self.put_ok()
        return 0

    cdef int drop_batches(self) except -1:
        """Give up the MPUBs that are open, if there are any."""
        cdef TopicCore topic = self.open_topic
        if topic is not None:
            self.open_topic = None
            topic.abort_batches()
        return 0

    cdef int64_t publish_deferred_batch(self, CommandLine* line, const char* at, uint64_t size_bytes) except -1:
        """DMPUB. Source: docs/protocol-extensions.md, "DMPUB"."""
        cdef int64_t used, due_ns = 0
        cdef int64_t* dues = NULL
        cdef TopicCore topic
        if line.param_count < 2 or not is_name(line.params[0].at, line.params[0].size_bytes):
            self.refuse_publish(line, "DMPUB", 2)
        when = text_of(&line.params[1])
        each = when in (EACH_DELAY, EACH_MOMENT)
        if not each:
            due_ns = self.due_of("DMPUB", when)
        if self.auth_needed and not self.is_permitted(line):
            return -2
        used = self.check_batch(line, at, size_bytes, DUE_BYTES if each else 0)
        if used < 0:
            return used
        try:
            if each:
                dues = <int64_t*> malloc(self.batch.count * sizeof(int64_t))
                if dues == NULL:
                    raise MemoryError
                self.read_dues(at + 8, when == EACH_MOMENT, dues)
            topic = self.topic_for(&line.params[0])
            if topic.busy or is_large(self.batch.count, self.batch.body_words):
                self.queue_batch(
                    line, topic, at + 8, used, self.batch.count, self.batch.body_words, due_ns, dues)
                dues = NULL
                return used
            topic.publish_deferred_batch(
                at + 8, self.batch.count, self.batch.body_words, self.wall_now_ns, due_ns, dues)
        except StorageError as error:
            self.refuse_write(b"DMPUB", error)
        finally:
            free(dues)
        self.accepted(topic, topic.guids.last_id, self.batch.count, True)
        memset(&self.batch, 0, sizeof(Batch))
        return used

    cdef int64_t queue_batch(
        self, CommandLine* line, TopicCore topic, const char* at, int64_t used,
        uint32_t count, uint64_t body_words, int64_t due_ns, int64_t* dues,
    ) except -1:
        """Queue messages for a busy topic, or a large batch; the slow call waits for it. dues: owned from here on.

        used: what the command takes behind its line. Returns: the same. Raises: ClientError.
        """
        cdef MessageBatch batch
        if self.open_topic is not None:
            self.close_batches()
        assert self.queued is None
        memset(&batch, 0, sizeof(MessageBatch))
        batch.at, batch.count, batch.body_words = at, count, body_words
        batch.now_ns, batch.due_ns, batch.dues = self.wall_now_ns, due_ns, dues
        self.queued = enqueue(topic, &batch, None)
        self.queued_dues = dues
        self.queued_bytes = <uint64_t> used
        self.queued_topic = topic
        self.slow_call = (STORE_QUEUED, [text_of(&line.name)], None)
        memset(&self.batch, 0, sizeof(Batch))
        return used

    cdef int finish_queued(self, command) except -1:
        """Wait until what is queued is stored, and answer it. Raises: ClientError. Switches: yes."""
        cdef QueuedBatch queued = self.queued
        cdef TopicCore topic = self.queued_topic
        try:
            self.wait_stored(queued)
        finally:
            self.drop_queued_batch()
        if queued.error is not None:
            self.refuse_write(command, queued.error)
        if not queued.stored:
            name = command.decode("ascii")
            raise ClientError(f"E_{name}_FAILED", f"{name} failed exiting")
        return self.accepted(topic, queued.last_id, queued.batch.count, command not in SINGLE_COMMANDS)

    cdef int drop_queued_batch(self) except -1:
        """Let go of what is queued, stored or not, and of the buffer that holds it."""
        cdef QueuedBatch queued = self.queued
        if queued is not None:
            self.queued = self.queued_topic = None
            queued.cancel()
        free(self.queued_block)
        buffer_freed(self.queued_block_bytes)
        free(self.queued_dues)
        self.queued_block = NULL
        self.queued_block_bytes = 0
        self.queued_dues = NULL
        return 0

    cdef int64_t check_batch(
        self, CommandLine* line, const char* at, uint64_t size_bytes, uint32_t lead_bytes,
    ) except -1:
        """Walk the body of a batch as far as it is there. Returns: the bytes it takes, or -2 for more."""
        cdef int32_t size
        cdef int64_t limit = self.limits.max_body_bytes
        cdef Scan scan
        if size_bytes < 4:
            return self.incomplete(line, "E_BAD_BODY", "failed to read body size")
        size = read_be32(at)
        if size <= 0 or size > limit:
            self.refuse_size("E_BAD_BODY", text_of(&line.name), "body", "body", size, limit)
        scan = scan_batch(
            at + 4, size_bytes - 4, self.limits.max_msg_bytes, (limit - 4) // (MESSAGE_BYTES_MIN + lead_bytes),
            lead_bytes, &self.batch)
        if scan != SCAN_READY:
            return self.batch_not_ready(line, scan, size_bytes - 4, lead_bytes)
        return 4 + <int64_t> self.batch.offset

    cdef int read_dues(self, const char* at, bint are_moments, int64_t* dues) except -1:
        """Read the time that stands before each message of a checked batch. Raises: ClientError."""
        cdef int64_t limit_ms = self.latest_due_ms() if are_moments else self.limits.max_defer_ns // NS_PER_MS
        cdef int64_t base_ns = 0 if are_moments else self.wall_now_ns
        cdef int64_t value, due_ns
        cdef uint32_t index
        for index in range(self.batch.count):
            value = read_be64(at)
            if not 0 <= value <= limit_ms:
                noun = "due time" if are_moments else "timeout"
                raise ClientError("E_INVALID", f"DMPUB message({index}) {noun} {value} out of range 0-{limit_ms}")
            due_ns = base_ns + value * NS_PER_MS
            dues[index] = due_ns if due_ns > self.wall_now_ns else 0
            at += DUE_BYTES + 4 + <uint64_t> read_be32(at + DUE_BYTES)
        return 0

    cdef int64_t batch_not_ready(
        self, CommandLine* line, Scan scan, uint64_t size_bytes, uint32_t lead_bytes,
    ) except -1:
        """Say what is missing of, or wrong with, the body of a batch."""
        cdef uint32_t index = self.batch.index
        cdef int32_t size = self.batch.size_bytes
        cdef int64_t limit
        name = text_of(&line.name).decode("ascii")
        if scan == SCAN_BAD_COUNT:
            raise ClientError("E_BAD_BODY", f"{name} invalid message count {size}")
        if scan == SCAN_BAD_SIZE:
            raise ClientError("E_BAD_MESSAGE", f"{name} invalid message({index}) body size {size}")
        if scan == SCAN_TOO_BIG:
            raise ClientError("E_BAD_MESSAGE", f"{name} message too big {size} > {self.limits.max_msg_bytes}")
        limit = INNER_BODIES_MAX * self.limits.max_body_bytes
        if <int64_t> self.batch.offset > limit:
            raise ClientError("E_BAD_BODY", f"{name} body too big {self.batch.offset} > {limit}")
        if self.batch.count == 0:
            return self.incomplete(line, "E_BAD_BODY", "failed to read message count")
        if size_bytes < self.batch.offset + lead_bytes + 4:
            return self.incomplete(line, "E_BAD_MESSAGE", f"failed to read message({index}) body size")
        return self.incomplete(line, "E_BAD_MESSAGE", "failed to read message body")

    cdef int64_t incomplete(self, CommandLine* line, code, text) except -1:
        """Wait for the rest of a body (-2), unless there will be none. Raises: ClientError."""
        if not self.eof:
            return -2
        name = text_of(&line.name).decode("ascii")
        raise ClientError(code, f"{name} {text}")

    cdef int refuse_publish(self, CommandLine* line, name, uint32_t params_needed) except -1:
        """Raise for a publish with too few parameters or a bad topic name."""
        if line.param_count < params_needed:
            raise ClientError("E_INVALID", f"{name} insufficient number of parameters")
        topic = text_of(&line.params[0])
        # nsqd doubles the code for MPUB; clients may have learnt to expect it.
        doubled = "E_BAD_TOPIC " if name == "MPUB" else ""
        raise ClientError(
            "E_BAD_TOPIC", f"{doubled}{name} topic name ".encode() + go_quote(topic) + b" is not valid")

    def refuse_size(self, code, name, noun, short_noun, size, limit):
        """Raise for a size that is not positive or over its limit."""
        name = name.decode("ascii")
        if size <= 0:
            raise ClientError(code, f"{name} invalid {noun} size {size}")
        raise ClientError(code, f"{name} {short_noun} too big {size} > {limit}")

    def refuse_write(self, name, error):
        """Raise for a publish that could not be stored; health shows it."""
        self.note_failed_write(error)
        name = name.decode("ascii")
        raise ClientError(f"E_{name}_FAILED", f"{name} failed {error}") from error

    def due_of(self, name, text):
        """Return when what a command publishes is due, Unix ns, 0 for at once. text: a delay in ms, or `@` and Unix ms.

        Raises: ClientError when it is no number or out of range. Source: docs/protocol-extensions.md.
        """
        cdef int64_t value = 0
        cdef int64_t delay_ns
        if text[:1] == b"@":
            moment = text[1:]
            if not parse_digits(moment, <uint32_t> len(moment), &value):
                raise ClientError("E_INVALID", name.encode() + b" could not parse due time " + text)
            if not 0 <= value <= self.latest_due_ms():
                raise ClientError(
                    "E_INVALID", f"{name} due time {<uint64_t> value} out of range 0-{self.latest_due_ms()}")
            return value * NS_PER_MS if value * NS_PER_MS > self.wall_now_ns else 0
        if not parse_digits(text, <uint32_t> len(text), &value):
            raise ClientError("E_INVALID", name.encode() + b" could not parse timeout " + text)
        delay_ns = <int64_t> (<uint64_t> value * <uint64_t> NS_PER_MS)
        if delay_ns < 0 or delay_ns > self.limits.max_defer_ns:
            limit_ms = self.limits.max_defer_ns // NS_PER_MS
            raise ClientError("E_INVALID", f"{name} timeout {<uint64_t> value} out of range 0-{limit_ms}")
        return self.wall_now_ns + delay_ns if delay_ns else 0

    cdef int64_t latest_due_ms(self) noexcept:
        """Return the last moment, Unix ms, that a message may be deferred to."""
        return (self.wall_now_ns + self.limits.max_defer_ns) // NS_PER_MS

    def permission_until(self, command, topic):
        raise NotImplementedError("the connection knows what its client may do")

    def find_topic(self, name):
        raise NotImplementedError("the connection knows the broker")

    def wait_stored(self, queued):
        raise NotImplementedError("the IOLoop waits")

    def note_failed_write(self, error):
        raise NotImplementedError("the connection knows the broker")
