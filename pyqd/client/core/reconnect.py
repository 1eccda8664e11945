"""Health of one broker: delays between attempts to connect, and a circuit breaker.

After a failure the next attempt waits; each further failure doubles the wait, up to a maximum, with jitter so that the
clients of a broker that restarts do not connect all at once. After FAILURES_OPEN failures in succession the breaker
opens: callers that can use another broker do so, until open_s is over. Then one attempt is allowed (half-open), which
closes the breaker or opens it again, for twice the time.

Without another broker that can be used, a wait serves nobody: hasten() shortens it to HASTE_S since the last failure.

A connection counts as a recovery only after STABLE_S. Otherwise a broker that accepts and closes at once would be
dialled as fast as it closes.

There is no clock here: each event carries the time, in seconds of a monotonic clock.
"""

from __future__ import annotations

import enum
import random

from pyqd.primitives.backoff import Backoff

STABLE_S = 10.0
FAILURES_OPEN = 5
# A broker is used within half a second of its return. Its publishers connect at random times of this range.
HASTE_S = 0.25
HASTE_JITTER = (0.2, 1.0)


class BreakerState(enum.Enum):
    """State of the circuit breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class BrokerHealth:
    """Decides when to try a broker. first_s, max_s: first and longest wait; open_s: first time of an open breaker."""

    def __init__(self, first_s: float, max_s: float, open_s: float, rng: random.Random) -> None:
        self.state = BreakerState.CLOSED
        self.failure_count = 0
        self._first_s = first_s
        self._open_s = open_s
        self._rng = rng
        self._delays = Backoff(min(first_s, max_s), max_s, rng=self._rng)
        self._open_delays = Backoff(open_s, max(max_s, open_s), rng=self._rng)
        self._connected_at: float | None = None
        self._failed_at = float("-inf")
        self._next_try_at = float("-inf")

    def connected(self, now: float) -> None:
        """Take a successful attempt: the breaker closes."""
        self.state = BreakerState.CLOSED
        self._connected_at = now
        self._next_try_at = now

    def failed(self, now: float) -> None:
        """Take a failed attempt, or the loss of a connection."""
        if self._connected_at is not None and now - self._connected_at >= STABLE_S:
            self.failure_count = 0
            self._delays.reset()
            self._open_delays.reset()
        self._connected_at = None
        self._failed_at = now
        self.failure_count += 1
        if self.failure_count >= FAILURES_OPEN:
            self.state = BreakerState.OPEN
            wait_s = self._open_delays.next_s()
        else:
            wait_s = self._delays.next_s()
        self._next_try_at = now + wait_s

    def hasten(self, now: float) -> bool:
        """Allow the next attempt within HASTE_S of the last failure, or the first wait if that is longer.

        Return whether the attempt was later.
        """
        soon_s = max(HASTE_S, self._first_s)
        if self._next_try_at <= self._failed_at + soon_s:
            return False
        self._next_try_at = max(now, self._failed_at + soon_s * self._rng.uniform(*HASTE_JITTER))
        return True

    def may_try(self, now: float) -> bool:
        """Return whether to try now. While half-open only one caller gets True; open_s later another one may."""
        if now < self._next_try_at:
            return False
        if self.state is not BreakerState.CLOSED:
            self.state = BreakerState.HALF_OPEN
            # A caller that never reports its attempt must not block the broker for ever.
            self._next_try_at = now + self._open_s
        return True

    def next_try_s(self, now: float) -> float:
        """Return the time from which may_try() can be True: now, or later."""
        return max(now, self._next_try_at)
