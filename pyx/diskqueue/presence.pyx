"""Presence of a log's pages in memory: what has to be read by a thread before the event loop may load it.

A load from a page that is not in memory would hold the loop until the disk has read it. Where the page is in memory,
but not in the page table, the load waits for the page's lock, which write-back holds for tens of milliseconds on a busy
disk. That concerns pages written by pwrite(2), and among these a backlog; write-back comes later than a reader that
keeps up.

Whoever is about to read records asks for them first. If they are absent, the answer names the pages; a thread reads
them (`Files.read_in`), `note_read` is called, and the question is asked again. After that the answer is yes, whatever
came of the reading: what cannot be read is left to the load that meets it. A yes holds for a second, since the kernel
may drop the pages later. Several ranges are remembered, because a step may need more than one.

The cursor of a channel, which reads on without end, does the same in larger pieces and ahead (LogCursor).

Source: mincore(2), madvise(2).
"""

cimport cython

from pyqd.hot.wire.record cimport RECORD_HEADER_BYTES, record_span

cdef enum:
    PAGE_BYTES = 4096
    KNOWN_NS = 1000000000

# Of a log's last segment that is at least so much behind a reader, or it is no backlog.
cdef uint64_t BACKLOG_BYTES_MIN = 8 << 20
# Asked for around a record whose place is found by its address: as much as the kernel reads at a page fault.
cdef uint64_t RECORD_PIECE_BYTES = 64 << 10


cdef uint64_t page_below(uint64_t offset) noexcept:
    return offset & ~<uint64_t> (PAGE_BYTES - 1)


cdef uint64_t page_above(uint64_t offset) noexcept:
    return page_below(offset + PAGE_BYTES - 1)


cdef bint is_backlog(Segment segment, uint64_t offset) noexcept:
    """Return whether the messages from an offset on were published some time ago."""
    return segment.next is not None or segment.tail - offset > BACKLOG_BYTES_MIN


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
        cdef uint64_t end = min(page_above(offset + length), min(page_above(segment.tail), segment.mapping.size_bytes))
        self.absent = None
        if start >= end or self.is_known(segment.base + start, end - start):
            return True
        if segment.mapping.path is None:
            return self.know(segment, 0, segment.mapping.size_bytes)
        if (segment.mapped_end < end and is_backlog(segment, offset)) or (
                not self.files.is_present(segment.mapping, start, end - start)):
            self.absent = segment
            self.absent_start = start
            self.absent_end = end
            return False
        return self.know(segment, start, end)

    cdef bint has_record(self, Segment segment, uint64_t offset, uint64_t length) except -1:
        """Return whether the record at an offset is in memory, and `length` bytes from there on."""
        cdef uint64_t span
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
        if self.covers_record(record):
            return True
        segment = segment_around(log, at)
        return self.has_record(segment, at - segment.base, RECORD_PIECE_BYTES)

    cdef bint has_bytes_at(self, Log log, const Record* record, uint64_t length) except -1:
        """Do as `has_record_at` for the first bytes of a record."""
        cdef const char* at = <const char*> record
        cdef Segment segment = segment_around(log, at)
        return self.has(segment, at - segment.base, length)

    cdef bint is_known(self, const char* start, uint64_t length) noexcept:
        """Return whether bytes lie in one of the ranges that are known."""
        cdef int64_t now_ns
        cdef const Known* known
        cdef int at
        if self.covers(start, length):
            return True
        now_ns = mono_ns()
        for at in range(KNOWN_RANGES):
            known = &self.known[at]
            if known.start <= start and start + length <= known.end and now_ns < known.until_ns:
                return True
        return False

    cdef bint know(self, Segment segment, uint64_t start, uint64_t end) except -1:
        """Take pages of a segment for present, for a while. Returns: True."""
        self.newest = (self.newest + 1) % KNOWN_RANGES
        self.known[self.newest] = Known(
            start=segment.base + start, end=segment.base + end, until_ns=mono_ns() + KNOWN_NS)
        return True

    def note_read(self, Segment segment not None, uint64_t start, uint64_t end):
        """Go on after a thread has read, or could not read, the pages of a range that was `absent`."""
        if start <= segment.mapped_end:
            segment.note_mapped(end)
        self.know(segment, start, end)
