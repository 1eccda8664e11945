"""A subscribed client, as its channel sees it: the ready count, the counters, and calls that take messages.

The connection's output implements these (pyx/tcp/output.pyx), so the broker knows nothing of sockets.
"""

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
