"""Driver of the scheduler on gevent's loop, and yields to that loop between slices of long work.

Runs are scheduled once per pass; one timer is armed at the earliest deadline of all.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import gevent

from pyqd.hot.primitives.clock import mono
from pyqd.hot.primitives.schedule import Scheduler
from pyqd.net.slice_queue import BEHIND_SOCKETS, slice_queue_of
from pyqd.primitives.durations import SECOND_NS

# Longest time of a run of wakes, and of a run of timers: both may come before one poll of the sockets.
TURN_NS = 3_000_000
# Time of long work between two polls of the sockets.
SLICE_S = 0.003
SYNC_POLL_S = 0.005


class LoopDriver:
    """Driver of a scheduler's wakes and timers on the hub of the calling thread. on_error: as the scheduler's.

    A run that a socket's callback schedules takes place before the loop polls again, so a lone message leaves at once.
    A run that is scheduled during a run takes place after the next poll, behind the sockets that it reports. So the
    delivery of a long backlog alternates with other clients' requests, and a request waits for one run at most.
    """

    def __init__(self, hub: Any, on_error: Callable[[Exception], object] | None = None) -> None:
        self.hub = hub
        self.scheduler = Scheduler(self.want_wakes, self.want_timer, on_error, TURN_NS)
        self.running = False
        self.is_held = False
        # Runs that came meanwhile.
        self.held_back: list[Callable[[], None]] = []
        self.after_poll = hub.loop.timer(0, priority=BEHIND_SOCKETS)
        self.timer: Any = None

    def want_wakes(self) -> None:
        """Schedule a run of the wakes: before the next poll, or after it if a run is in progress."""
        if self.running:
            self.after_poll.start(self.run_wakes)
        else:
            self.hub.loop.run_callback(self.run_wakes)

    def run_wakes(self) -> None:
        if self.is_held:
            self.held_back.append(self.run_wakes)
            return
        self.running = True
        try:
            self.scheduler.run_wakes()
        finally:
            self.running = False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Let no wake and no timer run meanwhile, even if the body switches to the loop: they run afterwards."""
        self.is_held = True
        try:
            yield
        finally:
            self.is_held = False
            for run in self.held_back:
                self.hub.loop.run_callback(run)
            self.held_back.clear()

    def want_timer(self, due_ns: int) -> None:
        """Arm the timer for a monotonic time earlier than the one armed."""
        self.stop_timer()
        self.timer = self.hub.loop.timer(max(0.0, (due_ns - mono()) / SECOND_NS), priority=BEHIND_SOCKETS)
        self.timer.start(self.run_timers, update=True)

    def run_timers(self) -> None:
        if self.is_held:
            self.held_back.append(self.run_timers)
            return
        next_ns = self.scheduler.run_timers(mono())
        if next_ns is not None:
            self.want_timer(next_ns)

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.stop()
            self.timer.close()
            self.timer = None


def yield_to_loop() -> None:
    """Return when the loop has polled its sockets and has run a slice of the other long work. Switches: yes."""
    slice_queue_of(gevent.get_hub()).wait()


def poll_sync() -> None:
    """Return after some milliseconds, to look again whether a sync in a thread has ended. Switches: yes."""
    gevent.sleep(SYNC_POLL_S)


def in_slices(steps: Iterable[object]) -> None:
    """Run through an iterator of short steps; yield to the event loop after each few milliseconds. Switches: it may."""
    end_s = time.monotonic() + SLICE_S
    for _ in steps:
        if time.monotonic() >= end_s:
            yield_to_loop()
            end_s = time.monotonic() + SLICE_S
