"""Token bucket that limits a channel's delivery rate.

Tokens arrive at `rate` per second and are kept up to `burst`; a delivered message takes one. So in any span of T
seconds at most `burst + rate * T` messages are delivered. A channel with enough messages delivers exactly `rate` per
second, as a late timer finds the tokens of its delay in the bucket. This holds while the bucket does not overflow:
`burst` is never less than BURST_S of the rate, because the event loop's timers have a resolution of a millisecond.

Nothing ticks: a call counts the tokens that have arrived since the last one. Time is an argument.

Invariant: `-TOLERANCE <= tokens <= burst`, but for the rounding of one difference.
"""

cimport cython
from libc.math cimport ceil

from pyqd.hot.primitives.clock cimport NS_PER_S
from pyqd.hot.primitives.debug cimport debug_require

cdef enum:
    BATCH_NS = 1000000                   # at a high rate, wait for the tokens of this span together
    WAIT_NS_MAX = 3600000000000          # longest wait before the tokens are counted again

cdef double BURST_S = 0.01
cdef double TOLERANCE = 1e-6             # of a token: sums of floats are not exact


@cython.final
cdef class RateLimit:
    """Token bucket, full at first.

    rate: tokens per second. burst: tokens kept; raised to one token and to a hundredth of the rate.
    """

    def __init__(self, double rate, double burst, int64_t now_ns):
        assert rate > 0
        self.rate = rate
        self.burst = max(burst, 1.0, rate * BURST_S)
        self.tokens = self.burst
        self.counted_ns = now_ns

    cdef int count_until(self, int64_t now_ns) noexcept:
        if now_ns > self.counted_ns:
            self.tokens = min(self.burst, self.tokens + self.rate * (now_ns - self.counted_ns) / NS_PER_S)
            self.counted_ns = now_ns
        debug_require(self.tokens <= self.burst)
        return 0

    cdef uint64_t available(self, int64_t now_ns) noexcept:
        """Return the number of messages that may be delivered now. now_ns: monotonic."""
        self.count_until(now_ns)
        return self.whole_tokens()

    cdef uint64_t whole_tokens(self) noexcept:
        return <uint64_t> max(0.0, self.tokens + TOLERANCE)

    cdef int spend(self, uint64_t count) except -1:
        """Take the tokens of delivered messages, at most the number that `available` has just returned."""
        # Not of the difference: it is rounded, and may be a little below -TOLERANCE for a number that `available` gave.
        assert count <= self.whole_tokens(), "more messages were delivered than the rate allows"
        self.tokens -= count
        assert self.tokens <= self.burst
        return 0

    cdef int64_t ready_ns(self) noexcept:
        """Return the next time worth a retry (monotonic): one token more, or a millisecond's tokens at a high rate."""
        cdef double wanted = min(self.burst, max(1.0, self.rate * BATCH_NS / NS_PER_S))
        cdef double wait_ns = ceil((wanted - self.tokens) / self.rate * NS_PER_S)
        return self.counted_ns + <int64_t> min(max(0.0, wait_ns), <double> WAIT_NS_MAX)

    def discard_above(self, double tokens):
        """Discard tokens above a number: a changed limit keeps the level of the bucket before."""
        assert tokens >= 0
        self.tokens = min(self.tokens, tokens)

    def remaining(self, int64_t now_ns):
        """Return the tokens in the bucket, with fractions."""
        self.count_until(now_ns)
        return self.tokens
