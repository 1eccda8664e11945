"""Long work of greenlets in pieces: all pieces of one pass of the loop share a budget of time.

A greenlet waits for its turn before each piece. The queue is first in, first out. So a hundred TLS handshakes, or a
hundred requests for /stats, hold the loop no longer than one does: for the budget and the piece that exceeds it.

gevent.sleep(0) does not yield to sockets: a greenlet that asks for the next callback of the loop is called again before
the loop polls, fifty times and more in a row. A socket waited for ninety pieces of a millisecond. A timer runs after
the loop has polled.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent

BUDGET_S = 0.004
_ATTRIBUTE = "pyqd_pieces"


class Pieces:
    """Queue of the greenlets that wait for their turn, on one hub. clock: seconds of CPU time or of any clock."""

    def __init__(self, hub: Any, clock: Callable[[], float] = time.thread_time) -> None:
        self._hub = hub
        self._clock = clock
        self._waiting: deque[Any] = deque()
        self._timer = hub.loop.timer(0)
        self._pass_s = 0.0
        self._end_s = 0.0

    def wait_if_late(self) -> None:
        """Do as `wait` if others wait, or if this pass of the loop has used up a budget since its first such call.

        For short pieces of which many may come in one pass: a lone one goes on at once. Switches: it may.
        """
        now_s = self._hub.loop.now()
        if now_s != self._pass_s:
            self._pass_s = now_s
            self._end_s = self._clock() + BUDGET_S
        if self._waiting or self._clock() >= self._end_s:
            self.wait()

    def wait(self) -> None:
        """Return when the loop has polled and it is the calling greenlet's turn. Switches: yes."""
        current = getcurrent()
        if not self._waiting:
            self._timer.start(self._run)
        self._waiting.append(current)
        try:
            while current in self._waiting:
                self._hub.switch()
        except BaseException:
            if current in self._waiting:
                self._waiting.remove(current)
            raise

    def _run(self) -> None:
        """Give turns, one at least, until the budget is used up."""
        end_s = self._clock() + BUDGET_S
        for _ in range(len(self._waiting)):
            if not self._waiting:
                return
            self._waiting.popleft().switch()
            if self._clock() >= end_s:
                break
        if self._waiting:
            self._timer.start(self._run)


def pieces_of(hub: Any) -> Pieces:
    """Return the one queue of a hub."""
    pieces = getattr(hub, _ATTRIBUTE, None)
    if pieces is None:
        pieces = Pieces(hub)
        setattr(hub, _ATTRIBUTE, pieces)
    return pieces
