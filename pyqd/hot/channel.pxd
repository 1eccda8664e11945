# A channel: hand out, finish, time out, requeue, park. Design notes: pyx/channel.pyx.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint64_t

from pyqd.hot.consumer cimport Consumer
from pyqd.hot.feed cimport Feed
from pyqd.hot.ledger cimport Ledger
from pyqd.hot.parked cimport Parked
from pyqd.hot.record cimport Record
from pyqd.hot.schedule cimport Scheduled
from pyqd.hot.segment cimport Segment
from pyqd.hot.slots cimport ReadyRing, SlotTable

cdef enum Answer:
    DONE = 0
    NOT_IN_FLIGHT = 1
    NOT_OWNER = 2

cdef struct Delivery:
    const Record* record                 # readable until the next greenlet switch
    uint16_t attempts                    # this delivery included

cdef class ChannelCore(Scheduled):
    cdef readonly Feed feed
    cdef readonly Ledger ledger
    cdef Segment segment                 # of the cursor
    cdef uint64_t offset                 # of the cursor in it
    cdef SlotTable slots
    cdef ReadyRing ready
    cdef uint64_t unsettled_ahead        # parked and not settled, at or past the cursor; see pyx/parked.pyx
    cdef public bint parks_durably       # what is parked is settled by whoever syncs, not at once
    cdef bint ready_turn                 # the next message comes from the ring, if it has one
    cdef public object parked            # Parked, or None until something is
    cdef readonly list consumers         # Consumer
    cdef uint64_t rotation               # who is asked first in the next turn
    cdef int64_t max_msg_timeout_ns
    cdef readonly uint64_t memory_count_max   # --mem-queue-size: what is beyond counts as backend depth
    cdef readonly bint ephemeral
    cdef public bint exiting

    cdef uint64_t available(self) noexcept
    cdef int take(self, Consumer consumer, int64_t now_ns, Delivery* delivery) except -1
    cdef const Record* take_at_cursor(self) except? NULL
    cdef bint cursor_is_sound(self, const Record* record) except -1
    cdef int leave_drained(self) except -1
    cdef int note_drained(self) except -1
    cdef int note_cursor(self) except -1
    cdef int finish(self, Consumer consumer, uint64_t guid) except -1
    cdef int requeue(self, Consumer consumer, uint64_t guid, int64_t delay_ns) except -1
    cdef int touch(self, Consumer consumer, uint64_t guid, int64_t now_ns) except -1
    cdef int reach(self, const Record* record, uint8_t source) except -1
    cdef int finish_record(self, const Record* record, uint8_t source) except -1
    cdef bint step_over_deferred(self, const Record* record) except -1
    cdef int settle_unless_durable(self) except -1
    cdef int settle_in(self, Ledger ledger, uint64_t ordinal) except -1
    cdef int park(self, const Record* record, uint8_t source, uint16_t attempts, int64_t due_ns) except -1
    cdef int prepare_park(self, uint64_t span_bytes, uint64_t ordinal) except -1
    cdef bint try_park_published(self, const Record* record) except -1
    cdef int park_published(self, const Record* record) except -1
    cdef bint is_parked(self, const Record* record) noexcept
    cdef int ask_for_another_turn(self, uint64_t depth) except -1
    cdef int expire(self, int64_t now_ns) except -1
    cdef int release_due(self, int64_t wall_now_ns) except -1
    cdef int set_next_timer(self, int64_t now_ns) except -1
    cdef int drop_excess(self) except -1
