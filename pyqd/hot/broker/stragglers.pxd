# Moving what is unfinished out of old segments. Design notes: pyx/broker/stragglers.pyx.
from pyqd.hot.broker.channel cimport ChannelCore
from pyqd.hot.broker.parked cimport Parked
from pyqd.hot.wire.record cimport Record

cdef int move_one(ChannelCore channel, const Record* record, object place) except -1
cdef int copy_parked(ChannelCore channel, const Record* record, object waiting, object place) except -1
