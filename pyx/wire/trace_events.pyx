"""Decoder of GET /trace/log into columns: one buffer per column, in the layout of Apache Arrow.

The data are records, each with a block of events as its body. They are walked twice. The first walk checks everything,
and counts the rows and the bytes of their bodies; the second one fills the columns. An error is found before any column
is returned. A row creates no Python object: names become indexes, once per block.

A gap between the expected position and a block's first one becomes a row of the kind `lost_events`.

Source: docs/trace.md, "Format"; the Arrow columnar format.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from pyqd.hot.primitives.clock cimport NS_PER_US
from pyqd.hot.primitives.guid cimport HEX_SIZE, id_to_hex
from pyqd.hot.wire.record cimport (
    RECORD_HEADER_BYTES,
    RECORD_LOST,
    Record,
    record_is_sound,
    record_body,
    record_body_bytes,
    record_span,
)

cdef enum:
    # Offsets are of 32 bits.
    DATA_BYTES_MAX = 0x7FFFFFFF
    # A small block with a large set of channels can stand for many rows.
    ROWS_MAX = 1 << 26

cdef enum Fault:
    SOUND = 0
    WRONG_CHECKSUM
    CUT_RECORD                           # the start of the next record is unknown
    LATER_FORMAT
    BAD_ENTRY
    BAD_REFERENCE
    WRONG_COUNT
    EARLIER_POSITION
    TOO_MANY_ROWS

cdef dict FAULTS = {
    WRONG_CHECKSUM: "its checksum is wrong",
    CUT_RECORD: "the data end within it",
    LATER_FORMAT: "it has a later format",
    BAD_ENTRY: "an entry is cut or of an unknown kind",
    BAD_REFERENCE: "an entry refers to a name that is not defined",
    WRONG_COUNT: "it has another number of events than its header says",
    EARLIER_POSITION: "its events are some of those before it again",
    TOO_MANY_ROWS: "there are too many rows to decode at once",
}

# Index of a text in its column: NO_REASON and the other reasons.
REASONS = [
    None, "attempts", "ephemeral", "emptied", "channel_deleted", "topic_deleted", "seek", "sampled", "copy", "released",
    "unknown_gap",
]
KINDS = [
    None, "published", "stored", "sent", "finished", "requeued", "timed_out", "touched", "client_gone", "cancelled",
    "rescheduled", "delivered_now", "dead_lettered", "dropped", "expired", "lost_events",
]
assert len(REASONS) == REASON_UNKNOWN_GAP + 1 and len(KINDS) == LOST_EVENTS + 1

cdef struct Walk:
    int64_t wanted                       # rows before this position are left out
    int64_t expected                     # position of the next row; 0: any
    uint64_t rows
    uint64_t damaged
    uint64_t body_bytes
    int64_t end                          # position after the last block; 0: there was none

# State of the walk through a block.
cdef struct Tables:
    uint32_t* sets                       # by number of a topic's place: offset of its set of channels; 0: none
    uint32_t* topics                     # this and the next: index of the text, by number of a place
    uint32_t* channels
    uint32_t* clients                    # this and the next: by number of a client
    uint32_t* user_agents
    uint32_t place_count
    uint32_t client_count

cdef struct Buffers:
    int64_t* positions
    int64_t* timestamps_ns
    int64_t* timestamps_us
    int8_t* kinds
    uint64_t* guids
    int32_t* id_offsets
    char* ids
    uint8_t* id_bits
    int32_t* topics
    int32_t* channels
    int32_t* clients
    int32_t* user_agents
    int32_t* reasons
    int32_t* attempts
    uint8_t* attempt_bits
    int32_t* sizes
    uint8_t* size_bits
    int64_t* dues_ns
    int64_t* dues_us
    uint8_t* due_bits
    int64_t* delays_ms
    uint8_t* delay_bits
    int64_t* counts
    uint8_t* count_bits
    int32_t* body_offsets
    char* bodies
    uint8_t* body_bits
    uint64_t row
    uint64_t id_end
    uint64_t body_end


@cython.final
cdef class TraceColumns:
    """Columns of one answer."""

    def __init__(self):
        raise TypeError("columns are made by decode()")


def decode(bytes data not None, int64_t expected, bint skip_damaged=False):
    """Decode the body of an answer of GET /trace/log.

    expected: position of the first row; 0: the oldest one. Rows before it are left out. skip_damaged: leave out records
    with a wrong checksum; their events are part of a gap. Raises: ValueError if a record is damaged or not of this
    format.
    """
    cdef Walk walk
    cdef Tables tables
    cdef TraceColumns columns
    cdef Fault fault = SOUND
    cdef uint64_t at = 0
    cdef uint64_t size_bytes = <uint64_t> len(data)
    cdef const char* start = PyBytes_AS_STRING(data)
    cdef uint64_t entries_max
    if len(data) > DATA_BYTES_MAX:
        raise ValueError(f"cannot decode {len(data)} bytes at once: the limit is {DATA_BYTES_MAX}")
    memset(&tables, 0, sizeof(Tables))
    # A definition takes EVENT_BYTES at least, and numbers begin with 1.
    entries_max = size_bytes // EVENT_BYTES + 1
    tables.sets = <uint32_t*> malloc(5 * entries_max * sizeof(uint32_t))
    if tables.sets == NULL:
        raise MemoryError
    tables.topics = tables.sets + entries_max
    tables.channels = tables.topics + entries_max
    tables.clients = tables.channels + entries_max
    tables.user_agents = tables.clients + entries_max
    try:
        memset(&walk, 0, sizeof(Walk))
        walk.wanted = walk.expected = expected
        with nogil:
            fault = measure(start, size_bytes, skip_damaged, &tables, &walk, &at)
        if fault != SOUND:
            raise ValueError(f"cannot decode the record at offset {at}: {FAULTS[fault]}")
        columns = allocated(&walk)
        columns.damaged = walk.damaged
        columns.following = max(expected, walk.end)
        _Filler(columns, data, expected, walk.damaged != 0).fill(&tables)
    finally:
        free(tables.sets)
    return columns


cdef Fault measure(
    const char* data, uint64_t end, bint skip_damaged, Tables* tables, Walk* walk, uint64_t* at,
) noexcept nogil:
    """Check every record; count rows and the bytes of their bodies. at: becomes the offset of the faulty record."""
    cdef const Record* record
    cdef Fault fault
    while at[0] < end:
        record = <const Record*> (data + at[0])
        if (
            end - at[0] < RECORD_HEADER_BYTES or record.size_bytes == 0
            or record_span(record.size_bytes) > end - at[0]
        ):
            return CUT_RECORD
        if not record_is_sound(record):
            if not skip_damaged:
                return WRONG_CHECKSUM
            walk.damaged += 1
        elif not record.flags & RECORD_LOST:
            fault = measure_block(record_body(record), record_body_bytes(record), tables, walk)
            if fault != SOUND:
                return fault
        at[0] += record_span(record.size_bytes)
    return SOUND


cdef Fault measure_block(const char* block, uint64_t size_bytes, Tables* tables, Walk* walk) noexcept nogil:
    """Check a block and count its rows."""
    cdef const BlockHeader* header = <const BlockHeader*> block
    cdef const Event* event
    cdef uint64_t at = BLOCK_HEADER_BYTES
    cdef uint64_t span
    cdef int64_t position
    cdef uint32_t place = 0
    cdef uint64_t rows
    cdef Fault fault
    if size_bytes < BLOCK_HEADER_BYTES or header.version != BLOCK_VERSION:
        return LATER_FORMAT
    position = header.first_position
    if position < walk.end or position <= 0:
        return EARLIER_POSITION
    walk.rows += has_gap(header, walk.expected)
    tables.place_count = tables.client_count = 0
    while at < size_bytes:
        span = 0 if size_bytes - at < EVENT_BYTES else entry_span(block + at)
        if span == 0 or span > size_bytes - at:
            return BAD_ENTRY
        event = <const Event*> (block + at)
        if event.kind >= FIRST_DEFINITION:
            fault = measure_definition(block, at, tables, &place)
            if fault != SOUND:
                return fault
        else:
            if place == 0:
                return BAD_REFERENCE
            if event.flags & ~ALL_FLAGS or (
                    event.flags & IS_RUN and (event.kind != PUBLISHED or event.flags & ~RUN_FLAGS)):
                return LATER_FORMAT
            rows = message_count(event) * (1 + (set_size(block, tables.sets[place]) if event.flags & IS_STORED else 0))
            if rows > ROWS_MAX:
                return TOO_MANY_ROWS
            if position >= walk.wanted and event.flags & HAS_BODY:
                walk.body_bytes += event.attempt
            if position + <int64_t> rows > walk.wanted:
                walk.rows += min(rows, <uint64_t> (position + <int64_t> rows - walk.wanted))
            position += <int64_t> rows
            if walk.rows > ROWS_MAX:
                return TOO_MANY_ROWS
        at += span
    if position - header.first_position != header.row_count:
        return WRONG_COUNT
    walk.expected = max(walk.expected, position)
    walk.end = position
    return SOUND


cdef inline bint has_gap(const BlockHeader* header, int64_t expected) noexcept nogil:
    return expected != 0 and header.first_position > expected


cdef inline uint32_t set_size(const char* block, uint32_t at) noexcept nogil:
    """Return the number of channels in the set at an offset of a block; 0: there is no set."""
    return 0 if at == 0 else (<const Channels*> (block + at)).count


cdef Fault measure_definition(const char* block, uint64_t at, Tables* tables, uint32_t* place) noexcept nogil:
    """Check a definition and enter it in the tables. place: becomes that of the events after it, if it names one."""
    cdef const Context* context
    cdef const Channels* channels
    cdef const uint16_t* members
    cdef uint32_t index
    cdef uint8_t kind = (<const Event*> (block + at)).kind
    if kind == PLACE:
        tables.place_count += 1
        tables.sets[tables.place_count] = 0
    elif kind == CLIENT:
        tables.client_count += 1
    elif kind == CONTEXT:
        context = <const Context*> (block + at)
        if context.place == 0 or context.place > tables.place_count or context.client > tables.client_count:
            return BAD_REFERENCE
        place[0] = context.place
    else:
        channels = <const Channels*> (block + at)
        members = <const uint16_t*> (block + at + ENTRY_HEADER_BYTES)
        if channels.place == 0 or channels.place > tables.place_count:
            return BAD_REFERENCE
        for index in range(channels.count):
            if members[index] == 0 or members[index] > tables.place_count:
                return BAD_REFERENCE
        tables.sets[channels.place] = <uint32_t> at
    return SOUND


cdef bytes new_buffer(uint64_t size_bytes):
    return PyBytes_FromStringAndSize(NULL, <Py_ssize_t> size_bytes)


cdef bytes new_bits(uint64_t rows):
    return bytes((rows + 7) >> 3)


cdef TraceColumns allocated(const Walk* walk):
    """Return columns with buffers for the counted rows."""
    cdef TraceColumns columns = TraceColumns.__new__(TraceColumns)
    cdef uint64_t rows = walk.rows
    columns.rows = rows
    columns.positions = new_buffer(rows * sizeof(int64_t))
    columns.timestamps_ns = new_buffer(rows * sizeof(int64_t))
    columns.timestamps_us = new_buffer(rows * sizeof(int64_t))
    columns.kinds = new_buffer(rows)
    columns.guids = new_buffer(rows * sizeof(uint64_t))
    columns.id_offsets = new_buffer((rows + 1) * sizeof(int32_t))
    columns.id_bits = new_bits(rows)
    columns.topic_indexes = new_buffer(rows * sizeof(int32_t))
    columns.channel_indexes = new_buffer(rows * sizeof(int32_t))
    columns.client_indexes = new_buffer(rows * sizeof(int32_t))
    columns.user_agent_indexes = new_buffer(rows * sizeof(int32_t))
    columns.reasons = list(REASONS)
    columns.reason_indexes = new_buffer(rows * sizeof(int32_t))
    columns.attempts = new_buffer(rows * sizeof(int32_t))
    columns.attempt_bits = new_bits(rows)
    columns.sizes = new_buffer(rows * sizeof(int32_t))
    columns.size_bits = new_bits(rows)
    columns.dues_ns = new_buffer(rows * sizeof(int64_t))
    columns.dues_us = new_buffer(rows * sizeof(int64_t))
    columns.due_bits = new_bits(rows)
    columns.delays_ms = new_buffer(rows * sizeof(int64_t))
    columns.delay_bits = new_bits(rows)
    columns.counts = new_buffer(rows * sizeof(int64_t))
    columns.count_bits = new_bits(rows)
    columns.body_offsets = new_buffer((rows + 1) * sizeof(int32_t))
    columns.bodies = new_buffer(walk.body_bytes)
    columns.body_bits = new_bits(rows)
    return columns


@cython.final
cdef class _Filler:
    """Second walk: fills the columns from checked records."""

    cdef TraceColumns columns
    cdef bytes data
    cdef bint some_damaged
    cdef int64_t wanted
    cdef int64_t expected
    cdef Buffers to
    cdef dict topics, channels, clients, user_agents   # bytes of a text to its index
    cdef bytes ids

    def __init__(self, TraceColumns columns not None, bytes data not None, int64_t expected, bint some_damaged):
        self.columns = columns
        self.data = data
        self.some_damaged = some_damaged
        self.wanted = self.expected = expected
        self.topics, self.channels, self.clients, self.user_agents = {b"": 0}, {b"": 0}, {b"": 0}, {b"": 0}
        # Rows without an id leave some bytes at the end.
        self.ids = new_buffer(columns.rows * HEX_SIZE)
        self.point()

    cdef int point(self) except -1:
        cdef TraceColumns columns = self.columns
        cdef Buffers* to = &self.to
        memset(to, 0, sizeof(Buffers))
        to.positions = <int64_t*> PyBytes_AS_STRING(columns.positions)
        to.timestamps_ns = <int64_t*> PyBytes_AS_STRING(columns.timestamps_ns)
        to.timestamps_us = <int64_t*> PyBytes_AS_STRING(columns.timestamps_us)
        to.kinds = <int8_t*> PyBytes_AS_STRING(columns.kinds)
        to.guids = <uint64_t*> PyBytes_AS_STRING(columns.guids)
        to.id_offsets = <int32_t*> PyBytes_AS_STRING(columns.id_offsets)
        to.ids = PyBytes_AS_STRING(self.ids)
        to.id_bits = <uint8_t*> PyBytes_AS_STRING(columns.id_bits)
        to.topics = <int32_t*> PyBytes_AS_STRING(columns.topic_indexes)
        to.channels = <int32_t*> PyBytes_AS_STRING(columns.channel_indexes)
        to.clients = <int32_t*> PyBytes_AS_STRING(columns.client_indexes)
        to.user_agents = <int32_t*> PyBytes_AS_STRING(columns.user_agent_indexes)
        to.reasons = <int32_t*> PyBytes_AS_STRING(columns.reason_indexes)
        to.attempts = <int32_t*> PyBytes_AS_STRING(columns.attempts)
        to.attempt_bits = <uint8_t*> PyBytes_AS_STRING(columns.attempt_bits)
        to.sizes = <int32_t*> PyBytes_AS_STRING(columns.sizes)
        to.size_bits = <uint8_t*> PyBytes_AS_STRING(columns.size_bits)
        to.dues_ns = <int64_t*> PyBytes_AS_STRING(columns.dues_ns)
        to.dues_us = <int64_t*> PyBytes_AS_STRING(columns.dues_us)
        to.due_bits = <uint8_t*> PyBytes_AS_STRING(columns.due_bits)
        to.delays_ms = <int64_t*> PyBytes_AS_STRING(columns.delays_ms)
        to.delay_bits = <uint8_t*> PyBytes_AS_STRING(columns.delay_bits)
        to.counts = <int64_t*> PyBytes_AS_STRING(columns.counts)
        to.count_bits = <uint8_t*> PyBytes_AS_STRING(columns.count_bits)
        to.body_offsets = <int32_t*> PyBytes_AS_STRING(columns.body_offsets)
        to.bodies = PyBytes_AS_STRING(columns.bodies)
        to.body_bits = <uint8_t*> PyBytes_AS_STRING(columns.body_bits)
        return 0

    cdef int fill(self, Tables* tables) except -1:
        cdef const char* start = PyBytes_AS_STRING(self.data)
        cdef const Record* record
        cdef uint64_t at = 0
        cdef uint64_t end = <uint64_t> len(self.data)
        cdef TraceColumns columns = self.columns
        while at < end:
            record = <const Record*> (start + at)
            at += record_span(record.size_bytes)
            if record.flags & RECORD_LOST or (self.some_damaged and not record_is_sound(record)):
                continue
            self.fill_block(record_body(record), record_body_bytes(record), record.timestamp_ns, tables)
        assert self.to.row == columns.rows and self.to.body_end == <uint64_t> len(columns.bodies)
        self.to.id_offsets[columns.rows] = <int32_t> self.to.id_end
        self.to.body_offsets[columns.rows] = <int32_t> self.to.body_end
        columns.ids = self.ids if self.to.id_end == <uint64_t> len(self.ids) else self.ids[:self.to.id_end]
        columns.topics, columns.channels = texts(self.topics), texts(self.channels)
        columns.clients, columns.user_agents = texts(self.clients), texts(self.user_agents)
        return 0

    cdef int fill_block(self, const char* block, uint64_t size_bytes, int64_t started_ns, Tables* tables) except -1:
        cdef const BlockHeader* header = <const BlockHeader*> block
        cdef const Context* context = NULL
        cdef uint64_t at = BLOCK_HEADER_BYTES
        cdef int64_t position = header.first_position
        tables.place_count = tables.client_count = 0
        if has_gap(header, self.expected):
            put_gap(&self.to, header, self.expected, started_ns)
        while at < size_bytes:
            if (<const Event*> (block + at)).kind == CONTEXT:
                context = <const Context*> (block + at)
            elif (<const Event*> (block + at)).kind >= FIRST_DEFINITION:
                self.define(block, at, tables)
            else:
                position = put_event(&self.to, block, at, context, tables, position, self.wanted)
            at += entry_span(block + at)
        self.expected = max(self.expected, position)
        return 0

    cdef int define(self, const char* block, uint64_t at, Tables* tables) except -1:
        cdef const char* text = block + at + ENTRY_HEADER_BYTES
        cdef const Place* place = <const Place*> (block + at)
        cdef const Client* client = <const Client*> (block + at)
        if place.kind == PLACE:
            tables.place_count += 1
            tables.sets[tables.place_count] = 0
            tables.topics[tables.place_count] = index_of(self.topics, text, place.topic_bytes)
            tables.channels[tables.place_count] = index_of(
                self.channels, text + place.topic_bytes, place.channel_bytes)
        elif place.kind == CLIENT:
            tables.client_count += 1
            tables.clients[tables.client_count] = index_of(self.clients, text, client.address_bytes)
            tables.user_agents[tables.client_count] = index_of(
                self.user_agents, text + client.address_bytes, client.user_agent_bytes)
        else:
            tables.sets[(<const Channels*> (block + at)).place] = <uint32_t> at
        return 0


cdef uint32_t index_of(dict indexes, const char* text, uint64_t size_bytes) except? 0:
    """Return the index of a text, which is added to the others if it is new."""
    key = text[:size_bytes]
    return indexes.setdefault(key, len(indexes))


cdef list texts(dict indexes):
    """Return the texts by index; the first one, of no bytes, is None."""
    return [key.decode("utf-8", "replace") if key else None for key in indexes]


cdef inline void set_bit(uint8_t* bits, uint64_t row) noexcept nogil:
    bits[row >> 3] |= <uint8_t> (1 << (row & 7))


cdef void put_row(Buffers* to, int64_t position, int64_t timestamp_ns, uint8_t kind, uint64_t guid) noexcept nogil:
    """Fill the columns that have a value in every row; the others get none."""
    cdef uint64_t row = to.row
    to.row += 1
    to.positions[row] = position
    to.timestamps_ns[row] = timestamp_ns
    to.timestamps_us[row] = timestamp_ns // NS_PER_US
    to.kinds[row] = <int8_t> kind
    to.guids[row] = guid
    to.id_offsets[row] = <int32_t> to.id_end
    if guid != 0:
        id_to_hex(guid, to.ids + to.id_end)
        to.id_end += HEX_SIZE
        set_bit(to.id_bits, row)
    to.topics[row] = to.channels[row] = to.clients[row] = to.user_agents[row] = to.reasons[row] = 0
    to.attempts[row] = to.sizes[row] = 0
    to.dues_ns[row] = to.dues_us[row] = to.delays_ms[row] = to.counts[row] = 0
    to.body_offsets[row] = <int32_t> to.body_end


cdef void put_gap(Buffers* to, const BlockHeader* header, int64_t expected, int64_t timestamp_ns) noexcept nogil:
    cdef uint64_t row = to.row
    put_row(to, expected, timestamp_ns, LOST_EVENTS, 0)
    if expected >= header.dense_from:
        to.counts[row] = header.first_position - expected
        set_bit(to.count_bits, row)
    else:
        to.reasons[row] = REASON_UNKNOWN_GAP


cdef int64_t put_event(
    Buffers* to, const char* block, uint64_t at, const Context* context, const Tables* tables,
    int64_t position, int64_t wanted,
) noexcept nogil:
    """Fill the rows of an event, those from the wanted position on. Returns: position of the next event."""
    cdef const Event* event = <const Event*> (block + at)
    cdef const uint16_t* members = NULL
    cdef uint32_t member, members_count = 0
    cdef uint64_t index, row
    if event.flags & IS_STORED and tables.sets[context.place] != 0:
        members_count = set_size(block, tables.sets[context.place])
        members = <const uint16_t*> (block + tables.sets[context.place] + ENTRY_HEADER_BYTES)
    for index in range(message_count(event)):
        if position >= wanted:
            row = to.row
            put_row(to, position, context.timestamp_ns, event.kind, event.guid + index)
            to.topics[row] = <int32_t> tables.topics[context.place]
            to.channels[row] = <int32_t> tables.channels[context.place]
            if context.client != 0:
                to.clients[row] = <int32_t> tables.clients[context.client]
                to.user_agents[row] = <int32_t> tables.user_agents[context.client]
            if event.flags & IS_RUN:
                put_size(to, row, (<const uint32_t*> (block + at + EVENT_BYTES))[index])
            else:
                put_value(to, row, event)
                put_extras(to, row, event, block + at + EVENT_BYTES)
        position += 1
        for member in range(members_count):
            if position >= wanted:
                row = to.row
                put_row(to, position, context.timestamp_ns, STORED, event.guid + index)
                to.topics[row] = <int32_t> tables.topics[members[member]]
                to.channels[row] = <int32_t> tables.channels[members[member]]
            position += 1
    return position


cdef inline void put_size(Buffers* to, uint64_t row, uint32_t size_bytes) noexcept nogil:
    to.sizes[row] = <int32_t> size_bytes
    set_bit(to.size_bits, row)


cdef void put_value(Buffers* to, uint64_t row, const Event* event) noexcept nogil:
    """Fill the column that the value and the attempts of an event belong to."""
    if event.kind == PUBLISHED:
        put_size(to, row, event.value)
        return
    if event.kind == REQUEUED:
        to.delays_ms[row] = event.value
        set_bit(to.delay_bits, row)
    elif event.value <= REASON_UNKNOWN_GAP and not 1 << event.kind & REPEATED_KINDS:
        to.reasons[row] = <int32_t> event.value
    if event.attempt != 0 and not event.flags & HAS_BODY:
        to.attempts[row] = event.attempt
        set_bit(to.attempt_bits, row)


cdef void put_extras(Buffers* to, uint64_t row, const Event* event, const char* extra) noexcept nogil:
    """Fill the columns of the optional fields after an event."""
    if event.flags & HAS_DUE:
        to.dues_ns[row] = (<const int64_t*> extra)[0]
        to.dues_us[row] = to.dues_ns[row] // NS_PER_US
        set_bit(to.due_bits, row)
        extra += EVENT_BYTES
    if event.flags & IS_BULK:
        to.counts[row] = (<const int64_t*> extra)[0]
        set_bit(to.count_bits, row)
        extra += EVENT_BYTES
    if event.flags & HAS_BODY:
        memcpy(to.bodies + to.body_end, extra, event.attempt)
        to.body_end += event.attempt
        set_bit(to.body_bits, row)


def survey(bytes block not None, uint64_t published_from):
    """Walk a block whose header is not filled in.

    published_from: offset from which on a publish counts. Before it, the ids may be those of a former topic of the same
    name: they are greater than the topic's own if the clock was set back between.

    Returns: (number of events, topic and id of the last publish, (topic, channel, id) if the last event is a cancel).
    Raises: ValueError if it is not of this format.
    """
    cdef const char* at = PyBytes_AS_STRING(block) + BLOCK_HEADER_BYTES
    cdef const char* counted_from = PyBytes_AS_STRING(block) + min(published_from, <uint64_t> len(block))
    cdef const char* end = PyBytes_AS_STRING(block) + len(block)
    cdef const Event* event
    cdef uint64_t rows = 0
    cdef uint64_t span
    cdef uint16_t place = 0
    cdef list topics = [b""]
    cdef list channels = [b""]
    cdef dict sets = {}
    cdef uint32_t names_end
    last = (b"", 0)
    cancelled = None
    while at < end:
        event = <const Event*> at
        span = 0 if end - at < EVENT_BYTES else entry_span(at)
        if span == 0 or span > <uint64_t> (end - at):
            raise ValueError(FAULTS[BAD_ENTRY])
        if event.kind == PLACE:
            names_end = ENTRY_HEADER_BYTES + (<const Place*> at).topic_bytes
            topics.append(at[ENTRY_HEADER_BYTES:names_end])
            channels.append(at[names_end:names_end + (<const Place*> at).channel_bytes])
        elif event.kind == CONTEXT:
            place = (<const Context*> at).place
        elif event.kind == CHANNELS:
            sets[(<const Channels*> at).place] = (<const Channels*> at).count
        elif event.kind < FIRST_DEFINITION:
            if not 0 < place < len(topics):
                raise ValueError(FAULTS[BAD_REFERENCE])
            rows += message_count(event) * (1 + (sets.get(place, 0) if event.flags & IS_STORED else 0))
            if event.kind == PUBLISHED and at >= counted_from:
                last = (topics[place], event.guid + message_count(event) - 1)
            cancelled = (topics[place], channels[place], event.guid) if event.kind == CANCELLED else None
        at += span
    return rows, last[0], last[1], cancelled
