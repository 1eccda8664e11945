"""Tests of pyqd.net.loop_driver, on the hub of the test."""

from typing import Any

import gevent

from pyqd.net.loop_driver import LoopDriver


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
    driver = LoopDriver(gevent.get_hub(), scheduler)
    with driver.held():
        driver.want_wakes()
        driver.want_timer(0)
        gevent.sleep(0.01)
        assert scheduler.runs == []
    gevent.sleep(0.01)
    assert sorted(scheduler.runs) == ["timers", "wakes"]
