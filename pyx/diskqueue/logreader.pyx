"""Reads of a log by position, for any number of readers, without an effect on the channels.

    positions   seq = epoch << 48 | ordinal; readers hold them, no state is kept here for a reader
    marks       one (ordinal, offset, timestamp, id) for every 64 KiB of a segment, made when it is first walked

A reader asks for records from a position on, up to a number of bytes. It gets whole records as they lie in the segment:
one copy, no decoding. Segments have no index on disk, so a segment is walked once, and a mark is kept for every 64 KiB:
50 KiB of marks for a segment of 100 MiB. The next page then costs a walk of 64 KiB at most. A walk of a whole segment
would hold the loop for milliseconds, or for a read of all of it from disk. So it is done in slices (`prepare`), and the
caller yields to the loop in between.

Pages that are not in memory are for a thread to read. A walk that comes to such pages ends there and names them in
`presence`; the caller has them read and calls again. Look-ups at a place that was prepared just before do not ask.

Between two calls anything may be trimmed or recycled. So only numbers are kept from one call to the next, and every
call starts from the log's first segment. An index knows its segment by number, and a number is never given to two
segments of a log. The log keeps the indexes and drops each with its segment, so no reader keeps a removed file's blocks
in use.

Readers begin at `Log.earliest`, behind all gaps of rewritten segments. Searches by id read these segments as well.

Positions are ordered as numbers, over epochs too: records that a power failure took away have lower positions than all
later ones. A read from a position begins with the first record at or above it.

Times: a segment's first timestamp stands for all before it. The answer is the first record at or after the time in the
segment before the first one that begins at or after the time. If the clock never went back, that is the first such
record of all. If it did, the answer is still a record at or after the time (or the end) whose predecessor is before the
time: the earliest such record that segment beginnings and, inside a segment, marks show.

Ids grow with the ordinals, as a topic gives them out, so a message is found by its id as by its position. Messages that
were imported with ids of their own may lie in any order, and some of them may not be found. Until a segment has been
verified, a damaged id in it may hide others, too.

Invariants: 1. marks are in order; the first is the segment's first record. 2. `offset` is behind the last one walked.

Rejected: an index on disk (a second truth to recover); a hint for each reader where it stopped (memory for each reader,
and of no use to one that begins in the middle).
"""

cimport cython
from libc.stdlib cimport free, realloc

from pyqd.hot.diskqueue.presence cimport Presence
from pyqd.hot.diskqueue.segment cimport SEGMENT_HEADER_BYTES
from pyqd.hot.primitives.debug cimport debug_require
from pyqd.hot.wire.record cimport (
    ORDINAL_BITS,
    ORDINAL_MASK,
    RECORD_HEADER_BYTES,
    RECORD_LOST,
    ordinal_after,
    ordinals_of,
    record_ordinal,
    record_span,
)

cdef uint64_t MARK_BYTES = 64 << 10
WALK_BYTES_PER_SLICE = 4 << 20

cdef uint64_t WALK_BYTES = WALK_BYTES_PER_SLICE
cdef uint64_t ANY = <uint64_t> -1


cdef const Record* record_at(Segment segment, uint64_t offset, uint64_t ordinal) noexcept:
    """Return the record there, whose ordinals reach beyond that; NULL if it is damaged."""
    cdef const Record* record = <const Record*> (segment.base + offset)
    debug_require(offset <= segment.tail)
    if (
        segment.tail - offset < RECORD_HEADER_BYTES or record.size_bytes == 0
        or record_span(record.size_bytes) > segment.tail - offset
        or ordinal_after(record) <= ordinal or record_ordinal(record) >= segment.end_ordinal()
        or ordinals_of(record) > segment.end_ordinal() - record_ordinal(record)
    ):
        return NULL
    return record


cdef uint64_t record_span_at(Segment segment, uint64_t offset, uint64_t ordinal) noexcept:
    """Return the bytes of the record there; 0 if it is damaged, or at the segment's end."""
    cdef const Record* record = record_at(segment, offset, ordinal) if offset < segment.tail else NULL
    debug_require(offset <= segment.tail)
    return 0 if record == NULL else record_span(record.size_bytes)


cdef int64_t first_timestamp(Segment segment) noexcept:
    """Return the publishing time of a segment's first record, or the segment's creation time if that record is lost."""
    cdef const Record* record = <const Record*> (segment.base + SEGMENT_HEADER_BYTES)
    debug_require(segment.count != 0)
    return segment.header().created_ns if record.flags & RECORD_LOST else record.timestamp_ns


cdef uint64_t first_guid(Segment segment) noexcept:
    """Return the id of a segment's first record that is not lost; 0 if there is none."""
    cdef uint64_t offset = SEGMENT_HEADER_BYTES
    cdef uint64_t ordinal = segment.first_ordinal
    cdef const Record* record
    while offset < segment.tail:
        record = record_at(segment, offset, ordinal)
        if record == NULL or record.guid != 0:
            return 0 if record == NULL else record.guid
        offset += record_span(record.size_bytes)
        ordinal = ordinal_after(record)
    return 0


@cython.final
cdef class SegmentIndex:
    """Index of some records of a segment."""

    def __init__(self, Segment segment not None):
        self.offset = SEGMENT_HEADER_BYTES
        self.ordinal = segment.first_ordinal

    def __dealloc__(self):
        free(self.marks)

    cdef int extend(self, Segment segment, uint64_t limit_bytes) except -1:
        """Continue to index the segment, over about `limit_bytes` bytes at most."""
        cdef const Record* record
        cdef uint64_t until = min(segment.tail, self.offset + limit_bytes)
        while self.offset < until and not self.broken:
            record = record_at(segment, self.offset, self.ordinal)
            if record == NULL:
                self.broken = True
                self.unmended = segment.unverified
                break
            if record.guid < self.guid and record.guid != 0:
                # One of the ids may be damaged.
                self.unmended = self.unmended or segment.unverified
            if self.count == 0 or self.offset - self.marks[self.count - 1].offset >= MARK_BYTES:
                self.add_mark(record)
            self.guid = max(self.guid, record.guid)
            self.offset += record_span(record.size_bytes)
            self.ordinal = ordinal_after(record)
            self.timestamp_ns = record.timestamp_ns
        assert self.offset <= segment.tail
        return 0

    cdef int add_mark(self, const Record* record) except -1:
        cdef uint32_t capacity
        cdef void* grown
        assert self.count == 0 or self.marks[self.count - 1].ordinal < record_ordinal(record), "marks are in order"
        if self.count == self.capacity:
            capacity = max(<uint32_t> 4, 2 * self.capacity)
            grown = realloc(self.marks, capacity * sizeof(Mark))
            if grown == NULL:
                raise MemoryError
            self.marks = <Mark*> grown
            self.capacity = capacity
        self.marks[self.count] = Mark(
            ordinal=record_ordinal(record), offset=self.offset, timestamp_ns=record.timestamp_ns,
            guid=max(self.guid, record.guid))
        self.count += 1
        return 0

    cdef bint complete(self, Segment segment) noexcept:
        debug_require(self.offset <= segment.tail)
        return self.broken or self.offset >= segment.tail

    cdef const Mark* mark_before(self, uint64_t ordinal, uint64_t guid) noexcept:
        """Return the last mark at or below an ordinal and an id, or the first; there is one. ANY: for the other one."""
        cdef uint32_t low = 0
        cdef uint32_t high = self.count
        cdef uint32_t middle
        debug_require(self.count > 0)
        while high - low > 1:
            middle = (low + high) // 2
            if self.marks[middle].ordinal <= ordinal and self.marks[middle].guid <= guid:
                low = middle
            else:
                high = middle
        return &self.marks[low]

    cdef const Mark* mark_before_time(self, int64_t time_ns) noexcept:
        """Return the mark in front of the first one at or after a time; there is a mark."""
        cdef uint32_t at = 1
        debug_require(self.count > 0)
        # A record that stands for a lost one has the time 0.
        while at < self.count and self.marks[at].timestamp_ns < time_ns:
            at += 1
        return &self.marks[at - 1]


@cython.final
cdef class LogReader:
    """Reads of one log by position. Nothing here switches greenlets; the log is not changed and nothing in it held."""

    def __init__(self, Log log not None):
        self.log = log

    @property
    def presence(self):
        """Presence of the log's pages: what the last step has found absent is to be read before the next one."""
        if self.asked is None:
            self.asked = Presence(self.log.files)
        return self.asked

    cdef Presence begin(self):
        """Begin a step."""
        cdef Presence presence = self.presence
        presence.absent = None
        return presence

    cdef SegmentIndex index_of(self, Segment segment):
        cdef SegmentIndex index = self.log.indexes.get(segment.number)
        assert segment.number != 0, "a spare has no index"
        # A damaged one is begun again once the damage has been mended; before, every step would come to the same end.
        if index is None or (index.unmended and not segment.unverified):
            index = SegmentIndex(segment)
            self.log.indexes[segment.number] = index
        return index

    def ordinal_of(self, uint64_t position):
        """Return the ordinal of the first record at or above a position; the log's end if there is none."""
        cdef Segment segment = self.log.first
        cdef uint64_t first_seq, ordinal
        while segment is not None:
            first_seq = segment.header().first_seq
            if position <= first_seq:
                return segment.first_ordinal
            ordinal = position & ORDINAL_MASK
            if position >> ORDINAL_BITS == first_seq >> ORDINAL_BITS and ordinal < segment.end_ordinal():
                return ordinal
            segment = segment.next
        return self.log.end

    def position_of(self, uint64_t ordinal):
        """Return the position of the record with that ordinal, or of the first behind it; at the end, of the next."""
        cdef Segment segment
        if ordinal >= self.log.end:
            return (self.log.epoch << ORDINAL_BITS) | ordinal
        segment = self.log.segment_of(ordinal)
        assert ordinal < segment.end_ordinal()
        return (segment.header().first_seq & ~ORDINAL_MASK) | max(ordinal, segment.first_ordinal)

    cdef bint extend(self, SegmentIndex index, Segment segment) except -1:
        """Index some more of a segment. Returns: False if its pages there are not in memory, and it is as it was."""
        assert self.asked is not None, "the step has not begun"
        if not self.asked.has(segment, index.offset, WALK_BYTES):
            return False
        index.extend(segment, WALK_BYTES)
        return True

    def prepare(self, uint64_t ordinal, uint64_t length=0):
        """Walk some of the segment that holds an ordinal.

        length: bytes from the record on, as far as the segment goes, that are to be in memory, beside the record.
        Returns: whether the record can be found and read at once now.
        """
        cdef Segment segment = self.log.segment_of(ordinal)
        cdef SegmentIndex index
        self.begin()
        if ordinal >= segment.end_ordinal():
            return True
        if ordinal > segment.first_ordinal:
            index = self.index_of(segment)
            if index.ordinal <= ordinal and not index.complete(segment) and not self.extend(index, segment):
                return False
            if index.ordinal <= ordinal and not index.complete(segment):
                return False
        return self.has_place(segment, ordinal, length)

    cdef bint has_place(self, Segment segment, uint64_t ordinal, uint64_t length) except -1:
        """Return whether a record that is indexed is in memory, `length` bytes from there on, and the way to it."""
        cdef uint64_t start = SEGMENT_HEADER_BYTES
        cdef uint64_t offset, found
        assert self.asked is not None, "the step has not begun"
        if ordinal > segment.first_ordinal and self.index_of(segment).count:
            start = self.index_of(segment).mark_before(ordinal, ANY).offset
        if not self.asked.has(segment, start, MARK_BYTES + RECORD_HEADER_BYTES + length):
            return False
        offset = self.offset_of(segment, max(ordinal, segment.first_ordinal), &found)
        # The whole range again: once it was read, no part of it is asked for on its own.
        length = max(length, record_span_at(segment, offset, found))
        return self.asked.has(segment, start, max(offset - start + length, MARK_BYTES))

    cdef uint64_t offset_of(self, Segment segment, uint64_t ordinal, uint64_t* found) except 0:
        """Return the offset of a record of the segment, or of the first behind it, or of the segment's end."""
        cdef SegmentIndex index
        cdef const Mark* mark
        cdef const Record* record
        cdef uint64_t offset = SEGMENT_HEADER_BYTES
        cdef uint64_t at = segment.first_ordinal
        if ordinal >= segment.end_ordinal():
            found[0] = segment.end_ordinal()
            return segment.tail
        if ordinal > at:
            index = self.index_of(segment)
            while index.ordinal <= ordinal and not index.complete(segment):
                index.extend(segment, WALK_BYTES)
            if index.count:
                mark = index.mark_before(ordinal, ANY)
                offset, at = mark.offset, mark.ordinal
            while at < ordinal and offset < segment.tail:
                record = record_at(segment, offset, at)
                if record == NULL:
                    break
                if record_ordinal(record) >= ordinal:
                    at = record_ordinal(record)
                    break
                offset += record_span(record.size_bytes)
                at = ordinal_after(record)
        assert SEGMENT_HEADER_BYTES <= offset <= segment.tail, "a walk ends in its segment"
        found[0] = at
        return offset

    def read_raw(self, uint64_t start, uint64_t end, uint64_t bytes_max, uint64_t count_max=ORDINAL_MASK):
        """Return (bytes, count, next): the records of the ordinals `[start, end)`, in the format of their segments.

        Up to `count_max` whole records of `bytes_max` bytes, but at least one if there is one. next: the ordinal to
        read on from. Trimmed and damaged records are skipped. Cost: one copy; O(64 KiB) before it, once prepared.
        """
        cdef Segment segment = self.log.segment_of(start)
        cdef const Record* record
        cdef uint64_t offset, run, span
        cdef uint64_t ordinal = start
        cdef uint64_t total = 0
        cdef uint64_t count = 0
        cdef bint full = False
        assert end <= self.log.end, "only appended records are read"
        parts = []
        while ordinal < end:
            offset = run = self.offset_of(segment, max(ordinal, segment.first_ordinal), &ordinal)
            while offset < segment.tail:
                record = record_at(segment, offset, ordinal)
                if record == NULL:
                    break
                span = record_span(record.size_bytes)
                if record_ordinal(record) >= end or (count and total + span > bytes_max) or count == count_max:
                    full = True
                    break
                offset += span
                total += span
                count += 1
                ordinal = ordinal_after(record)
            if offset > run:
                parts.append(segment.base[run:offset])
            if full:
                break
            ordinal = segment.end_ordinal()
            segment = segment.next
            if segment is None:
                break
            ordinal = segment.first_ordinal
        assert count <= count_max
        return parts[0] if len(parts) == 1 else b"".join(parts), count, ordinal

    cdef Segment segment_at_time(self, int64_t time_ns):
        """Return the segment in front of the first one that begins at or after a time; the last that has records."""
        cdef Segment segment = self.log.first
        cdef Segment before = self.log.first
        while segment is not None:
            if segment.count:
                if first_timestamp(segment) >= time_ns:
                    break
                before = segment
            segment = segment.next
        return before

    def prepare_time(self, int64_t time_ns):
        """Walk some of the segment that a time lies in. Returns: whether `ordinal_at` finds it at once now."""
        cdef Segment segment = self.segment_at_time(time_ns)
        cdef SegmentIndex index = self.index_of(segment)
        self.begin()
        if not index.complete(segment) and not self.extend(index, segment):
            return False
        return index.complete(segment) and (
            index.count == 0
            or self.asked.has(segment, index.mark_before_time(time_ns).offset, MARK_BYTES + RECORD_HEADER_BYTES))

    def ordinal_at(self, int64_t time_ns):
        """Return the ordinal of the first record at or after a time (Unix), or the log's end."""
        cdef Segment segment = self.segment_at_time(time_ns)
        cdef SegmentIndex index = self.index_of(segment)
        cdef const Record* record
        cdef uint64_t offset, ordinal
        while not index.complete(segment):
            index.extend(segment, WALK_BYTES)
        if index.count:
            offset = index.mark_before_time(time_ns).offset
            ordinal = index.mark_before_time(time_ns).ordinal
            while offset < segment.tail:
                record = record_at(segment, offset, ordinal)
                if record == NULL:
                    break
                ordinal = record_ordinal(record)
                if record.timestamp_ns >= time_ns and not record.flags & RECORD_LOST:
                    return ordinal
                offset += record_span(record.size_bytes)
                ordinal = ordinal_after(record)
        return segment.end_ordinal() if segment.next is None else segment.next.first_ordinal

    cdef Segment segment_of_guid(self, uint64_t guid):
        """Return the last segment that begins at or below an id; None if there is none."""
        cdef Segment segment = self.log.first
        cdef Segment before = None
        cdef uint64_t first
        while segment is not None:
            first = first_guid(segment)
            if first > guid:
                break
            if first != 0:
                before = segment
            segment = segment.next
        return before

    def prepare_guid(self, uint64_t guid):
        """Walk some of the segment that an id lies in. Returns: whether `find` finds it at once now."""
        cdef Segment segment = self.segment_of_guid(guid)
        cdef SegmentIndex index
        self.begin()
        if segment is None:
            return True
        index = self.index_of(segment)
        if index.guid <= guid and not index.complete(segment) and not self.extend(index, segment):
            return False
        return (index.guid > guid or index.complete(segment)) and (
            index.count == 0
            or self.asked.has(segment, index.mark_before(ANY, guid).offset, MARK_BYTES + RECORD_HEADER_BYTES))

    cdef const Record* first_from(self, Segment segment, uint64_t guid) except? NULL:
        """Return the first record of a segment with that id or a greater one; NULL if there is none."""
        cdef SegmentIndex index = self.index_of(segment)
        cdef const Record* record
        cdef const Mark* mark
        cdef uint64_t offset, ordinal
        while (index.count == 0 or index.guid < guid) and not index.complete(segment):
            index.extend(segment, WALK_BYTES)
        mark = index.mark_before(ANY, guid)
        offset, ordinal = mark.offset, mark.ordinal
        while offset < min(index.offset, segment.tail):
            record = record_at(segment, offset, ordinal)
            if record == NULL or record.guid >= guid:
                return record
            offset += record_span(record.size_bytes)
            ordinal = ordinal_after(record)
        return NULL

    cdef const Record* find(self, uint64_t guid) except? NULL:
        """Return the record with that id; NULL if none is kept. Cost: O(64 KiB), once prepared."""
        cdef Segment segment = self.segment_of_guid(guid)
        cdef const Record* record = NULL
        if segment is not None:
            record = self.first_from(segment, guid)
        if record == NULL or record.guid != guid:
            return NULL
        return record

    def ordinal_after_guid(self, uint64_t guid):
        """Return the ordinal of the first record with a greater id; the log's end if there is none. Cost: as `find`."""
        cdef Segment segment = self.segment_of_guid(guid)
        cdef const Record* record
        if segment is None:
            return self.log.first.first_ordinal
        record = self.first_from(segment, guid + 1)
        if record != NULL:
            return record_ordinal(record)
        return segment.end_ordinal() if segment.next is None else segment.next.first_ordinal

    def ordinal_of_guid(self, uint64_t guid):
        """Return the ordinal of the record with that id; None if none is kept. Cost: as `find`."""
        cdef const Record* record = self.find(guid)
        return None if record == NULL else record_ordinal(record)

    def timestamp_of(self, uint64_t ordinal):
        """Return the publishing time of a record (Unix, ns); None if there is none. Cost: as `read_raw` of one."""
        cdef Segment segment = self.log.segment_of(ordinal)
        cdef uint64_t found
        cdef uint64_t offset = self.offset_of(segment, max(ordinal, segment.first_ordinal), &found)
        cdef const Record* record
        if offset >= segment.tail:
            return None
        record = record_at(segment, offset, found)
        return None if record == NULL or record.flags & RECORD_LOST else record.timestamp_ns

    def segments(self, uint64_t ordinal=0):
        """Return (first position, records, bytes, created_ns, first timestamp or None) of each segment, in order.

        ordinal: begin with the segment that holds it.
        """
        cdef Segment segment = self.log.segment_of(ordinal)
        rows = []
        while segment is not None:
            rows.append((
                segment.header().first_seq, segment.count, segment.tail - SEGMENT_HEADER_BYTES,
                segment.header().created_ns, first_timestamp(segment) if segment.count else None))
            segment = segment.next
        return rows
