"""A log: records in ordered segments, appended at the end, read in place, trimmed at the front.

Problem: an `OK` must cost one copy of the body, and the copy must outlive the process. So a record is written once,
into a shared mapping of a preallocated file; readers hold pointers to it, and what a killed process had stored is in
the page cache. Disk full must be an error of PUB and never SIGBUS: blocks are reserved before the file is mapped.

    first                                        active
    [segment 4, sealed] -> [segment 5, sealed] -> [segment 6, open]        spares: [ready to become 7]
     ^ trimmed when every reader is past it                ^ tail

A first write to a page blocks in the file system, so a thread reserves and maps the next segment ahead of need
(`on_spare_wanted`), and has the pages present that are written to next (`on_pages_wanted`): a piece at a time, as what
is populated and never used costs as much as what is, and what is used soon is still in the cache. Drained ones are kept
as spares, a few: new pages are zeroed and faulted in, which costs nearly as much as all the rest of a message. So
nothing new is asked for while one is likely to be drained in time. Only when the writer outruns the thread is a segment
made on the spot, and then a small one, so that the loop is held for a millisecond at most.

Segments double in size only while much waits in the log. Where channels keep up they stay small, so that the few that
are written in turn fit a processor's cache: with large ones every body would be copied to memory that is in none.

A batch (MPUB) lies in one segment and its first record becomes valid last: after a kill all of it is there or nothing.
A large one that goes to pages which are not there yet is written by pwrite(2) (pyx/diskqueue/staging.pyx), so that
these need not be populated either (`populates`).

Invariants:
1. `active.end_ordinal() == end`; `first` reaches `active` over `next`; only `active` is not sealed.
2. `end` and every ordinal below `1 << 48`; the epoch changes only between segments.
3. Outside a batch nothing is staged, and `batch_at` is NULL unless a batch is set aside (pyx/diskqueue/draft.pyx).

Rejected: growing files in place (a remap moves every pointer); one file per topic with holes punched at the front
(block mapping is touched on every trim); consecutive file names (a rename per roll on the loop).
"""

import os

cimport cython

from pyqd.hot.diskqueue.logstart cimport FoundSegments
from pyqd.hot.diskqueue.mapping cimport Mapping
from pyqd.hot.diskqueue.staging cimport STAGED_RECORD_MAX, Staging, shared_staging
from pyqd.hot.primitives.clock cimport wall_ns
from pyqd.hot.primitives.guid cimport GuidFactory
from pyqd.hot.wire.record cimport (
    ORDINAL_BITS,
    RECORD_ALIGN_BYTES,
    RECORD_LOST,
    RECORD_VALID,
    Record,
    record_fill,
    record_span,
    record_verdict,
    store_word,
)
from pyqd.hot.wire.scanner cimport read_be32

from pyqd.diskqueue.damage import DamageReport
from pyqd.hot.diskqueue.logstart import SUFFIX
from pyqd.hot.diskqueue.mapping import heap_page
from pyqd.primitives.errors import DiskFull, StorageError

cdef uint64_t SEGMENT_BYTES_MIN = 64 << 10
cdef uint64_t SEGMENT_BYTES_ON_THE_SPOT_MAX = 8 << 20
cdef uint64_t PAGE_BYTES = 4096
# One is written into soon while the sync that frees the other is under way.
cdef int SPARES_MAX = 2
# While less lies in the log, segments grow to CYCLED_BYTES_MAX only, unless few batches would fill one. Some spares are
# needed for syncs to be under way; and that few of that size stay near the processor's cache.
cdef uint64_t CYCLE_BYTES_MAX = 64 << 20
cdef uint64_t CYCLED_BYTES_MAX = 8 << 20
cdef int CYCLED_SPARES_MAX = 6
cdef int BATCHES_CYCLED = 4
cdef int64_t LASTED_NS_MIN = 250000000
cdef uint64_t PAGES_AHEAD_BYTES_MIN = 256 << 10
cdef uint64_t PAGES_AHEAD_BYTES_MAX = 8 << 20
# A smaller batch costs less as stores than as two calls.
cdef uint64_t STAGED_BATCH_BYTES_MIN = 8 << 10
cdef uint64_t ORDINAL_MASK = (<uint64_t> 1 << ORDINAL_BITS) - 1

cdef Staging staging = shared_staging()


cdef uint64_t whole_pages(uint64_t size_bytes) noexcept:
    return (size_bytes + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1)


@cython.final
cdef class Position:
    """Where a reader stands in a log."""

    def __init__(self, Segment segment not None, uint64_t offset, uint64_t ordinal):
        self.segment = segment
        self.offset = offset
        self.ordinal = ordinal


@cython.final
cdef class Log:
    """An append-only log of messages.

    files: the operating system (`pyqd.diskqueue.files.Files`, or `MemoryFiles` with directory None).
    directory: holds the segments, made if missing. segment_bytes_max: size at which segments stop doubling; one record
    or batch that is larger gets a segment of its own size. power_failed: segments are not believed beyond what they say
    was synced, but read. found: the log was there before, so it opens on a full disk too; by default, if its directory
    is there. exists: whether it is, if known. Raises: CorruptionError, StorageError. Source: docs/storage.md, "Log".
    """

    def __init__(self, files, directory, segment_bytes_max, epoch=0, bint power_failed=False, found=None, exists=None):
        self.files = files
        self.damage = DamageReport(files, directory)
        self.power_failed = power_failed
        self.directory = directory
        self.segment_bytes_max = max(segment_bytes_max, SEGMENT_BYTES_MIN)
        self.spares = []
        self.indexes = {}
        self.populates = True
        self.pages_ahead = PAGES_AHEAD_BYTES_MIN
        self.holes = []
        self.epoch = epoch
        # File names are not given twice: a job of a removed log must not hit a file of this one.
        self.file_counter = <uint64_t> wall_ns()
        exists = (directory is not None and files.exists(directory)) if exists is None else exists
        found = exists if found is None else found
        if exists:
            self.take_up(FoundSegments(files, directory, self.damage, power_failed))
        elif directory is not None and not found:
            files.make_directory(directory)
        if self.renumber:
            # Numbers behind what was lost may have been given out: they are not given again.
            self.epoch += 1
        if self.active is None:
            self.begin_first(found, exists)
        elif self.epoch > self.active.header().first_seq >> ORDINAL_BITS:
            self.begin_epoch()
        self.synced_end = self.flushed_end = self.first.first_ordinal
        self.mark = 0  # the first append looks, when whoever made the log has said what to call

    cdef int take_up(self, FoundSegments found) except -1:
        """Go on from the segments of an earlier run."""
        self.first, self.active = found.first, found.last
        self.spares, self.holes = found.spares, found.holes
        self.end, self.end_of_spares = found.end, found.end_of_spares
        self.file_counter = max(self.file_counter, found.file_counter)
        self.renumber = found.renumber
        if self.active is not None:
            self.epoch = max(self.epoch, (self.active.header().first_seq >> ORDINAL_BITS) + self.power_failed)
            self.closed = self.active.worn
        return 0

    cdef int begin_first(self, bint found, bint exists) except -1:
        """Begin the log's first segment. found: the log must open even on a full disk. exists: it has a directory."""
        cdef Segment segment = self.take_spare(0)
        # The kill may have come while the only segment, an empty one, began again.
        self.end = self.end_of_spares
        if segment is None and (exists or not found):
            try:
                segment = self.new_segment(SEGMENT_BYTES_MIN)
            except DiskFull:
                if not found:
                    raise
        if segment is None:
            segment = Segment(heap_page())
            segment.file_bytes = 0
            self.closed = True
        segment.begin(1, (self.epoch << ORDINAL_BITS) | self.end, wall_ns())
        if self.closed:
            segment.take_no_more()
        self.first = self.active = segment
        return 0

    cdef int begin_epoch(self) except -1:
        """Have the next append make another segment, or begin an empty active one again, as the epoch is a new one.

        If records are lost, a small segment is made at once where there is room, or each start would report the damage.
        """
        cdef Segment segment
        self.closed = True
        if self.renumber:
            try:
                segment = self.take_spare(0)
                self.follow_with(self.new_segment(SEGMENT_BYTES_MIN) if segment is None else segment)
                return 0
            except DiskFull:
                pass
        elif self.active.capacity_bytes - self.active.tail >= RECORD_ALIGN_BYTES:
            # What the power failure left there is not to be taken for a damaged record by the next start.
            store_word(self.active.base + self.active.tail, 0)
        return self.active.take_no_more()

    def ready(self, segment not None):
        """Make a segment safe to walk: verify it where an earlier run wrote it, and bridge what is damaged."""
        cdef Segment found = segment
        if found.unverified:
            self.mend(found)

    cdef int mend(self, Segment segment) except -1:
        """Verify a segment and bridge what is damaged. Cost: O(bytes in it)."""
        segment.mend(self.damage.reporter(segment.mapping.path))
        return 0

    def new_segment(self, uint64_t size_bytes):
        """Reserve and map a spare segment of at least that many bytes.

        Touches no state of the log but the counter of file names, so it may run in a thread. Raises: StorageError.
        """
        path = None
        if self.directory is not None:
            # Counted before Python code runs, where another thread might take the same number.
            number = self.file_counter
            self.file_counter += 1
            path = os.path.join(self.directory, f"{number}{SUFFIX}")
        return Segment(self.files.new_mapped(path, whole_pages(size_bytes), False))

    def offer_spare(self, segment):
        """Take a prepared segment, or None where preparing failed; the next one may be asked for again."""
        self.spares_underway -= 1
        if segment is None:
            return
        if self.abandoned:
            self.drop(segment)
        else:
            self.spares.append(segment)

    cdef int reserve(self, uint64_t span_bytes) except -1:
        """Make room so that appends of `span_bytes` in total cannot fail. Raises: StorageError (nothing changed)."""
        assert not self.in_batch and self.set_aside is None, "a batch is under way"
        if self.active.room_bytes() < span_bytes:
            self.roll(span_bytes)
        return 0

    cdef char* append(
        self, uint64_t guid, int64_t timestamp_ns, int64_t due_ns, uint16_t attempts,
        const char* body, uint32_t body_bytes,
    ) except NULL:
        """Append one record; its ordinal is `end - 1` afterwards.

        body: 1 or more bytes, copied. Returns: the record's address, which stays until it is trimmed.
        Raises: StorageError (nothing was written). Switches: no. Durable: against a kill at once. Cost: O(body_bytes).
        """
        cdef uint64_t span = record_span(body_bytes)
        cdef Segment segment = self.active
        cdef char* at
        cdef uint64_t word
        assert body_bytes > 0
        if self.staged and span <= STAGED_RECORD_MAX:
            return self.append_staged(guid, timestamp_ns, due_ns, attempts, body, body_bytes)
        if segment.limit_bytes - segment.tail < span:
            assert not self.in_batch, "a batch's room is reserved before"
            self.roll(span)
            segment = self.active
            assert segment.tail + span <= segment.limit_bytes, "a new segment has room"
        at = segment.base + segment.tail
        word = record_fill(
            at, (self.epoch << ORDINAL_BITS) | self.end, guid, timestamp_ns, due_ns, attempts, body, body_bytes)
        if segment.capacity_bytes - segment.tail > span:
            # What lies behind may be a record of a batch that a kill tore: it has the number that comes next.
            store_word(at + span, 0)
        if self.staged:
            self.make_way(span)
        if self.in_batch and self.batch_at == NULL:
            self.batch_at = at
            self.batch_word = word
        else:
            store_word(at, word)
        segment.tail += span
        segment.count += 1
        self.end += 1
        if segment.tail >= self.mark and not self.in_batch:
            self.pass_mark()
        return at

    cdef char* append_staged(
        self, uint64_t guid, int64_t timestamp_ns, int64_t due_ns, uint16_t attempts,
        const char* body, uint32_t body_bytes,
    ) except NULL:
        """Do as `append` for a record of a staged batch; what it returns may be read once the batch is committed.

        Raises: StorageError (the batch is the caller's to abort).
        """
        cdef uint64_t span = record_span(body_bytes)
        cdef Segment segment = self.active
        cdef char* at = segment.base + segment.tail
        cdef char* staged
        cdef uint64_t word
        assert segment.capacity_bytes - segment.tail >= span, "a batch's room is reserved before"
        staged = staging.take(span)
        word = record_fill(
            staged, (self.epoch << ORDINAL_BITS) | self.end, guid, timestamp_ns, due_ns, attempts, body, body_bytes)
        if self.batch_at == NULL:
            self.batch_at = at
            self.batch_word = word
        else:
            store_word(staged, word)
        segment.tail += span
        segment.count += 1
        self.end += 1
        self.staged_bytes += span
        return at

    cdef const char* append_frames(self, const char* at, uint32_t count, int64_t now_ns, GuidFactory guids) except NULL:
        """Append the messages of a batch that has begun, each a big-endian int32 size and a body, checked before.

        Here and not where it is called, so that what is done for each message is compiled into one loop.
        Returns: what follows the last. Raises: StorageError (the batch is the caller's to abort).
        """
        cdef uint32_t size
        assert self.in_batch
        for _ in range(count):
            size = <uint32_t> read_be32(at)
            if self.staged and record_span(size) <= STAGED_RECORD_MAX:
                self.append_staged(guids.next_id(now_ns), now_ns, 0, 0, at + sizeof(uint32_t), size)
            else:
                self.append(guids.next_id(now_ns), now_ns, 0, 0, at + sizeof(uint32_t), size)
            at += sizeof(uint32_t) + size
        return at

    cdef int make_way(self, uint64_t span_bytes) except -1:
        """Let a large record of a staged batch be stored through the mapping. Raises: as `append_staged`."""
        staging.flush()
        return staging.skip(span_bytes)

    cdef int begin_batch(self, uint64_t span_bytes) except -1:
        """Reserve room for a batch; until `commit_batch` a kill leaves nothing of it. Raises: StorageError.

        Whoever begins one commits it or, whatever goes wrong before, calls `abort_batch`. Nothing switches between.
        """
        assert not self.staged
        self.reserve(span_bytes)
        # Where pages are there already, stores are cheaper.
        self.staged = (
            span_bytes >= STAGED_BATCH_BYTES_MIN and whole_pages(self.active.tail) >= self.active.prepared
            and self.stage())
        self.in_batch = True
        self.batch_at = NULL
        self.batch_tail, self.batch_count, self.batch_end = self.active.tail, self.active.count, self.end
        self.batch_staged_bytes = self.staged_bytes
        return 0

    cdef bint joins(self, uint64_t span_bytes) noexcept:
        """Say whether more can be appended to the batch under way, all of which then becomes valid at once."""
        return self.in_batch and self.staged and self.active.room_bytes() >= span_bytes

    cdef bint stage(self) except -1:
        """Begin to stage a batch. Returns: whether it can be."""
        cdef Mapping mapping = self.active.mapping
        if staging.fd >= 0:
            # Another log's batch is under way, whose descriptor must not be closed to make room for this one's.
            return False
        if mapping.fd < 0:
            if mapping.path is None or mapping.fd_refused:
                return False
            try:
                mapping.keep_descriptor(self.files.open_for_writing(mapping.path))
            except StorageError:
                # Too many open files, say: then records are stored through the mapping.
                mapping.fd_refused = True
                return False
        return staging.begin(mapping.fd, mapping.path, self.active.tail)

    cdef int commit_batch(self) except -1:
        """Make the records since `begin_batch` valid, all at once. Raises: StorageError (nothing is left of them)."""
        assert self.in_batch
        if self.staged:
            self.flush_batch()
        elif self.batch_at != NULL:
            store_word(self.batch_at, self.batch_word)
        self.in_batch = False
        self.batch_at = NULL
        # Its pages are used now, and were not there too late: nobody waits for those of a batch.
        self.active.prepared = max(self.active.prepared, whole_pages(self.active.tail))
        if self.active.tail >= self.mark:
            self.pass_mark()
        return 0

    cdef int flush_batch(self) except -1:
        """Write the rest of a staged batch, and then what makes it valid. Raises: anything (batch given up)."""
        cdef Segment segment = self.active
        try:
            if segment.capacity_bytes - segment.tail >= RECORD_ALIGN_BYTES:
                # As `append` does behind each record.
                store_word(staging.take(RECORD_ALIGN_BYTES), 0)
            staging.flush_last(segment.capacity_bytes)
            if self.batch_at != NULL:
                staging.store_word(<uint64_t> (self.batch_at - segment.base), self.batch_word)
        except BaseException:
            self.abort_batch()
            raise
        self.staged = False
        staging.finish()
        return 0

    cdef int abort_batch(self) except -1:
        """Forget the records since `begin_batch`: the word that would make them valid has not been written."""
        assert self.in_batch
        self.active.tail, self.active.count, self.end = self.batch_tail, self.batch_count, self.batch_end
        self.staged_bytes = self.batch_staged_bytes
        if self.staged:
            self.staged = False
            staging.finish()
        self.in_batch = False
        self.batch_at = NULL
        return 0

    cdef bint reuse_active(self, uint64_t need_bytes) except -1:
        """Begin the epoch in the active segment if it is empty and large enough. Returns: whether it is."""
        if not self.closed or self.active.worn or self.active.count != 0 or self.active.file_bytes < need_bytes:
            return False
        self.closed = False
        self.active.take_more()
        return self.active.begin_again((self.epoch << ORDINAL_BITS) | self.end, wall_ns()) == 0

    cdef int roll(self, uint64_t span_bytes) except -1:
        cdef uint64_t need = SEGMENT_HEADER_BYTES + span_bytes
        cdef uint64_t size
        cdef bint grown, outrun = False
        cdef Segment segment
        assert self.end < ORDINAL_MASK
        if (self.reuse_active(need) and self.active.room_bytes() >= span_bytes) or (
                not self.closed and self.active.open_up(self.files, span_bytes)):
            return self.pass_mark()
        if self.on_growing is not None:
            self.on_growing(self)
        self.rolled_bytes = span_bytes
        segment = self.take_spare(need)
        if segment is None:
            size = max(need, min(self.next_segment_bytes(), SEGMENT_BYTES_ON_THE_SPOT_MAX))
            if self.on_segment_wanted is not None:
                segment = self.on_segment_wanted(self, need, size)
            else:
                segment = self.new_segment(size)
            outrun = True
        grown = segment.capacity_bytes > self.active.capacity_bytes
        self.follow_with(segment)
        self.spare_settled = False
        if outrun or grown or self.first.next is not segment:
            self.want_spare()
        # Else what was filled is likely to be drained soon: where it is not by half of this one, a spare is asked for.
        return self.pass_mark()

    cdef int pass_mark(self) except -1:
        """Ask for what will be needed soon, as the active segment has been filled so far; set the next mark."""
        cdef Segment segment = self.active
        if not self.spare_settled and segment.tail > segment.capacity_bytes >> 1:
            self.want_spare()
        self.want_pages()
        self.mark = ~<uint64_t> 0 if self.spare_settled else (segment.capacity_bytes >> 1) + 1
        if self.wants_pages():
            self.mark = min(self.mark, segment.prepared - (self.pages_ahead >> 1))
        return 0

    cdef bint wants_pages(self) noexcept:
        """Say whether pages of the active segment are to be asked for, now or later."""
        cdef uint64_t size = self.active.capacity_bytes
        return (
            not self.pages_underway and self.populates and self.on_pages_wanted is not None
            and size > PAGES_AHEAD_BYTES_MIN and self.active.prepared < size
        )

    cdef int want_pages(self) except -1:
        """Ask for the pages behind those that are there, where no more than half of a piece of these is left."""
        cdef Segment segment = self.active
        cdef uint64_t start, length
        if not self.wants_pages() or segment.tail + (self.pages_ahead >> 1) < segment.prepared:
            return 0
        if segment.tail > segment.prepared and segment.tail > SEGMENT_HEADER_BYTES:
            # They came too late.
            self.pages_ahead = min(2 * self.pages_ahead, PAGES_AHEAD_BYTES_MAX)
        start = max(segment.prepared, whole_pages(segment.tail))
        length = min(self.pages_ahead, whole_pages(segment.capacity_bytes) - start)
        if length == 0:
            segment.prepared = segment.capacity_bytes
            return 0
        self.pages_underway = True
        self.on_pages_wanted(self, segment, start, length)
        return 0

    def pages_ready(self, Segment segment not None, uint64_t end_bytes):
        """Note that pages asked for are there, or will not be."""
        self.pages_underway = False
        segment.prepared = max(segment.prepared, end_bytes)
        self.pass_mark()

    def leave(self, Segment segment not None):
        """Go on in another segment with the next record: a page of this one, if it is the active one, is unreadable."""
        if segment is self.active:
            self.closed = True
            segment.leave()

    cdef int follow_with(self, Segment segment) except -1:
        """Seal the active segment and go on in another."""
        self.populates = 2 * self.staged_bytes < self.active.tail
        self.closed = False
        self.active.take_more()
        self.active.seal()
        segment.begin(self.active.number + 1, (self.epoch << ORDINAL_BITS) | self.end, wall_ns())
        self.active.next = segment
        self.active = segment
        self.staged_bytes = 0
        return 0

    def shrink(self):
        """Go on in a segment of the smallest size, so that the active one can go. Raises: StorageError."""
        self.follow_with(self.new_segment(SEGMENT_BYTES_MIN))
        self.spare_settled = False
        self.pass_mark()

    def drop_spares(self):
        """Give up what is kept ready."""
        spares, self.spares = self.spares, []
        for segment in spares:
            self.drop(segment)

    def files_moved(self, str directory not None):
        """Note that the log's files are in another directory now, until they are removed."""
        cdef Segment segment = self.first
        for spare in self.spares:
            spare.mapping.moved(os.path.join(directory, os.path.basename(spare.mapping.path)))
        while segment is not None:
            if segment.mapping.path is not None:  # None: in memory, for want of space at the start
                segment.mapping.moved(os.path.join(directory, os.path.basename(segment.mapping.path)))
            segment = segment.next

    def abandon(self):
        """Let go of all segments, as the log's files are gone; what is appended from here on is kept by nobody.

        The space of removed files returns with their last mapping. Needs no mapping, so it works at their limit."""
        cdef Segment first
        cdef Segment segment = Segment(heap_page())
        segment.begin(self.active.number + 1, (self.epoch << ORDINAL_BITS) | self.end, wall_ns())
        self.abandoned = True
        self.on_spare_wanted = self.on_pages_wanted = self.on_growing = self.on_segment_wanted = None
        self.on_retired = self.on_dropped = self.directory = None
        self.closed = False
        self.spares, self.indexes = [], {}
        first, self.first, self.active = self.first, segment, segment
        # Whoever holds one of them keeps no other in use, and freeing a long chain does not recurse.
        while first is not None:
            segment, first.next = first.next, None
            first.mapping.file_removed()
            first = segment

    def drop(self, Segment segment):
        """Have the file of a spare or drained segment removed."""
        segment.mapping.file_removed()
        if self.on_dropped is not None:
            self.on_dropped(self, segment)
        elif segment.mapping.path is not None:
            self.files.remove(segment.mapping.path)

    cdef Segment take_spare(self, uint64_t need_bytes):
        """Take the largest spare, the newest of these, if it has that many bytes; one that is unreadable is dropped."""
        cdef Segment segment
        cdef Segment largest = None
        for segment in self.spares:
            if largest is None or segment.capacity_bytes >= largest.capacity_bytes:
                largest = segment
        if largest is None or largest.capacity_bytes < need_bytes:
            return None
        self.spares.remove(largest)
        if largest.read_to(self.files, need_bytes):
            return largest
        self.drop(largest)
        return self.take_spare(need_bytes)

    def next_segment_bytes(self):
        """Return the size of the segment after the active one: double, up to the limit."""
        return min(self.size_limit(), max(SEGMENT_BYTES_MIN, 2 * self.active.capacity_bytes))

    cdef uint64_t cycled_bytes(self) noexcept:
        """Return the size that segments keep to where channels keep up."""
        return max(CYCLED_BYTES_MAX, BATCHES_CYCLED * self.rolled_bytes)

    cdef uint64_t size_limit(self) noexcept:
        """Return the size up to which segments double now. Cost: O(segments), but bounded."""
        cdef Segment segment = self.first
        cdef uint64_t kept_bytes = 0
        while segment is not self.active and kept_bytes <= CYCLE_BYTES_MAX:
            kept_bytes += segment.capacity_bytes
            segment = segment.next
        if kept_bytes > CYCLE_BYTES_MAX:
            return self.segment_bytes_max
        return min(self.segment_bytes_max, self.cycled_bytes())

    def want_spare(self):
        """Ask for a spare, once per active segment, unless one of its size is there or any is on its way."""
        cdef Segment segment
        self.spare_settled = True
        for segment in list(self.spares):
            if segment.capacity_bytes < min(self.active.capacity_bytes, self.size_limit()):  # left from smaller times
                self.spares.remove(segment)
                self.drop(segment)
        if self.spares or self.spares_underway or self.on_spare_wanted is None:
            return
        self.spares_underway += 1
        self.on_spare_wanted(self, self.next_segment_bytes())

    cdef int trim(self, uint64_t floor) except -1:
        """Give up every sealed segment whose records all lie below the ordinal `floor`."""
        cdef Segment segment
        while self.first is not self.active and self.first.end_ordinal() <= floor:
            segment = self.first
            self.first = segment.next
            self.indexes.pop(segment.number, None)
            if self.is_recyclable(segment):
                segment.retire()
                if self.on_retired is None or segment.mapping.path is None:
                    self.spares.append(segment)
                else:
                    # Not used anew before it is a spare on stable storage too: after a power failure its former header
                    # must not stand before new records.
                    self.spares_underway += 1
                    self.on_retired(self, segment)
            else:
                segment.vacate()
                segment.next = None
                self.drop(segment)
        return 0

    cdef bint is_recyclable(self, Segment segment) noexcept:
        """Say whether a drained segment is to be kept as a spare: neither small nor large for what comes.

        Whatever its size, each use of one costs a sync: where it lasted a moment only, larger ones are better.
        """
        cdef uint64_t limit = self.size_limit()
        cdef uint64_t largest = whole_pages(max(limit, self.cycled_bytes()))
        cdef int spares_max = CYCLED_SPARES_MAX if segment.capacity_bytes == CYCLED_BYTES_MAX else SPARES_MAX
        return (
            not segment.worn and not segment.mapping.is_lost(0, segment.file_bytes)
            and len(self.spares) + self.spares_underway < spares_max
            and (segment.capacity_bytes >= limit
                 or segment.next.header().created_ns - segment.header().created_ns >= LASTED_NS_MIN)
            and min(self.active.capacity_bytes, limit) <= segment.capacity_bytes <= largest
        )

    cdef uint64_t floor_retained(self, uint64_t floor, uint64_t keep_bytes, int64_t keep_since_ns):
        """Return up to where `trim` may go, below `floor`, with the newest records kept. Cost: O(segments).

        keep_bytes: a segment with less than that behind it stays; keep_since_ns: so does one that grew after (Unix).
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
        return min(floor, segment.first_ordinal)

    cdef Segment segment_of(self, uint64_t ordinal):
        """Return the segment that holds the ordinal, or the first behind it, or the active one for the end."""
        cdef Segment segment = self.first
        while segment is not self.active and segment.end_ordinal() <= ordinal:
            segment = segment.next
        return segment

    def locate(self, uint64_t ordinal):
        """Return the Position of an ordinal (clamped to what is kept). Cost: walks the headers of one segment."""
        cdef Segment segment = self.segment_of(min(ordinal, self.end))
        cdef uint64_t offset = SEGMENT_HEADER_BYTES
        cdef uint64_t at = segment.first_ordinal
        if ordinal > at:
            self.ready(segment)
        while at < ordinal and at < segment.end_ordinal():
            offset += record_span((<const Record*> (segment.base + offset)).size_bytes)
            at += 1
        return Position(segment, offset, at)

    def position_at(self, uint64_t segment_number, uint64_t offset, uint64_t ordinal):
        """Return the Position noted earlier as (segment number, offset, ordinal), checked; by walking if it is off."""
        cdef Segment segment = self.segment_of(ordinal)
        if ordinal <= self.end and segment.number == segment_number and segment.first_ordinal <= ordinal:
            if ordinal == segment.end_ordinal() and offset == segment.tail:
                return Position(segment, offset, ordinal)
            # What lies there may be a body: after a power failure the place may be of records that are gone.
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
            start = max(segment.header().synced_bytes, <uint64_t> SEGMENT_HEADER_BYTES) & ~(PAGE_BYTES - 1)
            if segment.tail > segment.header().synced_bytes:
                ranges.append((segment, start, segment.tail - start))
            segment = segment.next
        return ranges, self.end

    def mark_synced(self, list ranges, uint64_t end):
        """Note that the ranges of an earlier `dirty_ranges` are on stable storage."""
        cdef Segment segment
        for segment, start, length in ranges:
            # A segment that was recycled meanwhile begins at the end of then or later: its bytes are others now.
            if segment.number != 0 and (segment.first_ordinal < end or start + length <= SEGMENT_HEADER_BYTES):
                segment.header().synced_bytes = max(segment.header().synced_bytes, <uint64_t> (start + length))
        self.flushed_end = max(self.flushed_end, end)
        self.synced_end = max(self.synced_end, end)

    def unsynced_deferred_end(self):
        """Return 1 + the ordinal of the last record with a due time in segments with bytes past what was synced; or 0.

        Cost: a walk over the headers in these segments.
        """
        cdef Segment segment = self.first
        cdef uint64_t found = 0
        while segment is not None:
            if segment.header().synced_bytes < segment.tail:
                self.ready(segment)
                found = max(found, segment.deferred_end())
            segment = segment.next
        return found

    def size_bytes(self):
        """Return the bytes that the log's segments and spares take on disk."""
        cdef Segment segment = self.first
        cdef uint64_t total = 0
        while segment is not None:
            total += segment.file_bytes
            segment = segment.next
        for segment in self.spares:
            total += segment.file_bytes
        return total

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

    def append_message(self, uint64_t guid, bytes body, int64_t timestamp_ns=0, int64_t due_ns=0, uint16_t attempts=0):
        """Append one record from Python (cold paths, tests). Returns: its ordinal. Raises: ValueError, StorageError."""
        if not body:
            raise ValueError("a message has at least one byte")
        assert not self.in_batch, "a batch is under way"
        self.append(guid, timestamp_ns, due_ns, attempts, body, <uint32_t> len(body))
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
                self.append(guid, 0, 0, 0, body, <uint32_t> len(body))
        except BaseException:
            self.abort_batch()
            raise
        self.commit_batch()

    def trim_below(self, uint64_t floor):
        """Give up the segments that lie wholly below an ordinal."""
        self.trim(floor)

    def records(self, start=None):
        """Yield (ordinal, guid, timestamp_ns, due_ns, attempts, body) from an ordinal, or the oldest, to the end."""
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
                yield (record.seq & ORDINAL_MASK, record.guid, record.timestamp_ns, record.due_ns, record.attempts,
                       (<const char*> record)[48:48 + record.size_bytes])
            segment = segment.next
            offset = SEGMENT_HEADER_BYTES
