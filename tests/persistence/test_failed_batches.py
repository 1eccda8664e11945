"""MPUBs that a pass stores together, when they cannot be written or something else breaks."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nsq import Client, mpub, pub
from tests.support.server import Daemon, patched_pyqd, wait_until

BROKEN = """
import os
import sys
from pyqd.diskqueue.files import Files
from pyqd.tcp.connection import Connection

open_for_writing, find_topic = Files.open_for_writing, Connection.find_topic

def open_where_told(self, path):
    return open_for_writing(self, "/dev/full" if os.path.exists(sys.argv[0] + ".full") else path)

def find_or_fail(self, name, command):
    if name in (b"AssertionError", b"KeyError"):
        raise (AssertionError if name == b"AssertionError" else KeyError)("a bug")
    return find_topic(self, name, command)

Files.open_for_writing, Connection.find_topic = open_where_told, find_or_fail
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    running = Daemon(patched_pyqd(tmp_path / "broken.py", BROKEN), tmp_path / "daemon").start()
    try:
        yield running
    finally:
        running.kill()


def batch(topic: str) -> bytes:
    """Return an MPUB that is written, not stored through the mapping."""
    return mpub(topic, [b"x" * 1000] * 20)


@pytest.mark.slow
def test_of_batches_that_cannot_be_written_none_is_stored_and_the_first_is_refused(
    daemon: Daemon, tmp_path: Path
) -> None:
    flag = tmp_path / "broken.py.full"
    flag.touch()
    with Client(daemon.tcp_address) as client:
        client.send(batch("t") * 3 + pub("t", b"behind"))
        error = client.read_frame().data
        assert error.startswith(b"E_MPUB_FAILED MPUB failed failed to write ")
        assert error.endswith(b"No space left on device")
        client.expect_closed()
    assert daemon.http("GET", "/ping").status == 500
    flag.unlink()
    with Client(daemon.tcp_address) as client:
        client.send(pub("t", b"later") + mpub("u", [b"a", b"b"]) + batch("u") * 2)
        client.expect_ok(4)
    for _ in range(2):
        daemon.wait_for_topic("t", message_count=1, message_bytes=5, depth=1)
        daemon.wait_for_topic("u", message_count=42, depth=42)
        daemon.kill()
        daemon.start()


@pytest.mark.slow
def test_a_bug_behind_open_batches_leaves_nothing_of_them_and_the_topic_as_it_was(daemon: Daemon) -> None:
    with Client(daemon.tcp_address) as client:
        client.send(batch("t"))
        client.expect_ok()
        client.send(batch("t") * 2 + batch("KeyError"))
        client.expect_closed()
    with Client(daemon.tcp_address) as client:
        client.send(batch("t") * 2)
        client.expect_ok(2)
    daemon.wait_for_topic("t", message_count=60, depth=60)
    assert "KeyError: 'a bug'" in daemon.log_text()


@pytest.mark.slow
def test_a_broken_invariant_in_a_command_ends_the_daemon_and_the_next_start_recovers(daemon: Daemon) -> None:
    with Client(daemon.tcp_address) as client:
        client.send(batch("t"))
        client.expect_ok()
        client.send(batch("t") + batch("AssertionError"))
        client.expect_closed()
    wait_until(daemon.has_ended, "the daemon ends")
    daemon.start()
    daemon.wait_for_topic("t", depth=20)
