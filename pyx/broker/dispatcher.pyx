"""Dispatcher of a channel: its consumers, and how the deliverable messages are shared out among them.

In each run of the channel the nearest consumers that can take messages get equal parts, in turn. The next run begins
after the consumer that was served last, so that a channel with more consumers than messages starves none of them. A
rate limit bounds the messages of all consumers together.

A consumer takes its part itself: `Consumer.deliver` calls `ChannelCore.take` for each message.

Source: docs/nsq/broker-semantics.md, "Delivery to a client".
"""

cimport cython
from libc.stdint cimport int32_t

from pyqd.hot.broker.consumer cimport count_ready


@cython.final
cdef class Dispatcher:
    """Dispatcher of one channel. parking, ready: the channel's; they count its messages."""

    def __cinit__(self, Parking parking not None, ReadyRing ready not None):
        self.parking = parking
        self.ready = ready
        self.consumers = []
        self.by_number = {}

    cdef int add(self, Consumer consumer) except -1:
        assert consumer.number not in self.by_number, "two consumers have one number, which owns messages in flight"
        self.consumers.append(consumer)
        self.by_number[consumer.number] = consumer
        return 0

    cdef int remove(self, Consumer consumer) except -1:
        """Remove a consumer, if it is subscribed."""
        if self.by_number.pop(consumer.number, None) is not None:
            self.consumers.remove(consumer)
        return 0

    cdef list remove_all(self):
        """Remove all consumers. Returns: them."""
        consumers, self.consumers = self.consumers, []
        self.by_number = {}
        return consumers

    cdef bint can_dispatch(self) except -1:
        """Return True if there is a message that may be delivered, and a consumer that can take it."""
        cdef Consumer consumer
        if self.deliverable() != 0:
            for consumer in self.consumers:
                if consumer.can_take():
                    return True
        return False

    cdef Outcome share_out(self, uint64_t depth, Scheduler scheduler) except *:
        """Share `depth` messages among the nearest consumers that can take them; each gets an equal part at most.

        Ends early if the work budget of this pass is used up.
        """
        cdef Consumer consumer
        cdef Outcome outcome = SHARED_OUT
        cdef uint64_t quota
        cdef Py_ssize_t at, ready_count, count = len(self.consumers)
        cdef int32_t nearest = 0
        ready_count = count_ready(self.consumers, &nearest)
        if ready_count == 0:
            return NONE_READY
        quota = (depth + ready_count - 1) // ready_count
        at = <Py_ssize_t> (self.rotation % <uint64_t> count)
        for _ in range(count):
            consumer = self.consumers[at]
            at = at + 1 if at + 1 < count else 0
            if consumer.locality == nearest and consumer.can_take():
                self.serve(consumer, quota)
                if self.deliverable() == 0 or len(self.consumers) != count:
                    break
                if not scheduler.has_work():
                    outcome = OUT_OF_WORK
                    break
        self.rotation = <uint64_t> at
        return outcome

    cdef int serve(self, Consumer consumer, uint64_t quota) except -1:
        """Let a consumer take up to `quota` messages, as far as the rate limit allows."""
        cdef uint64_t before = consumer.message_count
        if self.rate_limit is None:
            return consumer.deliver(quota)
        try:
            consumer.deliver(min(quota, self.rate_limit.available(mono_ns())))
        finally:
            # Those before an error as well: they are in flight.
            self.rate_limit.spend(consumer.message_count - before)
        return 0
