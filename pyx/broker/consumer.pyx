"""What a channel knows of one subscribed client: how much it may have, what it has, what it did.

A connection is a subclass, so that handing a message over is one C call and the broker still knows nothing of sockets.
"""

cdef uint64_t last_number = 0


cdef class Consumer(Scheduled):
    """One subscribed client. RDY is a ceiling on messages in flight; deliveries do not use it up."""

    def __cinit__(self, *args, **kwargs):
        global last_number
        last_number += 1
        self.number = last_number
        self.locality = GLOBAL
        self.random_state = self.number * <uint64_t> 0x9E3779B97F4A7C15 | 1

    cdef bint sampled_out(self) noexcept:
        """Decide by lot whether the message at hand is not for this client.

        Source: docs/nsq/tcp-protocol.md, "Sampling": kept when a number of 0..99 is at most the sample rate.
        """
        # xorshift64: statistics are all that is asked of it.
        self.random_state ^= self.random_state << 13
        self.random_state ^= self.random_state >> 7
        self.random_state ^= self.random_state << 17
        return <int32_t> ((self.random_state >> 32) % 100) > self.sample_rate

    cdef int deliver(self, uint64_t quota) except -1:
        raise AssertionError("this consumer takes nothing")

    def close(self):
        """Close the client's connection: its channel goes away."""
        raise NotImplementedError("the connection knows how to close")

    def stats(self):
        """Return the client's statistics, as a dict."""
        raise NotImplementedError("the connection knows the client")


cdef Py_ssize_t count_ready(list consumers, int32_t* nearest):
    cdef Consumer consumer
    cdef Py_ssize_t count = 0
    nearest[0] = GLOBAL
    for consumer in consumers:
        if consumer.can_take():
            if consumer.locality < nearest[0]:
                nearest[0] = consumer.locality
                count = 0
            count += consumer.locality == nearest[0]
    return count
