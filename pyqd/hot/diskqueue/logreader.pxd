from libc.stdint cimport int64_t, uint32_t, uint64_t

from pyqd.hot.diskqueue.log cimport Log
from pyqd.hot.diskqueue.presence cimport Presence
from pyqd.hot.diskqueue.segment cimport Segment
from pyqd.hot.wire.record cimport Record

cdef struct Mark:
    uint64_t ordinal
    uint64_t offset                      # of its record in the segment
    int64_t timestamp_ns
    uint64_t guid                        # of its record; if that is lost, of one before

# Offsets of some records of a segment, as far as it has been walked.
cdef class SegmentIndex:
    cdef Mark* marks                     # owned; by ordinal
    cdef uint32_t count
    cdef uint32_t capacity
    cdef uint64_t offset                 # the walk has come so far ...
    cdef uint64_t ordinal                # ... which is before this record
    cdef int64_t timestamp_ns            # of the record before; 0: none yet
    cdef uint64_t guid                   # the greatest before; 0: none yet
    cdef bint broken                     # no valid record at the walk's place; the rest cannot be read
    cdef bint unmended                   # broken, or ids are out of order, and the segment may be mended yet

    cdef int extend(self, Segment segment, uint64_t limit_bytes) except -1
    cdef int add_mark(self, const Record* record) except -1
    cdef bint complete(self, Segment segment) noexcept
    cdef const Mark* mark_before(self, uint64_t ordinal, uint64_t guid) noexcept
    cdef const Mark* mark_before_time(self, int64_t time_ns) noexcept

cdef const Record* record_at(Segment segment, uint64_t offset, uint64_t ordinal) noexcept
cdef uint64_t first_guid(Segment segment) noexcept

cdef class LogReader:
    cdef readonly Log log
    cdef Presence asked                  # None until pages are asked for: a topic that nobody reads needs none

    cdef SegmentIndex index_of(self, Segment segment)
    cdef Segment segment_of_guid(self, uint64_t guid)
    cdef const Record* first_from(self, Segment segment, uint64_t guid) except? NULL
    cdef const Record* find(self, uint64_t guid) except? NULL
    cdef Segment segment_at_time(self, int64_t time_ns)
    cdef Presence begin(self)
    cdef bint extend(self, SegmentIndex index, Segment segment) except -1
    cdef bint has_place(self, Segment segment, uint64_t ordinal, uint64_t length) except -1
    cdef uint64_t offset_of(self, Segment segment, uint64_t ordinal, uint64_t* found) except 0
