# A channel with limits: of its rate, and of a message's attempts. Design notes: pyx/broker/limited.pyx.
from libc.stdint cimport int64_t, uint16_t, uint32_t

from pyqd.hot.broker.channel cimport ChannelCore
from pyqd.hot.broker.ratelimit cimport TokenBucket
from pyqd.hot.broker.slots cimport ReadyEntry, ReadyRing

cdef class LimitedChannel(ChannelCore):
    cdef readonly TokenBucket bucket     # None: no limit of the rate
    cdef bint throttled                  # a turn left messages for want of tokens: the timer asks for the next
    cdef readonly uint16_t attempts_max  # a message delivered so often is a dead letter; 0: none ever is
    cdef ReadyRing doomed                # dead letters that are still to be published
    cdef ReadyRing buried                # published, and to be finished here once a sync has covered that
    cdef readonly object burials         # deque of (topic, ordinal there), one for each entry of `buried`
    cdef int64_t bury_again_ns           # monotonic; not before, as it failed last time

    cdef uint32_t doomed_unsorted        # of the first of `doomed`: whether they are is said by an earlier limit
    cdef uint32_t ready_unsorted         # likewise of the first of `ready`

    cdef bint sort_some(self) except -1
    cdef bint sort_rest(self) except -1
    cdef int bury(self) except -1
    cdef int finish_buried(self, const ReadyEntry* entry) except -1
    cdef int put_off(self, reason) except -1
