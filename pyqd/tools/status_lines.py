"""Status lines of NSQ's tools: percentiles of the times that messages took.

Source: docs/nsq/admin-and-tools.md, "nsq_to_http".
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from pyqd.tools.common import log

ACCURATE_COUNT = 100
MS = 1000.0


class StatusLines:
    """Times of the last messages, printed after every so many. every: 0 for never. prefix: begins the lines."""

    def __init__(self, every: int, prefix: str) -> None:
        self._every = every
        self._prefix = prefix
        self._times_s: list[float] = []
        if 0 < every < ACCURATE_COUNT:
            log(f"Warning: use more than 100 status values for accurate percentiles (configured with {every})")

    def note(self, took_s: float, count: int = 1) -> None:
        """Note that messages took a time each. A line follows when a message is one more than wanted for it."""
        if self._every <= 0:
            return
        times = self._times_s
        while count:
            free = self._every - len(times)
            if free == 0:
                # The new time takes the place of the oldest one.
                self._print([*times[1:], took_s])
                times[:] = [took_s]
                count -= 1
            else:
                taken = min(free, count)
                times += [took_s] * taken
                count -= taken

    def _print(self, times_s: Iterable[float]) -> None:
        ordered = sorted(times_s)
        average = sum(ordered) / len(ordered)
        log(
            f"{self._prefix} finished {len(ordered)} - 99th: {percentile(99, ordered) * MS:.2f}ms - "
            f"95th: {percentile(95, ordered) * MS:.2f}ms - avg: {average * MS:.2f}ms"
        )


def percentile(percent: float, ordered: list[float]) -> float:
    return ordered[min(len(ordered) - 1, math.ceil(percent / 100 * len(ordered) + 0.5))]


def status_lines(every: int, addresses: Iterable[str]) -> tuple[StatusLines, list[StatusLines]]:
    """Return the lines over all addresses, and those of each address. A single address has none of its own."""
    own = list(addresses)
    each = every if len(own) > 1 else 0
    return StatusLines(every, "[aggregate]:"), [StatusLines(each, f"[{address}]:") for address in own]
