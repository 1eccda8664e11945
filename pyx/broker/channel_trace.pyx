"""Trace events of a channel: the acts of its consumers, timeouts and settings on messages.

The channel calls it before an act that cannot fail, or after the act (see pyx/broker/trace.pyx, "Order").
"""

cimport cython

from pyqd.hot.primitives.clock cimport NS_PER_MS, wall_ns
from pyqd.hot.wire.trace_events cimport CLIENT_GONE, DROPPED, REASON_SEEK, REQUEUED, STORED, TIMED_OUT


@cython.final
cdef class ChannelTrace:
    """Trace events of one channel. place: the channel in the trace."""

    def __init__(self, TracePlace place not None):
        self.place = place

    cdef int requeued(self, Consumer consumer, const Slot* held, int64_t delay_ns) except -1:
        """Add the event of a REQ; `TraceLog.take_back` removes it if the REQ fails."""
        return self.place.note(
            REQUEUED, held.record.guid, held.attempts, <uint32_t> min(delay_ns // NS_PER_MS, <int64_t> 0xFFFFFFFF),
            consumer.traced_client(), consumer.acted_ns or wall_ns())

    cdef int timed_out(self, Consumer consumer, const Slot* held) except -1:
        """Add the event of a timeout. consumer: None if it has left."""
        return self.place.repeat(
            TIMED_OUT, held.record.guid, held.attempts, None if consumer is None else consumer.traced_client(),
            wall_ns())

    cdef int gone(self, Consumer consumer, SlotTable slots) except -1:
        """Add an event for each message in flight of a client that leaves. Cost: O(slots)."""
        cdef const Slot* held
        cdef uint32_t slot
        cdef int64_t now_ns = wall_ns()
        for slot in range(slots.capacity):
            held = slots.used(slot)
            if held != NULL and held.consumer == consumer.number:
                self.place.repeat(CLIENT_GONE, held.record.guid, held.attempts, consumer.traced_client(), now_ns)
        return 0

    cdef int dropped(self, const ReadyEntry* entry, uint32_t reason) except -1:
        """Add the event of a message that was finished and delivered to no client."""
        return self.place.note(DROPPED, entry.record.guid, entry.attempts, reason, None, wall_ns())

    cdef int dropped_many(self, uint32_t reason, uint64_t count) except -1:
        """Add one event for `count` messages that were dropped together."""
        return self.place.note_many(DROPPED, 0, reason, count, wall_ns())

    def moved(self, uint64_t guid, uint64_t dropped_count, uint64_t stored_count):
        """Add the events of a seek to after the message with that id. stored_count: messages that come again."""
        cdef int64_t now_ns = wall_ns()
        self.place.note_many(DROPPED, guid, REASON_SEEK, dropped_count, now_ns)
        self.place.note_many(STORED, guid, REASON_SEEK, stored_count, now_ns)
