"""Decoder of GET /topic/log into columns: one buffer per column, in the layout of Apache Arrow.

A row creates no Python object. The data are walked twice. The first walk reads sizes and flags, and so counts the rows
and the bytes of their bodies; the second one checks and fills. An error is found before any column is returned.

The walks also count missing records. Ordinals are dense, also from one epoch to the next, so the expected record is the
one with the next ordinal. A greater ordinal means that the records between were lost to damage. An ordinal that is not
greater is valid in a later epoch only: a power failure cut the end of the log, and later records got these ordinals
again.

Source: docs/storage.md, "Record"; the Arrow columnar format, "Variable-size binary layout".
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

from pyqd.hot.primitives.clock cimport NS_PER_US
from pyqd.hot.primitives.guid cimport HEX_SIZE, id_to_hex
from pyqd.hot.wire.record cimport (
    ORDINAL_MASK,
    RECORD_FLAGS_REFUSED,
    RECORD_HEADER_BYTES,
    RECORD_LOST,
    Record,
    record_is_sound,
    record_body,
    record_body_bytes,
    record_ordinal,
    record_span,
)

cdef enum:
    # Offsets are of 32 bits.
    DATA_BYTES_MAX = 0x7FFFFFFF

cdef struct Walk:
    uint64_t at                          # offset of the current record
    uint64_t expected                    # position of the next record, in the epoch of the last one
    uint64_t rows
    uint64_t lost
    uint64_t damaged
    uint64_t body_bytes

cdef enum Fault:
    SOUND = 0
    DAMAGED
    # After one of these faults the start of the next record is unknown.
    CUT_HEADER
    CUT_BODY
    LATER_FLAGS
    EARLIER_POSITION

cdef struct Buffers:
    int32_t* body_offsets                # NULL if bodies are not wanted
    char* bodies
    int32_t* id_offsets
    char* ids
    int64_t* positions
    int64_t* timestamps_ns
    int64_t* timestamps_us
    int64_t* dues_us
    uint8_t* due_bits


cdef class Columns:
    """Columns of one answer, and counts of missing records."""

    cdef readonly uint64_t rows
    cdef readonly uint64_t lost          # expected ordinals without a row
    cdef readonly uint64_t damaged       # of these: records whose checksum is wrong
    cdef readonly uint64_t following     # position after the last record; read on from here
    cdef readonly bytes body_offsets     # int32[rows + 1]; None, like bodies, if they are not wanted
    cdef readonly bytes bodies           # concatenated
    cdef readonly bytes id_offsets       # int32[rows + 1]
    cdef readonly bytes ids              # 16 hexadecimal digits each
    cdef readonly bytes positions        # int64[rows]; as the next three
    cdef readonly bytes timestamps_ns
    cdef readonly bytes timestamps_us
    cdef readonly bytes dues_us
    cdef readonly bytes due_bits         # bit of row i: i & 7 of byte i >> 3; 1 if there is a due time
    cdef readonly uint64_t due_count

    def __init__(self):
        raise TypeError("columns are made by decode()")


def decode(bytes data not None, uint64_t expected, bint with_bodies=True, bint skip_damaged=False):
    """Decode the body of an answer of GET /topic/log.

    expected: the requested position. with_bodies: fill `bodies`. skip_damaged: count damaged records as lost, and stop
    if the start of the next record is unknown. Raises: ValueError if a record has flags that a reader must know, and
    without skip_damaged if the data end within a record, a checksum is wrong, or positions do not grow.
    """
    cdef Walk walk = Walk(at=0, expected=expected, rows=0, lost=0, damaged=0, body_bytes=0)
    cdef Columns columns = Columns.__new__(Columns)
    cdef const char* start = PyBytes_AS_STRING(data)
    cdef uint64_t size_bytes = <uint64_t> len(data)
    cdef Fault fault
    if size_bytes > DATA_BYTES_MAX:
        raise ValueError(f"cannot decode {size_bytes} bytes at once: the limit is {DATA_BYTES_MAX}")
    with nogil:
        fault = measure(start, size_bytes, skip_damaged, &walk)
    if fault == LATER_FLAGS or (fault != SOUND and not skip_damaged):
        raise ValueError(reason(data, fault, walk.at))
    columns.rows, columns.lost, columns.damaged = walk.rows, walk.lost, walk.damaged
    columns.following = walk.expected
    allocate(columns, walk.rows, walk.body_bytes, with_bodies)
    fill(data, walk.at, columns)
    return columns


cdef Fault measure(const char* data, uint64_t end, bint skip_damaged, Walk* walk) noexcept nogil:
    """Check every record; count rows and the bytes of their bodies. Returns: the fault that ended the walk."""
    cdef const Record* record
    cdef Fault fault
    while walk.at < end:
        record = <const Record*> (data + walk.at)
        fault = fault_of(record, end - walk.at, walk.expected)
        if fault > DAMAGED or (fault != SOUND and not skip_damaged):
            return fault
        if fault == SOUND:
            follow(walk, record)
        else:
            # No field of the record can be trusted, not even its position: it counts as the expected record.
            walk.lost += 1
            walk.damaged += 1
            walk.expected += 1
        walk.at += record_span(record.size_bytes)
    return SOUND


cdef inline Fault fault_of(const Record* record, uint64_t free_bytes, uint64_t expected) noexcept nogil:
    if free_bytes < RECORD_HEADER_BYTES:
        return CUT_HEADER
    if record.size_bytes == 0 or record_span(record.size_bytes) > free_bytes:
        return CUT_BODY
    if not record_is_sound(record):
        return DAMAGED
    if record.flags & RECORD_FLAGS_REFUSED:
        return LATER_FLAGS
    return EARLIER_POSITION if record.seq < expected else SOUND


cdef inline void follow(Walk* walk, const Record* record) noexcept nogil:
    """Advance to a record, counting the missing records before it."""
    if record_ordinal(record) > (walk.expected & ORDINAL_MASK):
        walk.lost += record_ordinal(record) - (walk.expected & ORDINAL_MASK)
    if record.flags & RECORD_LOST:
        walk.lost += 1
    else:
        walk.rows += 1
        walk.body_bytes += record_body_bytes(record)
    walk.expected = record.seq + 1


cdef str reason(bytes data, Fault fault, uint64_t at):
    if fault == CUT_HEADER:
        return f"the data end within the header of the record at offset {at}"
    if fault == CUT_BODY:
        return f"the data end within the record at offset {at}"
    if fault == DAMAGED:
        return f"the checksum of the record at offset {at} is wrong"
    if fault == LATER_FLAGS:
        flags = (<const Record*> (PyBytes_AS_STRING(data) + at)).flags
        return f"the record at offset {at} has flags of a later format: {flags:#x}"
    return f"the record at offset {at} is one of those before it again"


cdef bytes new_buffer(uint64_t size_bytes):
    return PyBytes_FromStringAndSize(NULL, <Py_ssize_t> size_bytes)


cdef int allocate(Columns columns, uint64_t rows, uint64_t body_bytes, bint with_bodies) except -1:
    if with_bodies:
        columns.body_offsets = new_buffer((rows + 1) * sizeof(int32_t))
        columns.bodies = new_buffer(body_bytes)
    columns.id_offsets = new_buffer((rows + 1) * sizeof(int32_t))
    columns.ids = new_buffer(rows * HEX_SIZE)
    columns.positions = new_buffer(rows * sizeof(int64_t))
    columns.timestamps_ns = new_buffer(rows * sizeof(int64_t))
    columns.timestamps_us = new_buffer(rows * sizeof(int64_t))
    columns.dues_us = new_buffer(rows * sizeof(int64_t))
    columns.due_bits = new_buffer((rows + 7) >> 3)
    memset(PyBytes_AS_STRING(columns.due_bits), 0, (rows + 7) >> 3)
    return 0


cdef int fill(bytes data, uint64_t end, Columns columns) except -1:
    """Fill the buffers from the walked records."""
    cdef const char* start = PyBytes_AS_STRING(data)
    cdef bint some_damaged = columns.damaged != 0
    cdef Buffers to = Buffers(
        body_offsets=NULL,
        bodies=NULL,
        id_offsets=<int32_t*> PyBytes_AS_STRING(columns.id_offsets),
        ids=PyBytes_AS_STRING(columns.ids),
        positions=<int64_t*> PyBytes_AS_STRING(columns.positions),
        timestamps_ns=<int64_t*> PyBytes_AS_STRING(columns.timestamps_ns),
        timestamps_us=<int64_t*> PyBytes_AS_STRING(columns.timestamps_us),
        dues_us=<int64_t*> PyBytes_AS_STRING(columns.dues_us),
        due_bits=<uint8_t*> PyBytes_AS_STRING(columns.due_bits),
    )
    if columns.body_offsets is not None:
        to.body_offsets = <int32_t*> PyBytes_AS_STRING(columns.body_offsets)
        to.bodies = PyBytes_AS_STRING(columns.bodies)
    with nogil:
        columns.due_count = fill_rows(start, end, some_damaged, &to)
    return 0


cdef uint64_t fill_rows(const char* data, uint64_t end, bint some_damaged, const Buffers* to) noexcept nogil:
    """Fill the rows. Returns: the number of rows with a due time."""
    cdef uint64_t at = 0, row = 0, body_at = 0, due_count = 0
    cdef const Record* record
    while at < end:
        record = <const Record*> (data + at)
        at += record_span(record.size_bytes)
        if record.flags & RECORD_LOST or (some_damaged and not record_is_sound(record)):
            continue
        if to.body_offsets != NULL:
            to.body_offsets[row] = <int32_t> body_at
            memcpy(to.bodies + body_at, record_body(record), record_body_bytes(record))
            body_at += record_body_bytes(record)
        to.id_offsets[row] = <int32_t> (row * HEX_SIZE)
        id_to_hex(record.guid, to.ids + row * HEX_SIZE)
        to.positions[row] = <int64_t> record.seq
        to.timestamps_ns[row] = record.timestamp_ns
        to.timestamps_us[row] = record.timestamp_ns // NS_PER_US
        to.dues_us[row] = record.due_ns // NS_PER_US
        if record.due_ns:
            to.due_bits[row >> 3] |= <uint8_t> (1 << (row & 7))
            due_count += 1
        row += 1
    if to.body_offsets != NULL:
        to.body_offsets[row] = <int32_t> body_at
    to.id_offsets[row] = <int32_t> (row * HEX_SIZE)
    return due_count
