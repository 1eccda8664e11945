# A channel: hand out, finish, time out, requeue. Design notes: pyx/broker/channel.pyx.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from pyqd.hot.broker.consumer cimport Consumer
from pyqd.hot.broker.cursor cimport ChannelCursor
from pyqd.hot.broker.latency cimport LatencyBuffer
from pyqd.hot.broker.slots cimport ReadyEntry, ReadyRing, SlotTable
from pyqd.hot.diskqueue.ledger cimport Ledger
from pyqd.hot.diskqueue.log cimport Position
from pyqd.hot.wire.record cimport Record

cdef enum Answer:
    DONE = 0
    NOT_IN_FLIGHT = 1
    NOT_OWNER = 2
    BEYOND_LEDGER = 3                    # nothing changed: the ledger has to grow first; see make_finishable

cdef struct Delivery:
    const Record* record                 # readable until the next greenlet switch
    uint16_t attempts                    # this delivery included

cdef class ChannelCore(ChannelCursor):
    cdef SlotTable slots
    cdef ReadyRing ready
    cdef bint ready_turn                 # the next message comes from the ring, if it has one
    cdef bint held_back                  # one in the ring waits for another with its id, which is in flight
    cdef readonly list consumers         # Consumer
    cdef dict consumer_of                # the same, by number
    cdef uint64_t rotation               # who is asked first in the next turn
    cdef int64_t max_msg_timeout_ns
    cdef readonly uint64_t memory_count_max   # --mem-queue-size: what is beyond counts as backend depth
    cdef public object on_finished       # --sync-fin: called with the channel when FINs wait for a sync; else None
    cdef list unsynced                   # consumers with FINs that no sync under way covers
    cdef public LatencyBuffer latency    # None unless percentiles are asked for
    cdef readonly bint ephemeral
    cdef readonly uint64_t delivered_count    # since the start, each delivery of a message
    cdef readonly uint64_t zone_local_count   # of them to clients in the daemon's zone
    cdef readonly uint64_t region_local_count # to others in its region
    cdef public bint exiting
    cdef public Ledger cancelled         # records of the topic's log that a seek leaves out; None: there are none

    cdef uint64_t available(self) noexcept
    cdef int take(self, Consumer consumer, int64_t now_ns, Delivery* delivery) except -1
    cdef int finish(self, Consumer consumer, uint64_t guid) except -1
    cdef int count_until_synced(self, Consumer consumer) except -1
    cdef int make_finishable(self, uint64_t guid) except -1
    cdef bint is_copy(self, const ReadyEntry* entry) noexcept
    cdef bint try_finish(self, const ReadyEntry* entry) except -1
    cdef int requeue(self, Consumer consumer, uint64_t guid, int64_t delay_ns) except -1
    cdef int touch(self, Consumer consumer, uint64_t guid, int64_t now_ns) except -1
    cdef int ask_for_another_turn(self, uint64_t depth, uint64_t delivered_before) except -1
    cdef int expire(self, int64_t now_ns) except -1
    cdef int release_due(self, int64_t wall_now_ns) except -1
    cdef int drop_excess(self) except -1
    cdef int drop_beyond(self) except -1
    cdef int forget_deliveries(self) except -1
    cdef int start_over(self, Position position) except -1
    # What a limit of the channel's bears on: pyx/broker/limited.pyx.
    cdef uint64_t deliverable(self) noexcept
    cdef int serve(self, Consumer consumer, uint64_t quota) except -1
    cdef bint is_spent(self, uint16_t attempts) noexcept
    cdef int give_back(self, const Record* record, uint16_t attempts, uint8_t source) except -1
