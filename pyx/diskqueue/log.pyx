"""A log: records in ordered segments, appended at the end, read in place, trimmed at the front.

Problem: an `OK` must cost one copy of the body, and the copy must outlive the process. So a record is written once,
into a shared mapping of a preallocated file. Readers hold pointers to the record, and the data of a killed process is
in the page cache. A full disk must be an error of PUB and never SIGBUS: blocks are reserved before the file is mapped.

    first                                        active
    [segment 4, sealed] -> [segment 5, sealed] -> [segment 6, open]        spares: [ready to become 7]
     ^ trimmed when every reader is past it                ^ tail

A log has two parts. `pool` (pyx/diskqueue/segmentpool.pyx) supplies segments: it makes them ahead of need, recycles
drained ones, and asks the topic's quota and the disk reserve. `batch` (pyx/diskqueue/batchwriter.pyx) writes the
records of an MPUB, which become valid all at once.

Invariants:
1. `active.end_ordinal() == end`; `first` reaches `active` over `next`; only `active` is not sealed.
2. `end` and every ordinal are below `1 << 48`; the epoch changes only between segments.
3. While `batch.segment` is not None, nothing is appended but to the batch.

Rejected: growing files in place (a remap moves every pointer); one file per topic with holes punched at the front
(block mapping is touched on every trim).
"""

import os

cimport cython

from pyqd.hot.diskqueue.logstart cimport FoundSegments
from pyqd.hot.diskqueue.mapping cimport store_barrier
from pyqd.hot.primitives.clock cimport wall_ns
from pyqd.hot.primitives.debug cimport PYQD_DEBUG
from pyqd.hot.primitives.releases cimport PAGE_BYTES
from pyqd.hot.wire.record cimport (
    ORDINAL_BITS,
    ORDINAL_MASK,
    RECORD_ALIGN_BYTES,
    RECORD_GAP,
    RECORD_LOST,
    RECORD_VALID,
    Record,
    ordinal_after,
    ordinals_of,
    record_body,
    record_body_bytes,
    record_fill,
    record_ordinal,
    record_span,
    record_verdict,
    store_word,
)

from pyqd.diskqueue.damage import DamageReport
from pyqd.hot.diskqueue.mapping import heap_page
from pyqd.primitives.errors import DiskFull

cdef uint64_t SEGMENT_BYTES_MIN = 64 << 10


@cython.final
cdef class Position:
    """Place of a reader in a log."""

    def __init__(self, Segment segment not None, uint64_t offset, uint64_t ordinal):
        self.segment = segment
        self.offset = offset
        self.ordinal = ordinal


@cython.final
cdef class Log:
    """An append-only log of messages.

    files: the operating system (`pyqd.diskqueue.files.Files`, or `MemoryFiles` with directory None).
    directory: holds the segments, created if it is missing. segment_bytes_max: size at which segments stop doubling; a
    larger record or batch gets a segment of its own size. power_failed: records beyond the synced part of a segment are
    verified before they are believed. found: the log existed before, so it opens on a full disk too; by default, if its
    directory exists. exists: whether that does, if the caller knows. known: as for FoundSegments.
    Raises: CorruptionError, StorageError. Source: docs/storage.md, "Log".
    """

    def __init__(
        self, files, directory, segment_bytes_max, epoch=0, bint power_failed=False, found=None, exists=None,
        tuple known=(0, 0),
    ):
        self.files = files
        self.damage = DamageReport(files, directory)
        self.power_failed = power_failed
        self.directory = directory
        self.pool = SegmentPool(files, directory, segment_bytes_max)
        self.batch = BatchWriter(files)
        self.indexes = {}
        self.holes = []
        self.replaced_files = []
        self.epoch = epoch
        exists = (directory is not None and files.exists(directory)) if exists is None else exists
        found = exists if found is None else found
        if exists:
            self.resume(FoundSegments(files, directory, self.damage, power_failed, known))
        elif directory is not None and not found:
            files.make_directory(directory)
        elif known[0] != 0:
            self.damage.missing(0, known[0])
            self.renumber = True
        if self.renumber:
            # Ordinals behind the lost records may have been given to messages: they are not used again.
            self.epoch += 1
        if self.active is None:
            self.begin_first(found, exists)
        elif self.epoch > self.active.header().first_seq >> ORDINAL_BITS:
            self.begin_epoch()
        self.synced_end = self.flushed_end = self.first.first_ordinal

    cdef int resume(self, FoundSegments found) except -1:
        """Continue with the segments of an earlier run."""
        self.first, self.active = found.first, found.last
        self.holes = found.holes
        self.replaced_files = found.replaced_files
        self.end, self.end_of_spares = found.end, found.end_of_spares
        self.renumber = found.renumber
        self.pool.resume(found.first, found.last, found.spares, found.file_counter)
        if self.active is not None:
            assert self.active.end_ordinal() == self.end
            self.epoch = max(self.epoch, (self.active.header().first_seq >> ORDINAL_BITS) + self.power_failed)
        return 0

    cdef int begin_first(self, bint found, bint exists) except -1:
        """Begin the log's first segment. found: the log must open even on a full disk. exists: it has a directory."""
        cdef Segment segment = self.pool.take_spare(0)
        assert self.first is None
        # The kill may have come while the only segment, an empty one, began again.
        self.end = self.end_of_spares
        if segment is None and (exists or not found):
            try:
                segment = self.pool.new_segment(SEGMENT_BYTES_MIN)
            except DiskFull:
                if not found:
                    raise
        if segment is None:
            segment = Segment(heap_page())
            segment.file_bytes = 0
            self.closed = True
        segment.begin(1, (self.epoch << ORDINAL_BITS) | self.end, wall_ns())
        if self.closed:
            segment.block_appends()
        self.first = self.active = segment
        return self.pool.activate(segment)

    cdef int begin_epoch(self) except -1:
        """Begin a new epoch: the next append makes another segment, or renumbers the active one if it is empty.

        If records are lost, a small segment is made at once if there is space: otherwise each start would report the
        damage.
        """
        cdef Segment segment
        self.closed = True
        if self.renumber:
            try:
                segment = self.pool.take_spare(0)
                self.continue_in(self.pool.new_segment(SEGMENT_BYTES_MIN) if segment is None else segment)
                return 0
            except DiskFull:
                pass
        elif self.active.capacity_bytes - self.active.tail >= RECORD_ALIGN_BYTES:
            # The remains of the power failure are not to be taken for a damaged record by the next start.
            store_word(self.active.base + self.active.tail, 0)
        return self.active.block_appends()

    def ready(self, segment not None):
        """Make a segment safe to walk: verify it if an earlier run wrote it, and bridge damaged records."""
        cdef Segment found = segment
        if found.unverified:
            self.mend(found)

    cdef int mend(self, Segment segment) except -1:
        """Verify a segment and bridge damaged records. Cost: O(bytes in it)."""
        segment.mend(self.damage.reporter(segment.mapping.path))
        return 0

    cdef int reserve(self, uint64_t span_bytes) except -1:
        """Reserve space: appends of `span_bytes` in total cannot fail then. Raises: StorageError (nothing changed)."""
        assert self.batch.segment is None, "a batch is under way"
        if self.active.free_bytes() < span_bytes:
            self.roll(span_bytes)
        assert self.active.free_bytes() >= span_bytes
        return 0

    cdef char* append(
        self, uint64_t guid, int64_t timestamp_ns, int64_t due_ns, const char* body, uint32_t body_bytes,
    ) except NULL:
        """Append one record; its ordinal is `end - 1` afterwards.

        body: 1 or more bytes, copied. Returns: the record's address, valid until the record is trimmed.
        Raises: StorageError (nothing was written). Switches: no. Durable: against a kill at once. Cost: O(body_bytes).
        """
        cdef uint64_t span = record_span(body_bytes)
        cdef Segment segment = self.active
        cdef char* at
        cdef uint64_t word
        assert body_bytes > 0 and self.batch.segment is None
        if segment.limit_bytes - segment.tail < span:
            self.roll(span)
            segment = self.active
            assert segment.tail + span <= segment.limit_bytes, "a new segment is too small"
        at = segment.base + segment.tail
        word = record_fill(
            at, (self.epoch << ORDINAL_BITS) | self.end, guid, timestamp_ns, due_ns, body, body_bytes)
        if segment.capacity_bytes - segment.tail > span:
            # A record of a batch that a kill tore may follow, and have the sequence number that comes next.
            store_word(at + span, 0)
        store_word(at, word)
        segment.tail += span
        segment.count += 1
        self.end += 1
        if PYQD_DEBUG:
            assert segment.end_ordinal() == self.end
        if segment.tail >= self.pool.refill_threshold:
            self.pool.refill()
        return at

    cdef int begin_batch(self, uint64_t span_bytes, bint may_stage=True) except -1:
        """Reserve space for a batch and begin it. Raises: StorageError (there is no batch).

        may_stage: see `BatchWriter.begin`. The caller appends to `batch`, then calls `commit_batch` or, whatever goes
        wrong before, `batch.discard`.
        """
        self.reserve(span_bytes)
        return self.batch.begin(self.active, (self.epoch << ORDINAL_BITS) | self.end, span_bytes, may_stage)

    cdef int commit_batch(self) except -1:
        """Make the records of the batch valid, all at once. Raises: StorageError (nothing is left of them)."""
        cdef Segment segment = self.active
        assert self.batch.segment is segment
        self.batch.commit()
        self.end = segment.end_ordinal()
        if segment.tail >= self.pool.refill_threshold:
            self.pool.refill()
        assert self.batch.segment is None and self.end >= self.active.first_ordinal
        return 0

    cdef bint resume_batch(self) except -1:
        """Continue with the batch that is set aside.

        Returns: False if the log has continued in another segment meanwhile; nothing is left of the batch then.
        """
        assert self.batch.segment is not None
        if (self.batch.segment is not self.active or self.batch.segment_number != self.active.number
                or self.closed or self.active.worn):
            self.batch.discard()
            return False
        self.batch.resume()
        return True

    cdef bint reuse_active(self, uint64_t need_bytes) except -1:
        """Begin the epoch in the active segment if it is empty and large enough. Returns: whether it is."""
        if not self.closed or self.active.worn or self.active.count != 0 or self.active.file_bytes < need_bytes:
            return False
        self.closed = False
        self.active.unblock_appends()
        return self.active.renumber((self.epoch << ORDINAL_BITS) | self.end, wall_ns()) == 0

    cdef int roll(self, uint64_t span_bytes) except -1:
        """Reserve space for so many bytes, in another segment if need be. Raises: StorageError (nothing changed)."""
        cdef Segment segment
        assert self.end < ORDINAL_MASK and self.batch.segment is None
        if (self.reuse_active(SEGMENT_HEADER_BYTES + span_bytes) and self.active.free_bytes() >= span_bytes) or (
                not self.closed and self.active.check_next_pages(self.files, span_bytes)):
            return self.pool.refill()
        segment = self.pool.next_segment(span_bytes)
        self.continue_in(segment)
        return self.pool.replenish(self.first.next is not segment)

    cdef int continue_in(self, Segment segment) except -1:
        """Seal the active segment and continue in another."""
        assert self.batch.segment is not self.active or not self.batch.is_open, "a batch lies in one segment"
        assert self.active.end_ordinal() == self.end
        self.pool.populates = 2 * self.batch.segment_staged_bytes < self.active.tail
        self.batch.segment_staged_bytes = 0
        self.closed = False
        self.active.unblock_appends()
        self.active.seal()
        segment.begin(self.active.number + 1, (self.epoch << ORDINAL_BITS) | self.end, wall_ns())
        self.active.next = segment
        self.active = segment
        return self.pool.activate(segment)

    def shrink(self):
        """Continue in a segment of the smallest size, so that the active one can go. Raises: StorageError."""
        self.continue_in(self.pool.new_segment(SEGMENT_BYTES_MIN))
        self.pool.refill()

    def files_moved(self, str directory not None):
        """Set the directory in which the log's files are now, until they are removed."""
        cdef Segment segment = self.first
        for spare in self.pool.spares:
            spare.mapping.moved(os.path.join(directory, os.path.basename(spare.mapping.path)))
        while segment is not None:
            if segment.mapping.path is not None:  # None: in memory, as the disk was full at the start
                segment.mapping.moved(os.path.join(directory, os.path.basename(segment.mapping.path)))
            segment = segment.next

    def abandon(self):
        """Drop all segments, because the log's files are gone; later records are kept in memory only.

        The space of removed files returns with their last mapping. Needs no mapping, so it works at their limit.
        """
        cdef Segment first
        cdef Segment segment = Segment(heap_page())
        assert self.batch.segment is None, "a queued batch is refused before"
        segment.begin(self.active.number + 1, (self.epoch << ORDINAL_BITS) | self.end, wall_ns())
        self.abandoned = True
        self.directory = None
        self.closed = False
        self.indexes = {}
        self.pool.abandon(segment)
        first, self.first, self.active = self.first, segment, segment
        # A holder of one of them keeps no other in use, and freeing a long chain does not recurse.
        while first is not None:
            segment, first.next = first.next, None
            first.mapping.file_removed()
            first = segment

    cdef int trim(self, uint64_t floor) except -1:
        """Give every sealed segment whose records all lie below the ordinal `floor` back to the pool.

        While files of replaced segments are left, none goes: a start that finds them takes the rewritten one for
        removed, and their records for the end of the log.
        """
        cdef Segment segment
        if self.replaced_files:
            return 0
        while self.first is not self.active and self.first.end_ordinal() <= floor:
            segment = self.first
            assert segment.next is not None, "the chain ends at the active segment"
            self.first = segment.next
            self.indexes.pop(segment.number, None)
            self.pool.recycle(segment)
        return 0

    cdef int replace(self, list segments, Segment made) except -1:
        """Let a rewritten segment take the place of sealed ones, which follow one another.

        Their files are left, and are in `replaced_files`.
        """
        cdef Segment first = segments[0]
        cdef Segment before = self.first
        cdef Segment segment
        assert first.first_ordinal == made.first_ordinal
        made.next = (<Segment> segments[len(segments) - 1]).next
        if first is self.first:
            self.first = made
        else:
            while before.next is not first:
                before = before.next
            before.next = made
        for segment in segments:
            self.indexes.pop(segment.number, None)
            if segment.mapping.path is not None:
                self.replaced_files.append(segment.mapping.path)
            self.pool.note_replaced(segment, made if segment is first else None)
            segment.supersede()
        assert made.next is not None and made.next.first_ordinal >= made.end_ordinal()
        return 0

    @property
    def earliest(self) -> int:
        """Ordinal from which on all records are here, but for lost ones: behind the last rewritten segment."""
        cdef Segment segment = self.first
        cdef uint64_t found = self.first.first_ordinal
        while segment is not None:
            if segment.rewrites != 0:
                found = self.end if segment.next is None else segment.next.first_ordinal
            segment = segment.next
        return found

    def gaps(self, uint64_t start):
        """Yield the gaps from an ordinal on as (ordinal, ordinal). Cost: O(bytes in rewritten segments)."""
        cdef Segment segment = self.segment_of(start)
        cdef const Record* record
        cdef uint64_t offset
        while segment is not None:
            offset = SEGMENT_HEADER_BYTES
            if segment.rewrites != 0:
                self.ready(segment)
            while segment.rewrites != 0 and offset < segment.tail:
                record = <const Record*> (segment.base + offset)
                offset += record_span(record.size_bytes)
                if record.flags & RECORD_GAP:
                    yield (record_ordinal(record), ordinal_after(record))
            segment = segment.next

    cdef uint64_t floor_retained(self, uint64_t floor, uint64_t keep_bytes, int64_t keep_since_ns):
        """Return the ordinal, at most `floor`, up to which `trim` may go while the newest records are kept. Cost:
        O(segments).

        keep_bytes: a segment with fewer bytes after it stays; keep_since_ns: so does one that grew after (Unix).
        """
        cdef Segment segment = self.first
        cdef uint64_t behind_bytes = 0
        while segment is not None:
            behind_bytes += segment.tail - SEGMENT_HEADER_BYTES
            segment = segment.next
        segment = self.first
        while segment is not self.active and segment.end_ordinal() <= floor:
            behind_bytes -= segment.tail - SEGMENT_HEADER_BYTES
            if behind_bytes < keep_bytes or segment.next.header().created_ns > keep_since_ns:
                break
            segment = segment.next
        assert behind_bytes >= self.active.tail - SEGMENT_HEADER_BYTES, "the active segment stays"
        return min(floor, segment.first_ordinal)

    cdef Segment segment_of(self, uint64_t ordinal):
        """Return the segment that holds the ordinal, or the first behind it, or the active one for the end."""
        cdef Segment segment = self.first
        while segment is not self.active and segment.end_ordinal() <= ordinal:
            segment = segment.next
        return segment

    def end_of_segment(self, uint64_t ordinal):
        """Return the ordinal behind the last record of the segment that holds one, or of the first behind it."""
        return self.segment_of(ordinal).end_ordinal()

    def locate(self, uint64_t ordinal):
        """Return the Position of an ordinal (clamped to the kept records), which may lie inside a gap.

        Cost: walks the headers of one segment.
        """
        cdef Segment segment = self.segment_of(min(ordinal, self.end))
        cdef uint64_t offset = SEGMENT_HEADER_BYTES
        cdef uint64_t at = segment.first_ordinal
        cdef const Record* record
        if ordinal > at:
            self.ready(segment)
        while at < ordinal and at < segment.end_ordinal():
            record = <const Record*> (segment.base + offset)
            if at + ordinals_of(record) > ordinal:
                at = ordinal
                break
            offset += record_span(record.size_bytes)
            at += ordinals_of(record)
        assert SEGMENT_HEADER_BYTES <= offset <= segment.tail
        return Position(segment, offset, at)

    def position_at(self, uint64_t segment_number, uint64_t offset, uint64_t ordinal):
        """Return the Position noted earlier as (segment number, offset, ordinal), checked; by walking if it is off."""
        cdef Segment segment = self.segment_of(ordinal)
        if ordinal <= self.end and segment.number == segment_number and segment.first_ordinal <= ordinal:
            if ordinal == segment.end_ordinal() and offset == segment.tail:
                return Position(segment, offset, ordinal)
            # The bytes there may be a body: after a power failure the place may belong to records that are gone.
            seq = segment.header().first_seq + (ordinal - segment.first_ordinal)
            if SEGMENT_HEADER_BYTES <= offset < segment.tail and offset % RECORD_ALIGN_BYTES == 0 and record_verdict(
                    segment.base + offset, segment.tail - offset, seq) == RECORD_VALID:
                return Position(segment, offset, ordinal)
        return self.locate(ordinal)

    def highest_guid(self, bint thorough):
        """Return the highest id in the last segment that has records; 0 for none.

        After a start the last segment has been read. Only if it has no record and `thorough`, another one is.
        """
        cdef Segment segment = self.segment_of(max(self.end, <uint64_t> 1) - 1)
        if segment.unverified and thorough:
            self.mend(segment)
        return segment.highest_guid

    def end_position(self):
        """Return the Position behind the last record."""
        return Position(self.active, self.active.tail, self.end)

    def dirty_ranges(self):
        """Return [(Segment, start, length)] of bytes since the last `mark_synced`, and the ordinal that covers them."""
        cdef list ranges = []
        cdef Segment segment = self.segment_of(self.flushed_end)
        cdef uint64_t start
        while segment is not None:
            start = max(segment.header().synced_bytes, <uint64_t> SEGMENT_HEADER_BYTES) & ~<uint64_t> (PAGE_BYTES - 1)
            if segment.tail > segment.header().synced_bytes:
                ranges.append((segment, start, segment.tail - start))
            segment = segment.next
        return ranges, self.end

    def mark_synced(self, list ranges, uint64_t end):
        """Record that the ranges of an earlier `dirty_ranges` are on stable storage."""
        cdef Segment segment
        assert end <= self.end, "records that were synced have been appended"
        for segment, start, length in ranges:
            # A segment that was recycled meanwhile begins at the end of then or later: its bytes are others now.
            if segment.number != 0 and (segment.first_ordinal < end or start + length <= SEGMENT_HEADER_BYTES):
                if segment.first_ordinal < end:
                    segment.header().synced_count = max(
                        segment.header().synced_count, min(end, segment.end_ordinal()) - segment.first_ordinal)
                    store_barrier()
                segment.header().synced_bytes = max(segment.header().synced_bytes, <uint64_t> (start + length))
        self.flushed_end = max(self.flushed_end, end)
        self.synced_end = max(self.synced_end, end)

    def find_durable_end(self, dict journaled not None):
        """Find at a start the records that an earlier run has put on stable storage, here or in its journal.

        journaled: offset behind the journaled bytes, by number and first sequence number of a segment. Cost: a walk
        over the headers of one segment.
        """
        cdef Segment segment = self.first
        cdef uint64_t stable_bytes, offset, ordinal
        cdef const Record* record
        assert self.synced_end == self.first.first_ordinal, "nothing is appended or synced before"
        while segment is not None:
            segment.note_journaled(journaled.get((segment.number, segment.header().first_seq), 0))
            segment = segment.next
        segment = self.first
        while segment is not self.active and segment.durable_bytes() >= segment.tail:
            segment = segment.next
        stable_bytes = segment.durable_bytes()
        if stable_bytes >= segment.tail:
            self.synced_end = self.end
            return
        offset, ordinal = SEGMENT_HEADER_BYTES, segment.first_ordinal
        self.ready(segment)
        while ordinal < segment.end_ordinal():
            record = <const Record*> (segment.base + offset)
            offset += record_span(record.size_bytes)
            if offset > stable_bytes:
                break
            ordinal += ordinals_of(record)
        self.synced_end = max(self.synced_end, ordinal)

    def size_bytes(self):
        """Return the bytes that the log's segments and spares take on disk."""
        cdef Segment segment = self.first
        cdef uint64_t total = 0
        while segment is not None:
            total += segment.file_bytes
            segment = segment.next
        return total + self.pool.spare_bytes()

    def check(self):
        """Assert the invariants over all segments. Cost: O(segments)."""
        cdef Segment segment = self.first
        while segment is not self.active:
            assert segment.header().sealed_bytes == segment.tail, "only the active segment is open"
            assert segment.next.first_ordinal >= segment.end_ordinal()
            segment = segment.next
        assert self.active.next is None
        assert self.active.end_ordinal() == self.end
        assert self.active.tail <= self.active.capacity_bytes
        self.pool.check(self.first)

    def append_message(self, uint64_t guid, bytes body, int64_t timestamp_ns=0, int64_t due_ns=0):
        """Append one record from Python (cold paths, tests). Returns: its ordinal. Raises: ValueError, StorageError."""
        if not body:
            raise ValueError("a message has at least one byte")
        self.append(guid, timestamp_ns, due_ns, body, <uint32_t> len(body))
        return self.end - 1

    def append_batch(self, list messages):
        """Append (guid, body) pairs, all or none of which survive a kill. Raises: ValueError, StorageError."""
        cdef uint64_t span = 0
        for _, body in messages:
            if not body:
                raise ValueError("a message has at least one byte")
            span += record_span(len(body))
        self.begin_batch(span)
        try:
            for guid, body in messages:
                self.batch.append(guid, 0, 0, body, <uint32_t> len(body))
        except BaseException:
            self.batch.discard()
            raise
        self.commit_batch()

    def trim_below(self, uint64_t floor):
        """Remove the segments whose records all lie below an ordinal."""
        self.trim(floor)

    def records(self, start=None):
        """Yield (ordinal, guid, timestamp_ns, due_ns, body) from an ordinal, or the oldest, to the end."""
        cdef Position position = self.locate(self.first.first_ordinal if start is None else start)
        cdef Segment segment = position.segment
        cdef uint64_t offset = position.offset
        cdef const Record* record
        while segment is not None:
            self.ready(segment)
            while offset < segment.tail:
                record = <const Record*> (segment.base + offset)
                offset += record_span(record.size_bytes)
                if record.flags & RECORD_LOST:
                    continue
                yield (record.seq & ORDINAL_MASK, record.guid, record.timestamp_ns, record.due_ns,
                       record_body(record)[:record_body_bytes(record)])
            segment = segment.next
            offset = SEGMENT_HEADER_BYTES
