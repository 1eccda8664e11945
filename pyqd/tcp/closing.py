"""Closes the clients of deleted channels: a few at once, and the others in slices between passes of the event loop.

Closing takes some 100 us for each client, with the log lines and the end of its greenlets. The 400 clients of a channel
would hold the loop for 40 ms. A client that waits here has left its channel: nothing is delivered to it, and its FIN,
REQ and TOUCH are refused, as the messages are gone.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pyqd.net.slice_queue import BEHIND_SOCKETS

AT_ONCE = 16
BUDGET_S = 0.001

T = TypeVar("T")


class Closing(Generic[T]):
    """Queue of the connections to be closed, on one hub. clock: seconds of CPU time or of any clock."""

    def __init__(self, hub: Any, close: Callable[[T], None], clock: Callable[[], float] = time.thread_time):
        self._loop = hub.loop
        self._close = close
        self._clock = clock
        self._waiting: deque[T] = deque()
        self._timer = hub.loop.timer(0, priority=BEHIND_SOCKETS)
        self._pass_s = 0.0
        self._closed_count = 0

    def add(self, connection: T) -> None:
        """Close a connection: at once if it is among the first of this pass, else in a later pass. Switches: no."""
        now_s = self._loop.now()
        if now_s != self._pass_s:
            self._pass_s = now_s
            self._closed_count = 0
        if not self._waiting and self._closed_count < AT_ONCE:
            self._closed_count += 1
            self._close(connection)
            return
        if not self._waiting:
            self._timer.start(self._run)
        self._waiting.append(connection)

    def _run(self) -> None:
        """Close connections, one at least, until the budget is used up."""
        end_s = self._clock() + BUDGET_S
        while self._waiting:
            self._close(self._waiting.popleft())
            if self._clock() >= end_s:
                break
        if self._waiting:
            self._timer.start(self._run)
