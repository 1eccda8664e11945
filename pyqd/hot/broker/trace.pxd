cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from pyqd.hot.broker.slots cimport fingerprint
from pyqd.hot.diskqueue.log cimport Log
from pyqd.hot.diskqueue.mapping cimport Mapping, store_barrier
from pyqd.hot.wire.record cimport Record
from pyqd.hot.wire.trace_events cimport EVENT_BYTES, Event, Kind

cdef enum:
    OPEN_VERSION = 1
    OPEN_HEADER_BYTES = 4096
    # A record with such a block fits into the smallest segment.
    BLOCK_BYTES = 65344
    # A block with so many events is sealed, however few bytes they take: it limits the memory of a reader.
    BLOCK_ROWS_MAX = 65536
    TRACED_BODY_BYTES_MAX = 8192
    SET_CHANNELS_MAX = 256
    FRAMED_MAX = 16
    NAME_BYTES = 80
    ADDRESS_BYTES_MAX = 120
    USER_AGENT_BYTES_MAX = 200

# Header of the file with the open block. The publish under way is told in the fields from `publishing` on, the cancel
# under way in those from `cancelling` on.
cdef struct OpenHeader:
    uint64_t magic
    uint32_t version
    uint32_t tail                        # offset behind the last entry of the block; stored after the entry
    int64_t first_position               # of the block
    int64_t dense_from
    int64_t started_ns                   # Unix, of the first event in the block
    uint32_t publishing                  # 1: messages may be in the topic's log whose events are not here
    uint32_t topic_bytes
    uint64_t published_after             # these messages have ids above this
    uint32_t address_bytes
    uint32_t user_agent_bytes
    char[NAME_BYTES] topic
    char[ADDRESS_BYTES_MAX] address
    char[USER_AGENT_BYTES_MAX] user_agent
    uint64_t cancelling                  # id of a message that may be finished without its event here; 0: there is none
    uint32_t cancelling_topic_bytes
    uint32_t cancelling_channel_bytes
    char[NAME_BYTES] cancelling_topic
    char[NAME_BYTES] cancelling_channel
    uint32_t published_from              # offset of the first entry that the publish under way may have added

cdef class TraceLog

cdef inline uint64_t event_head(Kind kind, uint16_t attempt) noexcept nogil:
    # Return the first word of an event without flags and value.
    return <uint64_t> kind | <uint64_t> attempt << 16

# Messages of an MPUB that is not committed yet, in the buffer that they were received in.
cdef struct FramedMessages:
    const char* at                       # of the first: a big-endian int32 size and a body
    uint32_t count
    uint64_t first_guid
    int64_t now_ns                       # Unix

# A client that acts on messages.
@cython.final
cdef class TraceClient:
    cdef readonly bytes address
    cdef readonly bytes user_agent
    cdef uint64_t key                    # generation << 16 | number in the block; of another generation: none

# A traced topic, or a channel of one.
@cython.final
cdef class TracePlace:
    cdef readonly TraceLog log
    cdef readonly bytes topic
    cdef readonly bytes channel          # empty: the topic itself
    cdef readonly uint64_t threshold     # a message is traced if the fingerprint of its id is below
    cdef readonly uint32_t body_bytes    # bytes of a message's body to keep
    cdef uint64_t key                    # as that of a TraceClient
    cdef uint64_t set_key                # of the block that has the topic's set of channels
    cdef readonly list members           # TracePlaces of the topic's channels, if it has a set
    cdef FramedMessages[FRAMED_MAX] framed
    cdef uint32_t framed_count           # FRAMED_MAX + 1: there are more
    cdef public TraceClient publisher    # of the publish that follows; None: unknown

    cdef inline bint samples(self, uint64_t guid) noexcept:
        return fingerprint(guid) < self.threshold

    cdef inline int note(
        self, Kind kind, uint64_t guid, uint16_t attempt, uint32_t value, TraceClient client, int64_t now_ns,
    ) noexcept:
        # Add an event, unless the message is not sampled. value: as docs/trace.md, "Event", says. now_ns: Unix.
        if self.samples(guid):
            self.log.add(self, client, now_ns, event_head(kind, attempt) | <uint64_t> value << 32, guid)
        return 0

    cdef inline int repeat(
        self, Kind kind, uint64_t guid, uint16_t attempt, TraceClient client, int64_t now_ns,
    ) noexcept:
        # Add an event of a kind in REPEATED_KINDS, unless the message is not sampled.
        if self.samples(guid):
            self.log.repeat(self, client, now_ns, kind, guid, attempt)
        return 0

    cdef int note_due(self, Kind kind, uint64_t guid, int64_t due_ns, int64_t now_ns) noexcept
    cdef int note_many(self, Kind kind, uint64_t guid, uint32_t reason, uint64_t count, int64_t now_ns) noexcept
    cdef int begin_publish(self, uint64_t last_guid) noexcept
    cdef int end_publish(self, const Record* first, uint32_t count, bint are_stored) noexcept
    cdef int note_framed(
        self, const char* at, uint32_t count, uint64_t last_guid, int64_t now_ns, bint are_first) noexcept
    cdef int end_framed(self, const Record* first, uint32_t count, bint are_stored) noexcept
    cdef int note_records(self, const Record* first, uint32_t count, bint are_stored) noexcept
    cdef int note_unkept(self, const Record* record) noexcept
    cdef int begin_cancel(self, uint64_t guid) noexcept
    cdef int end_cancel(self, bint is_done) noexcept
    cdef int set_members(self, list members) except -1

@cython.final
cdef class TraceLog:
    cdef readonly Log log                # sealed blocks
    cdef readonly Mapping mapping        # the file with the open block
    cdef OpenHeader* header
    cdef char* block
    cdef uint32_t tail                   # as the header's
    cdef uint32_t row_count              # events in the open block
    cdef uint16_t node_id
    cdef uint64_t generation             # of the open block; never 0
    cdef uint16_t place_count
    cdef uint16_t client_count
    # The context of the next event: keys of place and client, and time.
    cdef uint64_t place_key
    cdef uint64_t client_key
    cdef int64_t time_ns
    # The last event of the block if it can be repeated: its first word, and the id after its last message; or 0.
    cdef uint64_t run_head
    cdef uint64_t run_next
    cdef uint64_t last_published         # id of the last message of the publish under way that has its event
    cdef TracePlace told_place           # topic and client that the header names
    cdef TraceClient told_client
    cdef readonly uint64_t event_count   # since the start
    cdef readonly uint64_t lost_count    # events that could not be stored
    cdef readonly bint failing           # the last block could not be stored
    cdef readonly tuple unfinished_publish  # (topic, id, TraceClient): of messages above the id events lack; or None
    cdef readonly tuple unfinished_cancel   # (topic, channel, id): of a message that may lack its event; or None
    cdef object on_sealed                # called after a block was sealed; None: nothing is
    cdef object on_begun                 # called with the first event of a block; None: nothing is

    cdef inline bint is_context(self, TracePlace place, TraceClient client, int64_t now_ns) noexcept:
        # Return True if the next event needs no context of its own.
        return (
            place.key == self.place_key and (0 if client is None else client.key) == self.client_key
            and now_ns == self.time_ns)

    cdef inline int repeat(
        self, TracePlace place, TraceClient client, int64_t now_ns, Kind kind, uint64_t guid, uint16_t attempt,
    ) noexcept:
        # Add an event of a kind in REPEATED_KINDS. If it differs from the last one only by the next id, it is counted
        # there, as most deliveries and FINs are. That is one store, so a kill comes before or after it.
        cdef uint64_t head = event_head(kind, attempt)
        if (
            guid == self.run_next and head == self.run_head and self.row_count < BLOCK_ROWS_MAX
            and self.is_context(place, client, now_ns)
        ):
            self.run_next = guid + 1
            self.row_count += 1
            (<Event*> (self.block + self.tail - EVENT_BYTES)).value += 1
            store_barrier()
            return 0
        self.add(place, client, now_ns, head, guid)
        self.run_head, self.run_next = head, guid + 1
        return 0

    cdef inline int add(
        self, TracePlace place, TraceClient client, int64_t now_ns, uint64_t head, uint64_t guid,
    ) noexcept:
        cdef uint64_t* event
        if not self.is_context(place, client, now_ns) or self.tail + EVENT_BYTES > BLOCK_BYTES:
            self.prepare(place, client, now_ns, EVENT_BYTES, False)
        event = <uint64_t*> (self.block + self.tail)
        event[0] = head
        event[1] = guid
        self.run_head = 0
        return self.end_event(EVENT_BYTES, 1)

    cdef inline int end_event(self, uint32_t span_bytes, uint32_t rows) noexcept:
        # Make an entry that has been stored behind the tail part of the block.
        self.tail += span_bytes
        self.row_count += rows
        store_barrier()
        self.header.tail = self.tail
        return 0

    cdef inline int take_back(self) noexcept:
        # Remove the last event, one of EVENT_BYTES, from the block.
        self.tail -= EVENT_BYTES
        self.row_count -= 1
        self.header.tail = self.tail
        return 0

    cdef int prepare(
        self, TracePlace place, TraceClient client, int64_t now_ns, uint32_t span_bytes, bint with_set) noexcept
    cdef uint32_t names_span(self, TracePlace place, TraceClient client, bint with_set) noexcept
    cdef int define_place(self, TracePlace place) noexcept
    cdef int define_client(self, TraceClient client) noexcept
    cdef int define_set(self, TracePlace place) noexcept
    cdef int begin_block(self, int64_t first_position) noexcept
    cdef int take_up(self, bint power_failed) except -1
    cdef tuple take_up_block(self, int64_t end, int64_t dense_from)
    cdef int take_up_cancel(self, tuple last) except -1
    cdef int seal_block(self) noexcept
    cdef int store_block(self) except -1
    cdef int tell(self, TracePlace place) noexcept
