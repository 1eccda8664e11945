from libc.stdint cimport int64_t, uint16_t, uint32_t

from pyqd.hot.broker.deferral cimport Deferral
from pyqd.hot.broker.slots cimport ReadyEntry, ReadyRing
from pyqd.hot.broker.trace cimport TracePlace
from pyqd.hot.primitives.schedule cimport Scheduler
from pyqd.hot.wire.record cimport Record

cdef class DeadLetterPolicy:
    cdef readonly uint16_t attempts_max  # a message delivered this often is a dead letter; 0: no limit
    cdef readonly object target          # DeadLetterTarget: finds the topic for dead letters, and logs
    cdef Deferral deferral               # the channel's; has their notes, and the cursor that finishes them
    cdef public bint durable             # a message is finished when a sync has covered its dead letter
    cdef ReadyRing ready                 # the channel's messages for redelivery
    cdef ReadyRing pending               # dead letters not yet published
    cdef ReadyRing unsynced              # published; finished in the channel when a sync has covered the dead letter
    cdef object copies                   # deque of (topic, ordinal there), one for each entry of `unsynced`
    cdef int64_t retry_ns                # monotonic; nothing is published before
    cdef uint32_t pending_unsorted       # first entries of `pending` that an earlier limit has put there
    cdef uint32_t ready_unsorted         # likewise of `ready`
    cdef TracePlace trace                # of the channel; None: it is not traced

    cdef inline bint is_spent(self, uint16_t attempts) noexcept:
        # Return True if a message has been delivered often enough to be a dead letter.
        return self.attempts_max != 0 and attempts >= self.attempts_max

    cdef inline bint is_sorted(self) noexcept:
        return self.pending_unsorted + self.ready_unsorted == 0

    cdef int add_returned(self, const Record* record, uint16_t attempts, uint32_t note) except -1
    cdef int change_limit(self, uint16_t attempts_max) except -1
    cdef bint sort_some(self, Scheduler scheduler) except -1
    cdef object topic_for(self, int64_t now_ns)
    cdef bint may_publish(self) noexcept
    cdef uint32_t publish_some(self, topic, int64_t now_ns) except? 0
    cdef tuple publish_first(self, topic)
    cdef int finish_round(self, int64_t now_ns, topic, list letters, error) except -1
    cdef uint32_t finish_synced(self) except? 0
    cdef bint take_synced(self, ReadyEntry* entry) except -1
    cdef int finish_message(self, const ReadyEntry* entry) except -1
    cdef int clear(self) except -1
