# Dispatcher of a channel: its consumers, and who gets messages next. Design notes: pyx/broker/dispatcher.pyx.
from libc.stdint cimport uint64_t

from pyqd.hot.broker.consumer cimport Consumer
from pyqd.hot.broker.parking cimport Parking
from pyqd.hot.broker.rate_limit cimport RateLimit
from pyqd.hot.broker.slots cimport ReadyRing
from pyqd.hot.primitives.clock cimport mono_ns
from pyqd.hot.primitives.schedule cimport Scheduler

cdef enum Outcome:
    NONE_READY = 0                       # no consumer can take messages
    SHARED_OUT = 1
    OUT_OF_WORK = 2                      # messages and consumers remain for another run

cdef class Dispatcher:
    cdef Parking parking
    cdef ReadyRing ready
    cdef readonly list consumers         # Consumer
    cdef dict by_number                  # the same, by number
    cdef readonly RateLimit rate_limit   # None: no limit
    cdef uint64_t rotation               # index of the consumer that is tried first in the next run

    cdef inline uint64_t available(self) noexcept:
        # Count the messages that could be delivered now: the depth.
        return self.parking.queued_count() + self.ready.count

    cdef inline uint64_t deliverable(self) noexcept:
        # Count the messages that may be delivered now: the depth, as far as the rate limit allows.
        cdef uint64_t count = self.available()
        if self.rate_limit is not None and count != 0:
            count = min(count, self.rate_limit.available(mono_ns()))
        return count

    cdef int add(self, Consumer consumer) except -1
    cdef int remove(self, Consumer consumer) except -1
    cdef list remove_all(self)
    cdef bint can_dispatch(self) except -1
    cdef Outcome share_out(self, uint64_t depth, Scheduler scheduler) except *
    cdef int serve(self, Consumer consumer, uint64_t quota) except -1
