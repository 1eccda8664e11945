from libc.stdint cimport int64_t, uint32_t, uint64_t

from pyqd.hot.diskqueue.log cimport Log
from pyqd.hot.diskqueue.segment cimport Segment
from pyqd.hot.primitives.clock cimport mono_ns
from pyqd.hot.wire.record cimport RECORD_HEADER_BYTES, Record, record_span

cdef uint64_t page_below(uint64_t offset) noexcept
cdef bint is_backlog(Segment segment, uint64_t offset) noexcept

cdef enum:
    KNOWN_RANGES = 8

# Bytes that count as present until a monotonic time.
cdef struct Known:
    const char* start
    const char* end
    int64_t until_ns

cdef class Presence:
    cdef object files                    # the seam to the operating system
    cdef public bint reads               # set by the reader: a thread reads the absent pages
    cdef public Segment absent           # segment of the pages that a thread has to read; None: there are none
    cdef readonly uint64_t absent_start
    cdef readonly uint64_t absent_end
    cdef Known[KNOWN_RANGES] known
    cdef uint32_t newest                 # of them

    cdef inline bint covers(self, const char* start, uint64_t length) noexcept:
        # Return whether bytes lie in the newest range that is known.
        cdef const Known* known = &self.known[self.newest]
        return known.start <= start and start + length <= known.end and mono_ns() < known.until_ns

    cdef inline bint covers_record(self, const Record* record) noexcept:
        # Return whether a record lies in the newest range that is known.
        cdef const Known* known = &self.known[self.newest]
        cdef const char* start = <const char*> record
        return (
            known.start <= start and start + RECORD_HEADER_BYTES <= known.end
            and start + record_span(record.size_bytes) <= known.end and mono_ns() < known.until_ns)

    cdef bint has(self, Segment segment, uint64_t offset, uint64_t length) except -1
    cdef bint has_record(self, Segment segment, uint64_t offset, uint64_t length) except -1
    cdef bint has_record_at(self, Log log, const Record* record) except -1
    cdef bint is_known(self, const char* start, uint64_t length) noexcept
    cdef bint set_known(self, Segment segment, uint64_t start, uint64_t end) except -1
