"""Trace of messages: events of traced topics, in blocks of a log of their own. Format: docs/trace.md.

    TracePlace.note -> open block, in a mapped file -> (full, or a reader has come) sealed -> record of the log

An event is stored when the act happens, before its answer or frame can leave, and outlives the process. It costs two
stores, if the event before it had the same topic, channel, client and time. Otherwise an entry precedes it that gives
the *context*, and, for names that the block does not have yet, their definitions. Consecutive deliveries and FINs,
whose ids follow each other, share one event that counts them, and an MPUB is a run of sizes. The cost
of a trace is in docs/performance.md.

The open block always lies in the same pages, so events find them in the processor's cache. A sealed block becomes a
record of a Log (pyx/diskqueue/log.pyx), whose id is the position of the block's first event. The Log brings checksums,
recovery, reuse of files, and reads by position; the copy costs 64 KiB per some thousand events. Rejected: events as
records of their own, each with 48 bytes of header; events stored in the Log's segments without a copy, since a record
is written whole.

pyqd/broker/tracing.py decides which topics are traced: a topic or channel has a TracePlace, or None.

Order. An event that an act cannot undo is stored before the act if the act cannot fail (FIN), or else taken back. The
events of a publish come after it, as only then the messages are known. A kill in between would leave messages without
their first event. So the header tells beforehand that a publish is under way, and the start adds the events
(`unfinished_publish`). So it is with a cancel, which may fail and takes several stores (`unfinished_cancel`). Only one
act is under way at a time, as nothing here switches greenlets.

If a block cannot be stored, for want of space, its events are lost. They are counted, and leave a gap in the positions.
Nothing here raises an error, and no act fails for its events.

Invariants: 1. Positions of events are dense from `dense_from` on. 2. `header.tail` is at an entry's end. 3. Keys of the
context have the generation of the open block, or are 0.
"""

import logging

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.string cimport memcpy, memset

from pyqd.hot.diskqueue.logreader cimport first_guid
from pyqd.hot.diskqueue.segment cimport Segment
from pyqd.hot.primitives.clock cimport NS_PER_US, wall_ns
from pyqd.hot.primitives.debug cimport debug_require
from pyqd.hot.primitives.guid cimport SEQUENCE_BITS, id_after_steps
from pyqd.hot.wire.record cimport record_body, record_body_bytes, record_span
from pyqd.hot.wire.scanner cimport read_be32
from pyqd.hot.wire.trace_events cimport (
    BLOCK_HEADER_BYTES,
    BLOCK_VERSION,
    CANCELLED,
    CHANNELS,
    CLIENT,
    CONTEXT,
    DROPPED,
    ENTRY_HEADER_BYTES,
    HAS_BODY,
    HAS_DUE,
    IS_BULK,
    IS_RUN,
    IS_STORED,
    PLACE,
    PUBLISHED,
    REASON_EPHEMERAL,
    BlockHeader,
    Channels,
    Client,
    Context,
    Place,
    padded,
)

from pyqd.hot.wire.trace_events import survey
from pyqd.primitives.errors import CorruptionError, LaterFormatError, StorageError

cdef uint64_t MAGIC = 0x43415254_44515950        # "PYQDTRAC", little-endian
cdef enum:
    # Of a run: the event, and one to four sizes.
    RUN_BYTES_MIN = 2 * EVENT_BYTES
    SEQUENCE_MASK = (1 << SEQUENCE_BITS) - 1

# After a power failure, positions that readers may have are not given again.
cdef int64_t SKIPPED_POSITIONS = 1 << 32

OPEN_BYTES = OPEN_HEADER_BYTES + BLOCK_BYTES + EVENT_BYTES
BODY_BYTES_MAX = TRACED_BODY_BYTES_MAX
# Traces every message.
THRESHOLD_MAX = 1 << 32

assert sizeof(OpenHeader) <= OPEN_HEADER_BYTES
assert sizeof(BlockHeader) == BLOCK_HEADER_BYTES

logger = logging.getLogger(__name__)


def check_open(Mapping mapping not None):
    """Check a file with an open block that an earlier run left. Raises: CorruptionError, LaterFormatError."""
    cdef OpenHeader* header = <OpenHeader*> mapping.base
    path = mapping.path or "memory"
    if mapping.size_bytes < OPEN_BYTES or (header.magic != 0 and header.magic != MAGIC):
        raise CorruptionError(path, 0, "not an open block of trace events")
    if header.magic != 0 and header.version > OPEN_VERSION:
        raise LaterFormatError(path, 8, f"trace format version {header.version}; this pyqd reads {OPEN_VERSION}")


@cython.final
cdef class TraceClient:
    """A client that acts on messages. address: "ip:port". Both are cut if they are very long."""

    def __init__(self, str address not None, str user_agent not None):
        self.address = address.encode("utf-8", "replace")[:ADDRESS_BYTES_MAX]
        self.user_agent = user_agent.encode("utf-8", "replace")[:USER_AGENT_BYTES_MAX]


@cython.final
cdef class TracePlace:
    """A traced topic or channel. channel: empty for the topic itself. threshold: up to THRESHOLD_MAX, which is all."""

    def __init__(
        self, TraceLog log not None, str topic not None, str channel not None, uint64_t threshold,
        uint32_t body_bytes=0,
    ):
        self.log = log
        self.topic = topic.encode("ascii")
        self.channel = channel.encode("ascii")
        assert 0 < len(self.topic) <= NAME_BYTES and len(self.channel) <= NAME_BYTES
        self.threshold = threshold
        self.body_bytes = min(body_bytes, <uint32_t> TRACED_BODY_BYTES_MAX)
        self.members = []

    cdef int note_due(self, Kind kind, uint64_t guid, int64_t due_ns, int64_t now_ns) noexcept:
        """Add an event with a due time, unless the message is not sampled."""
        cdef TraceLog log = self.log
        cdef Event* event
        if not self.samples(guid):
            return 0
        log.prepare(self, None, now_ns, 2 * EVENT_BYTES, False)
        event = <Event*> (log.block + log.tail)
        event[0] = Event(kind=<uint8_t> kind, flags=HAS_DUE, attempt=0, value=0, guid=guid)
        put_number(event, due_ns)
        return log.end_event(2 * EVENT_BYTES, 1)

    cdef int note_many(self, Kind kind, uint64_t guid, uint32_t reason, uint64_t count, int64_t now_ns) noexcept:
        """Add a bulk event, if it concerns any message. guid: of the newest one."""
        cdef TraceLog log = self.log
        cdef Event* event
        if count == 0:
            return 0
        log.prepare(self, None, now_ns, 2 * EVENT_BYTES, False)
        event = <Event*> (log.block + log.tail)
        event[0] = Event(kind=<uint8_t> kind, flags=IS_BULK, attempt=0, value=reason, guid=guid)
        put_number(event, <int64_t> count)
        return log.end_event(2 * EVENT_BYTES, 1)

    cdef int begin_publish(self, uint64_t last_guid) noexcept:
        """Tell that messages with ids above one are about to be published here, by `publisher`."""
        cdef OpenHeader* header = self.log.header
        debug_require(header.tail >= BLOCK_HEADER_BYTES)
        if self.log.told_place is not self or self.log.told_client is not self.publisher:
            self.log.tell(self)
        header.published_after = last_guid
        header.published_from = header.tail
        self.log.last_published = 0
        store_barrier()
        header.publishing = 1
        return 0

    cdef int end_publish(self, const Record* first, uint32_t count, bint are_stored) noexcept:
        """Add the events of the messages that were published, or of none. first: the first of `count` records."""
        debug_require((first != NULL) | (count == 0))
        self.note_records(first, count, are_stored)
        store_barrier()
        self.log.header.publishing = 0
        self.publisher = None
        return 0

    cdef int note_records(self, const Record* first, uint32_t count, bint are_stored) noexcept:
        """Add the events of published messages. are_stored: all channels have got them."""
        cdef TraceLog log = self.log
        cdef const Record* record = first
        debug_require((first != NULL) | (count == 0))
        for _ in range(count):
            if self.samples(record.guid):
                put_published(log, self, record, are_stored)
            record = <const Record*> (<const char*> record + record_span(record.size_bytes))
        return 0

    cdef int note_framed(
        self, const char* at, uint32_t count, uint64_t last_guid, int64_t now_ns, bint are_first,
    ) noexcept:
        """Note messages of a batch under way, as they lie in the receive buffer. last_guid: id of the last of them.

        are_first: of the batch.
        """
        debug_require(count != 0)
        if are_first:
            self.framed_count = 0
        if self.framed_count < FRAMED_MAX:
            self.framed[self.framed_count] = FramedMessages(
                at=at, count=count, first_guid=id_after_steps(last_guid, 1 - <int64_t> count), now_ns=now_ns)
        self.framed_count = min(self.framed_count + 1, <uint32_t> FRAMED_MAX + 1)
        return 0

    cdef int end_framed(self, const Record* first, uint32_t count, bint are_stored) noexcept:
        """Like `end_publish`, for the messages told to `note_framed`, which are these.

        Their records may lie in pages that are not mapped yet, and the received messages are in the cache.
        """
        cdef uint32_t index
        cdef bint with_set = are_stored and len(self.members) != 0
        debug_require(self.framed_count != 0)
        if self.body_bytes != 0 or self.framed_count > FRAMED_MAX:
            return self.end_publish(first, count, are_stored)
        for index in range(self.framed_count):
            put_run(self.log, self, &self.framed[index], with_set)
            count -= self.framed[index].count
        debug_require(count == 0)
        return self.end_publish(NULL, 0, are_stored)

    cdef int note_unkept(self, const Record* record) noexcept:
        """Add the events of a published message that is dropped at once. record: its header, without a body."""
        cdef uint32_t body_bytes = self.body_bytes
        if self.samples(record.guid):
            self.body_bytes = 0
            put_published(self.log, self, record, False)
            self.body_bytes = body_bytes
            self.log.add(
                self, None, record.timestamp_ns, event_head(DROPPED, 0) | <uint64_t> REASON_EPHEMERAL << 32,
                record.guid)
        return 0

    cdef int begin_cancel(self, uint64_t guid) noexcept:
        """Tell that a message is about to be cancelled in this channel."""
        cdef OpenHeader* header = self.log.header
        debug_require(guid != 0)
        if not self.samples(guid):
            return 0
        header.cancelling_topic_bytes = <uint32_t> len(self.topic)
        header.cancelling_channel_bytes = <uint32_t> len(self.channel)
        memcpy(header.cancelling_topic, PyBytes_AS_STRING(self.topic), header.cancelling_topic_bytes)
        memcpy(header.cancelling_channel, PyBytes_AS_STRING(self.channel), header.cancelling_channel_bytes)
        store_barrier()
        header.cancelling = guid
        return 0

    cdef int end_cancel(self, bint is_done) noexcept:
        """Add the event of the cancel that was told, or of none if it has failed."""
        cdef OpenHeader* header = self.log.header
        if is_done and header.cancelling != 0:
            self.note(CANCELLED, header.cancelling, 0, 0, None, wall_ns())
        store_barrier()
        header.cancelling = 0
        return 0

    def add_cancel(self, uint64_t guid):
        """Add the event of a cancel that a kill interrupted."""
        self.note(CANCELLED, guid, 0, 0, None, wall_ns())

    cdef int set_members(self, list members) except -1:
        self.members = members if len(members) <= SET_CHANNELS_MAX else []
        self.set_key = 0
        assert len(self.members) <= SET_CHANNELS_MAX
        return 0


cdef inline void put_number(Event* event, int64_t number) noexcept:
    cdef int64_t* at = <int64_t*> (event + 1)
    at[0] = number
    at[1] = 0


cdef int put_run(TraceLog log, TracePlace place, const FramedMessages* framed, bint with_set) noexcept:
    """Add the events of messages of an MPUB: a run for all that are traced and have consecutive ids."""
    cdef const char* at = framed.at
    cdef uint64_t guid = framed.first_guid
    cdef uint32_t rows = 1 + (<uint32_t> len(place.members) if with_set else 0)
    cdef uint32_t left = framed.count
    cdef uint32_t room, count
    cdef Event* event
    cdef uint32_t* sizes
    debug_require(framed.count != 0)
    while left != 0:
        if not place.samples(guid):
            at += sizeof(uint32_t) + <uint32_t> read_be32(at)
            guid = id_after_steps(guid, 1)
            left -= 1
            continue
        log.prepare(place, place.publisher, framed.now_ns, RUN_BYTES_MIN, with_set)
        room = min((<uint32_t> BLOCK_BYTES - log.tail - EVENT_BYTES) // <uint32_t> sizeof(uint32_t), left)
        # One at least, as `prepare` has reserved space for events.
        room = min(room, (<uint32_t> BLOCK_ROWS_MAX - log.row_count + rows - 1) // rows)
        event = <Event*> (log.block + log.tail)
        sizes = <uint32_t*> (event + 1)
        count = 0
        while True:
            sizes[count] = <uint32_t> read_be32(at)
            at += sizeof(uint32_t) + sizes[count]
            count += 1
            guid += 1
            if count == room or guid & SEQUENCE_MASK == 0 or not place.samples(guid):
                break
        left -= count
        log.last_published = guid - 1
        event[0] = Event(
            kind=PUBLISHED, flags=IS_RUN | (IS_STORED if with_set else 0), attempt=0, value=count - 1,
            guid=guid - count)
        memset(&sizes[count], 0, padded(count * sizeof(uint32_t)) - count * sizeof(uint32_t))
        log.end_event(EVENT_BYTES + <uint32_t> padded(count * sizeof(uint32_t)), count * rows)
        if guid & SEQUENCE_MASK == 0:
            guid = id_after_steps(log.last_published, 1)
    return 0


cdef int put_published(TraceLog log, TracePlace place, const Record* record, bint is_stored) noexcept:
    cdef Event* event
    cdef char* body
    cdef uint32_t span = EVENT_BYTES
    cdef uint32_t kept_bytes = min(record_body_bytes(record), place.body_bytes)
    cdef bint with_set = is_stored and len(place.members) != 0
    debug_require(record.size_bytes != 0)
    if record.due_ns != 0:
        span += EVENT_BYTES
    span += <uint32_t> padded(kept_bytes)
    log.prepare(place, place.publisher, record.timestamp_ns, span, with_set)
    event = <Event*> (log.block + log.tail)
    event[0] = Event(kind=PUBLISHED, flags=0, attempt=0, value=record_body_bytes(record), guid=record.guid)
    body = <char*> (event + 1)
    if record.due_ns != 0:
        event.flags |= HAS_DUE
        put_number(event, record.due_ns)
        body += EVENT_BYTES
    if kept_bytes != 0:
        event.flags |= HAS_BODY
        event.attempt = <uint16_t> kept_bytes
        memset(body + padded(kept_bytes) - EVENT_BYTES, 0, EVENT_BYTES)
        memcpy(body, record_body(record), kept_bytes)
    if with_set:
        event.flags |= IS_STORED
    log.last_published = record.guid
    return log.end_event(span, 1 + (<uint32_t> len(place.members) if with_set else 0))


@cython.final
cdef class TraceLog:
    """The trace events of a broker.

    log: for sealed blocks. mapping: of OPEN_BYTES bytes, checked by `check_open`; held mapped. power_failed: before
    this start, so the content of the open block is not to be trusted. on_begun, on_sealed: pyqd/hot/broker/trace.pxd.
    """

    def __init__(
        self,
        Log log not None,
        Mapping mapping not None,
        uint32_t node_id,
        bint power_failed,
        on_begun=None,
        on_sealed=None,
    ):
        mapping.hold()
        self.log = log
        self.mapping = mapping
        self.header = <OpenHeader*> mapping.base
        self.block = mapping.base + OPEN_HEADER_BYTES
        self.node_id = <uint16_t> node_id
        self.generation = 1
        self.take_up(power_failed)
        # Not earlier: the caller has no log yet that it could trim or offer.
        self.on_begun = on_begun
        self.on_sealed = on_sealed

    cdef int take_up(self, bint power_failed) except -1:
        """Continue after an earlier run; the open block that it left is sealed."""
        cdef OpenHeader* header = self.header
        cdef int64_t end, dense_from
        cdef bint is_known = header.magic == MAGIC and not power_failed
        end, dense_from = end_of(self.log)
        if is_known:
            try:
                end, dense_from = self.take_up_block(end, dense_from)
            except ValueError as error:
                logger.error(
                    "TRACE: the open block in %s is damaged: %s; its events are lost", self.mapping.path, error)
                is_known = False
        if not is_known:
            # Readers may have later positions than the log.
            end = max(0 if end == 0 else end + SKIPPED_POSITIONS, wall_ns() // NS_PER_US)
            dense_from = end
            header.publishing = 0
            header.cancelling = 0
        header.tail = BLOCK_HEADER_BYTES
        store_barrier()
        header.dense_from = dense_from
        header.version = OPEN_VERSION
        self.begin_block(end)
        store_barrier()
        header.magic = MAGIC
        self.event_count = self.lost_count = 0
        assert self.row_count == 0 and self.tail == BLOCK_HEADER_BYTES
        return 0

    cdef tuple take_up_block(self, int64_t end, int64_t dense_from):
        """Seal the block that a killed process left open, unless the log, which ends there, has it already.

        Returns: the position after its events, and the one from which on positions are dense. Raises: ValueError if it
        is damaged.
        """
        cdef OpenHeader* header = self.header
        if not BLOCK_HEADER_BYTES <= header.tail <= BLOCK_BYTES or header.first_position <= 0:
            raise ValueError("its header contradicts itself")
        rows, topic, guid, cancelled = survey(self.block[:header.tail], header.published_from)
        if header.publishing == 1:
            if (
                header.topic_bytes > NAME_BYTES or header.address_bytes > ADDRESS_BYTES_MAX
                or header.user_agent_bytes > USER_AGENT_BYTES_MAX
            ):
                raise ValueError("a name in its header is too long")
            told = header.topic[:header.topic_bytes]
            if topic == told:
                # Some of the messages have their events. Stored, as a kill may come after the block is sealed.
                header.published_after = max(header.published_after, <uint64_t> guid)
            self.unfinished_publish = (
                told.decode("ascii"), header.published_after, TraceClient(
                    header.address[:header.address_bytes].decode("utf-8", "replace"),
                    header.user_agent[:header.user_agent_bytes].decode("utf-8", "replace")))
        if header.cancelling != 0:
            self.take_up_cancel(cancelled)
        if header.first_position < end:
            return end, dense_from
        if rows != 0:
            self.tail, self.row_count = header.tail, rows
            self.seal_block()
        # Sealing has moved it on.
        return header.first_position, header.dense_from

    cdef int take_up_cancel(self, tuple last) except -1:
        """Note the cancel that was under way, unless it is the last event: topic, channel and id."""
        cdef OpenHeader* header = self.header
        if header.cancelling_topic_bytes > NAME_BYTES or header.cancelling_channel_bytes > NAME_BYTES:
            raise ValueError("a name in its header is too long")
        told = (
            header.cancelling_topic[:header.cancelling_topic_bytes],
            header.cancelling_channel[:header.cancelling_channel_bytes], header.cancelling)
        if told == last:
            # Before the block is sealed: the next start would not find the event.
            header.cancelling = 0
            store_barrier()
        else:
            self.unfinished_cancel = (told[0].decode("ascii"), told[1].decode("ascii"), told[2])
        return 0

    cdef int begin_block(self, int64_t first_position) noexcept:
        debug_require(first_position > 0)
        if self.header.publishing == 1 and self.last_published != 0:
            # Messages up to there have their events, in the block that is sealed.
            self.header.published_after = self.last_published
            store_barrier()
        # The tail first: a kill in between leaves an empty block.
        self.header.tail = self.tail = BLOCK_HEADER_BYTES
        store_barrier()
        self.header.published_from = BLOCK_HEADER_BYTES
        self.header.first_position = first_position
        self.row_count = 0
        self.generation += 1
        self.place_count = self.client_count = 0
        self.place_key = self.client_key = 0
        self.time_ns = 0
        return 0

    cdef int prepare(
        self, TracePlace place, TraceClient client, int64_t now_ns, uint32_t span_bytes, bint with_set,
    ) noexcept:
        """Reserve space for an event of `span_bytes` and give it its context. with_set: and the set of channels."""
        cdef Context* context
        self.run_head = 0
        if (
            self.row_count >= BLOCK_ROWS_MAX
            or self.tail + self.names_span(place, client, with_set) + EVENT_BYTES + span_bytes > BLOCK_BYTES
        ):
            self.seal_block()
        if self.row_count == 0:
            self.header.started_ns = now_ns
            if self.on_begun is not None:
                call(self.on_begun)
        # The tail in the header stays, so all of this is part of the block together with the event, or not at all.
        if place.key >> 16 != self.generation:
            self.define_place(place)
        if client is not None and client.key >> 16 != self.generation:
            self.define_client(client)
        if with_set and place.set_key != self.generation:
            self.define_set(place)
        if (
            place.key != self.place_key or (0 if client is None else client.key) != self.client_key
            or now_ns != self.time_ns
        ):
            context = <Context*> (self.block + self.tail)
            self.place_key = place.key
            self.client_key = 0 if client is None else client.key
            self.time_ns = now_ns
            context[0] = Context(
                kind=CONTEXT, reserved=0, place=<uint16_t> place.key, client=<uint16_t> self.client_key,
                reserved_too=0, timestamp_ns=now_ns)
            self.tail += EVENT_BYTES
        debug_require(self.tail + span_bytes <= BLOCK_BYTES)
        return 0

    cdef uint32_t names_span(self, TracePlace place, TraceClient client, bint with_set) noexcept:
        """Return the bytes of the definitions that an event needs, or a little more."""
        cdef TracePlace member
        cdef uint32_t span = 0
        if place.key >> 16 != self.generation:
            span += place_span(place)
        if client is not None and client.key >> 16 != self.generation:
            span += <uint32_t> padded(ENTRY_HEADER_BYTES + len(client.address) + len(client.user_agent))
        if with_set and place.set_key != self.generation:
            span += <uint32_t> padded(ENTRY_HEADER_BYTES + 2 * len(place.members))
            for member in place.members:
                span += place_span(member)
        return span

    cdef int define_place(self, TracePlace place) noexcept:
        cdef Place* entry = <Place*> (self.block + self.tail)
        cdef char* text = self.block + self.tail + ENTRY_HEADER_BYTES
        cdef uint32_t span = place_span(place)
        memset(entry, 0, span)
        entry.kind = PLACE
        entry.topic_bytes = <uint8_t> len(place.topic)
        entry.channel_bytes = <uint8_t> len(place.channel)
        memcpy(text, PyBytes_AS_STRING(place.topic), entry.topic_bytes)
        memcpy(text + entry.topic_bytes, PyBytes_AS_STRING(place.channel), entry.channel_bytes)
        self.place_count += 1
        place.key = self.generation << 16 | self.place_count
        self.tail += span
        debug_require(self.tail <= BLOCK_BYTES)
        return 0

    cdef int define_client(self, TraceClient client) noexcept:
        cdef Client* entry = <Client*> (self.block + self.tail)
        cdef char* text = self.block + self.tail + ENTRY_HEADER_BYTES
        cdef uint32_t span = <uint32_t> padded(ENTRY_HEADER_BYTES + len(client.address) + len(client.user_agent))
        memset(entry, 0, span)
        entry.kind = CLIENT
        entry.address_bytes = <uint8_t> len(client.address)
        entry.user_agent_bytes = <uint16_t> len(client.user_agent)
        memcpy(text, PyBytes_AS_STRING(client.address), entry.address_bytes)
        memcpy(text + entry.address_bytes, PyBytes_AS_STRING(client.user_agent), entry.user_agent_bytes)
        self.client_count += 1
        client.key = self.generation << 16 | self.client_count
        self.tail += span
        debug_require(self.tail <= BLOCK_BYTES)
        return 0

    cdef int define_set(self, TracePlace place) noexcept:
        cdef TracePlace member
        cdef Channels* entry
        cdef uint16_t* numbers
        cdef uint32_t span = <uint32_t> padded(ENTRY_HEADER_BYTES + 2 * len(place.members))
        for member in place.members:
            if member.key >> 16 != self.generation:
                self.define_place(member)
        entry = <Channels*> (self.block + self.tail)
        numbers = <uint16_t*> (self.block + self.tail + ENTRY_HEADER_BYTES)
        memset(entry, 0, span)
        entry.kind = CHANNELS
        entry.place = <uint16_t> place.key
        entry.count = <uint16_t> len(place.members)
        for member in place.members:
            numbers[0] = <uint16_t> member.key
            numbers += 1
        place.set_key = self.generation
        self.tail += span
        debug_require(self.tail <= BLOCK_BYTES)
        return 0

    def finish_recovery(self):
        """Note that the events of the act that a kill interrupted have been added, or are not wanted."""
        assert self.row_count == 0 or self.tail > BLOCK_HEADER_BYTES
        self.header.publishing = 0
        self.header.cancelling = 0
        self.unfinished_publish = self.unfinished_cancel = None

    def seal(self):
        """Seal the open block, if it has events, so that they can be read."""
        if self.row_count != 0:
            self.seal_block()

    cdef int seal_block(self) noexcept:
        """Append the open block to the log, and begin another. If that fails, its events are lost."""
        cdef uint32_t rows = self.row_count
        try:
            self.store_block()
        except StorageError as error:
            if not self.failing:
                logger.error("TRACE: cannot store events: %s; events are lost until there is space", error)
            self.failing = True
            self.lost_count += rows
        except Exception as error:
            logger.critical("TRACE: internal error, %d events are lost", rows, exc_info=error)
            self.lost_count += rows
        else:
            self.failing = False
        self.event_count += rows
        self.begin_block(self.header.first_position + rows)
        if self.on_sealed is not None:
            call(self.on_sealed)
        return 0

    cdef int store_block(self) except -1:
        cdef BlockHeader* block = <BlockHeader*> self.block
        assert BLOCK_HEADER_BYTES <= self.tail <= BLOCK_BYTES, "the block is too long"
        block[0] = BlockHeader(
            version=BLOCK_VERSION, node_id=self.node_id, row_count=self.row_count,
            first_position=self.header.first_position, dense_from=self.header.dense_from, sealed_ns=wall_ns())
        self.log.append(<uint64_t> self.header.first_position, self.header.started_ns, 0, self.block, self.tail)
        return 0

    cdef int tell(self, TracePlace place) noexcept:
        cdef OpenHeader* header = self.header
        cdef TraceClient client = place.publisher
        debug_require(place.log is self)
        self.told_place, self.told_client = place, client
        header.topic_bytes = <uint32_t> len(place.topic)
        memcpy(header.topic, PyBytes_AS_STRING(place.topic), header.topic_bytes)
        header.address_bytes = header.user_agent_bytes = 0
        if client is not None:
            header.address_bytes = <uint32_t> len(client.address)
            header.user_agent_bytes = <uint32_t> len(client.user_agent)
            memcpy(header.address, PyBytes_AS_STRING(client.address), header.address_bytes)
            memcpy(header.user_agent, PyBytes_AS_STRING(client.user_agent), header.user_agent_bytes)
        return 0

    @property
    def next_position(self) -> int:
        """Position of the next event."""
        return self.header.first_position + self.row_count

    @property
    def sealed_position(self) -> int:
        """Position after the last sealed event; later ones cannot be read yet."""
        return self.header.first_position

    @property
    def oldest_position(self) -> int:
        """Position of the oldest event that is kept; that of the next one if there is none."""
        cdef Segment segment = self.log.first
        while segment is not None and first_guid(segment) == 0:
            segment = segment.next
        return self.header.first_position if segment is None else first_guid(segment)


cdef tuple end_of(Log log):
    """Return the position after the last event in a log, and the one from which on positions are dense; or (0, 0)."""
    cdef const BlockHeader* header
    cdef uint64_t ordinal = log.end
    while ordinal > log.first.first_ordinal:
        ordinal -= 1
        # Records that stand for destroyed ones are left out.
        for *_, body in log.records(ordinal):
            header = <const BlockHeader*> PyBytes_AS_STRING(body)
            if len(body) >= BLOCK_HEADER_BYTES and header.version == BLOCK_VERSION:
                return header.first_position + header.row_count, header.dense_from
    return 0, 0


cdef uint32_t place_span(TracePlace place) noexcept:
    return <uint32_t> padded(ENTRY_HEADER_BYTES + len(place.topic) + len(place.channel))


cdef int call(function) except 0:
    """Call a function that must not fail; an error is logged."""
    try:
        function()
    except Exception as error:
        logger.critical("TRACE: internal error", exc_info=error)
    return 1
