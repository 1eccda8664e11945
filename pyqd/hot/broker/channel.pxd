from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from pyqd.hot.broker.channel_trace cimport ChannelTrace
from pyqd.hot.broker.consumer cimport Consumer
from pyqd.hot.broker.dead_letters cimport DeadLetterPolicy
from pyqd.hot.broker.deferral cimport Deferral
from pyqd.hot.broker.dispatcher cimport Dispatcher
from pyqd.hot.broker.latency cimport LatencyBuffer
from pyqd.hot.broker.log_cursor cimport LogCursor
from pyqd.hot.broker.readable_log cimport ReadableLog
from pyqd.hot.broker.slots cimport ReadyRing, SlotTable
from pyqd.hot.broker.consumer cimport UnsyncedFins
from pyqd.hot.broker.waits cimport ChannelWaits
from pyqd.hot.diskqueue.ledger cimport Ledger
from pyqd.hot.diskqueue.log cimport Position
from pyqd.hot.primitives.schedule cimport Scheduled

cdef enum Answer:
    DONE = 0
    NOT_IN_FLIGHT = 1
    NOT_OWNER = 2
    BEYOND_LEDGER = 3                    # nothing changed: the ledger has to grow first; see make_finishable

cdef class ChannelCore(Scheduled):
    cdef readonly ReadableLog readable   # of the topic
    cdef readonly Ledger ledger          # of the topic's log
    cdef readonly object files           # ChannelFiles: opens ledgers and notes
    cdef LogCursor cursor
    cdef SlotTable slots                 # in flight
    cdef ReadyRing ready                 # returned, waiting for redelivery
    cdef readonly Deferral deferral
    cdef readonly DeadLetterPolicy dead_letters
    cdef Dispatcher dispatcher
    cdef readonly ChannelWaits waits
    cdef int64_t max_msg_timeout_ns
    cdef readonly uint64_t memory_count_max   # --mem-queue-size: messages beyond it count as backend depth
    cdef public object on_finished       # --sync-fin: called with the channel when FINs wait for a sync; else None
    cdef readonly UnsyncedFins unsynced_fins
    cdef public LatencyBuffer latency    # None unless percentiles are asked for
    cdef readonly bint ephemeral
    cdef public bint exiting
    cdef public Ledger cancelled         # records of the topic's log that a seek leaves out; None: there are none
    cdef readonly ChannelTrace trace     # None: the channel is not traced

    cdef bint is_due_present(self) except -1
    cdef bint release_next(self, int64_t wall_now_ns) except -1
    cdef int see_dues(self) except -1
    cdef bint make_room_to_cancel(self, uint64_t ordinal) except -1
    cdef bint grow_for(self, Ledger ledger, uint64_t ordinal) except -1
    cdef int finish(self, Consumer consumer, uint64_t guid) except -1
    cdef int make_finishable(self, uint64_t guid) except -1
    cdef int requeue_slot(self, Consumer consumer, uint32_t slot, int64_t delay_ns) except -1
    cdef int requeue_traced(self, Consumer consumer, uint32_t slot, int64_t delay_ns) except -1
    cdef uint64_t unfinished_count(self) noexcept
    cdef int requeue(self, Consumer consumer, uint64_t guid, int64_t delay_ns) except -1
    cdef int touch(self, Consumer consumer, uint64_t guid, int64_t now_ns) except -1
    cdef int expire(self, int64_t now_ns) except -1
    cdef int release_due(self, int64_t wall_now_ns) except -1
    cdef int set_next_timer(self, int64_t now_ns) except -1
    cdef int drop_excess(self) except -1
    cdef int finish_newest(self, uint64_t count) except -1
    cdef int note_gone(self) except -1
    cdef int share_out(self, uint64_t delivered_before) except -1
    cdef bint sort_rest(self) except -1
    cdef int publish_dead_letters(self) except -1
    cdef int note_dead_letters_finished(self, uint32_t count) except -1
    cdef int forget_deliveries(self) except -1
    cdef int start_over(self, Position position) except -1
