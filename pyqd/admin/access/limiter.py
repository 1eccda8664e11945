"""Limit on failed logins: a token bucket for each address and for each name."""

from __future__ import annotations

import time
from collections import OrderedDict
from threading import Lock
from typing import Final

FAILURES_MAX: Final = 5
# One more attempt after this long.
REFILL_S: Final = 12.0
KEYS_MAX: Final = 10_000


class LoginLimiter:
    """Buckets of FAILURES_MAX attempts. A successful login gives its attempts back."""

    def __init__(self) -> None:
        self._lock = Lock()
        # Attempts left, and when. The oldest go first if there are too many: an attacker with many addresses can
        # only make the limit by name the one that counts.
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, keys: tuple[str, ...]) -> float:
        """Return how long the next attempt has to wait; 0 if it may be made now."""
        now_s = time.monotonic()
        with self._lock:
            left = min(self._left_of(key, now_s) for key in keys)
        return 0.0 if left >= 1 else (1 - left) * REFILL_S

    def failed(self, keys: tuple[str, ...]) -> None:
        """Count a failed attempt."""
        now_s = time.monotonic()
        with self._lock:
            for key in keys:
                self._left[key] = (self._left_of(key, now_s) - 1, now_s)
                self._left.move_to_end(key)
            while len(self._left) > KEYS_MAX:
                self._left.popitem(last=False)

    def succeeded(self, keys: tuple[str, ...]) -> None:
        """Forget the failures."""
        with self._lock:
            for key in keys:
                self._left.pop(key, None)

    def _left_of(self, key: str, now_s: float) -> float:
        left, then_s = self._left.get(key, (float(FAILURES_MAX), now_s))
        return min(float(FAILURES_MAX), left + (now_s - then_s) / REFILL_S)
