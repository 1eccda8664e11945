# Moving what is unfinished out of old segments. Design notes: pyx/stragglers.pyx.
from libc.stdint cimport uint64_t

from pyqd.hot.channel cimport ChannelCore
from pyqd.hot.record cimport Record

cdef dict ring_places(ChannelCore channel, uint64_t end)
cdef int move_one(ChannelCore channel, const Record* record, object place) except -1
