# What a topic shows its channels. Design notes: pyx/broker/feed.pyx.
from libc.stdint cimport int64_t, uint64_t

from pyqd.hot.diskqueue.log cimport Log, Position
from pyqd.hot.diskqueue.segment cimport Segment
from pyqd.hot.primitives.schedule cimport Scheduled, Scheduler

cdef class Feed(Scheduled):
    cdef readonly Log log
    cdef readonly Scheduler scheduler
    cdef readonly uint64_t end           # ordinal; records below have been handed to the channels
    cdef Segment watched                 # the first that some channel has not finished, as of the last trim
    cdef bint trim_wanted                # a channel has moved past it
    cdef readonly set parking            # channels with parked records whose origins are not settled
    cdef Position held                   # of `end`, while messages are held; None: not looked for yet, or none are held
    cdef uint64_t deferred_count         # records with a due time that channels were shown since the start
    cdef bint all_lag                    # every channel knows where it goes on parking; see pyx/broker/cursor.pyx

    cdef int note_held(self) except -1
