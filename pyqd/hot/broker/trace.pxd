# Trace of messages: events of traced topics, written to a log of their own. Design notes: pyx/broker/trace.pyx.
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
    TRACED_BODY_BYTES_MAX = 8192
    SET_CHANNELS_MAX = 256
    NAME_BYTES = 80
    ADDRESS_BYTES_MAX = 120
    USER_AGENT_BYTES_MAX = 200

# Header of the file with the open block. The publish under way is told in the fields from `publishing` on.
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

cdef class TraceLog

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
    cdef public TraceClient publisher    # of the publish that follows; None: unknown

    cdef inline bint samples(self, uint64_t guid) noexcept:
        return fingerprint(guid) < self.threshold

    cdef inline int note(
        self, Kind kind, uint64_t guid, uint16_t attempt, uint32_t value, TraceClient client, int64_t now_ns,
    ) noexcept:
        # Add an event, unless the message is not sampled. value: as docs/trace.md, "Event", says. now_ns: Unix.
        if self.samples(guid):
            self.log.add(self, client, now_ns, kind, guid, attempt, value)
        return 0

    cdef int note_due(self, Kind kind, uint64_t guid, int64_t due_ns, int64_t now_ns) noexcept
    cdef int note_many(self, Kind kind, uint64_t guid, uint32_t reason, uint64_t count, int64_t now_ns) noexcept
    cdef int begin_publish(self, uint64_t last_guid) noexcept
    cdef int end_publish(self, const Record* first, uint32_t count, bint are_stored) noexcept
    cdef int note_records(self, const Record* first, uint32_t count, bint are_stored) noexcept
    cdef int note_unkept(self, const Record* record) noexcept
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
    cdef uint64_t last_published         # id of the last message of the publish under way that has its event
    cdef TracePlace told_place           # topic and client that the header names
    cdef TraceClient told_client
    cdef readonly uint64_t event_count   # since the start
    cdef readonly uint64_t lost_count    # events that could not be stored
    cdef readonly bint failing           # the last block could not be stored
    cdef readonly tuple unfinished_publish  # (topic, id, TraceClient): of messages above the id events lack; or None
    cdef public object on_sealed         # called after a block was sealed; None: nothing is
    cdef public object on_begun          # called with the first event of a block; None: nothing is

    cdef inline int add(
        self, TracePlace place, TraceClient client, int64_t now_ns, Kind kind, uint64_t guid, uint16_t attempt,
        uint32_t value,
    ) noexcept:
        cdef Event* event
        if (
            place.key != self.place_key or (0 if client is None else client.key) != self.client_key
            or now_ns != self.time_ns or self.tail + EVENT_BYTES > BLOCK_BYTES
        ):
            self.prepare(place, client, now_ns, EVENT_BYTES, False)
        event = <Event*> (self.block + self.tail)
        event.kind = <uint8_t> kind
        event.flags = 0
        event.attempt = attempt
        event.value = value
        event.guid = guid
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
    cdef int seal_block(self) noexcept
    cdef int store_block(self) except -1
    cdef int tell(self, TracePlace place) noexcept
