# Ordered segments: append, read in place, roll, recycle, trim, recover. Design notes: pyx/diskqueue/log.pyx.
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

from pyqd.hot.diskqueue.logstart cimport FoundSegments
from pyqd.hot.diskqueue.segment cimport SEGMENT_HEADER_BYTES, Segment, SegmentHeader
from pyqd.hot.primitives.guid cimport GuidFactory
from pyqd.hot.wire.record cimport Record

# Where a reader stands: before the record `ordinal`, which is (or will be) at `offset` of `segment`.
cdef class Position:
    cdef readonly Segment segment
    cdef readonly uint64_t offset
    cdef readonly uint64_t ordinal

cdef class Log:
    cdef readonly object files           # the seam to the operating system
    cdef readonly str directory          # None: anonymous memory, nothing survives the process
    cdef readonly uint64_t segment_bytes_max
    cdef readonly Segment first          # oldest kept; never None once open
    cdef readonly Segment active         # records are appended here
    cdef readonly uint64_t end           # ordinal of the next record
    cdef readonly uint64_t epoch         # in the high bits of every sequence number given out
    cdef public object on_spare_wanted   # called with (log, bytes) when a spare should be made; may be None
    cdef public object on_growing        # called with (log) before a roll, which it refuses by raising; may be None
    cdef public object on_segment_wanted  # called with (log, need, want bytes) without a spare; makes one; may be None
    cdef public object on_retired        # called with (log, Segment) to sync a drained segment's header; may be None
    cdef public object on_dropped        # called with (log, Segment) for a segment no longer needed; may be None
    cdef readonly list spares
    cdef dict indexes                    # number of a segment: SegmentIndex of those who read by position
    cdef readonly list holes             # (ordinal, ordinal) ranges that recovery found missing
    cdef readonly object damage          # DamageReport: what was found damaged here
    cdef readonly bint abandoned         # its files are gone
    cdef readonly bint power_failed      # before this start: what was not synced may be missing
    cdef bint renumber                   # records at the end were lost: their numbers are not given again
    cdef readonly bint closed            # the active segment is of an earlier epoch and takes no more records
    cdef uint64_t end_of_spares          # where the records of the last spare found would have begun
    cdef int spares_underway             # asked for or being retired, and not yet offered
    cdef public object on_pages_wanted   # called with (log, Segment, start, bytes) to have pages present; may be None
    cdef readonly uint64_t mark          # the active segment's tail from which on something is to be asked for
    cdef readonly uint64_t pages_ahead   # bytes that are asked for at a time
    cdef bint pages_underway             # asked for, and not yet there
    cdef bint spare_settled              # the active segment has asked, or need not
    cdef uint64_t file_counter
    cdef uint64_t rolled_bytes           # of the record or batch that the active segment was begun for
    cdef uint64_t batch_word             # first word of the batch's first record; 0 outside a batch
    cdef char* batch_at
    cdef bint in_batch
    cdef bint staged                     # the batch is written by way of `staging`
    cdef uint64_t batch_tail             # the active segment's tail and count, the end, staged_bytes, before the batch
    cdef uint64_t batch_count
    cdef uint64_t batch_end
    cdef uint64_t batch_staged_bytes
    cdef Segment set_aside               # segment of the batch that is set aside; None: there is none
    cdef bint set_aside_staged           # it is written by way of `staging`
    cdef uint64_t staged_bytes           # of the active segment, written and not stored
    cdef readonly bint populates         # most of what is appended is stored, so pages are to be there before
    cdef readonly uint64_t synced_end    # records below are on stable storage, here or in the journal
    cdef readonly uint64_t flushed_end   # records below are on stable storage here

    cdef int reserve(self, uint64_t span_bytes) except -1
    cdef char* append(
        self, uint64_t guid, int64_t timestamp_ns, int64_t due_ns, uint16_t attempts,
        const char* body, uint32_t body_bytes) except NULL
    cdef int begin_batch(self, uint64_t span_bytes) except -1
    cdef bint joins(self, uint64_t span_bytes) noexcept
    cdef int commit_batch(self) except -1
    cdef int abort_batch(self) except -1
    cdef bint stage(self) except -1
    cdef char* append_staged(
        self, uint64_t guid, int64_t timestamp_ns, int64_t due_ns, uint16_t attempts,
        const char* body, uint32_t body_bytes) except NULL
    cdef int flush_batch(self) except -1
    cdef const char* append_frames(self, const char* at, uint32_t count, int64_t now_ns, GuidFactory guids) except NULL
    cdef int make_way(self, uint64_t span_bytes) except -1
    cdef int pass_mark(self) except -1
    cdef bint wants_pages(self) noexcept
    cdef int want_pages(self) except -1
    cdef int take_up(self, FoundSegments found) except -1
    cdef int begin_first(self, bint found, bint exists) except -1
    cdef int begin_epoch(self) except -1
    cdef bint reuse_active(self, uint64_t need_bytes) except -1
    cdef int roll(self, uint64_t span_bytes) except -1
    cdef int follow_with(self, Segment segment) except -1
    cdef Segment take_spare(self, uint64_t need_bytes)
    cdef uint64_t cycled_bytes(self) noexcept
    cdef uint64_t size_limit(self) noexcept
    cdef bint is_recyclable(self, Segment segment) noexcept
    cdef int trim(self, uint64_t floor) except -1
    cdef uint64_t floor_retained(self, uint64_t floor, uint64_t keep_bytes, int64_t keep_since_ns)
    cdef Segment segment_of(self, uint64_t ordinal)
    cdef int mend(self, Segment segment) except -1
