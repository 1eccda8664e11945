"""Rewriting of sealed segments: another file takes their place in the log, without the records that nobody needs.

    before   | finished | A | finished .................. | B | finished |   segment 7, 8 MiB
    after    | gap of 90 | A | gap of 31,000 | B | gap of 200 |              segment 7, a page

The ordinals stay, and with them ledgers, depths and the places of readers. A *gap* is a record that stands for a run of
ordinals, finished by all channels. Nothing is copied to another place in the log, and a kept record is the same to the
byte. Neighbours that were rewritten before may become one file (`first_number` of its header).

The work is done in steps, each by its caller:

    on the loop   `needed` has a bit for each record that some channel has not finished
    in a thread   `make`: read the old files, check every record, store the new file under another name, sync it
    on the loop   are the segments still in the log, and is nothing needed that was left out? `take_place`: the file
                  gets its name and its place in the chain; the caller repoints what points at old records (`moved`)
    in a thread   sync the directory, then remove the old files

A kill finds the old files, or the new one, or both: a start takes the one with more `rewrites`. The old files are
removed only after a sync of the new one's name, so a power failure leaves one of them as well.

The old files are read with pread(2), not through their mappings: a page that the disk cannot read is an error here, and
would end the process there. A damaged record ends the rewriting. It is mended, or stays, as if it had been met
otherwise: no damage becomes a gap.

Invariants: 1. the segments are sealed, follow one another without a hole, and have one epoch. 2. `moves` has each kept
record once.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free, qsort, realloc
from libc.string cimport memcpy

from pyqd.hot.diskqueue.segment cimport SEGMENT_HEADER_BYTES
from pyqd.hot.primitives.bitmap cimport window_count, window_next_one, window_test
from pyqd.hot.primitives.debug cimport debug_require
from pyqd.hot.wire.record cimport (
    ORDINAL_BITS,
    RECORD_GAP,
    RECORD_HEADER_BYTES,
    RECORD_SPAN_MIN,
    RECORD_VALID,
    gap_fill,
    ordinals_of,
    record_ordinal,
    record_span,
    record_verdict,
)

from pyqd.diskqueue.files import MAKING
from pyqd.hot.diskqueue.logstart import SUFFIX
from pyqd.primitives.errors import CorruptionError

cdef enum:
    GAP_BODY_BYTES = 8

cdef uint64_t READ_AT_ONCE_BYTES = 1 << 20


cdef int by_address(const void* first, const void* second) noexcept nogil:
    cdef uintptr_t one = <uintptr_t> (<const Move*> first).at
    cdef uintptr_t other = <uintptr_t> (<const Move*> second).at
    return (one > other) - (one < other)


cdef Fault reserve(Gathered* to, uint64_t size_bytes) noexcept nogil:
    """Reserve memory for one more record of that size."""
    cdef void* grown
    cdef uint64_t capacity
    if to.move_count == to.move_capacity:
        capacity = max(<uint64_t> 64, 2 * to.move_capacity)
        grown = realloc(to.moves, capacity * sizeof(Move))
        if grown == NULL:
            return NO_MEMORY
        to.moves = <Move*> grown
        to.move_capacity = capacity
    if to.used_bytes + size_bytes > to.capacity_bytes:
        capacity = max(<uint64_t> 4096, 2 * to.capacity_bytes, to.used_bytes + size_bytes)
        grown = realloc(to.records, capacity)
        if grown == NULL:
            return NO_MEMORY
        to.records = <char*> grown
        to.capacity_bytes = capacity
    return NO_FAULT


cdef Fault end_gap(Gathered* to) noexcept nogil:
    """Add the gap before the next record, if there is one."""
    if to.gap_count == 0:
        return NO_FAULT
    if reserve(to, RECORD_SPAN_MIN) != NO_FAULT:
        return NO_MEMORY
    gap_fill(<Record*> (to.records + to.used_bytes), to.seq - to.gap_count, to.gap_count, GAP_BODY_BYTES)
    to.used_bytes += RECORD_SPAN_MIN
    to.gap_count = 0
    return NO_FAULT


cdef Fault add_record(Gathered* to, const Record* record, const char* at) noexcept nogil:
    """Add a record, which lies at an address of its segment, or its ordinals to a gap."""
    cdef uint64_t ordinal = record_ordinal(record)
    cdef uint64_t span = record_span(record.size_bytes)
    cdef Fault fault
    if record.flags & RECORD_GAP or not window_test(to.needed, to.capacity_bits, ordinal):
        to.gap_count += ordinals_of(record)
        to.seq += ordinals_of(record)
        return NO_FAULT
    fault = end_gap(to)
    if fault == NO_FAULT:
        fault = reserve(to, span)
    if fault != NO_FAULT:
        return fault
    to.moves[to.move_count] = Move(at=at, offset=SEGMENT_HEADER_BYTES + to.used_bytes)
    to.move_count += 1
    memcpy(to.records + to.used_bytes, record, span)
    to.used_bytes += span
    to.seq += 1
    return NO_FAULT


cdef uint64_t add_records(
    Gathered* to, const char* data, uint64_t length, const char* base, uint64_t offset,
) noexcept nogil:
    """Add the whole records in a piece of a segment, from an offset on. Returns: the bytes that they take."""
    cdef uint64_t at = 0
    cdef const Record* record
    while at < length and to.fault == NO_FAULT:
        record = <const Record*> (data + at)
        if length - at < RECORD_HEADER_BYTES or (
                record.size_bytes != 0 and record_span(record.size_bytes) > length - at):
            break
        if record_verdict(data + at, length - at, to.seq) != RECORD_VALID or (
                ordinals_of(record) > to.end - record_ordinal(record)):
            to.fault = DAMAGED
            break
        to.fault = add_record(to, record, base + offset + at)
        at += record_span(record.size_bytes)
    return at


def are_neighbours(Segment first not None, Segment second not None):
    """Return whether two segments of a log may become one file: no hole and no change of the epoch lies between."""
    return (
        first.next is second and first.end_ordinal() == second.first_ordinal
        and first.header().first_seq >> ORDINAL_BITS == second.header().first_seq >> ORDINAL_BITS)


@cython.final
cdef class Rewrite:
    """Rewriting of some segments of a log, none of which is the last. `needed` is empty: the caller sets its bits."""

    def __init__(self, Log log not None, list segments not None):
        cdef Segment segment
        cdef Segment first = segments[0]
        self.log = log
        self.segments = segments
        self.start = first.first_ordinal
        self.end = (<Segment> segments[len(segments) - 1]).end_ordinal()
        self.to.seq = first.header().first_seq
        self.to.end = self.end
        assert self.end > self.start
        self.sources = []
        for segment in segments:
            self.sources.append((segment.mapping.path, <uintptr_t> segment.base, segment.tail, segment.count))
        self.to.capacity_bits = 64
        while self.to.capacity_bits < self.end - (self.start & ~<uint64_t> 63):
            self.to.capacity_bits *= 2
        self.to.needed = <uint64_t*> calloc(self.to.capacity_bits // 64, sizeof(uint64_t))
        if self.to.needed == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.to.needed)
        free(self.to.records)
        free(self.to.moves)

    cdef uint64_t needed_count(self) noexcept:
        """Count the records that are needed. Cost: O(64th part of the records)."""
        return window_count(self.to.needed, self.to.capacity_bits, self.start, self.end)

    def make(self, syncs):
        """Make the new file, on stable storage but for its name; blocks, in a thread. syncs: ReliableSync.

        Raises: StorageError, CorruptionError (an old record is damaged); `discard` removes what is there then.
        """
        cdef uint64_t kept_count
        for path, address, tail, _ in self.sources:
            self.gather_from(path, <const char*> <uintptr_t> address, tail)
        with nogil:
            self.to.fault = end_gap(&self.to)
            if self.to.move_count != 0:
                qsort(self.to.moves, self.to.move_count, sizeof(Move), by_address)
        self.require_sound(path, tail)
        kept_count = self.to.move_count
        self.made = self.log.pool.new_segment(SEGMENT_HEADER_BYTES + self.to.used_bytes, SUFFIX + MAKING)
        with nogil:
            memcpy(self.made.base + SEGMENT_HEADER_BYTES, self.to.records, self.to.used_bytes)
        free(self.to.records)
        self.to.records = NULL
        self.made.begin_rewritten(self.segments, kept_count, SEGMENT_HEADER_BYTES + self.to.used_bytes)
        syncs.sync(self.made.mapping, 0, self.made.mapping.size_bytes)

    cdef int gather_from(self, str path, const char* base, uint64_t tail) except -1:
        """Copy the needed records of a segment. Raises: StorageError, CorruptionError."""
        cdef uint64_t offset = SEGMENT_HEADER_BYTES
        cdef uint64_t length = READ_AT_ONCE_BYTES
        cdef uint64_t taken
        cdef const char* data
        while offset < tail:
            length = min(length, tail - offset)
            data = base + offset
            if path is not None:
                content = self.log.files.read_range(path, offset, length)
                if <uint64_t> len(content) < length:
                    raise CorruptionError(path, offset, "the file is shorter than its segment")
                data = PyBytes_AS_STRING(content)
            with nogil:
                taken = add_records(&self.to, data, length, base, offset)
            self.require_sound(path, offset + taken)
            if taken == 0 and length == tail - offset:
                raise CorruptionError(path or "memory", offset, "the last record is not whole")
            # A record may be larger than what was read.
            length = READ_AT_ONCE_BYTES if taken != 0 else 2 * length
            offset += taken
        return 0

    cdef int require_sound(self, str path, uint64_t offset) except -1:
        if self.to.fault == NO_MEMORY:
            raise MemoryError
        if self.to.fault == DAMAGED:
            raise CorruptionError(path or "memory", offset, "a record is damaged")
        return 0

    def is_current(self):
        """Return whether the log still has the segments, as they were."""
        cdef Segment segment = self.log.segment_of(self.start)
        if self.log.abandoned:
            return False
        for found, (_, _, tail, count) in zip(self.segments, self.sources):
            if found is not segment or segment.tail != tail or segment.count != count:
                return False
            segment = segment.next
        return True

    def covers(self, Rewrite now not None):
        """Return whether every record that is needed now was needed when the new file was made."""
        cdef uint64_t ordinal = self.start
        assert now.start == self.start and now.end == self.end
        while ordinal < self.end:
            ordinal = window_next_one(now.to.needed, now.to.capacity_bits, ordinal, self.end)
            if ordinal < self.end and not window_test(self.to.needed, self.to.capacity_bits, ordinal):
                return False
            ordinal += 1
        return True

    def take_place(self):
        """Give the new file its name, and the place of the old ones in the log. Raises: StorageError (no change).

        The log's `replaced_files` has the old ones, to be removed after a sync of the directory.
        """
        assert self.made is not None and self.is_current()
        making = self.made.mapping.path
        if making is not None:
            self.log.files.rename(making, making.removesuffix(MAKING))
            self.made.mapping.moved(making.removesuffix(MAKING))
        self.log.replace(self.segments, self.made)

    cdef const Record* moved(self, const Record* record) noexcept:
        """Return the new place of a record of the old segments; NULL for any other record."""
        cdef const char* at = <const char*> record
        cdef uint64_t low = 0
        cdef uint64_t high = self.to.move_count
        cdef uint64_t middle
        debug_require(record != NULL)
        if high == 0 or at < self.to.moves[0].at or at > self.to.moves[high - 1].at:
            return NULL
        while low < high:
            middle = (low + high) // 2
            if self.to.moves[middle].at < at:
                low = middle + 1
            else:
                high = middle
        return <const Record*> (self.made.base + self.to.moves[low].offset) if self.to.moves[low].at == at else NULL

    def discard(self):
        """Remove the new file, which did not get its place. Raises: StorageError."""
        if self.made is not None and self.made.mapping.path is not None:
            self.made.mapping.file_removed()
            self.log.files.remove(self.made.mapping.path)
        self.made = None
