from libc.stdint cimport int64_t, uint32_t, uint64_t

from pyqd.hot.broker.consumer cimport Consumer
from pyqd.hot.broker.slots cimport ReadyEntry, Slot, SlotTable
from pyqd.hot.broker.trace cimport TracePlace
from pyqd.hot.primitives.clock cimport wall_ns
from pyqd.hot.primitives.schedule cimport Scheduler
from pyqd.hot.wire.trace_events cimport SENT, Kind

cdef class ChannelTrace:
    cdef readonly TracePlace place
    cdef int64_t mono_ns                 # this and the next: time of the last traced delivery, by both clocks
    cdef int64_t wall_ns
    cdef dict gone                       # TraceClient by number: clients that left with messages in flight
    cdef dict searched                   # those whose messages are being searched
    cdef uint32_t searched_to            # slots before it have been searched for them

    cdef inline bint has_gone(self) noexcept:
        # Return whether events of clients that have left are missing.
        return len(self.gone) != 0 or len(self.searched) != 0

    cdef inline int sent(self, Consumer consumer, const ReadyEntry* entry, int64_t now_ns) except -1:
        # Add the event of a delivery. now_ns: monotonic.
        if self.mono_ns != now_ns:
            # One time for all deliveries of a run: reading the clock costs as much as the rest of the event.
            self.mono_ns, self.wall_ns = now_ns, wall_ns()
        if consumer.traced is None:
            consumer.traced_client()
        return self.place.repeat(SENT, entry.record.guid, entry.attempts + 1, consumer.traced, self.wall_ns)

    cdef inline int note(self, Kind kind, Consumer consumer, const Slot* held) except -1:
        # Add the event of a consumer's command on a message in flight. kind: in REPEATED_KINDS.
        if consumer.traced is None:
            consumer.traced_client()
        return self.place.repeat(
            kind, held.record.guid, held.attempts, consumer.traced, consumer.acted_ns or wall_ns())

    cdef int requeued(self, Consumer consumer, const Slot* held, int64_t delay_ns) except -1
    cdef int timed_out(self, Consumer consumer, uint32_t slot, const Slot* held) except -1
    cdef int note_leaving(self, Consumer consumer) except -1
    cdef int note_gone(self, SlotTable slots, Scheduler scheduler) except -1
    cdef int search(self, SlotTable slots, uint32_t end) except -1
    cdef int dropped(self, const ReadyEntry* entry, uint32_t reason) except -1
    cdef int dropped_many(self, uint32_t reason, uint64_t count) except -1
