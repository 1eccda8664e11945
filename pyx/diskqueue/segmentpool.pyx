"""Supplies one log with segments: decides when a segment is made ahead, recycled or removed, and how large it is.

Problem: reserving and mapping a file takes milliseconds, and the first write to a page blocks in the file system. So a
thread makes the next segment ahead of need, a *spare*, and populates the pages that are written next, one piece at a
time: a page that is populated and never used costs as much as one that is, and a page that is used soon is still in the
processor's cache. If the writer outruns the thread, a segment is made on the spot, and then a small one, so that the
event loop is held for a millisecond at most.

Drained segments are kept as spares, a few: a new page is zeroed and faulted in, which costs nearly as much as the rest
of a message. So no spare is made while a segment is likely to be drained in time.

Segments double in size only while much waits in the log. If channels keep up, segments stay small, so that the few that
are written in turn fit the processor's cache: with large ones every body would be copied to memory that is in no cache.

The pool decides; its two collaborators act. `jobs` (pyqd/diskqueue/segment_jobs.py) makes, populates, syncs and removes
files, in threads or on the spot, and reports back through `offer_spare`, `note_retired` and `note_pages`. `limit`
(pyqd/diskqueue/space_limit.py) says whether a segment may be made, used or kept: a topic's quota and the disk reserve.

Invariants: 1. A spare has number 0 and is in no log's chain. 2. `sealed_bytes` is the sum of the file sizes of the
log's sealed segments. 3. At most one preparation of pages is under way.

Rejected: consecutive file names (a rename per roll on the event loop).
"""

import os

cimport cython

from libc.stdint cimport int64_t

from pyqd.hot.diskqueue.segment cimport SEGMENT_HEADER_BYTES
from pyqd.hot.primitives.clock cimport wall_ns
from pyqd.hot.primitives.releases cimport whole_pages

from pyqd.diskqueue.segment_jobs import SegmentJobs
from pyqd.diskqueue.space_limit import SpaceLimit
from pyqd.hot.diskqueue.logstart import SUFFIX

cdef uint64_t SEGMENT_BYTES_MIN = 64 << 10
cdef uint64_t ON_THE_SPOT_BYTES_MAX = 8 << 20
# One is written to soon while the sync that frees the other is under way.
cdef int SPARES_MAX = 2
# While less lies in the log, segments grow to CYCLED_BYTES_MAX only, unless few batches would fill one. Some spares are
# needed while syncs are under way, and this many of that size stay near the processor's cache.
cdef uint64_t CYCLE_BYTES_MAX = 64 << 20
cdef uint64_t CYCLED_BYTES_MAX = 8 << 20
cdef int CYCLED_SPARES_MAX = 6
cdef int BATCHES_CYCLED = 4
cdef int64_t LASTED_NS_MIN = 250000000
# A segment that was filled sooner is filled again soon, and then mostly through the mapping.
cdef int64_t REUSED_NS_MAX = 2000000000
cdef uint64_t PAGES_AHEAD_BYTES_MIN = 256 << 10
cdef uint64_t PAGES_AHEAD_BYTES_MAX = 8 << 20

NO_JOBS = SegmentJobs()
NO_LIMIT = SpaceLimit()


@cython.final
cdef class SegmentPool:
    """Supply of segments of one log.

    files: the operating system. directory: holds the segments; None for anonymous memory. segment_bytes_max: size at
    which segments stop doubling; a larger record or batch gets a segment of its own size.
    """

    def __init__(self, files, directory, uint64_t segment_bytes_max):
        self.files = files
        self.directory = directory
        self.segment_bytes_max = max(segment_bytes_max, SEGMENT_BYTES_MIN)
        self.on_the_spot_bytes_max = ON_THE_SPOT_BYTES_MAX
        self.limit = NO_LIMIT
        self.jobs = NO_JOBS
        self.spares = []
        self.populates = True
        self.pages_ahead = PAGES_AHEAD_BYTES_MIN
        # No file name is used twice: a job of a removed log must not hit a file of this one.
        self.file_counter = <uint64_t> wall_ns()

    cdef int resume(self, Segment first, Segment active, list spares, uint64_t file_counter) except -1:
        """Continue with the segments of an earlier run. first, active: ends of the log's chain, or None."""
        cdef Segment segment = first
        assert self.active is None and not self.spares, "the log has begun"
        self.spares = spares
        self.file_counter = max(self.file_counter, file_counter)
        while segment is not active:
            self.sealed_bytes += segment.file_bytes
            segment = segment.next
        self.active = active
        return 0

    def new_segment(self, uint64_t size_bytes, suffix=SUFFIX):
        """Reserve and map a segment of at least that many bytes. suffix: of the file's name. Raises: StorageError.

        Changes nothing of the pool but the counter of file names, so it may run in a thread.
        """
        assert size_bytes > SEGMENT_HEADER_BYTES
        path = None
        if self.directory is not None:
            # Counted before any Python code runs: another thread could take the same number there.
            number = self.file_counter
            self.file_counter += 1
            path = os.path.join(self.directory, f"{number}{suffix}")
        return Segment(self.files.new_mapped(path, whole_pages(size_bytes), False))

    cdef Segment next_segment(self, uint64_t span_bytes):
        """Return a segment with space for so many bytes: a spare, or one made now. Raises: StorageError."""
        cdef uint64_t need = SEGMENT_HEADER_BYTES + span_bytes
        cdef Segment segment
        assert self.active is not None
        self.rolled_bytes = span_bytes
        segment = self.take_spare(need)
        self.short_of_spares = segment is None
        if segment is None:
            segment = self.jobs.make(self, need, max(need, min(self.next_segment_bytes(), self.on_the_spot_bytes_max)))
        assert segment.number == 0 and segment.capacity_bytes >= need
        if segment.capacity_bytes > self.active.capacity_bytes:
            self.short_of_spares = True
        return segment

    cdef int activate(self, Segment segment) except -1:
        """Make another segment the active one; the log has sealed the former one, if there was one."""
        assert segment is not self.active and segment not in self.spares
        if self.active is not None:
            self.sealed_bytes += self.active.file_bytes
        self.active = segment
        self.spare_settled = False
        self.refill_threshold = 0
        return 0

    cdef int replenish(self, bint has_backlog) except -1:
        """After a roll: ask for a spare at once if one is certain to be needed. has_backlog: older segments are in use.

        Otherwise the former segment is likely to be drained soon. If it is not when half of this one is full, `refill`
        asks for a spare.
        """
        assert not self.spare_settled, "a spare is asked for once per active segment"
        if self.short_of_spares or has_backlog:
            self.request_spare()
        return self.refill()

    cdef int refill(self) except -1:
        """Ask for the spare and the pages that are needed soon, as far as the active segment is filled by now."""
        cdef Segment segment = self.active
        assert segment is not None and segment.next is None
        if not self.spare_settled and segment.tail > segment.capacity_bytes >> 1:
            self.request_spare()
        self.request_pages()
        self.refill_threshold = ~<uint64_t> 0 if self.spare_settled else (segment.capacity_bytes >> 1) + 1
        if self.needs_pages():
            self.refill_threshold = min(self.refill_threshold, segment.prepared - (self.pages_ahead >> 1))
        return 0

    cdef bint needs_pages(self) except -1:
        """Return whether pages of the active segment still have to be prepared by a thread, now or later."""
        cdef uint64_t size = self.active.capacity_bytes
        assert self.active is not None
        return (
            not self.pages_underway and self.populates and size > PAGES_AHEAD_BYTES_MIN and self.active.prepared < size
            and self.jobs.prepares_ahead
        )

    cdef int request_pages(self) except -1:
        """Ask for the next piece of pages if no more than half a piece of prepared ones remains."""
        cdef Segment segment = self.active
        cdef uint64_t start, length
        if not self.needs_pages() or segment.tail + (self.pages_ahead >> 1) < segment.prepared:
            return 0
        if segment.tail > segment.prepared and segment.tail > SEGMENT_HEADER_BYTES:
            # The last piece came too late.
            self.pages_ahead = min(2 * self.pages_ahead, PAGES_AHEAD_BYTES_MAX)
        start = max(segment.prepared, whole_pages(segment.tail))
        length = min(self.pages_ahead, whole_pages(segment.capacity_bytes) - start)
        if length == 0:
            segment.prepared = segment.capacity_bytes
            return 0
        self.pages_underway = True
        self.jobs.prepare_pages(self, segment, start, length)
        return 0

    def note_pages(self, Segment segment not None, uint64_t end_bytes):
        """Handle the end of a request for pages: they are present, or preparing them has failed."""
        assert end_bytes <= whole_pages(segment.file_bytes)
        self.pages_underway = False
        segment.prepared = max(segment.prepared, end_bytes)
        self.refill()

    def leave(self, Segment segment not None):
        """Let the log continue in another segment with the next record, if this is the active one.

        A page of it cannot be read any more, so records stored there would be lost.
        """
        if segment is self.active:
            segment.leave()

    cdef int request_spare(self) except -1:
        """Ask for a spare unless a usable one is there or under way; drop the spares that are too small by now."""
        cdef Segment segment
        cdef uint64_t size_bytes
        assert self.active is not None
        self.spare_settled = True
        for segment in list(self.spares):
            if segment.capacity_bytes < min(self.active.capacity_bytes, self.size_limit()):
                self.spares.remove(segment)
                self.drop(segment)
        if self.spares or self.spares_underway or not self.jobs.prepares_ahead:
            return 0
        size_bytes = self.limit.spare_bytes(self.next_segment_bytes())
        if size_bytes == 0:
            return 0
        self.spares_underway += 1
        self.jobs.prepare_spare(self, size_bytes)
        return 0

    def offer_spare(self, Segment segment):
        """Accept a prepared segment; None if preparing it failed, so that another one can be requested."""
        assert self.spares_underway > 0
        self.spares_underway -= 1
        if segment is not None:
            self.add_spare(segment)

    def add_spare(self, Segment segment not None):
        """Keep a segment as a spare, unless the quota has no space for it by now."""
        assert segment.number == 0, "a segment of a log's chain is no spare"
        if self.abandoned or not self.limit.allows_spare(segment.capacity_bytes):
            self.drop(segment)
        else:
            self.spares.append(segment)

    cdef Segment take_spare(self, uint64_t need_bytes):
        """Take the largest spare, the newest of these, if it has that many bytes; None otherwise.

        A spare that cannot be read is dropped. Raises: DiskFull if the topic's quota forbids to use one.
        """
        cdef Segment segment
        cdef Segment largest = None
        for segment in self.spares:
            if largest is None or segment.capacity_bytes >= largest.capacity_bytes:
                largest = segment
        if largest is None or largest.capacity_bytes < need_bytes:
            return None
        self.limit.check_spare(largest.capacity_bytes)
        self.spares.remove(largest)
        if largest.read_to(self.files, need_bytes):
            return largest
        self.drop(largest)
        return self.take_spare(need_bytes)

    cdef int recycle(self, Segment segment) except -1:
        """Keep a drained segment as a spare, or have it removed. The log's chain begins behind it now."""
        cdef uint64_t size_bytes = segment.capacity_bytes
        cdef bint populates
        assert segment is not self.active and segment.next is not None
        assert self.sealed_bytes >= segment.file_bytes
        self.sealed_bytes -= segment.file_bytes
        if not self.is_recyclable(segment):
            segment.vacate()
            segment.next = None
            self.drop(segment)
            return 0
        populates = segment.is_staged() and segment.lasted_ns() < REUSED_NS_MAX
        segment.retire()
        if segment.mapping.path is None:
            self.spares.append(segment)
        elif not self.limit.allows_spare(size_bytes if self.spares else 2 * size_bytes):
            # The quota would leave no space for a segment in use meanwhile.
            self.drop(segment)
        else:
            # Not used again before it is a spare on stable storage too: after a power failure its former header must
            # not stand before new records.
            self.spares_underway += 1
            self.retiring_bytes += size_bytes
            self.jobs.retire(self, segment, populates=populates)
        return 0

    cdef int note_replaced(self, Segment segment, Segment made) except -1:
        """Count a rewritten file, or None, in place of a sealed segment of the log's chain."""
        assert segment is not self.active and self.sealed_bytes >= segment.file_bytes
        self.sealed_bytes -= segment.file_bytes
        if made is not None:
            self.sealed_bytes += made.file_bytes
        return 0

    def note_retired(self, Segment segment not None, bint failed=False):
        """Take a drained segment as a spare once that is on stable storage; failed: its file has been removed."""
        assert self.retiring_bytes >= segment.capacity_bytes
        self.retiring_bytes -= segment.capacity_bytes
        self.offer_spare(None if failed else segment)

    def drop(self, Segment segment not None):
        """Remove the file of a spare or of a drained segment, in the background if there are threads."""
        assert segment not in self.spares
        assert segment is not self.active
        segment.mapping.file_removed()
        self.jobs.remove(self, segment)

    def drop_spares(self):
        """Remove the spares."""
        spares, self.spares = self.spares, []
        for segment in spares:
            self.drop(segment)

    cdef uint64_t next_segment_bytes(self) noexcept:
        """Return the size for the segment after the active one: double, up to the limit."""
        return min(self.size_limit(), max(SEGMENT_BYTES_MIN, 2 * self.active.capacity_bytes))

    cdef uint64_t cycled_bytes(self) noexcept:
        """Return the size that segments keep to while channels keep up."""
        return max(CYCLED_BYTES_MAX, BATCHES_CYCLED * self.rolled_bytes)

    cdef uint64_t size_limit(self) noexcept:
        """Return the size up to which segments double now."""
        if self.sealed_bytes > CYCLE_BYTES_MAX:
            return self.segment_bytes_max
        return min(self.segment_bytes_max, self.cycled_bytes())

    cdef bint is_recyclable(self, Segment segment) noexcept:
        """Return whether a drained segment is worth keeping as a spare: neither too small nor too large for the next.

        Each use of a spare costs a sync, whatever its size. So a size that lasted only a moment is not kept.
        """
        cdef uint64_t limit = self.size_limit()
        cdef uint64_t largest = whole_pages(max(limit, self.cycled_bytes()))
        cdef int spares_max = CYCLED_SPARES_MAX if segment.capacity_bytes == CYCLED_BYTES_MAX else SPARES_MAX
        return (
            not segment.worn and segment.rewrites == 0 and not segment.mapping.is_lost(0, segment.file_bytes)
            and len(self.spares) + self.spares_underway < spares_max
            and (segment.capacity_bytes >= limit
                 or segment.lasted_ns() >= LASTED_NS_MIN)
            and min(self.active.capacity_bytes, limit) <= segment.capacity_bytes <= largest
        )

    cdef int abandon(self, Segment active) except -1:
        """Release all segments, because the log's files are gone. active: memory that still takes appends."""
        self.abandoned = True
        self.jobs, self.limit, self.directory = NO_JOBS, NO_LIMIT, None
        self.spares = []
        self.active = active
        self.sealed_bytes = 0
        self.spare_settled = False
        self.refill_threshold = 0
        return 0

    def spare_bytes(self):
        """Return the bytes that the spares take on disk."""
        return sum([(<Segment> spare).file_bytes for spare in self.spares])

    def check(self, Segment first not None):
        """Assert the invariants. first: begins the log's chain. Cost: O(segments)."""
        cdef Segment segment = first
        cdef uint64_t sealed_bytes = 0
        while segment is not self.active:
            sealed_bytes += segment.file_bytes
            segment = segment.next
        assert self.sealed_bytes == sealed_bytes
        for segment in self.spares:
            assert segment.number == 0 and segment.next is None
