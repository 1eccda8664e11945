"""Growing delays between retries."""

from __future__ import annotations

import random
from typing import Final

# Shares of the delay: jitter keeps the clients of a server that restarts from connecting all at once.
JITTER: Final = (0.5, 1.0)
NO_JITTER: Final = (1.0, 1.0)


class Backoff:
    """Sequence of delays in seconds: first_s, then always twice the one before, at most max_s.

    jitter: each delay is multiplied by a random number from this range.
    """

    def __init__(
        self,
        first_s: float,
        max_s: float,
        *,
        jitter: tuple[float, float] = JITTER,
        rng: random.Random | None = None,
    ) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._jitter = jitter
        self._uniform = random.uniform if rng is None else rng.uniform
        self._bound_s = first_s

    def next_s(self) -> float:
        """Return the next delay. The one after it doubles."""
        bound_s = self._bound_s
        self._bound_s = min(2 * bound_s, self._max_s)
        return bound_s * self._uniform(*self._jitter)

    def reset(self) -> None:
        """Begin again with the first delay."""
        self._bound_s = self._first_s
