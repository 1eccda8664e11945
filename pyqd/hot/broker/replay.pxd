from libc.stdint cimport uint64_t

from pyqd.hot.broker.channel cimport ChannelCore
from pyqd.hot.diskqueue.log cimport Log, Position
from pyqd.hot.diskqueue.segment cimport Segment

cdef class SeekPlace:
    cdef ChannelCore channel
    cdef uint64_t change_count           # of the channel's list of cancelled messages
    cdef Position position               # of the target; None before the first step
    cdef uint64_t count                  # deferred messages from the target to the walk's place
    cdef Segment segment                 # of that place
    cdef uint64_t offset
    cdef uint64_t ordinal
    cdef uint64_t number                 # the segment's, when it was entered; another one: it was recycled
    cdef uint64_t first_number           # the same of the target's segment
    cdef readonly uint64_t begun_count   # how often the count has begun

    cdef bint is_kept(self, Log log) noexcept
    cdef bint is_left_out(self, uint64_t ordinal) noexcept

cdef uint64_t missing_in(Log log, uint64_t start, uint64_t end) except? <uint64_t> -1
