"""Presence of a log's pages in memory: the event loop loads records only from pages that are there.

A load from a page that is not in memory would hold the loop until the disk has read the page. If the page is in memory,
but not in the page table, the load waits for the page's lock, which write-back holds for tens of milliseconds on a busy
disk. That concerns a backlog that was written by pwrite(2). A reader that keeps up is earlier than write-back.

A reader asks for records before it loads them. If pages of these are absent, they are named in `absent`: a thread reads
them (`Files.read_in`), the reader calls `note_read` and asks again. The second answer is yes, also if the thread could
not read the pages: the load that meets them shows the failure. A yes counts for a second, since the kernel may drop
pages later. Several ranges are kept, because a step of a reader may need more than one.

LogCursor does the same for the cursor of a channel, in larger pieces and ahead.

Source: mincore(2), madvise(2).
"""

cimport cython

from pyqd.hot.diskqueue.segment cimport SEGMENT_HEADER_BYTES
from pyqd.hot.primitives.debug cimport debug_require
from pyqd.hot.primitives.releases cimport PAGE_BYTES, whole_pages
from pyqd.hot.wire.record cimport RECORD_HEADER_BYTES, record_span

cdef enum:
    KNOWN_NS = 1000000000

# A reader has at least so much of the log before it, or there is no backlog.
cdef uint64_t BACKLOG_BYTES_MIN = 8 << 20
# Asked for around a record whose place is found by its address: as much as the kernel reads at a page fault.
cdef uint64_t RECORD_PIECE_BYTES = 64 << 10


cdef uint64_t page_below(uint64_t offset) noexcept:
    return offset & ~<uint64_t> (PAGE_BYTES - 1)


cdef bint is_backlog(Segment segment, uint64_t offset) noexcept:
    """Return whether so much was published after an offset that write-back may have begun there."""
    cdef uint64_t behind = segment.tail - offset
    debug_require(offset <= segment.tail)
    while behind <= BACKLOG_BYTES_MIN and segment.next is not None:
        segment = segment.next
        behind += segment.tail
    return behind > BACKLOG_BYTES_MIN


cdef Segment segment_around(Log log, const char* at):
    """Return the segment that has an address."""
    cdef Segment segment = log.first
    while not segment.base <= at < segment.base + segment.tail:
        segment = segment.next
        assert segment is not None, "a record that is kept lies in no segment of its log"
    return segment


@cython.final
cdef class Presence:
    """Presence of pages, as one reader asks for them. files: of its logs."""

    def __init__(self, files not None):
        self.files = files

    cdef bint has(self, Segment segment, uint64_t offset, uint64_t length) except -1:
        """Return whether bytes of a segment, as far as it has records, are in memory. If not, they are `absent`."""
        cdef uint64_t start = page_below(offset)
        cdef uint64_t end = min(whole_pages(min(offset + length, segment.tail)), segment.mapping.size_bytes)
        self.absent = None
        if start >= end or self.is_known(segment.base + start, end - start):
            return True
        if segment.mapping.path is None:
            return self.set_known(segment, 0, segment.mapping.size_bytes)
        if (segment.mapped_end < end and is_backlog(segment, offset)) or (
                not self.files.is_present(segment.mapping, start, end - start)):
            self.absent = segment
            self.absent_start = start
            self.absent_end = end
            return False
        return self.set_known(segment, start, end)

    cdef bint has_record(self, Segment segment, uint64_t offset, uint64_t length) except -1:
        """Return whether the record at an offset is in memory, and `length` bytes from there on."""
        cdef uint64_t span
        debug_require(offset >= SEGMENT_HEADER_BYTES)
        length = max(length, <uint64_t> RECORD_HEADER_BYTES)
        if not self.has(segment, offset, length):
            return False
        # Of a damaged record the size may be wrong; `has` stops at the tail.
        span = record_span((<const Record*> (segment.base + offset)).size_bytes) if offset < segment.tail else 0
        return span <= length or self.has(segment, offset, span)

    cdef bint has_record_at(self, Log log, const Record* record) except -1:
        """Return whether the record at an address, which a log keeps, is in memory. Cost: O(segments), if asked."""
        cdef const char* at = <const char*> record
        cdef Segment segment
        debug_require(record != NULL)
        if self.covers_record(record):
            return True
        segment = segment_around(log, at)
        return self.has_record(segment, at - segment.base, RECORD_PIECE_BYTES)

    cdef bint is_known(self, const char* start, uint64_t length) noexcept:
        """Return whether bytes lie in one of the ranges that are known."""
        cdef int64_t now_ns
        cdef const Known* known
        cdef int at
        debug_require(self.newest < KNOWN_RANGES)
        if self.covers(start, length):
            return True
        now_ns = mono_ns()
        for at in range(KNOWN_RANGES):
            known = &self.known[at]
            if known.start <= start and start + length <= known.end and now_ns < known.until_ns:
                return True
        return False

    cdef bint set_known(self, Segment segment, uint64_t start, uint64_t end) except -1:
        """Note that pages of a segment count as present for a second. Returns: True."""
        assert start < end
        self.newest = (self.newest + 1) % KNOWN_RANGES
        self.known[self.newest] = Known(
            start=segment.base + start, end=segment.base + end, until_ns=mono_ns() + KNOWN_NS)
        return True

    def note_read(self, Segment segment not None, uint64_t start, uint64_t end):
        """Note that a thread has read, or could not read, the pages of a range that was `absent`."""
        assert end <= segment.mapping.size_bytes
        if start <= segment.mapped_end:
            segment.note_mapped(end)
        self.set_known(segment, start, end)
