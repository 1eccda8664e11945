from libc.stdint cimport int64_t, uint32_t, uint64_t

from pyqd.hot.diskqueue.batchwriter cimport BatchWriter
from pyqd.hot.diskqueue.logstart cimport FoundSegments
from pyqd.hot.diskqueue.segment cimport SEGMENT_HEADER_BYTES, Segment, SegmentHeader
from pyqd.hot.diskqueue.segmentpool cimport SegmentPool
from pyqd.hot.wire.record cimport ORDINAL_BITS, Record

# Place of a reader: before the record `ordinal`, which is (or will be) at `offset` of `segment`.
cdef class Position:
    cdef readonly Segment segment
    cdef readonly uint64_t offset
    cdef readonly uint64_t ordinal

cdef class Log:
    cdef readonly object files           # the seam to the operating system
    cdef readonly str directory          # None: anonymous memory, nothing survives the process
    cdef readonly Segment first          # oldest kept; never None once open
    cdef readonly Segment active         # records are appended here
    cdef readonly uint64_t end           # ordinal of the next record
    cdef readonly uint64_t epoch         # in the high bits of every sequence number given out
    cdef readonly SegmentPool pool       # supplies segments
    cdef readonly BatchWriter batch      # writes batches
    cdef dict indexes                    # by number of a segment: SegmentIndex, for reads by position
    cdef readonly list holes             # (ordinal, ordinal) ranges that recovery found missing
    cdef readonly list replaced_files    # paths of files whose place a rewritten one has: until they are removed
    cdef readonly object damage          # DamageReport: damage found here
    cdef readonly bint abandoned         # its files are gone
    cdef readonly bint power_failed      # before this start: unsynced records may be missing
    cdef readonly bint closed            # the active segment is of an earlier epoch and takes no more records
    cdef bint renumber                   # records at the end were lost: their numbers are not given again
    cdef uint64_t end_of_spares          # ordinal at which the last spare found would have begun
    cdef readonly uint64_t synced_end    # records below are on stable storage, here or in the journal
    cdef readonly uint64_t flushed_end   # records below are on stable storage here

    cdef inline uint64_t next_seq(self) noexcept:
        # Return the sequence number of the next record, for which space is reserved.
        return (self.epoch << ORDINAL_BITS) | self.end

    cdef int reserve(self, uint64_t span_bytes) except -1
    cdef char* append(
        self, uint64_t guid, int64_t timestamp_ns, int64_t due_ns, const char* body, uint32_t body_bytes) except NULL
    cdef int begin_batch(self, uint64_t span_bytes, bint may_stage=*) except -1
    cdef int commit_batch(self) except -1
    cdef bint resume_batch(self) except -1
    cdef int resume(self, FoundSegments found) except -1
    cdef int begin_first(self, bint found, bint exists) except -1
    cdef int begin_epoch(self) except -1
    cdef bint reuse_active(self, uint64_t need_bytes) except -1
    cdef int roll(self, uint64_t span_bytes) except -1
    cdef int continue_in(self, Segment segment) except -1
    cdef int trim(self, uint64_t floor) except -1
    cdef uint64_t floor_retained(self, uint64_t floor, uint64_t keep_bytes, int64_t keep_since_ns)
    cdef int replace(self, list segments, Segment made) except -1
    cdef Segment segment_of(self, uint64_t ordinal)
    cdef int mend(self, Segment segment) except -1
