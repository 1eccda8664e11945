from libc.stdint cimport uint64_t

from pyqd.hot.diskqueue.segment cimport Segment

cdef class FoundSegments:
    cdef object files
    cdef object directory
    cdef object damage
    cdef bint power_failed
    cdef uint64_t known_end              # an earlier run had the records below it; 0: unknown
    cdef uint64_t last_guid              # of the last of them; 0: unknown
    cdef Segment first                   # None if there is none
    cdef Segment last                    # records are appended here
    cdef uint64_t end                    # ordinal behind its records
    cdef uint64_t end_of_spares          # sequence number at which the last spare found would have begun
    cdef bint renumber                   # records at the end were lost: their numbers are not given again
    cdef uint64_t file_counter           # above the names that are numbers; 0: there is none
    cdef list spares
    cdef list holes                      # (ordinal, ordinal) ranges that are missing
    cdef list replaced_files             # paths of superseded files that could not be removed

    cdef int load_segments(self) except -1
    cdef Segment load_segment(self, str name)
    cdef list without_superseded(self, list segments)
    cdef int open_segment(self, Segment segment, Segment following) except -1
    cdef uint64_t end_known_from(self, Segment segment) noexcept
    cdef int report_end(self) except -1
    cdef bint continues(self, Segment segment, Segment following) noexcept
    cdef bint make_spare_durable(self, Segment segment) except -1
    cdef int chain(self, list segments) except -1
