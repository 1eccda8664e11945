# One mapped file of a log. Layout and design notes: pyx/diskqueue/segment.pyx; the format: docs/storage.md, "Segment".
from libc.stdint cimport int64_t, uint32_t, uint64_t

from pyqd.hot.diskqueue.mapping cimport Mapping

cdef enum:
    SEGMENT_HEADER_BYTES = 128
    SEGMENT_VERSION = 2

cdef struct SegmentHeader:
    uint64_t magic
    uint32_t version
    uint32_t checksum                    # see header_checksum; of a spare, with 0 for the number
    uint64_t number                      # place in the log, from 1; 0: a spare, holds no record
    uint64_t first_seq                   # of its first record
    int64_t created_ns                   # Unix, when it became the log's last
    uint64_t sealed_count                # ordinals of its records, once sealed
    uint64_t sealed_bytes                # offset of their end; 0: not sealed; stored after sealed_count
    uint64_t synced_bytes                # at least so much is on stable storage
    uint64_t first_number                # of a rewritten one: it takes the places from this one to `number`
    uint64_t rewrites                    # of two files with the same records, the one with more counts
    uint64_t synced_count                # records in synced_bytes; 0: unknown. Stored before these
    uint64_t kept_count                  # of a rewritten one: its records apart from gaps

cdef class Segment:
    cdef readonly Mapping mapping
    cdef char* base                      # of the mapping
    cdef readonly uint64_t file_bytes    # as many as it takes of the disk
    cdef readonly uint64_t capacity_bytes  # the same, but for a segment that takes no more records: its tail
    cdef readonly uint64_t limit_bytes   # end for appends now: the capacity, or the part that was read already
    cdef readonly uint64_t checked_bytes  # its pages up to there are no unreadable ones of an earlier run
    cdef readonly uint64_t tail          # offset of the next record, relative to base
    cdef public uint64_t prepared        # its pages up to there have been asked for, or were used before
    # Pages up to there are in the page table as far as known, the others were written by pwrite(2).
    cdef readonly uint64_t mapped_end
    cdef readonly uint64_t first_ordinal
    cdef readonly uint64_t count         # ordinals of its records
    cdef readonly uint64_t number
    cdef readonly uint64_t first_number  # the same, or that of the first segment whose records are here
    cdef readonly uint64_t rewrites      # how often its records were written again without finished ones
    cdef readonly Segment next           # None for the last
    cdef readonly bint unverified        # its checksums have not been looked at since it was mapped
    cdef readonly uint64_t highest_guid  # of the records that `walk` or `mend` has verified
    cdef readonly bint worn              # a page behind the tail cannot be read: no record is appended any more
    cdef readonly uint64_t journaled_bytes  # at least so much is in the journal, or on stable storage here
    cdef uint64_t file_number            # its file is called so; 0: not looked up yet
    cdef readonly bint cut               # records behind the tail are known to be missing
    cdef bint version_mended             # the version of its format was damaged
    cdef uint64_t lost_count             # of these, those that `walk` has reported

    cdef inline SegmentHeader* header(self) noexcept:
        return <SegmentHeader*> self.base

    cdef inline uint64_t end_ordinal(self) noexcept:
        return self.first_ordinal + self.count

    cdef inline uint64_t durable_bytes(self) noexcept:
        # Return how much is on stable storage at least, here or in the journal.
        return max(self.journaled_bytes, self.header().synced_bytes)

    cdef inline bint is_staged(self) noexcept:
        # Return whether some of its records were written by pwrite(2).
        return self.mapped_end != <uint64_t> -1

    cdef inline int64_t lasted_ns(self) noexcept:
        # Return how long it was the log's last segment, which it is not any more.
        return self.next.header().created_ns - self.header().created_ns

    cdef inline uint64_t free_bytes(self) noexcept:
        return self.limit_bytes - self.tail

    cdef int begin(self, uint64_t number, uint64_t first_seq, int64_t created_ns) except -1
    cdef int renumber(self, uint64_t first_seq, int64_t created_ns) except -1
    cdef int block_appends(self) except -1
    cdef int unblock_appends(self) except -1
    cdef int set_checked(self, uint64_t checked_bytes) except -1
    cdef int leave(self) except -1
    cdef bint check_next_pages(self, files, uint64_t span_bytes) except -1
    cdef bint read_to(self, files, uint64_t end) except -1
    cdef int note_staged(self, uint64_t start) except -1
    cdef int note_mapped(self, uint64_t end) except -1
    cdef int note_journaled(self, uint64_t end_bytes) except -1
    cdef int seal(self) except -1
    cdef int vacate(self) noexcept
    cdef int retire(self) except -1
    cdef int begin_rewritten(self, list segments, uint64_t kept_count, uint64_t tail) except -1
    cdef int supersede(self) except -1
    cdef uint64_t kept_count(self) noexcept
    cdef uint64_t bridgeable(self, uint64_t count, uint64_t size_bytes) noexcept
    cdef int load(self) except -1
    cdef bint is_blank(self) noexcept
    cdef int walk(self, bint power_failed, uint64_t count_max, uint64_t count_known, report) except -1
    cdef int mend(self, report, bint counts_end=*) except -1
    cdef bint at_end(self, uint64_t offset, uint64_t seq, bint power_failed) noexcept
    cdef bint is_tail_readable(self) noexcept
    cdef uint64_t resync(
        self, uint64_t offset, uint64_t limit, uint64_t seq, uint64_t count_left, uint64_t* behind) noexcept
    cdef int bridge(self, uint64_t offset, uint64_t behind, uint64_t seq, uint64_t count) except -1
