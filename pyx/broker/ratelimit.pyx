"""A token bucket: how many messages a channel may deliver now, and when the next one.

Tokens come at `rate` a second and are kept up to `burst`; a message takes one. So in any span of T seconds at most
`burst + rate * T` messages are delivered, and a channel that has enough to deliver gets `rate` a second exactly: what a
timer is late by is in the bucket when it fires. That holds as long as the bucket does not run over meanwhile, so a
burst is never less than BURST_S of the rate: the loop's timers are of a millisecond.

Nothing ticks: the tokens are counted when somebody asks. Time comes in as an argument.

Invariant: `-TOLERANCE <= tokens <= burst`.
"""

cimport cython
from libc.math cimport ceil

cdef enum:
    NS_PER_S = 1000000000
    BATCH_NS = 1000000                   # of a high rate, so many tokens are waited for together
    WAIT_NS_MAX = 3600000000000          # whoever waits looks again then

cdef double BURST_S = 0.01
cdef double TOLERANCE = 1e-6             # of a token: sums of floats are not exact


@cython.final
cdef class TokenBucket:
    """Tokens, full at first.

    rate: a second. burst: how many are kept; less than one, or than a hundredth of the rate, is taken as that.
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
        return 0

    cdef uint64_t whole(self, int64_t now_ns) noexcept:
        """Return how many may be delivered now. now_ns: monotonic."""
        self.count_until(now_ns)
        return <uint64_t> max(0.0, self.tokens + TOLERANCE)

    cdef int spend(self, uint64_t count) except -1:
        """Take tokens for what was delivered, at most what `whole` has just returned."""
        self.tokens -= count
        assert self.tokens >= -TOLERANCE, "more was delivered than the rate allows"
        return 0

    cdef int64_t ready_ns(self) noexcept:
        """Return when it is worth asking again (monotonic): for a token, or a millisecond's worth of a high rate."""
        cdef double wanted = min(self.burst, max(1.0, self.rate * BATCH_NS / NS_PER_S))
        cdef double wait_ns = ceil((wanted - self.tokens) / self.rate * NS_PER_S)
        return self.counted_ns + <int64_t> min(max(0.0, wait_ns), <double> WAIT_NS_MAX)

    def keep(self, double tokens):
        """Have no more than so many tokens: where a limit is changed, and the old bucket was not full."""
        self.tokens = min(self.tokens, tokens)

    def left(self, int64_t now_ns):
        """Return the tokens there are now."""
        self.count_until(now_ns)
        return self.tokens

    def take(self, uint64_t wanted, int64_t now_ns):
        """Take up to `wanted` tokens, from Python. Returns: how many."""
        cdef uint64_t taken = min(wanted, self.whole(now_ns))
        self.spend(taken)
        return taken

    def next_ns(self):
        """Return when it is worth asking again, from Python."""
        return self.ready_ns()
