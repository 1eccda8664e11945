# Moving what is unfinished out of old segments. Design notes: pyx/stragglers.pyx.
from pyqd.hot.channel cimport ChannelCore
from pyqd.hot.parked cimport Parked
from pyqd.hot.record cimport Record

cdef int move_one(ChannelCore channel, const Record* record, object place) except -1
cdef int copy_parked(ChannelCore channel, const Record* record, object waiting, object place) except -1
