"""A client that publishes and consumes over one connection, on a disk whose syncs take long."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nsq import MESSAGE, RESPONSE, Client, pub
from tests.support.server import Daemon, patched_pyqd, running, wait_until

WITH_SLOW_SYNCS = """
import os
import sys
import time
from pyqd.diskqueue.files import Files

sync = Files.sync

def sync_slowly(self, *arguments):
    if os.path.exists(sys.argv[0] + ".slow"):
        time.sleep(0.5)
    sync(self, *arguments)

Files.sync = sync_slowly
"""
# Too many for the buffers of a socket.
COUNT, BODY = 300, bytes(100_000)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    implementation = patched_pyqd(tmp_path / "slow.py", WITH_SLOW_SYNCS)
    with running(Daemon(implementation, tmp_path / "daemon", ["-sync-every=1", "-sync-timeout=1h"])) as started:
        yield started


@pytest.mark.slow
def test_messages_that_a_socket_accepts_again_during_a_sync_leave_after_the_sync(
    daemon: Daemon, tmp_path: Path
) -> None:
    with Client(daemon.tcp_address) as publisher:
        publisher.send(b"".join(pub("full", BODY) for _ in range(COUNT)))
        publisher.expect_ok(COUNT)
    with Client(daemon.tcp_address) as client:
        client.sub("full", rdy_count=2500)
        in_flight = 0

        def settled() -> bool:
            nonlocal in_flight
            before, in_flight = in_flight, (daemon.channel("full", "c") or {})["in_flight_count"]
            return bool(0 < in_flight == before)

        wait_until(settled, "the socket is full")
        assert in_flight < COUNT
        (tmp_path / "slow.py.slow").touch()
        client.send(pub("other", b"x"))
        frames = [client.read_frame() for _ in range(COUNT + 1)]
    assert [frame.type for frame in frames].count(MESSAGE) == COUNT
    assert (RESPONSE, b"OK") in frames
    daemon.wait_for_topic("other", message_count=1)
