"""Queue that divides the CPU time of the event loop: all slices of long work in one pass of the loop share one budget.

A greenlet waits in the queue before each slice. The queue is first in, first out. So a hundred TLS handshakes, or a
hundred requests for /stats, hold the loop no longer than one: for the budget and the slice that exceeds it.

gevent.sleep(0) does not yield to sockets. It asks for the next callback of the loop, and the loop calls such a greenlet
again before it polls, fifty times and more in a row. A socket was measured to wait for ninety slices of a millisecond.
A timer runs after the loop has polled, so the queue uses a timer.

The loop calls the timers that are due before the sockets that became readable, unless they have a lower priority. At
the same priority, a request that arrives during one slice waits for the next slice as well.

Source: libev's manual, "WATCHER PRIORITY MODELS".
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from greenlet import getcurrent

# Events of libev that a watcher waits for. Compiled code has the same numbers in pyqd/hot/net/sockets.pxd.
READ_EVENT: Final = 1
WRITE_EVENT: Final = 2
BUDGET_S = 0.004
# Priority of a watcher of the loop that is called behind the sockets which the same poll has reported.
BEHIND_SOCKETS = -1
_ATTRIBUTE = "pyqd_slice_queue"


class SliceQueue:
    """Queue of the greenlets that wait for their slice, on one hub. clock: seconds of CPU time or of any clock."""

    def __init__(self, hub: Any, clock: Callable[[], float] = time.thread_time) -> None:
        self._hub = hub
        self._clock = clock
        # In the order in which they came. Each looks for itself when it is woken, so 500 in a list would be quadratic.
        self._waiting: OrderedDict[Any, None] = OrderedDict()
        self._timer = hub.loop.timer(0, priority=BEHIND_SOCKETS)
        self._pass_s = 0.0
        self._end_s = 0.0

    def wait_if_busy(self) -> None:
        """Call `wait` if other greenlets wait, or if this pass of the loop has used up its budget.

        For short slices of which many may come in one pass: a lone slice runs at once. Switches: it may.
        """
        if self._waiting or self._clock() >= self._pass_end_s():
            self.wait()

    def _pass_end_s(self) -> float:
        """Return when the budget of this pass of the loop is used up. It begins with the first call in the pass."""
        now_s = self._hub.loop.now()
        if now_s != self._pass_s:
            self._pass_s = now_s
            self._end_s = self._clock() + BUDGET_S
        return self._end_s

    def wait(self) -> None:
        """Wait until the loop has polled and the calling greenlet is first in the queue. Switches: yes."""
        current = getcurrent()
        if not self._waiting:
            self._timer.start(self._run)
        self._waiting[current] = None
        try:
            while current in self._waiting:
                self._hub.switch()
        except BaseException:
            self._waiting.pop(current, None)
            raise

    def _run(self) -> None:
        """Wake waiting greenlets, at least one, until the budget is used up."""
        end_s = self._pass_end_s()
        for _ in range(len(self._waiting)):
            if not self._waiting:
                return
            current, _ = self._waiting.popitem(last=False)
            current.switch()
            if self._clock() >= end_s:
                break
        if self._waiting:
            self._timer.start(self._run)


def slice_queue_of(hub: Any) -> SliceQueue:
    """Return the queue of a hub; each hub has one."""
    found = getattr(hub, _ATTRIBUTE, None)
    if found is None:
        found = SliceQueue(hub)
        setattr(hub, _ATTRIBUTE, found)
    return found
