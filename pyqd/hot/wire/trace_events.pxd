# Blocks of trace events: their layout, and events to columns. The format is described in docs/trace.md.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    BLOCK_VERSION = 1
    BLOCK_HEADER_BYTES = 32
    EVENT_BYTES = 16
    ENTRY_HEADER_BYTES = 8               # of a place, a client or a set of channels

# Numbers of kinds of entries in a block. Those below FIRST_DEFINITION are events.
cdef enum Kind:
    PUBLISHED = 1
    STORED = 2
    SENT = 3
    FINISHED = 4
    REQUEUED = 5
    TIMED_OUT = 6
    TOUCHED = 7
    CLIENT_GONE = 8
    CANCELLED = 9
    RESCHEDULED = 10
    DELIVERED_NOW = 11
    DEAD_LETTERED = 12
    DROPPED = 13
    EXPIRED = 14
    LOST_EVENTS = 15                     # never stored: the decoder's row for a gap
    FIRST_DEFINITION = 64
    CONTEXT = 64
    PLACE = 65
    CLIENT = 66
    CHANNELS = 67

cdef enum Flag:
    HAS_DUE = 1                          # followed by a due time
    HAS_BODY = 2                         # followed by the first `attempt` bytes of the body
    IS_STORED = 4                        # the channels of the topic's set have got the message too
    IS_BULK = 8                          # followed by a count: stands for many messages
    IS_RUN = 16                          # followed by the sizes of `value` + 1 bodies, uint32_t each: so many publishes
    ALL_FLAGS = 31
    RUN_FLAGS = IS_RUN | IS_STORED

# Kinds whose `value` is the number of further messages with the same event.
cdef enum:
    REPEATED_KINDS = (
        1 << SENT | 1 << FINISHED | 1 << TIMED_OUT | 1 << TOUCHED | 1 << CLIENT_GONE | 1 << CANCELLED
        | 1 << DELIVERED_NOW)

cdef enum Reason:
    NO_REASON = 0
    REASON_ATTEMPTS = 1
    REASON_EPHEMERAL = 2
    REASON_EMPTIED = 3
    REASON_CHANNEL_DELETED = 4
    REASON_TOPIC_DELETED = 5
    REASON_SEEK = 6
    REASON_SAMPLED = 7
    REASON_COPY = 8
    REASON_RELEASED = 9
    REASON_UNKNOWN_GAP = 10

# Header of a block, which is the body of a record.
cdef struct BlockHeader:
    uint16_t version
    uint16_t node_id
    uint32_t row_count                   # events, those included that IS_STORED stands for
    int64_t first_position
    int64_t dense_from                   # every position from here to the first of this block was given to an event
    int64_t sealed_ns                    # Unix

cdef struct Event:
    uint8_t kind
    uint8_t flags
    uint16_t attempt                     # deliveries, this one included; bytes of the body if HAS_BODY
    uint32_t value                       # size of the body, delay in ms, Reason or number of further messages, by kind
    uint64_t guid                        # the message's id; further ones have the next numbers

# Properties that the events after it have in common.
cdef struct Context:
    uint8_t kind
    uint8_t reserved
    uint16_t place                       # number of the place, from 1
    uint16_t client                      # number of the client; 0: none
    uint16_t reserved_too
    int64_t timestamp_ns                 # Unix

# Followed by the names, and zeros up to a multiple of EVENT_BYTES.
cdef struct Place:
    uint8_t kind
    uint8_t topic_bytes
    uint8_t channel_bytes                # 0: the topic itself
    uint8_t[5] reserved

cdef struct Client:
    uint8_t kind
    uint8_t address_bytes
    uint16_t user_agent_bytes
    uint32_t reserved

# Followed by the numbers of the channels' places, uint16_t each.
cdef struct Channels:
    uint8_t kind
    uint8_t reserved
    uint16_t place                       # of the topic
    uint16_t count
    uint16_t reserved_too

cdef inline uint64_t padded(uint64_t size_bytes) noexcept nogil:
    # Return the bytes that an entry of that size takes.
    return (size_bytes + EVENT_BYTES - 1) & ~(<uint64_t> EVENT_BYTES - 1)

cdef inline uint64_t event_span(const Event* event) noexcept nogil:
    # Return the bytes of an event with all that follows it.
    cdef uint64_t span = EVENT_BYTES
    if event.flags == 0:
        return span
    if event.flags & HAS_DUE:
        span += EVENT_BYTES
    if event.flags & IS_BULK:
        span += EVENT_BYTES
    if event.flags & HAS_BODY:
        span += padded(event.attempt)
    if event.flags & IS_RUN:
        span += padded(4 * (<uint64_t> event.value + 1))
    return span

cdef inline uint64_t message_count(const Event* event) noexcept nogil:
    # Return the number of messages that an event stands for; one for a bulk event. Other flags mean one message too.
    if event.flags & IS_RUN or (event.flags == 0 and 1 << event.kind & REPEATED_KINDS):
        return <uint64_t> event.value + 1
    return 1

cdef inline uint64_t entry_span(const char* at) noexcept nogil:
    # Return the bytes of any entry; 0: its kind is unknown.
    cdef uint8_t kind = (<const Event*> at).kind
    if PUBLISHED <= kind <= EXPIRED:
        return event_span(<const Event*> at)
    if kind == CONTEXT:
        return EVENT_BYTES
    if kind == PLACE:
        return padded(
            <uint64_t> ENTRY_HEADER_BYTES + (<const Place*> at).topic_bytes + (<const Place*> at).channel_bytes)
    if kind == CLIENT:
        return padded(
            <uint64_t> ENTRY_HEADER_BYTES + (<const Client*> at).address_bytes
            + (<const Client*> at).user_agent_bytes)
    if kind == CHANNELS:
        return padded(<uint64_t> ENTRY_HEADER_BYTES + 2 * <uint64_t> (<const Channels*> at).count)
    return 0

cdef class TraceColumns:
    cdef readonly uint64_t rows
    cdef readonly uint64_t damaged       # records whose checksum is wrong, left out
    cdef readonly int64_t following      # position after the last row; `expected` of the next answer
    cdef readonly bytes positions        # int64[rows]; as the next two
    cdef readonly bytes timestamps_ns
    cdef readonly bytes timestamps_us
    cdef readonly bytes kinds            # int8[rows]
    cdef readonly bytes guids            # uint64[rows]; 0: none
    cdef readonly bytes id_offsets       # int32[rows + 1]
    cdef readonly bytes ids              # 16 hexadecimal digits each
    cdef readonly bytes id_bits          # bit of row i: i & 7 of byte i >> 3; 1 if there is a value. As all bits
    # Values of a column of texts, the first one None, and int32[rows] of indexes of these.
    cdef readonly list topics
    cdef readonly bytes topic_indexes
    cdef readonly list channels
    cdef readonly bytes channel_indexes
    cdef readonly list clients
    cdef readonly bytes client_indexes
    cdef readonly list user_agents
    cdef readonly bytes user_agent_indexes
    cdef readonly list reasons
    cdef readonly bytes reason_indexes
    cdef readonly bytes attempts         # int32[rows]; as sizes
    cdef readonly bytes attempt_bits
    cdef readonly bytes sizes
    cdef readonly bytes size_bits
    cdef readonly bytes dues_ns          # int64[rows]; as the next three
    cdef readonly bytes dues_us
    cdef readonly bytes due_bits
    cdef readonly bytes delays_ms
    cdef readonly bytes delay_bits
    cdef readonly bytes counts
    cdef readonly bytes count_bits
    cdef readonly bytes body_offsets     # int32[rows + 1]
    cdef readonly bytes bodies           # concatenated
    cdef readonly bytes body_bits
