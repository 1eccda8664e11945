from libc.stdint cimport int64_t, uint32_t, uint64_t

from pyqd.hot.broker.channel_trace cimport ChannelTrace
from pyqd.hot.broker.consumer cimport Consumer, Delivery
from pyqd.hot.broker.deferral cimport Deferral
from pyqd.hot.broker.log_cursor cimport LogCursor
from pyqd.hot.broker.rate_limit cimport RateLimit
from pyqd.hot.broker.slots cimport ReadyEntry, ReadyRing, SlotTable
from pyqd.hot.broker.waits cimport ChannelWaits
from pyqd.hot.diskqueue.presence cimport Presence
from pyqd.hot.diskqueue.segment cimport Segment
from pyqd.hot.primitives.clock cimport mono_ns
from pyqd.hot.primitives.schedule cimport Scheduler
from pyqd.hot.wire.record cimport Record

cdef enum Outcome:
    NONE_READY = 0                       # no consumer can take messages
    SHARED_OUT = 1
    OUT_OF_WORK = 2                      # messages and consumers remain for another run

cdef class Dispatcher:
    cdef LogCursor cursor
    cdef Deferral deferral
    cdef SlotTable slots                 # in flight
    cdef ReadyRing ready                 # returned messages
    cdef ChannelWaits waits
    cdef readonly list consumers         # Consumer
    cdef dict by_number                  # the same, by number
    cdef readonly RateLimit rate_limit   # None: no limit
    cdef ChannelTrace trace              # None: the channel is not traced
    cdef Presence returned_presence      # of the pages of the oldest returned message; None: not needed yet
    cdef bint ready_next                 # the next message is a returned one, if there is one
    cdef bint passes_more                # the cursor has passed many deferred records, and goes on in another run
    cdef bint held_back                  # a returned message waits for another with its id, which is in flight
    cdef uint64_t rotation               # index of the consumer that is tried first in the next run
    cdef uint64_t delivered_count        # since the start, each delivery of a message
    cdef uint64_t zone_local_count       # of them to clients in the daemon's zone
    cdef uint64_t region_local_count     # to others in its region

    cdef inline uint64_t available(self) noexcept:
        # Count the messages that could be delivered now: the depth.
        return self.cursor.queued_count() + self.ready.count

    cdef inline uint64_t deliverable(self) noexcept:
        # Count the messages that may be delivered now: the depth, as far as the rate limit allows.
        cdef uint64_t count = self.available()
        if self.rate_limit is not None and count != 0:
            count = min(count, self.rate_limit.available(mono_ns()))
        return count

    # Take.
    cdef const Record* take_fresh(self) except? NULL
    cdef bint waits_for_pages(self) except -1
    cdef int read_ahead(self) except -1
    cdef int read_in(self) except -1
    cdef bint can_return(self) except -1
    cdef bint must_wait(self, const ReadyEntry* entry) except -1
    cdef bint waits_for_window(self, const Record* record) except -1
    cdef int take(self, Consumer consumer, int64_t now_ns, Delivery* delivery) except -1
    cdef int note_delivered(self, Consumer consumer, const ReadyEntry* entry, int64_t now_ns) except -1
    cdef int note_attempts(self, const ReadyEntry* entry) except -1
    cdef bint is_copy(self, const ReadyEntry* entry) noexcept
    cdef bint try_finish(self, const ReadyEntry* entry, uint32_t reason) except -1

    # Share out.
    cdef int add(self, Consumer consumer) except -1
    cdef int remove(self, Consumer consumer) except -1
    cdef list remove_all(self)
    cdef bint can_dispatch(self) except -1
    cdef Outcome share_out(self, uint64_t depth, Scheduler scheduler) except *
    cdef int serve(self, Consumer consumer, uint64_t quota) except -1
    cdef int run(self, Consumer consumer, uint64_t quota) except -1
    cdef int put_taken(self, Consumer consumer, uint64_t quota) except -1
