"""Connections whose publishes wait for a commit of the journal, as with --sync-every=1."""

import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nsq import ERROR, MAGIC, MESSAGE, RESPONSE, Client, Frame, dpub, identify, mpub, parse_message, pub
from tests.support.server import Daemon, patched_pyqd, wait_until

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

# Commits are written by a thread, which waits and fails as files beside the program say.
WITH_CONTROLLED_COMMITS = """
import errno
import os
import sys
import time
from pyqd.diskqueue.files import JournalFile
from pyqd.primitives.errors import StorageError
from pyqd.durability.direct import DirectWriter

write = JournalFile.write

def is_there(name):
    return os.path.exists(sys.argv[0] + "." + name)

def write_as_told(self, *arguments):
    if is_there("held"):
        open(sys.argv[0] + ".waiting", "w").close()
    while is_there("held"):
        time.sleep(0.005)
    if is_there("failing"):
        raise StorageError("write", self.path, errno.EIO, "Input/output error")
    write(self, *arguments)
    open(sys.argv[0] + ".written", "w").close()

JournalFile.write = write_as_told
DirectWriter.write = lambda self, place, done, in_thread: in_thread()
"""


class Controlled:
    """A daemon whose commits can be held back, and can fail."""

    def __init__(self, directory: Path) -> None:
        self.program = directory / "controlled.py"
        implementation = patched_pyqd(self.program, WITH_CONTROLLED_COMMITS)
        self.daemon = Daemon(implementation, directory / "daemon", ["-sync-every=1", "-sync-timeout=1h"]).start()

    def switch(self, name: str, on: bool) -> None:
        path = Path(f"{self.program}.{name}")
        path.touch() if on else path.unlink(missing_ok=True)

    def hold(self) -> None:
        self.switch("waiting", False)
        self.switch("held", True)

    def wait_held(self) -> None:
        """Wait until a commit is held back."""
        wait_until(Path(f"{self.program}.waiting").exists, "a commit goes to the journal")

    def release(self) -> None:
        self.switch("held", False)

    def client(self) -> Client:
        return Client(self.daemon.tcp_address)

    def prepare(self, topic: str) -> None:
        """Make the topic's names durable, and check that commits go to the journal: its first file takes some time."""
        with self.client() as client:
            wait_until(lambda: self.is_journaled(client), "a commit goes to the journal")
            for _ in range(3):
                client.pub(topic, b"prepared")

    def prepare_to_defer(self, topic: str) -> None:
        """Make the name of the topic's index of due times durable: the first due time is synced with it."""
        with self.client() as client:
            client.dpub(topic, 60_000, b"prepared")

    def is_journaled(self, client: Client) -> bool:
        """Publish to a topic without consumers. Returns: whether the commit went to the journal.

        A file of the journal is no sign of that: that of a failed commit is there until it is removed.
        """
        self.switch("written", False)
        client.pub("probe", b"x")
        return Path(f"{self.program}.written").exists()

    def count(self, topic: str) -> int:
        return int((self.daemon.topic(topic) or {})["message_count"])


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    running = Controlled(tmp_path_factory.mktemp("controlled"))
    try:
        yield running
        running.daemon.stop()
    finally:
        running.daemon.kill()


@pytest.fixture
def controlled(running: Controlled) -> Iterator[Controlled]:
    yield running
    for name in ("failing", "held"):
        running.switch(name, False)
    running.daemon.assert_healthy()


@pytest.fixture
def topic(controlled: Controlled, request: pytest.FixtureRequest) -> str:
    name = str(request.node.name).removeprefix("test_").partition("[")[0][:60]
    controlled.prepare(name)
    return name


def expect_silence(client: Client) -> None:
    """Assert that nothing comes for a short time."""
    with pytest.raises(TimeoutError):
        client.read_frame(wait_s=0.1)


@pytest.mark.parametrize("kind", ["PUB", "MPUB", "DPUB"])
def test_an_ok_leaves_when_its_commit_is_in_the_journal(controlled: Controlled, topic: str, kind: str) -> None:
    command = {"PUB": pub(topic, b"x"), "MPUB": mpub(topic, [b"x", b"y"]), "DPUB": dpub(topic, 60_000, b"x")}[kind]
    controlled.prepare_to_defer(topic)
    controlled.hold()
    with controlled.client() as client:
        client.send(command)
        controlled.wait_held()
        expect_silence(client)
        controlled.release()
        client.expect_ok()


@pytest.mark.parametrize("kind", ["PUB", "MPUB", "DPUB"])
def test_a_failed_commit_is_reported_to_the_publisher_and_its_messages_are_durable_with_the_next(
    controlled: Controlled, topic: str, kind: str
) -> None:
    command = {"PUB": pub(topic, b"x"), "MPUB": mpub(topic, [b"x", b"y"]), "DPUB": dpub(topic, 60_000, b"x")}[kind]
    controlled.prepare_to_defer(topic)
    controlled.switch("failing", True)
    with controlled.client() as client:
        client.send(command)
        frame = client.read_frame()
        assert frame.type == ERROR
        assert frame.data.startswith(b"E_PUB_FAILED PUB failed failed to write ")
        assert b"/journal/" in frame.data
        client.expect_closed()
    controlled.switch("failing", False)
    with controlled.client() as client:
        client.pub(topic, b"y")
    assert controlled.daemon.http("GET", "/ping").status == 200


def test_a_failed_commit_is_reported_to_its_waiting_publishers_only(controlled: Controlled, topic: str) -> None:
    controlled.hold()
    first, *others = clients = [controlled.client() for _ in range(5)]
    first.send(pub(topic, b"x"))
    controlled.wait_held()
    for client in others:
        client.send(pub(topic, b"y") * 3)
    wait_until(lambda: controlled.count(topic) == 3 + 1 + 4 * 3, "all have published")
    controlled.switch("failing", True)
    controlled.release()
    assert first.read_frame().data.startswith(b"E_PUB_FAILED ")
    first.expect_closed()
    controlled.switch("failing", False)
    # Publishes that came meanwhile belong to the next commit: the logs themselves are synced.
    for client in others:
        client.expect_ok(3)
    for client in clients:
        client.close()


def test_a_client_may_hang_up_while_its_commit_is_under_way(controlled: Controlled, topic: str) -> None:
    controlled.hold()
    leaving, staying = controlled.client(), controlled.client()
    leaving.send(pub(topic, b"x"))
    controlled.wait_held()
    resetting = socket.create_connection(controlled.daemon.tcp_address)
    resetting.sendall(MAGIC + pub(topic, b"x"))
    staying.send(pub(topic, b"x"))
    wait_until(lambda: controlled.count(topic) == 6, "all have published")
    leaving.close()
    resetting.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    resetting.close()
    controlled.release()
    staying.expect_ok()
    staying.pub(topic, b"y")
    staying.close()
    assert controlled.count(topic) == 7
    with controlled.client() as client:
        client.sub(topic, rdy_count=10)
        assert len(client.read_messages(7)) == 7


def test_publishes_that_come_in_one_piece_share_a_commit_and_are_answered_in_order(
    controlled: Controlled, topic: str
) -> None:
    controlled.hold()
    with controlled.client() as client:
        client.send(pub(topic, b"x") * 100 + b"NOP\n" + mpub(topic, [b"y"] * 10))
        controlled.wait_held()
        client.send(pub(topic, b"z") * 50)
        expect_silence(client)
        controlled.release()
        client.expect_ok(151)
    assert controlled.count(topic) == 3 + 160


def test_the_error_of_a_command_after_a_publish_follows_the_ok_of_the_publish(
    controlled: Controlled, topic: str
) -> None:
    with controlled.client() as client:
        client.send(pub(topic, b"x") + b"NONSENSE\n")
        client.expect_ok()
        assert client.read_frame().data.startswith(b"E_INVALID ")
        client.expect_closed()


def test_a_command_behind_a_publish_is_executed_when_the_commit_is_done(controlled: Controlled, topic: str) -> None:
    controlled.hold()
    with controlled.client() as client:
        client.send(identify({"heartbeat_interval": 60_000}) + pub(topic, b"x") + f"SUB {topic} c\n".encode())
        controlled.wait_held()
        controlled.release()
        client.expect_ok(3)
        client.send(b"RDY 10\n")
        assert sorted(message.body for message in client.read_messages(4)) == [b"prepared"] * 3 + [b"x"]


def test_a_consumer_that_publishes_gets_its_messages_and_its_oks(controlled: Controlled, topic: str) -> None:
    with controlled.client() as client:
        client.sub(topic, "c", rdy_count=100)
        for message in client.read_messages(3):
            client.fin(message)
        # The channel's name is durable with that; until then the files themselves are synced.
        client.pub(topic, b"x")
        client.fin(client.read_message())
        controlled.hold()
        client.send(b"".join(pub(topic, b"%d" % number) for number in range(20)))
        controlled.wait_held()
        controlled.release()
        frames: list[Frame] = [client.read_frame() for _ in range(40)]
        assert [frame.data for frame in frames if frame.type == RESPONSE] == [b"OK"] * 20
        messages = [parse_message(frame.data) for frame in frames if frame.type == MESSAGE]
        assert [message.body for message in messages] == [b"%d" % number for number in range(20)]
        for message in messages:
            client.fin(message)
        client.expect_alive()


def test_a_publisher_over_http_waits_for_the_commit_too(controlled: Controlled, topic: str) -> None:
    controlled.switch("failing", True)
    assert controlled.daemon.http("POST", "/pub", b"x", topic=topic).status == 503
    controlled.switch("failing", False)
    assert controlled.daemon.http("POST", "/pub", b"x", topic=topic).status == 200


@pytest.mark.parametrize("kind", ["SUB", "MPUB"])
def test_a_command_behind_a_publish_that_is_refused_is_not_executed(
    controlled: Controlled, topic: str, kind: str
) -> None:
    large = mpub(topic, [b"x" * 100_000] * 20)
    command = {"SUB": f"SUB {topic} c\n".encode(), "MPUB": large}[kind]
    controlled.hold()
    with controlled.client() as client:
        client.send(pub(topic, b"x") + command)
        controlled.wait_held()
        time.sleep(0.2)
        controlled.switch("failing", True)
        controlled.release()
        assert client.read_frame().data.startswith(b"E_PUB_FAILED ")
        client.expect_closed()
    assert controlled.daemon.channel(topic, "c") is None


def test_a_publisher_that_waits_for_a_slow_commit_is_not_closed_for_its_silence(
    controlled: Controlled, topic: str
) -> None:
    with controlled.client() as client:
        client.send(identify({"heartbeat_interval": 1000}))
        client.expect_ok()
        controlled.hold()
        client.send(pub(topic, b"x"))
        controlled.wait_held()
        time.sleep(2.5)
        controlled.release()
        client.expect_ok()
