"""Measurement of the event loop's delay: the loop lag is the time from a timer's due time to its callback.

An event waits at most that long after the kernel has reported it.
"""

from collections.abc import Callable
from typing import Any

from pyqd.hot.primitives.clock import mono
from pyqd.primitives.durations import SECOND_NS

LOOK_S = 0.25


class LoopLag:
    """Timer that calls `noted` with the loop's delay in seconds, a few times a second. hub: of the loop."""

    def __init__(self, hub: Any, noted: Callable[[float], None]) -> None:
        self._timer = hub.loop.timer(LOOK_S, LOOK_S)
        self._noted = noted
        self._due_ns = 0

    def start(self) -> None:
        """Start to measure."""
        self._due_ns = mono() + int(LOOK_S * SECOND_NS)
        self._timer.again(self._measure, update=True)

    def stop(self) -> None:
        """Stop measuring."""
        self._timer.stop()
        self._timer.close()

    def _measure(self) -> None:
        self._noted(max(0, mono() - self._due_ns) / SECOND_NS)
        self.start()
