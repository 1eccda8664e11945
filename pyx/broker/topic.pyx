"""A topic: messages are accepted into its log, and its channels read from there.

To accept a message, the topic takes an id, appends the message to the log and schedules a run of the channels. While
the topic is paused, has no channel, or awaits channels that the lookup daemons know, messages are held: `end`, up to
which channels may read, stays behind the log's end.

The topic's state is a mapped page with everything else that must outlive the process: paused or not, counters, the last
id, and `held_from`, the ordinal of the first held message. `held_from` moves as soon as a channel takes the messages
over, and the kernel may write the page before the channel has a durable name. So after a power failure the start
lowers `held_from` to `given_below`, which moves when a sync of the names is complete.

The due time of a message lies in its record, and in the topic's index of due times (pyx/diskqueue/dues.pyx), which all
channels share. The entry is stored before the record is valid, so no record is without one after a kill; a start
removes an entry without its record. A publish is refused if there is no space for the entry.

Invariants: 1. `held_from <= end <= log.end`. 2. `deferred_below` is stored when the record with the due time is valid,
so a start knows whether the index is complete. 3. `last_guid` is stored before the record.

Source: docs/nsq/broker-semantics.md, "Topic lifecycle", "Publish and fan-out".
"""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport INT64_MAX, UINT64_MAX
from libc.string cimport memset

from pyqd.hot.broker.channel cimport ChannelCore
from pyqd.hot.broker.readable_log cimport ReadableLog
from pyqd.hot.broker.trace cimport TraceClient, TracePlace
from pyqd.hot.diskqueue.journal cimport CommitBuffer
from pyqd.hot.diskqueue.dues cimport Dues
from pyqd.hot.diskqueue.log cimport Log, Position
from pyqd.hot.diskqueue.logreader cimport LogReader
from pyqd.hot.diskqueue.mapping cimport store_barrier
from pyqd.hot.diskqueue.notefiles cimport note_place
from pyqd.hot.diskqueue.segment cimport SEGMENT_HEADER_BYTES, Segment
from pyqd.hot.primitives.clock cimport wall_ns
from pyqd.hot.primitives.debug cimport debug_require
from pyqd.hot.primitives.guid cimport id_after_steps
from pyqd.hot.primitives.schedule cimport Scheduler
from pyqd.hot.wire.bodies cimport Frames
from pyqd.hot.wire.record cimport ORDINAL_BITS, ORDINAL_MASK, Record, record_span
from pyqd.hot.wire.scanner cimport read_be32
from pyqd.hot.wire.trace_events cimport (
    DROPPED,
    EXPIRED,
    REASON_EMPTIED,
    REASON_EPHEMERAL,
    REASON_RELEASED,
    REASON_TOPIC_DELETED,
    STORED,
)

from pyqd.primitives.errors import CorruptionError, LaterFormatError, StorageError

cdef uint64_t MAGIC = 0x504f54_44515950          # "PYQDTOP\0", little-endian

cdef enum:
    DROP_WORK = 125000                   # in units of work: dropping some channels of a deleted topic

TOPIC_STATE_SIZE = TOPIC_STATE_BYTES

assert sizeof(TopicState) <= TOPIC_STATE_BYTES


def check_state(Mapping mapping not None):
    """Check a state that an earlier run left. Raises: CorruptionError, LaterFormatError."""
    cdef TopicState* state = <TopicState*> mapping.base
    path = mapping.path or "memory"
    if mapping.size_bytes < TOPIC_STATE_BYTES or state.magic != MAGIC or state.version < TOPIC_STATE_VERSION:
        raise CorruptionError(path, 0, "not the state of a pyqd topic")
    if state.version > TOPIC_STATE_VERSION:
        raise LaterFormatError(
            path, 8, f"topic format version {state.version}; this pyqd reads {TOPIC_STATE_VERSION}")


def new_state(bint paused, uint64_t held_from, uint64_t last_guid):
    """Return the content of a state for a topic that is imported. last_guid: no id to come is at or below it."""
    cdef TopicState state
    memset(&state, 0, sizeof(state))
    state.magic = MAGIC
    state.version = TOPIC_STATE_VERSION
    state.paused = paused
    state.held_from = held_from
    state.last_guid = last_guid
    return (<const char*> &state)[:sizeof(state)].ljust(TOPIC_STATE_BYTES, b"\0")


def is_half_made(bytes content not None):
    """Return whether a kill has come while a state was stored for the first time; False: it was whole once."""
    cdef const TopicState* state = <const TopicState*> PyBytes_AS_STRING(content)
    return <uint64_t> len(content) >= sizeof(TopicState) and state.magic == 0 and state.count_ahead == 0


def created_of(Mapping mapping not None):
    """Return the creation time of a state's topic in Unix ns; 0 if the state is a new one."""
    return (<TopicState*> mapping.base).created_ns


def known_end_of(Mapping mapping not None):
    """Return (end, id of the last record) of the topic's log as its state has them; (0, 0) if it has not.

    A record is counted as soon as it is valid, so a kill in between leaves an end that is lower by one publish.
    """
    cdef TopicState* state = <TopicState*> mapping.base
    cdef uint64_t end = state.message_count - (state.count_ahead - 1)
    if state.magic == 0 or state.count_ahead == 0 or end >> ORDINAL_BITS != 0:
        return 0, 0
    return end, state.last_guid


def due_ends_of(Mapping mapping not None, bytes journaled):
    """Return (1 + ordinal of the last record with a due time, ordinal below which due times are on stable storage).

    They are those of the topic's state, or of the journal; if neither is known, any record may have a due time.
    """
    cdef TopicState* state = <TopicState*> mapping.base
    cdef uint64_t end = state.deferred_below if state.magic != 0 else UINT64_MAX
    if journaled is not None:
        end = max(end, (<const JournaledState*> PyBytes_AS_STRING(journaled)).deferred_below)
    return end, state.dues_below


def journal_topics(CommitBuffer commit not None, topics):
    """Add the new records of topics to a commit of the journal. Deleted and ephemeral topics are left out.

    Returns: the topics that the commit cannot take; their files have to be synced instead. Cost: O(topics and bytes).
    """
    cdef TopicCore topic
    left = []
    for topic in topics:
        if topic.exiting or topic.log.directory is None:
            continue
        # Replay of the journal skips a directory without a durable name, and a topic whose state is in memory only.
        if topic.names or topic.mapping.path is None or not topic.journal_into(commit, (<str> topic.name).encode()):
            left.append(topic)
    return left


cdef class TopicCore(Scheduled):
    """The compiled half of a topic. `pyqd.broker.topic.Topic` adds name, life cycle and files."""

    def __init__(
        self, Log log not None, Dues dues not None, Scheduler scheduler not None, Mapping mapping not None, *,
        uint32_t node_id, uint64_t memory_count_max, bint ephemeral, bint power_failed, int64_t created_ns=0,
        bytes journaled=None,
    ):
        """Resume the state of an earlier run, or begin a fresh one.

        created_ns: creation time of a fresh one; 0: now. journaled: JournaledState from the journal, or None.
        """
        self.log = log
        self.scheduler = scheduler
        self.mapping = mapping
        self.state = <TopicState*> mapping.base
        fresh = self.state.magic == 0
        if fresh:
            self.state.version = TOPIC_STATE_VERSION
            self.state.held_from = log.first.first_ordinal
            self.state.given_below = log.first.first_ordinal + 1
            self.state.deferred_below = log.end
            self.state.message_count = log.end
            self.state.created_ns = created_ns or wall_ns()
            store_barrier()
            self.state.magic = MAGIC
        if journaled is not None:
            self.restore(journaled, fresh)
        self.recount(power_failed)
        self.guids = GuidFactory(node_id)
        self.guids.resume_after(self.state.last_guid)
        self.resume_ids_after(log.highest_guid(power_failed or fresh))
        self.channels = []
        self.memory_count_max = memory_count_max
        self.ephemeral = ephemeral
        if self.state.given_below > log.end + 1:
            # Messages to come get the ordinals from the end on, and no channel was given these.
            self.state.given_below = log.end + 1
        if power_failed and self.state.given_below != 0:
            # Channels that were given later messages may be lost.
            self.state.held_from = min(self.state.held_from, self.state.given_below - 1)
        if not dues.ordinal_end <= self.state.deferred_below <= max(dues.ordinal_end, log.first.first_ordinal):
            # The state may be older than the log, or that of a log whose end is lost.
            self.state.deferred_below = dues.ordinal_end
        held_from = min(max(self.state.held_from, log.first.first_ordinal), log.end)
        # A store dirties the page even if it changes nothing, in each of many idle topics.
        if self.state.held_from != held_from:
            self.state.held_from = held_from
        for start, behind in log.holes:
            if start <= self.state.held_from < behind:
                # No message is held there, and the segment before is trimmed as soon as all of it is finished.
                self.state.held_from = behind
        self.readable = ReadableLog(log, dues, scheduler, self, self.state.held_from)
        if self.readable.end == log.end:
            self.readable.note_held()
        assert self.state.held_from <= self.readable.end <= log.end, "invariant 1"

    cdef int recount(self, bint power_failed) except -1:
        """At a start: count messages that were stored just before a kill, and note how counts and ordinals differ."""
        cdef uint64_t ahead = self.state.count_ahead
        cdef uint64_t uncounted = self.log.end + (ahead - 1) - self.state.message_count
        # More than the log has had: one of the numbers is damaged.
        if ahead != 0 and not power_failed and 0 < uncounted <= self.log.end:
            self.state.message_count += uncounted
        ahead = self.state.message_count - self.log.end + 1
        # A store dirties the page even if it changes nothing.
        if self.state.count_ahead != ahead:
            self.state.count_ahead = ahead
        return 0

    cdef int restore(self, bytes journaled, bint fresh) except -1:
        """Take the journal's values over if the state is older, as the page was not synced with the records.

        fresh: the state was damaged and is a new one. It gets the journal's creation time, by which the next start
        matches the journal's entries with the topic.
        """
        cdef const JournaledState* kept = <const JournaledState*> PyBytes_AS_STRING(journaled)
        assert len(journaled) == sizeof(JournaledState)
        if fresh:
            self.state.created_ns = kept.created_ns
        self.state.deferred_below = max(self.state.deferred_below, kept.deferred_below)
        self.state.last_guid = max(self.state.last_guid, kept.last_guid)
        self.state.message_count = max(self.state.message_count, kept.message_count)
        self.state.message_bytes = max(self.state.message_bytes, kept.message_bytes)
        return 0

    def journal_into(self, CommitBuffer commit not None, bytes name not None):
        """Add the records since the last commit. Returns: False if these are too much for the journal."""
        cdef JournaledState kept
        kept.created_ns = self.state.created_ns
        kept.deferred_below = self.state.deferred_below
        kept.last_guid = self.state.last_guid
        kept.message_count = self.state.message_count
        kept.message_bytes = self.state.message_bytes
        kept.producers_below = self.state.producers_below
        return commit.add(self.log, name, &kept, sizeof(JournaledState) // 8)

    cdef uint64_t held_count(self) noexcept:
        debug_require(self.readable.end <= self.log.end)
        return self.log.end - self.readable.end

    cdef int publish(self, const char* body, uint32_t body_bytes, int64_t now_ns, int64_t due_ns) except -1:
        """Accept one message. now_ns: Unix. due_ns: Unix, 0 for at once. body: copied.

        Raises: StorageError (nothing was accepted). Switches: no. Durable: against a kill when it returns.
        """
        cdef char* at
        assert self.open_count == 0, "a batch is open"
        if due_ns <= now_ns:
            due_ns = 0
        self.log.reserve(record_span(body_bytes))
        if due_ns != 0:
            self.reserve_dues(1)
        if self.trace is not None:
            self.trace.begin_publish(self.guids.last_id)
        self.state.message_bytes += body_bytes
        self.state.last_guid = self.guids.next_id(now_ns)
        if self.ephemeral and self.held_count() >= self.memory_count_max and not self.is_readable():
            self.state.message_count += 1
            return self.note_unkept(self.guids.last_id, body_bytes, now_ns, due_ns)
        if due_ns != 0:
            self.readable.dues.append(
                self.log.next_seq(), due_ns, note_place(self.log.active.number, self.log.active.tail))
        store_barrier()
        at = self.log.append(self.guids.last_id, now_ns, due_ns, body, body_bytes)
        # Not before: a start takes a record that was counted and is not there for lost.
        store_barrier()
        self.state.message_count += 1
        if due_ns != 0:
            self.note_deferred()
        if self.is_readable():
            self.advance_end()
        if self.trace is not None:
            self.trace.end_publish(<const Record*> at, 1, self.is_readable())
        return 0

    cdef int note_unkept(self, uint64_t guid, uint32_t body_bytes, int64_t now_ns, int64_t due_ns) except -1:
        """Add the events of a message that is accepted and dropped, for an ephemeral topic holds no more."""
        cdef Record record
        assert self.ephemeral, "a durable topic drops no message"
        if self.trace is None:
            return 0
        memset(&record, 0, sizeof(Record))
        record.size_bytes, record.guid, record.timestamp_ns, record.due_ns = body_bytes, guid, now_ns, due_ns
        self.trace.note_unkept(&record)
        return self.trace.end_publish(NULL, 0, False)

    cdef int reserve_dues(self, uint64_t count) except -1:
        """Reserve space so that storing so many due times cannot fail. Raises: StorageError."""
        try:
            return self.readable.dues.reserve(count)
        except BaseException:
            # The log may have gone on in another segment for these messages. Nothing else would trim the former one.
            self.readable.request_trim()
            raise

    cdef int note_deferred(self) except -1:
        """Record that the records with due times that were stored just now are valid."""
        cdef Dues dues = self.readable.dues
        self.state.deferred_below = (dues.at(dues.end - 1).seq & ORDINAL_MASK) + 1
        self.readable.dues_stored = dues.end
        assert self.state.deferred_below <= self.log.end, "a due time has no record"
        return 0

    cdef int publish_batch(self, const char* at, uint32_t count, uint64_t body_words, int64_t now_ns) except -1:
        """Accept `count` messages, each a big-endian int32 size and a body, checked before; all or none.

        body_words: 8-byte words of all bodies, each rounded up. Raises: StorageError (nothing was accepted).
        """
        assert count != 0
        self.add_batch(at, count, body_words, 0, now_ns, True)
        return self.commit_batches()

    cdef int add_batch(
        self, const char* at, uint32_t count, uint64_t body_words, uint64_t gap_bytes, int64_t now_ns,
        bint may_stage,
    ) except -1:
        """Add messages to an open batch, which `commit_batches` accepts and `abort_batches` drops, as a whole.

        gap_bytes: skipped between two messages; 0 if the topic is traced, or an ephemeral one that holds messages.
        may_stage: see `BatchWriter.begin`. In between, nothing else is done with the topic, and nothing switches.
        `joins` returns whether more can be added. Raises: as publish_batch (the open batch is dropped).
        """
        cdef uint64_t span = batch_span(count, body_words)
        cdef const char* end
        if self.ephemeral and not self.is_readable():
            assert self.open_count == 0 and gap_bytes == 0
            return self.publish_deferred_batch(at, count, body_words, 0, now_ns, 0, NULL)
        if not self.log.batch.is_open:
            assert self.open_count == 0
            self.log.begin_batch(span, may_stage)
        try:
            assert self.open_count == 0 or self.log.batch.joins(span), "a batch was opened that this one does not join"
            end = self.log.batch.append_frames(at, count, gap_bytes, now_ns, self.guids)
        except BaseException:
            self.abort_batches()
            raise
        if self.trace is not None:
            assert gap_bytes == 0, "traced messages are read as they lie, without gaps"
            self.trace.note_framed(at, count, self.guids.last_id, now_ns, self.open_count == 0)
        self.open_count += count
        self.open_bytes += end - at - count * sizeof(uint32_t) - (count - 1) * gap_bytes
        return 0

    cdef bint joins(self, uint32_t count, uint64_t body_words) noexcept:
        debug_require(count != 0)
        return self.log.batch.joins(batch_span(count, body_words))

    cdef int commit_batches(self) except -1:
        """Accept all messages of the open batch, or none. Raises: StorageError (nothing was accepted)."""
        cdef uint64_t count = self.open_count
        cdef uint64_t bytes_total = self.open_bytes
        cdef const Record* first
        if count == 0:
            return 0
        assert self.log.batch.is_open, "the messages counted as open are in no batch"
        first = <const Record*> self.log.batch.first
        self.open_count = self.open_bytes = 0
        if self.trace is not None:
            self.trace.begin_publish(self.state.last_guid)
        self.state.last_guid = self.guids.last_id
        store_barrier()
        self.log.commit_batch()
        store_barrier()
        self.state.message_count += count
        self.state.message_bytes += bytes_total
        if self.is_readable():
            self.advance_end()
        if self.trace is not None:
            self.trace.end_framed(first, <uint32_t> count, self.is_readable())
        return 0

    cdef int abort_batches(self) except -1:
        self.open_count = self.open_bytes = 0
        if self.log.batch.is_open:
            self.log.batch.discard()
        return 0

    cdef int publish_deferred_batch(
        self, const char* at, uint32_t count, uint64_t body_words, uint64_t gap_bytes, int64_t now_ns, int64_t due_ns,
        const int64_t* dues,
    ) except -1:
        """Accept `count` messages with a due time (Unix ns, 0: at once), checked before; all or none.

        dues NULL: `due_ns` is the due time of all, and the form is that of `publish_batch`. Otherwise dues has one for
        each, and 8 ignored bytes precede each size. gap_bytes: skipped between two messages. body_words: as there.
        Raises: StorageError (nothing was accepted).
        """
        cdef MessageBatch batch
        assert count != 0 and self.open_count == 0, "a batch is open"
        memset(&batch, 0, sizeof(MessageBatch))
        batch.at, batch.count, batch.body_words, batch.gap_bytes = at, count, body_words, gap_bytes
        batch.now_ns, batch.due_ns, batch.dues = now_ns, due_ns, dues
        self.begin_messages(&batch)
        try:
            self.add_messages(&batch, count)
        except BaseException:
            self.drop_messages(&batch)
            raise
        return self.accept_messages(&batch)

    cdef int begin_messages(self, MessageBatch* batch) except -1:
        """Reserve space for a batch, and begin it in the log. Raises: StorageError (nothing has changed)."""
        cdef uint64_t span = batch_span(batch.count, batch.body_words)
        cdef uint64_t held = self.held_count()
        assert batch.count != 0 and batch.done == 0
        batch.kept = batch.count
        if self.ephemeral and not self.is_readable():
            # As with single messages, those beyond the limit of held messages are accepted and dropped.
            batch.kept = <uint32_t> min(
                <uint64_t> batch.count, self.memory_count_max - min(held, self.memory_count_max))
        if batch.kept == 0:
            return 0
        self.log.reserve(span)
        if batch.due_ns <= batch.now_ns:
            batch.due_ns = 0
        if batch.due_ns != 0 or batch.dues != NULL:
            self.reserve_dues(batch.kept)
        return self.log.begin_batch(span)

    cdef int add_messages(self, MessageBatch* batch, uint32_t count) except -1:
        """Append the next `count` messages of a batch. Raises: StorageError (the batch is the caller's to drop)."""
        cdef uint32_t size
        cdef uint64_t guid
        cdef int64_t due_ns = batch.due_ns
        cdef const char* at = batch.at
        assert count <= batch.count - batch.done
        if due_ns == 0 and batch.dues == NULL and batch.gap_bytes == 0 and batch.kept == batch.count:
            batch.at = self.log.batch.append_frames(at, count, 0, batch.now_ns, self.guids)
            batch.body_bytes += batch.at - at - count * sizeof(uint32_t)
            batch.done += count
            return 0
        for _ in range(count):
            at = batch.at
            if batch.dues != NULL:
                due_ns = batch.dues[batch.done] if batch.dues[batch.done] > batch.now_ns else 0
                at += sizeof(int64_t)
            size = <uint32_t> read_be32(at)
            at += sizeof(uint32_t)
            guid = self.guids.next_id(batch.now_ns)
            if batch.done < batch.kept:
                if due_ns != 0:
                    self.readable.dues.append(
                        self.log.batch.seq, due_ns, note_place(self.log.active.number, self.log.batch.tail))
                self.log.batch.append(guid, batch.now_ns, due_ns, at, size)
            batch.body_bytes += size
            batch.at = at + size + batch.gap_bytes
            batch.done += 1
        return 0

    cdef int accept_messages(self, MessageBatch* batch) except -1:
        """Make a batch visible, all of whose messages have been added. Raises: StorageError (the batch is dropped)."""
        cdef const Record* first = <const Record*> self.log.batch.first
        assert batch.done == batch.count
        if self.trace is not None:
            self.trace.begin_publish(self.state.last_guid)
        self.state.last_guid = self.guids.last_id
        store_barrier()
        if batch.kept != 0:
            try:
                self.log.commit_batch()
            except BaseException:
                self.take_dues_back()
                raise
        store_barrier()
        self.state.message_count += batch.count
        self.state.message_bytes += batch.body_bytes
        if self.readable.dues_stored != self.readable.dues.end:
            self.note_deferred()
        if self.is_readable():
            self.advance_end()
        if self.trace is not None:
            self.trace.end_publish(first, batch.kept, self.is_readable())
            self.trace.note_many(DROPPED, 0, REASON_EPHEMERAL, batch.count - batch.kept, batch.now_ns)
        return 0

    cdef int drop_messages(self, MessageBatch* batch) except -1:
        assert batch.done <= batch.count
        if batch.kept != 0 and self.log.batch.is_open:
            self.log.batch.discard()
        return self.take_dues_back()

    cdef int take_dues_back(self) except -1:
        """Drop the due times of a batch that was dropped."""
        if self.readable.dues_stored != self.readable.dues.end:
            self.readable.dues.take_back(self.readable.dues_stored)
        return 0

    cdef bint is_readable(self) noexcept:
        return not self.state.paused and not self.awaits_channels and len(self.channels) != 0

    cdef int advance_end(self) except -1:
        """Let the channels read up to the log's end, and schedule their deliveries."""
        debug_require(self.is_readable())
        self.readable.advance_end()
        if self.state.held_from != self.readable.end:
            self.state.held_from = self.readable.end
        self.scheduler.request_wake(self)
        return 0

    cdef int wake(self) except -1:
        cdef ChannelCore channel
        assert self.on_drop_wanted is None or self.exiting, "only a deleted topic drops channels"
        if self.on_drop_wanted is not None:
            while self.on_drop_wanted():
                if not self.scheduler.spend(DROP_WORK):
                    return self.scheduler.request_wake(self)
            return 0
        for channel in self.channels:
            self.scheduler.request_turn(channel)
        if self.readable.trim_wanted:
            self.readable.trim_wanted = False
            self.trim()
        return 0

    cdef int trim(self) except -1:
        """Trim the segments that every channel has finished and retention does not keep, oldest first."""
        cdef ChannelCore channel
        cdef uint64_t floor = self.readable.end
        cdef int64_t since_ns = INT64_MAX
        self.readable.leave_drained_held()
        for channel in self.channels:
            if channel.cursor.skip_finished():
                self.readable.trim_wanted = True
                self.scheduler.request_wake(self)
            floor = min(floor, channel.ledger.oldest_unfinished())
        self.readable.oldest_unfinished = self.log.segment_of(floor)
        if self.retention_time_ns != 0:
            since_ns = wall_ns() - self.retention_time_ns
        if self.retention_bytes != 0 or since_ns != INT64_MAX:
            floor = self.log.floor_retained(floor, self.retention_bytes, since_ns)
            if self.trace is not None:
                return self.trim_traced(floor)
        assert floor <= self.log.end
        return self.trim_to(floor)

    cdef int trim_to(self, uint64_t floor) except -1:
        """Trim the log's segments below an ordinal, and their due times."""
        self.log.trim(floor)
        return self.readable.dues.trim(self.log.first.first_ordinal)

    cdef int trim_traced(self, uint64_t floor) except -1:
        """Trim finished messages that retention kept so far, and add their event."""
        cdef uint64_t before = self.log.first.first_ordinal
        cdef Segment first
        cdef uint64_t following
        assert self.trace is not None and floor <= self.log.end
        self.trim_to(floor)
        first = self.log.first
        if first.first_ordinal != before:
            following = self.guids.last_id + 1
            if first.count != 0:
                following = (<const Record*> (first.base + SEGMENT_HEADER_BYTES)).guid
            self.trace.note_many(EXPIRED, following - 1, 0, first.first_ordinal - before, wall_ns())
        return 0

    def trim_finished(self):
        """Trim now: segments may have outlived the retention time since the last run."""
        self.trim()

    def retained_from(self):
        """Return the ordinal from which on retention keeps records, even finished ones. Cost: O(segments)."""
        cdef int64_t since_ns = INT64_MAX if self.retention_time_ns == 0 else wall_ns() - self.retention_time_ns
        return self.log.floor_retained(self.log.end, self.retention_bytes, since_ns)

    def change_sum(self):
        """Return a number that grows with every change of the topic and its channels, while the channels stay the same.

        This touches no mapped file, as those of an idle topic may not be mapped. Cost: O(channels).
        """
        cdef ChannelCore channel
        cdef uint64_t total = self.log.end + self.readable.end + self.state_change_count
        for channel in self.channels:
            if channel.ephemeral:
                continue
            total += channel.ledger.change_count
            if channel.cancelled is not None:
                total += channel.cancelled.change_count
            if channel.deferral.notes is not None:
                total += channel.deferral.notes.store.change_count
        return total + self.readable.dues.store.change_count

    def changed_channels(self):
        """Return the durable channels with changes that no sync has covered. Cost: O(channels), in C."""
        cdef ChannelCore channel
        changed = []
        for channel in self.channels:
            if channel.ephemeral:
                continue
            if channel.ledger.change_count != channel.ledger.synced_change_count:
                changed.append(channel)
            elif channel.cancelled is not None and (
                    channel.cancelled.change_count != channel.cancelled.synced_change_count):
                changed.append(channel)
            elif channel.deferral.notes is not None and (
                    channel.deferral.notes.store.change_count != channel.deferral.notes.store.synced_change_count):
                changed.append(channel)
        return changed

    @property
    def own_limits(self):
        """The topic's own (retention_bytes, retention_time_ns, bytes_max); None: the daemon's flag applies."""
        values = (self.state.retention_bytes, self.state.retention_time_ns, self.state.bytes_max)
        return tuple([value - 1 if value else None for value in values])

    @own_limits.setter
    def own_limits(self, tuple limits):
        retention_bytes, retention_time_ns, bytes_max = limits
        self.state.retention_bytes = 0 if retention_bytes is None else retention_bytes + 1
        self.state.retention_time_ns = 0 if retention_time_ns is None else retention_time_ns + 1
        self.state.bytes_max = 0 if bytes_max is None else bytes_max + 1
        self.state_change_count += 1

    def publish_body(self, bytes body not None, int64_t now_ns, int64_t due_ns=0):
        """Accept one message from Python. Returns: its id. Raises: ValueError for an empty body, StorageError."""
        if not body:
            raise ValueError("a message has at least one byte")
        self.publish(body, <uint32_t> len(body), now_ns, due_ns)
        return self.guids.last_id

    def publish_frames(self, Frames frames not None, int64_t now_ns, int64_t due_ns=0):
        """Accept messages, one or more, framed and checked, all or none. due_ns: of all, Unix; 0 for at once.

        Returns: the id of the first. Raises: ValueError, StorageError.
        """
        cdef const char* at = PyBytes_AS_STRING(frames.data) + frames.start
        if frames.count == 0:
            raise ValueError("there is no message")
        if due_ns != 0:
            self.publish_deferred_batch(at, frames.count, frames.words, 0, now_ns, due_ns, NULL)
        else:
            self.publish_batch(at, frames.count, frames.words, now_ns)
        return id_after_steps(self.guids.last_id, 1 - <int64_t> frames.count)

    def attach(self, ChannelCore channel not None):
        """Add a channel; the first one gets the held messages, unless the topic is paused or awaits channels."""
        assert not channel.exiting, "the channel is deleted"
        assert channel.readable is self.readable, "the channel reads another topic's log"
        self.channels.append(channel)
        self.note_members()
        if self.is_readable():
            self.release_held()

    def release_held(self):
        """Hand the held messages to the channels."""
        cdef uint64_t start = self.readable.end
        assert self.is_readable(), "no channel may read the held messages"
        if self.trace is not None:
            self.note_released(self.log.end - start)
        self.advance_end()
        self.finish_missing(start)
        self.readable.forget_held()

    cdef int finish_missing(self, uint64_t start) except -1:
        """Finish, in all channels, the readable records of `[start, end)` that the log has lost."""
        cdef ChannelCore channel
        assert start <= self.readable.end
        if start == self.readable.end or not self.log.holes:
            return 0
        for channel in self.channels:
            try:
                channel.cursor.finish_missing(start, self.readable.end)
            except StorageError:
                # The cursor steps over a hole that it meets; until then its records are in the depth.
                continue
            channel.cursor.note_finished_ahead()
        return 0

    def detach(self, ChannelCore channel not None):
        """Remove a channel; its unfinished messages keep no segment any more."""
        cdef bint was_readable = self.is_readable()
        self.channels.remove(channel)
        self.note_members()
        if was_readable and not self.channels:
            self.readable.note_held()
        self.readable.request_trim()
        assert channel not in self.channels, "a channel was attached twice"

    def pause(self, bint paused):
        """Hold published messages, or hand them to the channels again. Remembered over restarts."""
        if paused and self.is_readable():
            self.readable.note_held()
        self.state.paused = paused
        self.state_change_count += 1
        if self.is_readable():
            self.release_held()

    def await_channels(self, bint awaited):
        """Begin or end to hold messages until more channels are created, each of which gets all of them.

        Nothing of it outlives the process: after a restart the channels that exist get the messages.
        """
        if awaited and self.is_readable():
            self.readable.note_held()
        self.awaits_channels = awaited
        if self.is_readable():
            self.release_held()

    def prepare_to_empty(self):
        """Prepare the channels' ledgers for all held messages, as `empty` needs. Yields after each channel.

        The caller yields to the event loop meanwhile, because a ledger that grows is synced. Raises: StorageError.
        """
        cdef ChannelCore channel
        for channel in list(self.channels):
            if self.readable.end < self.log.end and not channel.exiting:
                channel.ledger.prepare_range(self.readable.end, self.log.end)
            yield

    def empty(self):
        """Drop the held messages; the channels keep theirs.

        Source: docs/nsq/http-api.md, "Topic and channel administration".
        """
        cdef ChannelCore channel
        cdef uint64_t start = self.readable.end
        cdef uint64_t end = self.log.end
        if start < end:
            for channel in self.channels:
                channel.ledger.reach(end - 1)
            # Before the ledgers: after a kill no channel has finished messages that the topic still holds.
            self.state.held_from = end
            store_barrier()
            self.readable.advance_end()
            for channel in self.channels:
                channel.cursor.finish_range(start, end)
                channel.ledger.header.spared += end - start
            self.readable.forget_held()
            self.readable.note_held()
            if self.trace is not None:
                self.trace.note_many(DROPPED, 0, REASON_EMPTIED, end - start, wall_ns())
        self.readable.trim_wanted = True
        self.scheduler.request_wake(self)
        assert self.readable.end == self.log.end, "messages are held yet"

    cdef int note_members(self) except -1:
        """Tell the trace which channels get published messages from now on."""
        cdef ChannelCore channel
        cdef list members = []
        if self.trace is not None:
            for channel in self.channels:
                if channel.trace is not None:
                    members.append(channel.trace.place)
            self.trace.set_members(members)
        return 0

    cdef int note_released(self, uint64_t count) except -1:
        cdef ChannelCore channel
        cdef int64_t now_ns = wall_ns()
        assert self.trace is not None
        for channel in self.channels:
            if channel.trace is not None:
                channel.trace.place.note_many(STORED, 0, REASON_RELEASED, count, now_ns)
        return 0

    def trace_deleted(self):
        """Add an event for all messages of the topic, which are about to be dropped."""
        cdef ChannelCore channel
        if self.trace is not None:
            for channel in self.channels:
                channel.trace_dropped(REASON_TOPIC_DELETED)
            self.trace.note_many(DROPPED, 0, REASON_TOPIC_DELETED, self.held_count(), wall_ns())

    def trace_as(self, TracePlace place, list places not None):
        """Trace the topic's messages from now on. places: of its channels, in their order. None: do not trace."""
        cdef ChannelCore channel
        assert len(places) == len(self.channels)
        self.trace = place
        for channel, channel_place in zip(self.channels, places):
            channel.trace_as(channel_place)
        self.note_members()

    def published_by(self, TraceClient client):
        """Name the client of the publish that follows, for the trace."""
        if self.trace is not None:
            self.trace.publisher = client

    def add_events_after(self, uint64_t guid, TraceClient client):
        """Add the events of messages with ids above one, whose publish was under way at a kill. Returns: their number.

        Cost: a walk over the headers of one segment.
        """
        cdef LogReader reader = LogReader(self.log)
        cdef uint64_t start = reader.ordinal_after_guid(guid)
        cdef Position position
        cdef uint64_t count = 0
        if self.trace is not None and start < self.log.end:
            position = self.log.locate(start)
            count = position.segment.end_ordinal() - position.ordinal
            self.trace.publisher = client
            self.trace.end_publish(
                <const Record*> (position.segment.base + position.offset), <uint32_t> count, self.is_readable())
        return count

    @property
    def own_trace(self) -> tuple[int, int] | None:
        """The topic's own (threshold, bytes of a body) of its trace; None: the daemon's flags apply."""
        if self.state.trace_threshold == 0:
            return None
        return (self.state.trace_threshold - 1, self.state.trace_body_bytes)

    @own_trace.setter
    def own_trace(self, tuple setting):
        threshold, body_bytes = (-1, 0) if setting is None else setting
        self.state.trace_threshold = threshold + 1
        self.state.trace_body_bytes = body_bytes
        self.state_change_count += 1

    def refuse_publishes(self):
        """Refuse publishes from now on, because the daemon drains. Those that wait in the intake are stored."""
        self.draining = self.busy = True

    def abandon(self):
        """Abandon the log for good: the topic's files and its channels are gone."""
        assert len(self.channels) == 0
        self.log.abandon()
        self.readable.dues.abandon()
        self.readable.dues_stored = self.readable.due_end = self.readable.dues.end
        self.readable.oldest_unfinished = self.log.active
        self.readable.forget_held()
        self.readable.trim_wanted = False
        # No cycle: a deleted topic must go without a full collection.
        self.readable.topic = None

    def resume_ids_after(self, uint64_t guid):
        """Use only ids above one that was found on disk: the state page may be older than the records."""
        # A higher id comes from a record that another program has written.
        if guid >> 63 == 0:
            self.guids.resume_after(guid)
            if guid > self.state.last_guid:
                # The record may be trimmed before the next start.
                self.state.last_guid = guid
                self.state_change_count += 1
        assert self.guids.last_id >= self.state.last_guid, "an id is given twice"

    def note_given(self, uint64_t end):
        """Record that all messages below an ordinal were given to channels with durable names and ledgers.

        After a power failure the topic holds the messages from there on that no remaining channel was given. May be
        called in a thread: nothing else stores there.
        """
        assert end <= self.log.end, "channels were given records that the log does not have"
        self.state.given_below = max(self.state.given_below, end + 1)

    def note_dues_synced(self, uint64_t end):
        """Record that the due times of the records below an ordinal are on stable storage, as these are."""
        assert end <= self.log.end, "due times of records that the log does not have"
        # A store dirties the page even if it changes nothing.
        if self.state.dues_below < end and self.readable.dues.ordinal_end != 0:
            self.state.dues_below = end
            self.state_change_count += 1

    def recover(self):
        """After a start, with all channels attached: set the readable end, and count the deferred messages."""
        cdef ChannelCore channel
        cdef uint64_t end = self.readable.end
        cdef uint64_t start = end
        # A needless run of each of many idle topics would map files again that were mapped just now for the load.
        self.readable.trim_wanted = self.log.first is not self.log.active
        if self.state.paused:
            for channel in self.channels:
                # Finished messages were given: the state may be older than the ledgers after a power failure.
                end = max(end, channel.ledger.header.cursor, channel.ledger.finished_end(),
                          channel.cursor.overridden_end(), channel.deferral.superseded_end())
            self.readable.move_end(end)
            # Otherwise a topic whose last channel is deleted now would hold these again after the next start.
            self.state.held_from = self.readable.end
            self.finish_missing(start)
        if self.channels and not self.state.paused:
            self.release_held()
        else:
            self.readable.end_position()
        for channel in self.channels:
            channel.deferral.begin(False)
            if channel.ledger.next_is_finished():
                self.readable.trim_wanted = True
            if channel.deferral.dues_seen != self.readable.due_end:
                self.scheduler.request_wake(channel)
        if self.readable.trim_wanted:
            self.scheduler.request_wake(self)
        assert self.state.held_from <= self.readable.end, "invariant 1"

    @property
    def end(self) -> int:
        """Ordinal up to which channels may read."""
        return self.readable.end

    @property
    def dues(self) -> Dues:
        """Due times of the log's records."""
        return self.readable.dues

    def end_position(self):
        """Return the Position of `end`."""
        return self.readable.end_position()

    @property
    def paused(self) -> bool:
        return bool(self.state.paused)

    @property
    def depth(self) -> int:
        return self.held_count()

    @property
    def backend_depth(self) -> int:
        depth = self.held_count()
        return 0 if self.ephemeral or depth <= self.memory_count_max else depth - self.memory_count_max

    @property
    def message_count(self) -> int:
        return self.state.message_count

    @property
    def created_ns(self) -> int:
        return self.state.created_ns

    @property
    def message_bytes(self) -> int:
        return self.state.message_bytes

    @property
    def deferred_below(self) -> int:
        return self.state.deferred_below
