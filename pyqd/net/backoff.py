"""Delays between attempts to reconnect: they double up to a maximum, with jitter.

Jitter keeps the clients of a server that restarts from connecting all at once.
"""

import random


class Backoff:
    """Sequence of delays in seconds: the first one is at most first_s, each is up to twice the one before, at most
    max_s.
    """

    def __init__(self, first_s: float, max_s: float) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._bound_s = first_s

    def next_s(self) -> float:
        """Return the next delay: between half of the present bound and the bound. The bound doubles."""
        bound_s = self._bound_s
        self._bound_s = min(2 * bound_s, self._max_s)
        return bound_s * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Begin again with the first delay."""
        self._bound_s = self._first_s
