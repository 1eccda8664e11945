"""How late the loop is: a timer asks to be called, and looks how much later it is.

What it finds is how long something that the loop has just been told of may have to wait for its turn.
"""

from collections.abc import Callable
from typing import Any

from pyqd.hot.primitives.clock import mono
from pyqd.primitives.durations import SECOND_NS

LOOK_S = 0.25


class LoopLag:
    """Calls `noted` with the seconds that the loop is late, a few times a second. hub: of the loop."""

    def __init__(self, hub: Any, noted: Callable[[float], None]) -> None:
        self._timer = hub.loop.timer(LOOK_S, LOOK_S)
        self._noted = noted
        self._due_ns = 0

    def start(self) -> None:
        """Look from now on."""
        self._due_ns = mono() + int(LOOK_S * SECOND_NS)
        self._timer.again(self._look, update=True)

    def stop(self) -> None:
        """Look no more."""
        self._timer.stop()
        self._timer.close()

    def _look(self) -> None:
        self._noted(max(0, mono() - self._due_ns) / SECOND_NS)
        self.start()
