# What a topic shows its channels. Design notes: pyx/feed.pyx.
from libc.stdint cimport int64_t, uint64_t

from pyqd.hot.log cimport Log
from pyqd.hot.schedule cimport Scheduled, Scheduler
from pyqd.hot.segment cimport Segment

cdef class Feed(Scheduled):
    cdef readonly Log log
    cdef readonly Scheduler scheduler
    cdef readonly uint64_t end           # ordinal; records below have been handed to the channels
    cdef Segment watched                 # the first that some channel has not finished, as of the last trim
    cdef bint trim_wanted                # a channel has moved past it
