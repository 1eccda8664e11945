from libc.stdint cimport uint64_t

cimport cython

from pyqd.hot.diskqueue.segment cimport Segment

@cython.final
cdef class SegmentPool:
    cdef readonly object files           # the seam to the operating system
    cdef readonly str directory          # None: anonymous memory, nothing survives the process
    cdef readonly uint64_t segment_bytes_max
    cdef public uint64_t on_the_spot_bytes_max  # no larger segment is made while the caller waits, unless it must be
    cdef public object limit             # SpaceLimit: whether segments may be made, used and kept
    cdef public object jobs              # SegmentJobs: makes, populates, syncs and removes files
    cdef readonly list spares
    cdef readonly uint64_t retiring_bytes  # of drained segments that become spares once they are synced
    cdef readonly uint64_t refill_threshold  # the log calls `refill` when the active segment's tail has reached it
    cdef readonly uint64_t pages_ahead   # bytes that are asked for at a time
    cdef readonly bint populates         # most records are stored through the mapping: pages are prepared
    cdef readonly bint abandoned         # the log's files are gone
    cdef Segment active                  # the log's; None before the log has begun
    cdef uint64_t sealed_bytes           # file sizes of the log's other segments
    cdef uint64_t rolled_bytes           # of the record or batch that the active segment was begun for
    cdef uint64_t file_counter
    cdef int spares_underway             # being prepared or retired
    cdef bint pages_underway
    cdef bint spare_settled              # for the active segment a spare was asked for
    cdef bint short_of_spares            # the last segment was made on the spot, or is larger than the one before

    cdef int resume(self, Segment first, Segment active, list spares, uint64_t file_counter) except -1
    cdef int activate(self, Segment segment) except -1
    cdef Segment next_segment(self, uint64_t span_bytes)
    cdef int replenish(self, bint has_backlog) except -1
    cdef int refill(self) except -1
    cdef bint needs_pages(self) except -1
    cdef int request_pages(self) except -1
    cdef int request_spare(self) except -1
    cdef Segment take_spare(self, uint64_t need_bytes)
    cdef int recycle(self, Segment segment) except -1
    cdef int note_replaced(self, Segment segment, Segment made) except -1
    cdef bint is_recyclable(self, Segment segment) noexcept
    cdef uint64_t cycled_bytes(self) noexcept
    cdef uint64_t size_limit(self) noexcept
    cdef uint64_t next_segment_bytes(self) noexcept
    cdef int abandon(self, Segment active) except -1
