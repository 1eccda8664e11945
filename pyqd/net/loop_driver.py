"""Driver of the scheduler on gevent's loop, and yields to that loop between slices of long work.

Runs are scheduled once per pass; one timer is armed at the earliest deadline of all.
"""

import time
from collections.abc import Iterable
from typing import Any

import gevent

from pyqd.hot.primitives.clock import mono
from pyqd.hot.primitives.schedule import Scheduler
from pyqd.net.pieces import pieces_of

NS_PER_S = 1_000_000_000
# Of a turn, and of the timers: both may come before one poll of the sockets.
TURN_NS = 3_000_000
# Of long work between two polls.
SLICE_S = 0.003


class LoopDriver:
    """Runs a scheduler's turns and timers on the hub of the calling thread.

    Turns asked for by sockets run before the loop polls again, so a lone message leaves at once. Turns asked for by
    turns run after the next poll: a long backlog is delivered in between other clients' requests, not before them.
    """

    def __init__(self, hub: Any, scheduler: Scheduler) -> None:
        self.hub = hub
        self.scheduler = scheduler
        scheduler.time_max_ns = TURN_NS
        self.running = False
        self.after_poll = hub.loop.timer(0)
        self.timer: Any = None
        scheduler.on_wake_wanted = self.want_wakes
        scheduler.on_timer_wanted = self.want_timer

    def want_wakes(self) -> None:
        """Run the turns before the next poll, or behind it when a turn asks."""
        if self.running:
            self.after_poll.start(self.run_wakes)
        else:
            self.hub.loop.run_callback(self.run_wakes)

    def run_wakes(self) -> None:
        """Give everyone who asked a turn."""
        self.running = True
        try:
            self.scheduler.run_wakes()
        finally:
            self.running = False

    def want_timer(self, due_ns: int) -> None:
        """Call the timers at a monotonic time, which is earlier than the one armed."""
        self.stop_timer()
        self.timer = self.hub.loop.timer(max(0.0, (due_ns - mono()) / NS_PER_S))
        self.timer.start(self.run_timers, update=True)

    def run_timers(self) -> None:
        """Call everyone whose time has come, and arm for the next."""
        next_ns = self.scheduler.run_timers(mono())
        if next_ns is not None:
            self.want_timer(next_ns)

    def stop_timer(self) -> None:
        """Disarm."""
        if self.timer is not None:
            self.timer.stop()
            self.timer.close()
            self.timer = None


def yield_to_loop() -> None:
    """Return when the loop has polled, and others with long work have had their turn. Switches: yes."""
    pieces_of(gevent.get_hub()).wait()


def in_slices(steps: Iterable[object]) -> None:
    """Run through short steps, and yield to the event loop after each few milliseconds of them. Switches: it may."""
    end_s = time.monotonic() + SLICE_S
    for _ in steps:
        if time.monotonic() >= end_s:
            yield_to_loop()
            end_s = time.monotonic() + SLICE_S
