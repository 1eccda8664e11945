"""A subscribed client, as its channel sees it: the ready count, the counters, and calls that take messages.

The connection's output implements these (pyx/tcp/output.pyx), so the broker knows nothing of sockets.
"""

cimport cython

from pyqd.hot.primitives.debug cimport PYQD_DEBUG, debug_require

# For the Python half.
IN_ZONE, IN_REGION, ELSEWHERE = ZONE_LOCAL, REGION_LOCAL, GLOBAL

cdef uint64_t last_number = 0


cdef class Consumer(Scheduled):
    """One subscribed client. RDY is a ceiling on the messages in flight; a delivery does not use it up."""

    def __cinit__(self, *args, **kwargs):
        global last_number
        last_number += 1
        self.number = last_number
        self.locality = GLOBAL
        self.random_state = self.number * <uint64_t> 0x9E3779B97F4A7C15 | 1

    cdef bint sampled_out(self) noexcept:
        """Return True if sampling skips the current message for this client.

        The client receives a message if a random number of 0..99 is at most its sample rate (docs/nsq/tcp-protocol.md).
        """
        debug_require(self.random_state != 0)
        # xorshift64 is random enough: the share of the messages is all that counts.
        self.random_state ^= self.random_state << 13
        self.random_state ^= self.random_state >> 7
        self.random_state ^= self.random_state << 17
        return <int32_t> ((self.random_state >> 32) % 100) > self.sample_rate

    cdef TraceClient traced_client(self):
        """Return the client in trace events, as it has described itself."""
        if self.traced is None:
            # A client of a test may describe nothing.
            self.traced = TraceClient(
                getattr(self.client, "remote_address", ""), getattr(self.client, "user_agent", ""))
        return self.traced

    cdef bint begin_run(self) except -1:
        """Begin a run of deliveries. Returns: whether the client takes messages at all."""
        raise AssertionError("a plain consumer takes messages only when it is asked to")

    cdef bint put_delivery(self, const Delivery* delivery) except -1:
        """Queue a message for the client. Returns: whether it takes another one in this run."""
        raise AssertionError("no run of deliveries was begun")

    cdef int end_run(self) except -1:
        """Send the queued messages."""
        raise AssertionError("no run of deliveries was begun")

    cdef int fail_run(self, error) except -1:
        """End a run after an error that is not the channel's."""
        raise AssertionError("no run of deliveries was begun")


cdef Py_ssize_t count_ready(list consumers, int32_t* nearest):
    cdef Consumer consumer
    cdef Py_ssize_t count = 0
    nearest[0] = GLOBAL
    for consumer in consumers:
        if PYQD_DEBUG:
            assert consumer.in_flight >= 0 and consumer.unsynced_count >= 0
        if consumer.can_take():
            if consumer.locality < nearest[0]:
                nearest[0] = consumer.locality
                count = 0
            count += consumer.locality == nearest[0]
    return count


@cython.final
cdef class UnsyncedFins:
    """Consumers of one channel with FINs that are not on stable storage, with --sync-fin.

    A FIN counts against its consumer's RDY until a sync has covered it, so that a client whose FINs are not durable
    gets no further messages. A sync covers the FINs that were added before it began.
    Invariant: a consumer is listed once, exactly if it has FINs that no sync under way covers (`awaits_sync`).
    """

    def __cinit__(self):
        self.consumers = []

    cdef bint add(self, Consumer consumer) except -1:
        """Count a FIN of a consumer. Returns: True if it is the first one for the next sync."""
        consumer.unsynced_count += 1
        if consumer.awaits_sync:
            return False
        consumer.awaits_sync = True
        self.consumers.append(consumer)
        return len(self.consumers) == 1

    cpdef list begin_sync(self):
        """Return [(consumer, FINs)] that a sync covers if its ledgers are gathered now."""
        cdef Consumer consumer
        cdef list covered = []
        for consumer in self.consumers:
            assert consumer.awaits_sync, "a consumer is listed twice"
            consumer.awaits_sync = False
            covered.append((consumer, consumer.unsynced_count))
        self.consumers = []
        return covered

    cdef int end_sync(self, list covered) except -1:
        """Release FINs that are on stable storage, as `begin_sync` returned them."""
        cdef Consumer consumer
        cdef int64_t count
        for consumer, count in covered:
            assert count <= consumer.unsynced_count
            consumer.unsynced_count -= count
        return 0

    cpdef int fail_sync(self, list covered) except -1:
        """Add FINs whose sync has failed to those that the next sync covers."""
        cdef Consumer consumer
        for consumer, _ in covered:
            if not consumer.awaits_sync:
                consumer.awaits_sync = True
                self.consumers.append(consumer)
        return 0
