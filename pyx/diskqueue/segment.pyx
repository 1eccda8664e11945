"""One mapped file of a log: a header of 128 bytes, then records back to back.

A file is a *spare* (number 0), *open* (the log's last, records are appended), or *sealed* (its end and count stand in
the header, so a start need not walk it). Its name says nothing; the number in the header gives its place in the log.
So a drained file becomes the next segment by one store of its header, with no rename on the loop.

A sealed segment may be *rewritten* (pyx/diskqueue/rewrite.pyx): another file takes its place in the log, or that of
some neighbours, with the same ordinals. There a *gap* stands for each run of records that all channels have finished.

Invariants:
1. `SEGMENT_HEADER_BYTES <= tail <= capacity_bytes <= file_bytes`, and `tail` is a multiple of 8.
2. Records `first_ordinal ... first_ordinal + count - 1`, or gaps for them, lie below `tail`, dense and in order.
3. `next` is None or begins at `end_ordinal()` or later (later only behind a recorded hole).
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport UINT64_MAX
from libc.string cimport memcpy, memset

from pyqd.hot.diskqueue.mapping cimport store_barrier
from pyqd.hot.primitives.crc32c cimport crc32c
from pyqd.hot.primitives.debug cimport debug_require
from pyqd.hot.primitives.releases cimport PAGE_BYTES, whole_pages
from pyqd.hot.wire.record cimport (
    ORDINAL_MASK,
    RECORD_ALIGN_BYTES,
    RECORD_HEADER_BYTES,
    RECORD_LOST,
    RECORD_SPAN_MIN,
    RECORD_VALID,
    Record,
    checksum_of,
    gap_fill,
    load_word,
    ordinals_of,
    record_span,
    record_verdict,
    store_word,
)

from pyqd.primitives.errors import CorruptionError, LaterFormatError, StorageError

# Pages of an earlier run are seen to be readable so many at a time: the loop waits for them.
cdef uint64_t CHECKED_AT_ONCE_BYTES = 64 << 10
cdef uint64_t MAGIC = 0x474553_44515950          # "PYQDSEG\0", little-endian

SEGMENT_HEADER_SIZE = SEGMENT_HEADER_BYTES

assert sizeof(SegmentHeader) <= SEGMENT_HEADER_BYTES
assert SEGMENT_HEADER_BYTES % RECORD_ALIGN_BYTES == 0


def set_check_bytes_for_tests(uint64_t size_bytes):
    """Set how many bytes of an earlier run are read ahead at once, for tests. Returns: the former number."""
    global CHECKED_AT_ONCE_BYTES
    former = CHECKED_AT_ONCE_BYTES
    CHECKED_AT_ONCE_BYTES = size_bytes
    return former


cdef uint32_t header_checksum(const SegmentHeader* header, uint64_t number) noexcept:
    cdef uint64_t[4] parts
    # A word of its own: continued from the version, the sum of a later version could be that of a spare of this one.
    parts[0] = SEGMENT_VERSION
    parts[1] = number
    parts[2] = header.first_seq
    parts[3] = <uint64_t> header.created_ns
    return rewritten_checksum(header, crc32c(0, parts, sizeof(parts)))


cdef uint32_t rewritten_checksum(const SegmentHeader* header, uint32_t checksum) noexcept:
    """Continue the checksum of a header over the fields of a rewritten segment, if it is one."""
    cdef uint64_t[3] parts
    if header.rewrites == 0 and header.first_number == 0:
        return checksum
    parts[0] = header.first_number
    parts[1] = header.rewrites
    parts[2] = header.kept_count
    return crc32c(checksum, parts, sizeof(parts))


def segment_identity(bytes content not None):
    """Return (number, first sequence number) of the segment whose header a file begins with.

    Number 0: the segment was drained, and the file is a spare. (0, 0): there is no header that can be believed.
    """
    cdef const SegmentHeader* header = <const SegmentHeader*> PyBytes_AS_STRING(content)
    if len(content) < SEGMENT_HEADER_BYTES or header.magic != MAGIC:
        return 0, 0
    if header.checksum == header_checksum(header, 0):
        return 0, header.first_seq
    if header.number == 0 or header.checksum != header_checksum(header, header.number):
        return 0, 0
    return header.number, header.first_seq


def rewritten_numbers(bytes content not None):
    """Return (first number, last number) of the segments that a rewritten file stands for; None for any other file."""
    cdef const SegmentHeader* header = <const SegmentHeader*> PyBytes_AS_STRING(content)
    number, _ = segment_identity(content)
    return (header.first_number, number) if number != 0 and header.rewrites != 0 else None


@cython.final
cdef class Segment:
    """A segment over a mapping, which it keeps. Source: docs/storage.md, "Segment"."""

    def __init__(self, Mapping mapping not None):
        if mapping.size_bytes <= SEGMENT_HEADER_BYTES:
            raise CorruptionError(mapping.path or "memory", 0, "shorter than a segment's header")
        self.mapping = mapping
        self.base = mapping.base
        self.file_bytes = self.capacity_bytes = mapping.size_bytes & ~<uint64_t> 7
        self.tail = SEGMENT_HEADER_BYTES
        self.limit_bytes = self.checked_bytes = self.file_bytes
        self.mapped_end = UINT64_MAX

    cdef int begin(self, uint64_t number, uint64_t first_seq, int64_t created_ns) except -1:
        """Make a spare the log's last segment."""
        cdef SegmentHeader* header = self.header()
        assert number > 0 and self.number == 0
        header.magic = MAGIC
        store_barrier()
        header.number = 0
        store_barrier()
        # The walk of recovery starts here: leftovers of a former use must not look like this use's first record. The
        # zero also says that the segment is about to begin, while its header changes.
        store_word(self.base + SEGMENT_HEADER_BYTES, 0)
        store_barrier()
        header.version = SEGMENT_VERSION
        header.first_seq = first_seq
        header.created_ns = created_ns
        header.sealed_count = 0
        header.sealed_bytes = 0
        header.synced_bytes = 0
        header.synced_count = 0
        header.first_number = header.rewrites = header.kept_count = 0
        header.checksum = header_checksum(header, number)
        store_barrier()
        header.number = number
        self.mapping.set_verified(True)
        self.mapping.stop_read_ahead()
        self.number = self.first_number = number
        self.rewrites = 0
        self.first_ordinal = first_seq & ORDINAL_MASK
        self.count = 0
        self.tail = SEGMENT_HEADER_BYTES
        self.journaled_bytes = 0
        self.mapped_end = UINT64_MAX
        self.next = None
        return self.set_checked(self.checked_bytes)

    cdef int begin_rewritten(self, list segments, uint64_t kept_count, uint64_t tail) except -1:
        """Write the header of a new file that is to replace sealed segments. tail: end of its records, all stored.

        kept_count: of these, without the gaps. The log does not have the file yet.
        """
        cdef Segment first = segments[0]
        cdef Segment last = segments[len(segments) - 1]
        cdef Segment segment
        cdef SegmentHeader* header = self.header()
        assert self.number == 0 and SEGMENT_HEADER_BYTES < tail <= self.capacity_bytes
        for segment in segments:
            self.rewrites = max(self.rewrites, segment.rewrites + 1)
        self.number, self.first_number = last.number, first.first_number
        self.first_ordinal, self.count, self.tail = first.first_ordinal, last.end_ordinal() - first.first_ordinal, tail
        header.magic, header.version = MAGIC, SEGMENT_VERSION
        header.number, header.first_number = self.number, self.first_number
        header.rewrites, header.kept_count = self.rewrites, kept_count
        header.first_seq, header.created_ns = first.header().first_seq, first.header().created_ns
        header.sealed_count, header.sealed_bytes = self.count, tail
        # The name comes after a sync of all of it.
        header.synced_count, header.synced_bytes = self.count, tail
        header.checksum = header_checksum(header, self.number)
        self.mapping.set_verified(True)
        return self.block_appends()

    cdef int supersede(self) except -1:
        """Take the segment out of its log: a rewritten file has its place. Holders see a segment that was recycled."""
        assert self.number > 0 and self.next is not None, "the log's last segment is not rewritten"
        self.number = 0
        self.next = None
        self.mapping.file_removed()
        return 0

    cdef uint64_t kept_count(self) noexcept:
        """Return the number of records, without gaps."""
        return self.header().kept_count if self.rewrites != 0 else self.count

    cdef int renumber(self, uint64_t first_seq, int64_t created_ns) except -1:
        """Give an empty segment another first sequence number; a kill in between leaves a spare with that number."""
        cdef uint64_t number = self.number
        assert self.count == 0 and self.tail == SEGMENT_HEADER_BYTES
        self.number = 0
        return self.begin(number, first_seq, created_ns)

    cdef int block_appends(self) except -1:
        """Keep records from being appended, at no cost to `append`: there is no capacity left."""
        assert self.tail <= self.capacity_bytes
        self.capacity_bytes = self.limit_bytes = self.tail
        return 0

    cdef int unblock_appends(self) except -1:
        """Undo `block_appends`."""
        self.capacity_bytes = self.file_bytes
        return self.set_checked(self.checked_bytes)

    cdef int set_checked(self, uint64_t checked_bytes) except -1:
        """Let records be appended up to there, as a store to a page behind may end the process.

        checked_bytes: whole pages, or the file's end. The word behind the last record is stored too, so it lies before.
        """
        self.checked_bytes = min(checked_bytes, self.file_bytes)
        self.limit_bytes = self.capacity_bytes
        if self.checked_bytes < self.capacity_bytes:
            self.limit_bytes = max(self.tail, self.checked_bytes - RECORD_ALIGN_BYTES)
        assert self.tail <= self.limit_bytes or self.file_bytes == 0, "only a segment in place of a file has no bytes"
        return 0

    cdef int leave(self) except -1:
        """Refuse appends for good, as a page behind the tail cannot be read."""
        assert self.number > 0
        self.worn = True
        return self.block_appends()

    cdef bint check_next_pages(self, files, uint64_t span_bytes) except -1:
        """Let records be appended to the next pages of the last segment, after a check that they are readable.

        Returns: whether there is space for this many bytes now; False also if a page cannot be read.
        """
        assert self.next is None and self.number > 0, "records are appended to a log's last segment only"
        if self.worn or self.limit_bytes >= self.file_bytes or self.file_bytes - self.tail < span_bytes:
            return False
        if not self.read_to(files, self.tail + span_bytes):
            self.leave()
            return False
        self.set_checked(self.checked_bytes)
        return True

    cdef bint read_to(self, files, uint64_t end) except -1:
        """Read the pages of an earlier run up to there, and some more. Returns: whether the disk can read them."""
        cdef uint64_t start = self.checked_bytes
        assert start <= self.file_bytes
        if end + RECORD_ALIGN_BYTES <= start or start >= self.file_bytes:
            return True
        end = min(whole_pages(end + CHECKED_AT_ONCE_BYTES), self.mapping.size_bytes)
        self.mapping.prefetch(start, end - start)
        try:
            files.populate(self.mapping, start, end - start)
        except StorageError:
            return False
        if self.mapping.is_lost(start, end - start):
            return False
        self.checked_bytes = min(end, self.file_bytes)
        return True

    cdef int note_staged(self, uint64_t start) except -1:
        """Record that bytes from there on are written by pwrite(2), which puts no page into the page table."""
        assert start >= SEGMENT_HEADER_BYTES
        self.mapped_end = min(self.mapped_end, start)
        return 0

    cdef int note_mapped(self, uint64_t end) except -1:
        """Record that the pages before there, those that a reader comes to next, are in the page table."""
        if self.mapped_end != UINT64_MAX:
            self.mapped_end = max(self.mapped_end, end)
        return 0

    cdef int note_journaled(self, uint64_t end_bytes) except -1:
        """Record that the journal holds the bytes up to `end_bytes`; a number beyond the tail means all of them."""
        assert self.number > 0, "a spare has no bytes that a start needs"
        self.journaled_bytes = max(self.journaled_bytes, min(end_bytes, self.tail))
        return 0

    cdef int seal(self) except -1:
        """Write the end of the records into the header; nothing is appended from now on."""
        cdef SegmentHeader* header = self.header()
        assert self.next is None and self.number > 0, "a segment is sealed before the next one begins"
        header.sealed_count = self.count
        store_barrier()
        header.sealed_bytes = self.tail
        self.mapping.read_ahead()
        self.mapping.close()
        return 0

    cdef bint is_blank(self) noexcept:
        """Return whether this is a new file: zeros at the words of its header and first record."""
        cdef uint64_t at = 0
        cdef uint64_t end = min(self.capacity_bytes, <uint64_t> SEGMENT_HEADER_BYTES + RECORD_SPAN_MIN)
        while at < end:
            if load_word(self.base + at) != 0:
                return False
            at += 8
        return True

    cdef int vacate(self) noexcept:
        """Mark the file as one without records, in one store: its checksum becomes that of a spare."""
        cdef SegmentHeader* header = self.header()
        debug_require(self.number > 0)
        header.checksum = header_checksum(header, 0)
        store_barrier()
        header.number = 0
        return 0

    cdef int retire(self) except -1:
        """Make a drained segment a spare; its old records are unreachable from here on."""
        assert self.number > 0 and not self.worn, "a spare is not retired again, and an unreadable page is not reused"
        self.vacate()
        self.number = 0
        self.count = 0
        self.unverified = False
        self.prepared = max(self.prepared, whole_pages(self.tail))
        self.tail = SEGMENT_HEADER_BYTES
        self.next = None
        return 0

    cdef int load(self) except -1:
        """Read the header of a file found at start.

        Raises: CorruptionError for a foreign file or a bad checksum, LaterFormatError.
        """
        cdef SegmentHeader* header = self.header()
        path = self.mapping.path or "memory"
        self.number = header.number
        # The disk may fail to read blocks that an earlier run has used.
        self.checked_bytes = PAGE_BYTES
        if self.mapping.is_lost(0, SEGMENT_HEADER_BYTES):
            raise CorruptionError(path, 0, "the segment's header cannot be read from the disk (EIO)")
        if header.magic == 0 and not self.is_blank():
            raise CorruptionError(path, 0, "the segment's header is missing")
        # A zero word says that it was about to begin; else the number is damaged.
        if header.magic == 0 or (
                header.magic == MAGIC and header.number == 0 and load_word(self.base + SEGMENT_HEADER_BYTES) == 0):
            self.number = 0
            return 0
        if header.magic != MAGIC:
            raise CorruptionError(path, 0, "not a pyqd segment")
        if header.checksum != header_checksum(header, 0) and header.checksum != header_checksum(header, header.number):
            if header.version > SEGMENT_VERSION:
                raise LaterFormatError(
                    path, 8, f"segment format version {header.version}; this pyqd reads {SEGMENT_VERSION}")
            raise CorruptionError(path, 12, "the segment header's checksum is wrong")
        if header.version != SEGMENT_VERSION:
            # The checksum, which covers the version, is right for this one.
            self.version_mended = True
            header.version = SEGMENT_VERSION
        if header.checksum == header_checksum(header, 0):
            # The segment was retired.
            self.number = 0
            return 0
        self.number = header.number
        self.rewrites = header.rewrites
        self.first_number = header.number if self.rewrites == 0 else header.first_number
        self.first_ordinal = header.first_seq & ORDINAL_MASK
        if header.sealed_bytes != 0:
            self.tail = min(header.sealed_bytes & ~<uint64_t> 7, self.capacity_bytes)
            self.tail = max(self.tail, <uint64_t> SEGMENT_HEADER_BYTES)
            self.count = self.bridgeable(header.sealed_count, self.tail - SEGMENT_HEADER_BYTES)
            self.cut = self.count != header.sealed_count or self.tail != header.sealed_bytes
            self.unverified = True
        return 0

    cdef int walk(self, bint power_failed, uint64_t count_max, uint64_t count_known, report) except -1:
        """Find the end of an unsealed segment: verify records up to the first that is not the next one.

        Damage before that is bridged. power_failed: unsynced records may be missing, without being damaged. count_max:
        limit of the segment's records. Later ones are leftovers of a power failure, whose numbers the following segment
        has. count_known: at least so many records were here. report: called with (offset, bytes, records lost, detail)
        before anything is changed there. Cost: O(bytes in the segment).
        """
        cdef SegmentHeader* header = self.header()
        cdef uint64_t seq = header.first_seq
        cdef uint64_t offset = SEGMENT_HEADER_BYTES
        cdef uint64_t behind, lost
        cdef const Record* record
        self.count = 0
        while self.count < count_max:
            if record_verdict(self.base + offset, self.capacity_bytes - offset, seq) == RECORD_VALID:
                record = <const Record*> (self.base + offset)
                self.highest_guid = max(self.highest_guid, record.guid)
                offset += record_span(record.size_bytes)
                self.count += ordinals_of(record)
                seq += ordinals_of(record)
                continue
            if self.at_end(offset, seq, power_failed):
                break
            lost = self.resync(offset, self.capacity_bytes, seq, count_max - self.count, &behind)
            if lost == 0:
                # Nothing known follows: one record at least was here. Those up to a following segment are a hole.
                self.cut = True
                behind = min(self.capacity_bytes, max(header.synced_bytes, offset + RECORD_SPAN_MIN) & ~<uint64_t> 7)
                if count_max == UINT64_MAX:
                    self.lost_count = max(count_known, self.count + 1) - self.count
                report(
                    offset, behind - offset, self.lost_count,
                    "the last record is damaged, or more are missing behind it")
                break
            report(offset, behind - offset, min(lost, (behind - offset) // RECORD_SPAN_MIN), "damaged in the middle")
            self.bridge(offset, behind, seq, lost)
        self.tail = offset
        self.mapping.set_verified(True)
        assert SEGMENT_HEADER_BYTES <= self.tail <= self.capacity_bytes, "invariant 1"
        return 0

    cdef bint at_end(self, uint64_t offset, uint64_t seq, bint power_failed) noexcept:
        """Return whether the records end here, rather than being damaged here.

        The word after the last record is zero while the process lives, and so it is after a kill. After a power failure
        that holds only for synced records: later ones may have been written or not, in any order.
        """
        cdef uint64_t span
        debug_require(offset <= self.capacity_bytes)
        if offset < self.header().synced_bytes:
            return False
        if self.capacity_bytes - offset < RECORD_ALIGN_BYTES:
            return True
        if load_word(self.base + offset) == 0 or power_failed:
            # Zeros in place of unreadable bytes are not the end: records may follow.
            span = record_span((<const Record*> (self.base + offset)).size_bytes)
            return not self.mapping.is_lost(offset, min(self.capacity_bytes - offset, span))
        return False

    cdef int mend(self, report, bint counts_end=True) except -1:
        """Verify all records below the tail and bridge damage, so that all ordinals of it can be walked.

        report: as for `walk`. counts_end: records that no range can stand for are reported too; False: the caller does.
        Sound records stay in place. Cost: O(bytes in the segment).
        """
        cdef uint64_t offset = SEGMENT_HEADER_BYTES
        cdef uint64_t seq = self.header().first_seq
        cdef uint64_t end_seq = seq + self.count
        cdef uint64_t lost, behind, fitting, left
        cdef const Record* record
        while seq < end_seq or offset < self.tail:
            if seq < end_seq and record_verdict(self.base + offset, self.tail - offset, seq) == RECORD_VALID:
                record = <const Record*> (self.base + offset)
                self.highest_guid = max(self.highest_guid, record.guid)
                offset += record_span(record.size_bytes)
                seq += ordinals_of(record)
                continue
            # The last gap may reach further than a header that is damaged says.
            left = end_seq - seq if seq < end_seq else 0
            lost = self.resync(offset, self.tail, seq, left, &behind)
            if lost == 0:
                lost, behind = left, self.tail
            fitting = self.bridgeable(lost, behind - offset)
            report(
                offset, behind - offset,
                # Most of a rewritten segment was finished. No more records were lost than the bytes had.
                lost if counts_end and self.rewrites == 0 else min(lost, (behind - offset) // RECORD_SPAN_MIN),
                "damaged in the middle")
            if lost == 0 or fitting < lost:
                # The header claimed more than there is: damage that cannot be bridged becomes a hole, or the log's end.
                self.cut = True
                lost = fitting
                if lost == 0:
                    self.tail = offset
                    self.count = seq - self.header().first_seq
                    break
                end_seq = seq + lost
                self.count = end_seq - self.header().first_seq
            self.bridge(offset, behind, seq, lost)
            offset = behind
            seq += lost
        self.count = max(self.count, seq - self.header().first_seq)
        self.unverified = False
        self.mapping.set_verified(True)
        assert SEGMENT_HEADER_BYTES <= self.tail <= self.capacity_bytes, "invariant 1"
        return 0

    cdef bint is_tail_readable(self) noexcept:
        """Read the place of the next record, in a segment with nothing unverified. Returns: False if the disk fails to.

        The records before may have been mended without reading the bytes after them.
        """
        cdef uint64_t length = min(self.capacity_bytes - self.tail, <uint64_t> RECORD_ALIGN_BYTES)
        debug_require(self.tail <= self.capacity_bytes)
        if length == 0:
            return True
        self.mapping.set_verified(False)
        load_word(self.base + self.tail)
        self.mapping.set_verified(True)
        return not self.mapping.is_lost(self.tail, length)

    cdef uint64_t resync(
        self, uint64_t offset, uint64_t limit, uint64_t seq, uint64_t count_left, uint64_t* behind,
    ) noexcept:
        """Search for the next sound record after a damaged one. Returns: the records lost between, 0 if none is found.

        count_left: number of records from the damaged one to the segment's end; a later one is not accepted. First at
        the place that the damaged record's size gives: a body may contain bytes that look like a record.
        """
        cdef const Record* record = <const Record*> (self.base + offset)
        cdef uint64_t at, ordinals
        debug_require(offset <= limit)
        if count_left > 1 and limit - offset >= RECORD_SPAN_MIN and record.size_bytes != 0:
            at = record_span(record.size_bytes)
            if at < limit - offset and record_verdict(
                    self.base + offset + at, limit - offset - at, seq + 1) == RECORD_VALID:
                behind[0] = offset + at
                return 1
        at = offset + RECORD_SPAN_MIN
        while at + RECORD_SPAN_MIN <= limit:
            ordinals = (<const Record*> (self.base + at)).seq - seq
            if 0 < ordinals < count_left and ordinals == self.bridgeable(ordinals, at - offset):
                if record_verdict(self.base + at, limit - at, seq + ordinals) == RECORD_VALID:
                    behind[0] = at
                    return ordinals
            at += RECORD_ALIGN_BYTES
        return 0

    cdef uint64_t bridgeable(self, uint64_t count, uint64_t size_bytes) noexcept:
        """Return how many of `count` ordinals may lie in a range: without gaps, as many as it has smallest records."""
        cdef uint64_t fitting = size_bytes // RECORD_SPAN_MIN
        return count if self.rewrites != 0 and fitting != 0 else min(count, fitting)

    cdef int bridge(self, uint64_t offset, uint64_t behind, uint64_t seq, uint64_t count) except -1:
        """Put `count` records that are marked as lost over a damaged range; but for their headers its bytes stay.

        In a rewritten segment a gap stands for all of them: one of its gaps may be among them.
        """
        cdef Record header
        cdef uint64_t at, span
        cdef uint64_t left = count
        assert 0 < count == self.bridgeable(count, behind - offset)
        if self.rewrites != 0:
            gap_fill(<Record*> (self.base + offset), seq, count, <uint32_t> (behind - offset - RECORD_HEADER_BYTES))
            return 0
        memset(&header, 0, sizeof(Record))
        header.flags = RECORD_LOST
        # The last one first, which takes all that the others leave: whenever a kill comes, the rest is damaged still.
        while left:
            left -= 1
            at = offset + left * RECORD_SPAN_MIN
            span = behind - at if left == count - 1 else <uint64_t> RECORD_SPAN_MIN
            header.seq = seq + left
            header.size_bytes = <uint32_t> (span - RECORD_HEADER_BYTES)
            header.checksum = checksum_of(&header, self.base + at + RECORD_HEADER_BYTES, header.size_bytes)
            memcpy(self.base + at + 8, <const char*> &header + 8, RECORD_HEADER_BYTES - 8)
            # Not before: without the damaged record's size, which may be unsynced, a start would find the end here.
            store_word(self.base + at, (<uint64_t*> &header)[0])
        return 0
