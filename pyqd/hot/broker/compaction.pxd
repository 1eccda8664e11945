# Compaction: moves unfinished messages out of old segments. Design notes: pyx/broker/compaction.pyx.
from libc.stdint cimport int64_t

from pyqd.hot.broker.channel cimport ChannelCore
from pyqd.hot.broker.slots cimport ReadyEntry
from pyqd.hot.wire.record cimport Record

cdef int move_one(ChannelCore channel, const Record* record, ReadyEntry* place) except -1
cdef int copy_parked(ChannelCore channel, const Record* record, int64_t waiting, ReadyEntry* place) except -1
