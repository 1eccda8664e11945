"""A lookup daemon whose wall clock jumps by an hour: activity of brokers, tombstones."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lookupd.conftest import LookupDaemon, running
from tests.support.server import wait_until
from tests.support.shifted_clock import Clock
from tests.support.shifted_clock import clock as clock

pytestmark = pytest.mark.slow

HOUR_S = 3600
WAIT_S = 10.0


@pytest.fixture
def daemon(clock: Clock, tmp_path: Path) -> Iterator[LookupDaemon]:
    flags = ("--tombstone-lifetime=1s", "--inactive-producer-timeout=2s")
    command = (sys.executable, "-m", "pyqd.apps.lookupd")
    with running(LookupDaemon(command, tmp_path / "pyqlookupd.log", flags)) as started:
        yield started


def count(daemon: LookupDaemon) -> int:
    """Return how many brokers a lookup finds."""
    return len(daemon.ask("GET", "/lookup?topic=t")[1]["producers"])


@pytest.mark.parametrize("jump_s", [-HOUR_S, HOUR_S])
def test_tombstones_and_activity_do_not_follow_the_clock(daemon: LookupDaemon, clock: Clock, jump_s: int) -> None:
    broker = daemon.broker()
    broker.send("REGISTER t")
    began_s = time.monotonic()
    assert daemon.ask("POST", "/topic/tombstone?topic=t&node=10.1.1.1:4151")[0] == 200
    clock.shift(jump_s)
    assert count(daemon) == 0
    wait_until(lambda: count(daemon) == 1, "the tombstone ends", WAIT_S)
    assert time.monotonic() - began_s >= 1.0
    broker.send("PING")
    clock.shift(0)
    assert count(daemon) == 1
    [node] = daemon.ask("GET", "/debug")[1]["topic:t:"]
    assert abs(node["last_update"] / 1e9 - time.time()) < WAIT_S
    wait_until(lambda: count(daemon) == 0, "the broker counts as gone", WAIT_S)
