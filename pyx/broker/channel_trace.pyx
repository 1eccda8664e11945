"""Trace events of a channel: the acts of its consumers, timeouts and settings on messages.

The channel calls it before an act that cannot fail, or after the act (see pyx/broker/trace.pyx, "Order").

A client that leaves has an event for each of its messages in flight. No table has the messages of a client, and a
search for them passes over all slots of the channel: for 400 clients that leave with a million slots, 400 times. So
one search finds the messages of all clients that left before it, in slices, in the channel's runs. A message that times
out before the search comes to it has both events then.
"""

cimport cython

from pyqd.hot.broker.trace cimport TraceClient
from pyqd.hot.primitives.clock cimport NS_PER_MS, wall_ns
from pyqd.hot.wire.trace_events cimport CLIENT_GONE, DROPPED, REASON_SEEK, REQUEUED, STORED, TIMED_OUT


# Work of passing over a slot, and of an event, in units of the scheduler's budget.
cdef enum:
    SLOT_WORK = 8
    EVENT_WORK = 64
    SLOTS_AT_ONCE = 1024


@cython.final
cdef class ChannelTrace:
    """Trace events of one channel. place: the channel in the trace."""

    def __init__(self, TracePlace place not None):
        self.place = place
        self.gone = {}
        self.searched = {}

    cdef int requeued(self, Consumer consumer, const Slot* held, int64_t delay_ns) except -1:
        """Add the event of a REQ; `TraceLog.take_back` removes it if the REQ fails."""
        assert delay_ns >= 0
        return self.place.note(
            REQUEUED, held.record.guid, held.attempts, <uint32_t> min(delay_ns // NS_PER_MS, <int64_t> 0xFFFFFFFF),
            consumer.traced_client(), consumer.acted_ns or wall_ns())

    cdef int timed_out(self, Consumer consumer, uint32_t slot, const Slot* held) except -1:
        """Add the event of a timeout. consumer: None if it has left."""
        cdef int64_t now_ns = wall_ns()
        cdef TraceClient left
        assert consumer is None or consumer.number == held.consumer
        if consumer is not None:
            return self.place.repeat(TIMED_OUT, held.record.guid, held.attempts, consumer.traced_client(), now_ns)
        if self.has_gone():
            left = self.gone.get(held.consumer)
            if left is None and slot >= self.searched_to:
                left = self.searched.get(held.consumer)
            if left is not None:
                self.place.repeat(CLIENT_GONE, held.record.guid, held.attempts, left, now_ns)
        return self.place.repeat(TIMED_OUT, held.record.guid, held.attempts, None, now_ns)

    cdef int note_leaving(self, Consumer consumer) except -1:
        """Note that a client leaves; `note_gone` adds the events of its messages in flight."""
        if consumer.in_flight > 0:
            self.gone[consumer.number] = consumer.traced_client()
        return 0

    cdef int note_gone(self, SlotTable slots, Scheduler scheduler) except -1:
        """Add the events of clients that have left, until the work budget is used up. scheduler: None: all now."""
        cdef uint32_t end
        cdef int event_count
        while self.has_gone():
            if len(self.searched) == 0:
                self.searched, self.gone, self.searched_to = self.gone, {}, 0
            end = min(slots.capacity, self.searched_to + SLOTS_AT_ONCE)
            event_count = self.search(slots, end)
            self.searched_to = end
            if end == slots.capacity:
                self.searched = {}
            if scheduler is not None and not scheduler.spend(SLOTS_AT_ONCE * SLOT_WORK + event_count * EVENT_WORK):
                break
        return 0

    cdef int search(self, SlotTable slots, uint32_t end) except -1:
        """Search the slots up to `end` for messages of clients that have left. Returns: the number of events."""
        cdef const Slot* held
        cdef uint32_t slot
        cdef int count = 0
        cdef uint64_t number = 0
        cdef TraceClient left = None
        cdef int64_t now_ns = wall_ns()
        for slot in range(self.searched_to, end):
            held = slots.used(slot)
            if held == NULL:
                continue
            if held.consumer != number:
                number = held.consumer
                left = self.searched.get(number)
            if left is not None:
                self.place.repeat(CLIENT_GONE, held.record.guid, held.attempts, left, now_ns)
                count += 1
        return count

    cdef int dropped(self, const ReadyEntry* entry, uint32_t reason) except -1:
        """Add the event of a message that was finished and delivered to no client."""
        assert reason != 0, "each dropped message has a reason"
        return self.place.note(DROPPED, entry.record.guid, entry.attempts, reason, None, wall_ns())

    cdef int dropped_many(self, uint32_t reason, uint64_t count) except -1:
        """Add one event for `count` messages that were dropped together."""
        return self.place.note_many(DROPPED, 0, reason, count, wall_ns())

    def moved(self, uint64_t guid, uint64_t dropped_count, uint64_t stored_count):
        """Add the events of a seek to after the message with that id. stored_count: messages that come again."""
        cdef int64_t now_ns = wall_ns()
        self.place.note_many(DROPPED, guid, REASON_SEEK, dropped_count, now_ns)
        self.place.note_many(STORED, guid, REASON_SEEK, stored_count, now_ns)
