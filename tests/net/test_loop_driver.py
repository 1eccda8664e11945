"""Tests of pyqd.net.loop_driver, on the hub of the test."""

import socket
from typing import Any

import gevent

from pyqd.net.loop_driver import LoopDriver
from pyqd.net.slice_queue import READ_EVENT


class Counting:
    """A scheduler that counts its runs."""

    def __init__(self) -> None:
        self.runs: list[str] = []

    def run_wakes(self) -> int:
        """Count a run of wakes."""
        self.runs.append("wakes")
        return 0

    def run_timers(self, _now_ns: int) -> None:
        """Count a run of timers."""
        self.runs.append("timers")


def test_no_wake_and_no_timer_runs_while_they_are_held_and_both_run_afterwards() -> None:
    scheduler: Any = Counting()
    driver = LoopDriver(gevent.get_hub())
    driver.scheduler = scheduler
    with driver.held():
        driver.want_wakes()
        driver.want_timer(0)
        gevent.sleep(0.01)
        assert scheduler.runs == []
    gevent.sleep(0.01)
    assert sorted(scheduler.runs) == ["timers", "wakes"]


class Repeating(Counting):
    """A scheduler with long work: its first runs of wakes want another. Its second run makes a socket readable."""

    driver: LoopDriver
    peer: socket.socket

    def run_wakes(self) -> int:
        """Count a run of wakes."""
        if len(self.runs) == 1:
            self.peer.send(b"x")
        if len(self.runs) < 3:
            self.driver.want_wakes()
        return super().run_wakes()


def test_a_socket_that_becomes_readable_during_a_run_of_wakes_is_served_before_the_next_run() -> None:
    scheduler: Any = Repeating()
    scheduler.driver = LoopDriver(gevent.get_hub())
    scheduler.driver.scheduler = scheduler
    ours, scheduler.peer = socket.socketpair()
    watcher: Any = gevent.get_hub().loop.io(ours.fileno(), READ_EVENT)

    def serve() -> None:
        watcher.stop()
        scheduler.runs.append("socket")

    with ours, scheduler.peer:
        watcher.start(serve)
        scheduler.driver.want_wakes()
        gevent.sleep(0.01)
        watcher.close()
    assert scheduler.runs == ["wakes", "wakes", "socket", "wakes"]
