"""Callbacks at times of the monotonic clock, in the order of their times."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable


class Timer:
    """Callback at a time of the monotonic clock; cancel() makes it do nothing."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Timers:
    """Timers of an engine. next_s: the earliest time; infinite without timers. The engine's lock protects them."""

    def __init__(self) -> None:
        self.next_s = float("inf")
        self._heap: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()

    def add(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call back in delay_s seconds."""
        timer = Timer(callback)
        heapq.heappush(self._heap, (time.monotonic() + delay_s, next(self._numbers), timer))
        self.next_s = self._heap[0][0]
        return timer

    def run(self) -> None:
        """Call back those that are due."""
        if not self._heap:
            return
        now_s = time.monotonic()
        while self.next_s <= now_s:
            _, _, timer = heapq.heappop(self._heap)
            self.next_s = self._heap[0][0] if self._heap else float("inf")
            if timer.callback is not None:
                timer.callback()
