"""Limit on guesses of passwords: after some failures, attempts take turns, and a right password gets its turn too.

Failures are counted for each user at each address, so that nobody delays a user at another address, and for each
address. Wrong attempts at one address never shut out the right password there: it waits for its turn, with them.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from threading import Lock
from typing import Final, NamedTuple

# One more failure without turns after this long.
REFILL_S: Final = 12.0
# Attempts that would have to wait longer are refused.
WAIT_MAX_S: Final = 5.0
KEYS_MAX: Final = 10_000


class Limit(NamedTuple):
    """Failures before attempts take turns, and the time between two turns."""

    failures_max: float
    turn_s: float


OF_USER: Final = Limit(5, 1.0)
OF_ADDRESS: Final = Limit(20, 0.2)


class Count(NamedTuple):
    """Failures at one time, and the time of the next turn."""

    failures: float
    at_s: float
    next_turn_s: float


class LoginLimiter:
    """Counts of failures. A successful login sets those of its user at its address to zero."""

    def __init__(self) -> None:
        self._lock = Lock()
        # The oldest go first if there are too many.
        self._counts: OrderedDict[str, Count] = OrderedDict()

    def wait_s(self, name: str, address: str) -> float:
        """Take a turn. Returns: the time until then, 0 mostly; above WAIT_MAX_S there is no turn."""
        now_s = time.monotonic()
        with self._lock:
            late = [
                (key, count, limit)
                for key, limit in keys_of(name, address)
                if (count := self._count(key, now_s)).failures > limit.failures_max - 1
            ]
            turn_s = max((count.next_turn_s for _key, count, _limit in late), default=now_s)
            turn_s = max(turn_s, now_s)
            if turn_s - now_s <= WAIT_MAX_S:
                for key, count, limit in late:
                    self._counts[key] = count._replace(next_turn_s=turn_s + limit.turn_s)
        return turn_s - now_s

    def failed(self, name: str, address: str) -> None:
        now_s = time.monotonic()
        with self._lock:
            for key, limit in keys_of(name, address):
                count = self._count(key, now_s)
                # More would not lengthen the time between turns, only the time until there are none.
                failures = min(count.failures + 1, 2 * limit.failures_max)
                self._counts[key] = count._replace(failures=failures)
                self._counts.move_to_end(key)
            while len(self._counts) > KEYS_MAX:
                self._counts.popitem(last=False)

    def succeeded(self, name: str, address: str) -> None:
        """Forget the failures of a user at an address."""
        with self._lock:
            self._counts.pop(keys_of(name, address)[0][0], None)

    def _count(self, key: str, now_s: float) -> Count:
        count = self._counts.get(key, Count(0.0, now_s, now_s))
        return count._replace(failures=max(0.0, count.failures - (now_s - count.at_s) / REFILL_S), at_s=now_s)


def keys_of(name: str, address: str) -> tuple[tuple[str, Limit], tuple[str, Limit]]:
    """Return the keys by which attempts are counted: the user at the address, and the address."""
    return ((f"address {address} name {name}", OF_USER), (f"address {address}", OF_ADDRESS))
