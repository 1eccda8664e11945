# Moving what is unfinished out of old segments. Design notes: pyx/stragglers.pyx.
from libc.stdint cimport uint8_t, uint64_t

from pyqd.hot.channel cimport ChannelCore
from pyqd.hot.parked cimport Parked
from pyqd.hot.record cimport Record

cdef dict ring_places(ChannelCore channel, uint64_t end, uint8_t source)
cdef int move_one(ChannelCore channel, const Record* record, object place) except -1
cdef dict waiting_slots(Parked parked, const char* start, const char* end)
cdef int copy_parked(ChannelCore channel, const Record* record, object waiting, object place) except -1
