"""Ties the scheduler to gevent's loop: turns once per pass, one timer at the earliest time anyone asked for."""

from typing import Any

from pyqd.hot.primitives.clock import mono
from pyqd.hot.primitives.schedule import Scheduler

NS_PER_S = 1_000_000_000
# Of a turn, and of the timers: both may come before one poll of the sockets.
TURN_NS = 3_000_000


class Turns:
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
