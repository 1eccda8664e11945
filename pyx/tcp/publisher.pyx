"""Publishes of a client: PUB, MPUB, DPUB and DMPUB are checked, stored and answered.

The body of a message is copied once, from the receive buffer into the topic's log. An incomplete body costs only the
repeated check of its command line when more bytes arrive; the messages of a batch are walked once, whatever the size of
the pieces in which they arrive.

Checks and their order, codes and texts follow nsqd: docs/nsq/tcp-protocol.md, "PUB", "MPUB", "DPUB". One limit is
pyqd's own: a batch whose inner sizes add up to more than twice --max-body-size is refused, as it could fill the memory.
DMPUB and ids in an OK are pyqd's own commands: docs/protocol-extensions.md.

Consecutive PUBs of a pass to one topic are joined to one batch of the log, and so are consecutive MPUBs: one large
write, one wake of the channels and one walk over the commands cost less than many. Any other command commits the batch,
and so does the end of the pass, before the OKs leave. A command that finds no space is refused alone, behind the OKs of
those before it. If the batch itself cannot be written, none of its commands is stored; the first one is refused, which
closes the connection.

PUBs whose command line is the same to the letter as the one before are a *run*: the line is compared and not scanned.

A large batch goes through the topic's intake (pyx/broker/intake.pyx), and so does every publish to a topic whose intake
is busy. Its messages stay in a block owned by the publisher, and the IOLoop executes nothing more until the answer is
known.

If clients have to AUTH, the permission for the last topic is kept until it expires, so that the next publish costs a
comparison. A renewal waits for a server: the command stays in the buffer and is executed again afterwards.

Invariants: 1. `open_topic` is set, within a pass only, while a batch may be open in the log of that topic. 2. `queued`
is None unless the IOLoop waits for it; the block and the due times live as long as `queued`.
"""

from libc.stdint cimport int32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

from pyqd.hot.broker.intake cimport enqueue, is_large
from pyqd.hot.broker.topic cimport MessageBatch
from pyqd.hot.net.buffers cimport buffer_freed, buffer_grown
from pyqd.hot.primitives.clock cimport NS_PER_MS, mono_ns
from pyqd.hot.primitives.guid cimport HEX_SIZE, id_after_steps, id_to_hex
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
    text_of,
)

from pyqd.primitives.errors import CommandError, StorageError
from pyqd.primitives.goquote import go_quote

cdef enum:
    INNER_BODIES_MAX = 2                 # nsqd has no bound on the inner sizes
    MESSAGE_BYTES_MIN = 5                # of a batch's body: a size and one byte
    KNOWN_TOPICS_MAX = 128               # a connection keeps these in memory, deleted topics too
    RUN_COMMANDS_MAX = 128               # the pass looks at the clock behind them
    DUE_BYTES = 8                        # before each message of a DMPUB with a due time for each message

cdef tuple SINGLE_COMMANDS = (b"PUB", b"DPUB")
cdef bytes EACH_DELAY = b"each"
cdef bytes EACH_TIMESTAMP = b"@each"


cdef class ProtocolLimits:
    """Limits of the protocol: sizes in bytes, times in ns."""

    def __init__(self, *, int64_t max_msg_bytes, int64_t max_body_bytes, int64_t max_rdy_count,
                 int64_t max_req_timeout_ns, int64_t max_defer_ns=-1, bint sync_each=False):
        self.max_msg_bytes = max_msg_bytes
        self.max_body_bytes = max_body_bytes
        self.max_rdy_count = max_rdy_count
        self.max_req_timeout_ns = max_req_timeout_ns
        self.max_defer_ns = max_req_timeout_ns if max_defer_ns < 0 else max_defer_ns
        self.sync_each = sync_each


cdef object size_error(CommandLine* line, code, noun, short_noun, int64_t size, int64_t limit):
    """Return the CommandError for a size that is not positive or exceeds its limit."""
    name = text_of(&line.name).decode("ascii")
    if size <= 0:
        return CommandError(code, f"{name} invalid {noun} size {size}")
    return CommandError(code, f"{name} {short_noun} too big {size} > {limit}")


cdef object truncation_error(CommandLine* line, code, text):
    """Return the CommandError for a command whose body ends with the stream."""
    name = text_of(&line.name).decode("ascii")
    return CommandError(code, f"{name} {text}")


cdef class Publisher:
    """Publishing part of a connection. client: Python half of the connection."""

    def __init__(self, ClientOutput output not None, ProtocolLimits limits not None, client):
        self.output = output
        self.limits = limits
        self.client = client
        self.publish_counts = {}
        self.unsynced = {}

    def __dealloc__(self):
        free(self.queued_block)
        buffer_freed(self.queued_block_bytes)
        free(self.queued_dues)

    cdef int begin_pass(self, int64_t wall_now_ns, bint eof) except -1:
        """Begin to execute the commands of a pass. eof: no bytes follow those of the pass."""
        assert self.open_topic is None and self.queued is None
        self.wall_now_ns = wall_now_ns
        self.eof = eof
        if self.auth_needed:
            self.mono_now_ns = mono_ns()
        return 0

    cdef int accepted(
        self, TopicCore topic, uint64_t last_id, uint32_t count, uint32_t commands, bint are_batches,
    ) except -1:
        """Queue the OKs of publishes. They leave with the pass, or after the sync that covers their messages.

        count: messages of all commands; one of each unless there is only one command.
        """
        cdef uint32_t each = count // commands
        cdef uint32_t index
        self.topic_count += count
        if self.limits.sync_each and not topic.ephemeral:
            self.output.begin_withholding()
            self.unsynced[topic] = None
        if not self.returns_ids:
            return self.output.put_oks(commands)
        for index in range(commands):
            self.put_ok_with_ids(
                id_after_steps(last_id, <int64_t> ((index + 1) * each) - <int64_t> count), each, are_batches)
        return 0

    cdef int put_ok_with_ids(self, uint64_t last_id, uint32_t count, bint is_batch) except -1:
        """Queue `OK <id>`, or `OK <first id> <count>` for a batch. last_id: of the accepted messages.

        Source: docs/protocol-extensions.md, "Ids of published messages".
        """
        cdef char[HEX_SIZE] digits
        id_to_hex(id_after_steps(last_id, 1 - <int64_t> count), digits)
        answer = b"OK " + digits[:HEX_SIZE]
        if is_batch:
            answer += b" %d" % count
        self.output.put(FRAME_RESPONSE, answer, <uint32_t> len(answer))
        return 0

    cdef dict take_unsynced(self):
        """Return the topics with OKs that wait for a sync, as keys; the caller waits for it."""
        topics, self.unsynced = self.unsynced, {}
        return topics

    cdef TopicCore topic_for(self, CommandLine* line):
        """Return the topic of a publish, created if it is missing. Raises: StorageError, CommandError."""
        cdef const Text* name = &line.params[0]
        cdef TopicCore topic
        if (
            self.topic is not None and name.size_bytes == self.topic_name_bytes
            and memcmp(name.at, self.topic_name, name.size_bytes) == 0 and not self.topic.exiting
        ):
            return self.topic
        assert 0 < name.size_bytes <= NAME_BYTES_MAX
        key = text_of(name)
        topic = None if self.known_topics is None else self.known_topics.get(key)
        if topic is None or topic.exiting:
            topic = self.client.find_topic(key, text_of(&line.name))
            if self.known_topics is None or len(self.known_topics) >= KNOWN_TOPICS_MAX:
                self.known_topics = {}
            self.known_topics[key] = topic
        if self.open_topic is not None:
            # The messages of the open batch still count under the former name.
            self.close_batches()
        self.note_published()
        self.topic = topic
        memcpy(self.topic_name, name.at, name.size_bytes)
        self.topic_name_bytes = name.size_bytes
        return self.topic

    cdef bint is_permitted(self, CommandLine* line) except -1:
        """Return whether the client may publish to the topic; False: its permissions have to be renewed first.

        Raises: CommandError. Source: docs/nsq/tcp-protocol.md, "Authorisation".
        """
        cdef Text* name = &line.params[0]
        cdef int64_t until_ns
        if (
            self.mono_now_ns < self.permitted_until_ns and name.size_bytes == self.permitted_topic_bytes
            and memcmp(name.at, self.permitted_topic, name.size_bytes) == 0
        ):
            return True
        until_ns = self.client.permission_until(text_of(&line.name), text_of(name))
        if until_ns <= self.mono_now_ns:
            return False
        memcpy(self.permitted_topic, name.at, name.size_bytes)
        self.permitted_topic_bytes = name.size_bytes
        self.permitted_until_ns = until_ns
        return True

    def note_published(self):
        """Add the messages published to the current topic to `publish_counts`."""
        if self.topic_count != 0:
            name = self.topic_name[:self.topic_name_bytes].decode("ascii")
            self.publish_counts[name] = self.publish_counts.get(name, 0) + self.topic_count
            self.topic_count = 0

    cdef int64_t publish(
        self, CommandLine* line, const char* at, uint64_t size_bytes, bint deferred, uint32_t* commands,
    ) except -1:
        """PUB and DPUB, with those that repeat its line. Source: docs/nsq/tcp-protocol.md, "PUB", "DPUB".

        commands: becomes their number. Returns: the bytes of their bodies, and of the lines in between.
        """
        cdef int32_t size
        cdef int64_t due_ns = 0
        cdef uint64_t used = 0
        cdef TopicCore topic
        commands[0] = 1
        if line.param_count < (2 if deferred else 1) or not is_name(line.params[0].at, line.params[0].size_bytes):
            self.refuse_publish(line, "DPUB" if deferred else "PUB", 2 if deferred else 1)
        if deferred:
            due_ns = self.parse_due("DPUB", text_of(&line.params[1]))
        if size_bytes < 4:
            return self.need_bytes(line, "E_BAD_MESSAGE", "failed to read message body size")
        size = read_be32(at)
        if size <= 0 or size > self.limits.max_msg_bytes:
            raise size_error(line, "E_BAD_MESSAGE", "message body", "message", size, self.limits.max_msg_bytes)
        if size_bytes - 4 < <uint64_t> size:
            return self.need_bytes(line, "E_BAD_MESSAGE", "failed to read message body")
        if self.auth_needed and not self.is_permitted(line):
            return NEEDS_PERMISSION
        try:
            topic = self.topic_for(line)
            if topic.busy:
                return self.queue_batch(
                    topic, at, 4 + size, 1, (<uint64_t> size + 7) >> 3, due_ns, NULL)
            if not deferred and topic.trace is None:
                return self.add_run(topic, line, at, size_bytes, commands)
            if due_ns != 0 and topic.trace is None and self.publish_run(
                    topic, line, at, size_bytes, due_ns, &used, commands):
                return <int64_t> used
            if self.open_topic is not None:
                self.close_batches()
            if topic.trace is not None:
                topic.trace.publisher = self.output.traced_client()
            topic.publish(at + 4, <uint32_t> size, self.wall_now_ns, due_ns)
        except StorageError as error:
            self.refuse_write(text_of(&line.name), error)
        self.accepted(topic, topic.guids.last_id, 1, 1, False)
        return 4 + size

    cdef uint32_t walk_run(
        self, CommandLine* line, const char* at, uint64_t size_bytes, uint64_t* used, uint64_t* body_words,
    ) noexcept:
        """Find the complete PUBs or DPUBs that follow a line and repeat it. at: behind the line, at a complete body.

        used, body_words: become the bytes from `at` to the end of the last body, and the words of all bodies. Returns:
        the number of commands, the one of the line included.
        """
        cdef uint64_t line_bytes = line.line_bytes
        cdef uint64_t offset = 4 + <uint64_t> read_be32(at)
        cdef int32_t size = read_be32(at)
        cdef uint32_t count = 1
        body_words[0] = (<uint64_t> size + 7) >> 3
        while (
            count < RUN_COMMANDS_MAX and size_bytes - offset > line_bytes + 4
            and memcmp(at + offset, line.name.at, line_bytes) == 0
        ):
            size = read_be32(at + offset + line_bytes)
            if size <= 0 or size > self.limits.max_msg_bytes or size_bytes - offset - line_bytes - 4 < <uint64_t> size:
                break
            offset += line_bytes + 4 + <uint64_t> size
            body_words[0] += (<uint64_t> size + 7) >> 3
            count += 1
        used[0] = offset
        return count

    cdef bint publish_run(
        self, TopicCore topic, CommandLine* line, const char* at, uint64_t size_bytes, int64_t due_ns, uint64_t* used,
        uint32_t* commands,
    ) except -1:
        """Publish a DPUB, whose body is complete, and those that repeat its line, as one batch.

        used, commands: as for `publish`. Returns: False if there is one only, or no space for all: nothing is done.
        """
        cdef uint64_t body_words = 0
        cdef uint32_t count = self.walk_run(line, at, size_bytes, used, &body_words)
        if count == 1 or (topic.ephemeral and not topic.is_readable()):
            return False
        if self.open_topic is not None:
            self.close_batches()
        try:
            topic.publish_deferred_batch(at, count, body_words, line.line_bytes, self.wall_now_ns, due_ns, NULL)
        except StorageError:
            return False
        commands[0] = count
        self.accepted(topic, topic.guids.last_id, count, count, False)
        return True

    cdef int64_t add_run(
        self, TopicCore topic, CommandLine* line, const char* at, uint64_t size_bytes, uint32_t* commands,
    ) except -1:
        """Add a PUB, whose body is complete, and those that repeat its line. Returns, commands: as `publish`.

        Raises: CommandError.
        """
        cdef uint64_t used = 0
        cdef uint64_t body_words = 0
        cdef bint joins
        if not topic.ephemeral or topic.is_readable():
            commands[0] = self.walk_run(line, at, size_bytes, &used, &body_words)
        if commands[0] > 1:
            joins = topic is self.open_topic and topic.joins(commands[0], body_words)
            try:
                self.add_to_batch(topic, at, commands[0], commands[0], body_words, line.line_bytes, COMMAND_PUB)
                return <int64_t> used
            except StorageError:
                if joins:
                    raise
                # The commands before them are stored. There may be space for some of these.
                commands[0] = 1
        self.add_to_batch(topic, at, 1, 1, (<uint64_t> read_be32(at) + 7) >> 3, 0, COMMAND_PUB)
        return 4 + read_be32(at)

    cdef int add_to_batch(
        self, TopicCore topic, const char* at, uint32_t count, uint32_t commands, uint64_t body_words,
        uint64_t gap_bytes, Command command,
    ) except -1:
        """Add the messages of PUBs or of an MPUB to the open batch of their topic, or to a new one.

        gap_bytes: between two messages. Raises: StorageError (the messages are not stored, nor is an open batch that
        they joined), CommandError (the open batch could not be written).
        """
        cdef bint may_stage
        if self.open_topic is not None and not (topic is self.open_topic and topic.joins(count, body_words)):
            self.close_batches()
        try:
            # A sync of each publish reads the records at once, so single ones are stored through the mapping.
            may_stage = command == COMMAND_MPUB or not self.limits.sync_each
            topic.add_batch(at, count, body_words, gap_bytes, self.wall_now_ns, may_stage)
        except StorageError:
            # The log has dropped the open batch with this one.
            self.open_topic = None
            raise
        if self.open_topic is None:
            self.open_topic = topic
            self.open_command = command
            self.open_commands = self.open_messages = 0
        self.open_commands += commands
        self.open_messages += count
        return 0

    cdef int64_t publish_batch(self, CommandLine* line, const char* at, uint64_t size_bytes) except -1:
        """MPUB. Source: docs/nsq/tcp-protocol.md, "MPUB"."""
        cdef int64_t used
        cdef TopicCore topic
        if line.param_count < 1 or not is_name(line.params[0].at, line.params[0].size_bytes):
            self.refuse_publish(line, "MPUB", 1)
        if self.auth_needed and not self.is_permitted(line):
            return NEEDS_PERMISSION
        try:
            topic = self.topic_for(line)
        except StorageError as error:
            self.refuse_write(b"MPUB", error)
        used = self.check_batch(line, at, size_bytes, 0)
        if used < 0:
            return used
        if topic.busy or is_large(self.batch.count, self.batch.body_words):
            return self.queue_batch(
                topic, at + 8, used, self.batch.count, self.batch.body_words, 0, NULL)
        try:
            self.add_to_batch(topic, at + 8, self.batch.count, 1, self.batch.body_words, 0, COMMAND_MPUB)
        except StorageError as error:
            self.refuse_write(b"MPUB", error)
        memset(&self.batch, 0, sizeof(Batch))
        if self.returns_ids:
            self.close_batches()
        return used

    cdef int close_batches(self) except -1:
        """Commit the open PUBs or MPUBs and queue their answers. Raises: CommandError (none of them was stored)."""
        cdef TopicCore topic = self.open_topic
        cdef bint are_batches = self.open_command == COMMAND_MPUB
        assert self.open_commands > 0
        self.open_topic = None
        if topic.trace is not None:
            topic.trace.publisher = self.output.traced_client()
        try:
            topic.commit_batches()
        except StorageError as error:
            self.refuse_write(b"MPUB" if are_batches else b"PUB", error)
        return self.accepted(topic, topic.guids.last_id, self.open_messages, self.open_commands, are_batches)

    cdef int drop_batches(self) except -1:
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
        each = when in (EACH_DELAY, EACH_TIMESTAMP)
        if not each:
            due_ns = self.parse_due("DMPUB", when)
        if self.auth_needed and not self.is_permitted(line):
            return NEEDS_PERMISSION
        used = self.check_batch(line, at, size_bytes, DUE_BYTES if each else 0)
        if used < 0:
            return used
        try:
            if each:
                dues = <int64_t*> malloc(self.batch.count * sizeof(int64_t))
                if dues == NULL:
                    raise MemoryError
                self.read_dues(at + 8, when == EACH_TIMESTAMP, dues)
            topic = self.topic_for(line)
            if topic.busy or is_large(self.batch.count, self.batch.body_words):
                self.queue_batch(topic, at + 8, used, self.batch.count, self.batch.body_words, due_ns, dues)
                dues = NULL
                return used
            if topic.trace is not None:
                topic.trace.publisher = self.output.traced_client()
            topic.publish_deferred_batch(
                at + 8, self.batch.count, self.batch.body_words, 0, self.wall_now_ns, due_ns, dues)
        except StorageError as error:
            self.refuse_write(b"DMPUB", error)
        finally:
            free(dues)
        self.accepted(topic, topic.guids.last_id, self.batch.count, 1, True)
        memset(&self.batch, 0, sizeof(Batch))
        return used

    cdef int64_t queue_batch(
        self, TopicCore topic, const char* at, int64_t used,
        uint32_t count, uint64_t body_words, int64_t due_ns, int64_t* dues,
    ) except -1:
        """Queue messages in the intake of their topic; `finish_queued` answers them. dues: owned from here on.

        used: size of the command's body. Returns: the same. Raises: CommandError.
        """
        cdef MessageBatch batch
        if self.open_topic is not None:
            self.close_batches()
        assert self.queued is None and self.queued_block == NULL and self.queued_dues == NULL
        memset(&batch, 0, sizeof(MessageBatch))
        batch.at, batch.count, batch.body_words = at, count, body_words
        batch.now_ns, batch.due_ns, batch.dues = self.wall_now_ns, due_ns, dues
        self.queued = enqueue(topic, &batch, None)
        if topic.trace is not None:
            self.queued.publisher = self.output.traced_client()
        self.queued_dues = dues
        self.queued_bytes = <uint64_t> used
        self.queued_topic = topic
        memset(&self.batch, 0, sizeof(Batch))
        return used

    cdef int adopt_block(self, char* block, uint64_t capacity) except -1:
        """Own the buffer that holds the queued messages, so that a large batch is not copied."""
        assert self.queued is not None and self.queued_block == NULL
        assert block <= self.queued.start < block + capacity
        self.queued_block, self.queued_block_bytes = block, capacity
        return 0

    cdef int copy_queued(self, const char* end) except -1:
        """Copy the queued messages, which end here in the buffer of the pass, to a block. Raises: MemoryError."""
        cdef const char* start = end - self.queued_bytes
        assert self.queued is not None and self.queued_block == NULL
        assert start <= self.queued.start < end
        self.queued_block = <char*> malloc(self.queued_bytes)
        if self.queued_block == NULL:
            raise MemoryError
        self.queued_block_bytes = self.queued_bytes
        buffer_grown(self.queued_bytes)
        memcpy(self.queued_block, start, self.queued_bytes)
        self.queued.moved(self.queued_block + (self.queued.start - start))
        return 0

    cdef int finish_queued(self, command) except -1:
        """Answer the queued messages, which are finished. command: its name. Raises: CommandError."""
        cdef QueuedBatch queued = self.queued
        cdef TopicCore topic = self.queued_topic
        assert queued.finished
        self.drop_queued()
        if queued.error is not None:
            self.refuse_write(command, queued.error)
        if not queued.stored:
            name = command.decode("ascii")
            raise CommandError(f"E_{name}_FAILED", f"{name} failed exiting")
        return self.accepted(topic, queued.last_id, queued.batch.count, 1, command not in SINGLE_COMMANDS)

    cdef int drop_queued(self) except -1:
        """Drop the queued messages, stored or not, and free their buffer."""
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

    cdef int end(self) except -1:
        """Drop the queued messages, and the references to topics and to the connection."""
        self.drop_queued()
        self.topic = None
        self.known_topics = None
        self.client = None
        return 0

    cdef int64_t check_batch(
        self, CommandLine* line, const char* at, uint64_t size_bytes, uint32_t lead_bytes,
    ) except -1:
        """Walk the received part of a batch's body. Returns: the bytes of the body, or NEEDS_BYTES."""
        cdef int32_t size
        cdef int64_t limit = self.limits.max_body_bytes
        cdef Scan scan
        if size_bytes < 4:
            return self.need_bytes(line, "E_BAD_BODY", "failed to read body size")
        size = read_be32(at)
        if size <= 0 or size > limit:
            raise size_error(line, "E_BAD_BODY", "body", "body", size, limit)
        scan = scan_batch(
            at + 4, size_bytes - 4, self.limits.max_msg_bytes, (limit - 4) // (MESSAGE_BYTES_MIN + lead_bytes),
            lead_bytes, &self.batch)
        if scan != SCAN_READY:
            return self.batch_not_ready(line, scan, size_bytes - 4, lead_bytes)
        assert 4 + self.batch.offset <= size_bytes
        return 4 + <int64_t> self.batch.offset

    cdef int64_t batch_not_ready(
        self, CommandLine* line, Scan scan, uint64_t size_bytes, uint32_t lead_bytes,
    ) except -1:
        """Raise for a bad batch, or return NEEDS_BYTES for an incomplete one."""
        cdef uint32_t index = self.batch.index
        cdef int32_t size = self.batch.size_bytes
        cdef int64_t limit
        name = text_of(&line.name).decode("ascii")
        if scan == SCAN_BAD_COUNT:
            raise CommandError("E_BAD_BODY", f"{name} invalid message count {size}")
        if scan == SCAN_BAD_SIZE:
            raise CommandError("E_BAD_MESSAGE", f"{name} invalid message({index}) body size {size}")
        if scan == SCAN_TOO_BIG:
            raise CommandError("E_BAD_MESSAGE", f"{name} message too big {size} > {self.limits.max_msg_bytes}")
        limit = INNER_BODIES_MAX * self.limits.max_body_bytes
        if <int64_t> self.batch.offset > limit:
            raise CommandError("E_BAD_BODY", f"{name} body too big {self.batch.offset} > {limit}")
        if self.batch.count == 0:
            return self.need_bytes(line, "E_BAD_BODY", "failed to read message count")
        if size_bytes < self.batch.offset + lead_bytes + 4:
            return self.need_bytes(line, "E_BAD_MESSAGE", f"failed to read message({index}) body size")
        return self.need_bytes(line, "E_BAD_MESSAGE", "failed to read message body")

    cdef int64_t need_bytes(self, CommandLine* line, code, text) except -1:
        """Return NEEDS_BYTES. Raises: CommandError if no more bytes will come."""
        if self.eof:
            raise truncation_error(line, code, text)
        return NEEDS_BYTES

    cdef int refuse_publish(self, CommandLine* line, name, uint32_t params_needed) except -1:
        """Raise for a publish with too few parameters or a bad topic name."""
        if line.param_count < params_needed:
            raise CommandError("E_INVALID", f"{name} insufficient number of parameters")
        topic = text_of(&line.params[0])
        # nsqd repeats the code in the text for MPUB; clients may rely on it.
        doubled = "E_BAD_TOPIC " if name == "MPUB" else ""
        raise CommandError(
            "E_BAD_TOPIC", f"{doubled}{name} topic name ".encode() + go_quote(topic) + b" is not valid")

    cdef int refuse_write(self, name, error) except -1:
        """Raise for a publish that could not be stored; the daemon's health shows the error."""
        self.client.note_failed_write(error)
        name = name.decode("ascii")
        raise CommandError(f"E_{name}_FAILED", f"{name} failed {error}") from error

    cdef int64_t parse_due(self, name, text) except -1:
        """Return the due time in Unix ns, 0 if it has passed. text: a delay in ms, or `@` and Unix ms.

        Raises: CommandError if it is no number or out of range. Source: docs/protocol-extensions.md.
        """
        cdef int64_t value = 0
        cdef int64_t delay_ns
        if text[:1] == b"@":
            digits = text[1:]
            if not parse_digits(digits, <uint32_t> len(digits), &value):
                raise CommandError("E_INVALID", name.encode() + b" could not parse due time " + text)
            if not 0 <= value <= self.latest_due_ms():
                raise CommandError(
                    "E_INVALID", f"{name} due time {<uint64_t> value} out of range 0-{self.latest_due_ms()}")
            return value * NS_PER_MS if value * NS_PER_MS > self.wall_now_ns else 0
        if not parse_digits(text, <uint32_t> len(text), &value):
            raise CommandError("E_INVALID", name.encode() + b" could not parse timeout " + text)
        delay_ns = <int64_t> (<uint64_t> value * <uint64_t> NS_PER_MS)
        if delay_ns < 0 or delay_ns > self.limits.max_defer_ns:
            limit_ms = self.limits.max_defer_ns // NS_PER_MS
            raise CommandError("E_INVALID", f"{name} timeout {<uint64_t> value} out of range 0-{limit_ms}")
        return self.wall_now_ns + delay_ns if delay_ns else 0

    cdef int read_dues(self, const char* at, bint are_timestamps, int64_t* dues) except -1:
        """Read the due time or delay before each message of a checked batch. Raises: CommandError."""
        cdef int64_t limit_ms = self.latest_due_ms() if are_timestamps else self.limits.max_defer_ns // NS_PER_MS
        cdef int64_t base_ns = 0 if are_timestamps else self.wall_now_ns
        cdef int64_t value, due_ns
        cdef uint32_t index
        for index in range(self.batch.count):
            value = read_be64(at)
            if not 0 <= value <= limit_ms:
                noun = "due time" if are_timestamps else "timeout"
                raise CommandError("E_INVALID", f"DMPUB message({index}) {noun} {value} out of range 0-{limit_ms}")
            due_ns = base_ns + value * NS_PER_MS
            dues[index] = due_ns if due_ns > self.wall_now_ns else 0
            at += DUE_BYTES + 4 + <uint64_t> read_be32(at + DUE_BYTES)
        return 0

    cdef int64_t latest_due_ms(self) noexcept:
        return (self.wall_now_ns + self.limits.max_defer_ns) // NS_PER_MS
