# Looking at the messages of a channel. Design notes: pyx/broker/peek.pyx.
from libc.stdint cimport int64_t, uint64_t

from pyqd.hot.broker.channel cimport ChannelCore
from pyqd.hot.broker.readable_log cimport ReadableLog
from pyqd.hot.diskqueue.log cimport Log
from pyqd.hot.diskqueue.segment cimport Segment
from pyqd.hot.wire.record cimport Record

# The first records of a channel in order of (due time, slot), behind a place in that order.
cdef class DeferredSearch:
    cdef readonly ChannelCore channel
    cdef int64_t after_due_ns
    cdef int64_t after_slot
    cdef uint64_t count_max
    cdef list best                       # (due_ns, slot) in order; while slots are read: a heap of (-due_ns, -slot)
    cdef int64_t worst_due_ns            # of the best, once there are enough; others need not be looked at
    cdef int64_t worst_slot
    cdef uint64_t next_slot
    cdef bint reading_slots
    cdef bint is_found                   # `best` is the page
    cdef uint64_t present_count          # its first records that are in memory, or were read

    cdef bint step_near(self) except -1
    cdef int add_slot(self, uint64_t slot) except -1

# Walk over the records of a log that a channel, if there is one, has not been given.
cdef class QueueWalk:
    cdef ReadableLog readable
    cdef readonly ChannelCore channel    # None: all that the topic holds
    cdef readonly uint64_t ordinal       # the walk goes on here
    cdef readonly list rows
    cdef uint64_t free_bytes             # of bodies that still fit in the page

    cdef bint is_at_cursor(self, Segment segment) noexcept
    cdef uint64_t end(self) noexcept
    cdef bint skips(self, const Record* record) except -1
    cdef uint64_t next_unfinished(self, uint64_t ordinal) noexcept
