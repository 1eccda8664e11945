"""Data directories go from Go's nsqd to pyqd and back: the same depths, bodies, ids, timestamps and deliveries."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nsq import Client, Message
from tests.support.nsqd_data import snapshot
from tests.support.server import REPOSITORY, START_WAIT_S, Daemon, nsqd, pyqd
from tests.support.storage import broker_on

MEMORY_FLAGS = [(), ("-mem-queue-size=0",), ("-mem-queue-size=7", "-max-bytes-per-file=600")]
FAR_MS = 3_000_000
QUEUES = (("orders", "email"), ("orders", "audit"), ("orders", "quiet"), ("frozen", "c"), ("lonely", "n"))
Depths = dict[str, tuple[int, bool, dict[str, tuple[int, bool]]]]


@pytest.fixture
def nsqd_path(request: pytest.FixtureRequest) -> str:
    """Give the path of Go's nsqd, and skip the test if none is given."""
    path = request.config.getoption("--nsqd")
    if not path:
        pytest.skip("no nsqd is given, by --nsqd=PATH or the environment variable NSQD")
    return str(path)


@pytest.fixture
def daemons() -> Iterator[list[Daemon]]:
    """Give a list; the daemons in it end with the test."""
    started: list[Daemon] = []
    yield started
    for daemon in started:
        daemon.kill()


def tool(*arguments: str | Path) -> str:
    """Run one of pyqd's tools. Returns: its output."""
    command = [sys.executable, "-m", "pyqd.apps.cli", *map(str, arguments)]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=START_WAIT_S, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def subscribed(daemon: Daemon, topic: str, channel: str, rdy_count: int = 0) -> Client:
    client = Client(daemon.tcp_address)
    client.identify(msg_timeout=60_000)
    client.sub(topic, channel, rdy_count=rdy_count)
    return client


def set_paused(daemon: Daemon, paused: bool, topic: str, channel: str | None = None) -> None:
    """Pause or resume a topic or channel: nsqd over HTTP, pyqd between two runs, which shows that it is kept."""
    if daemon.implementation.name == "nsqd":
        kind = "topic" if channel is None else "channel"
        path = f"/{kind}/{'pause' if paused else 'unpause'}"
        assert daemon.http("POST", path, None, topic=topic, channel=channel or "").status == 200
        return
    daemon.stop()
    broker = broker_on(daemon.data_path)
    found = broker.topics[topic]
    (found if channel is None else found.channels_by_name[channel]).pause(paused)
    broker.close()
    daemon.start()


def fill(daemon: Daemon) -> None:
    """Make topics with messages in every state: queued, held, in flight when it stops, requeued, deferred."""
    for topic, channel in QUEUES[:-1]:
        subscribed(daemon, topic, channel).close()
    with Client(daemon.tcp_address) as producer:
        producer.mpub("frozen", [b"shown"])
    daemon.wait_for_channel("frozen", "c", depth=1)
    set_paused(daemon, True, "frozen")
    set_paused(daemon, True, "orders", "quiet")
    with Client(daemon.tcp_address) as producer:
        producer.mpub("orders", [b"order %d" % number + bytes(number) for number in range(30)])
        producer.mpub("frozen", [b"frozen %d" % number for number in range(5)])
        producer.mpub("lonely", [b"lonely %d" % number for number in range(20)])
        # nsqd forgets the delay of a message for which its topic's memory has no space.
        daemon.wait_for_topic("orders", depth=0)
        producer.dpub("orders", FAR_MS, b"deferred")
    for channel in ("email", "audit", "quiet"):
        daemon.wait_for_channel("orders", channel, depth=30, deferred_count=1)
    with subscribed(daemon, "orders", "email", 8) as consumer:
        for message in consumer.read_messages(8)[:5]:
            consumer.fin(message)
        again = consumer.read_messages(5)
        consumer.req(again[0], 0)
        consumer.req(again[1], FAR_MS)
        consumer.read_messages(2)
        daemon.wait_for_channel("orders", "email", in_flight_count=8, deferred_count=2)
    # Its in-flight messages stay so until their time-out, and are in flight when the daemon stops.


def depths(daemon: Daemon) -> Depths:
    return {
        name: (
            topic["depth"],
            topic["paused"],
            {each["channel_name"]: (each["depth"], each["paused"]) for each in topic["channels"] or []},
        )
        for name, topic in daemon.topics().items()
    }


def drain(daemon: Daemon) -> dict[tuple[str, str], list[Message]]:
    """Take every message, also of paused channels, and finish nothing. Returns: each queue's messages by their ids."""
    set_paused(daemon, False, "frozen")
    set_paused(daemon, False, "orders", "quiet")
    found = {}
    for topic, channel in QUEUES:
        with subscribed(daemon, topic, channel, 1000) as consumer:
            daemon.wait_for_channel(topic, channel, depth=0)
            in_flight = (daemon.channel(topic, channel) or {})["in_flight_count"]
            found[topic, channel] = sorted(consumer.read_messages(in_flight), key=lambda message: message.id)
    return found


EXPECTED = {
    "orders": (0, False, {"email": (26, False), "audit": (31, False), "quiet": (31, True)}),
    "frozen": (5, True, {"c": (1, False)}),
    "lonely": (20, False, {}),
}


def filled(path: str, directory: Path, flags: tuple[str, ...], daemons: list[Daemon]) -> Path:
    """Return the data directory of an nsqd that was filled and stopped."""
    daemon = Daemon(nsqd(path), directory, flags)
    daemons.append(daemon)
    daemon.start()
    fill(daemon)
    daemon.stop()
    return daemon.data_path


def started_on(source: Path, daemon: Daemon, daemons: list[Daemon]) -> Daemon:
    """Start a daemon on a copy of a data directory."""
    daemons.append(daemon)
    shutil.rmtree(daemon.data_path)
    shutil.copytree(source, daemon.data_path)
    return daemon.start()


@pytest.mark.interop
@pytest.mark.parametrize("flags", MEMORY_FLAGS, ids=" ".join)
def test_pyqd_resumes_from_the_files_of_nsqd(
    nsqd_path: str, tmp_path: Path, flags: tuple[str, ...], daemons: list[Daemon]
) -> None:
    data = filled(nsqd_path, tmp_path / "go", flags, daemons)
    original = started_on(data, Daemon(nsqd(nsqd_path), tmp_path / "again"), daemons)
    assert depths(original) == EXPECTED
    dry = tool("import", "--dry-run", data)
    assert "  channel email: 26 messages" in dry
    ours = started_on(data, Daemon(pyqd(), tmp_path / "pyqd"), daemons)
    assert depths(ours) == EXPECTED
    assert drain(ours) == drain(original)
    for line in dry.splitlines()[1:]:
        assert f"IMPORT: {line}" in ours.log_text()
    kept = {name: content for name, (_, content) in snapshot(ours.data_path / "imported-from-nsqd").items()}
    kept.pop("report.txt")
    assert kept == {name: content for name, (_, content) in snapshot(data).items()}
    ours.restart()
    ours.stop()


@pytest.mark.interop
def test_nsqd_resumes_from_the_files_of_pyqd(nsqd_path: str, tmp_path: Path, daemons: list[Daemon]) -> None:
    ours = Daemon(pyqd(), tmp_path / "pyqd")
    daemons.append(ours)
    ours.start()
    fill(ours)
    ours.stop()
    report = tool("export", f"--from={ours.data_path}", tmp_path / "exported")
    assert "note: 4 deferred messages lose their due time" in report
    theirs = started_on(tmp_path / "exported", Daemon(nsqd(nsqd_path), tmp_path / "go"), daemons)
    assert depths(theirs) == EXPECTED
    again = started_on(tmp_path / "exported", Daemon(pyqd(), tmp_path / "again"), daemons)
    assert depths(again) == EXPECTED
    assert drain(theirs) == drain(again)
    theirs.stop()
    again.stop()


@pytest.mark.interop
def test_a_killed_nsqd_loses_nothing_that_was_on_its_disk(
    nsqd_path: str, tmp_path: Path, daemons: list[Daemon]
) -> None:
    killed = Daemon(nsqd(nsqd_path), tmp_path / "go", ("-mem-queue-size=0", "-sync-every=10", "-sync-timeout=1h"))
    daemons.append(killed)
    killed.start()
    with Client(killed.tcp_address) as producer:
        producer.pub_each("synced", [b"%d" % number for number in range(25)])
        producer.pub_each("unsynced", [b"%d" % number for number in range(5)])
    killed.kill()
    ours = started_on(killed.data_path, Daemon(pyqd(), tmp_path / "pyqd"), daemons)
    for topic, count in (("synced", 25), ("unsynced", 5)):
        with subscribed(ours, topic, "c", 100) as consumer:
            assert {message.body for message in consumer.read_messages(count)} == {b"%d" % n for n in range(count)}
    assert "all its segments are taken" in ours.log_text()
    ours.stop()


@pytest.mark.interop
def test_a_running_pyqd_is_inspected(tmp_path: Path, daemons: list[Daemon]) -> None:
    ours = Daemon(pyqd(), tmp_path, ["-sync-timeout=100ms"])
    daemons.append(ours)
    ours.start()
    fill(ours)
    output = tool("inspect", "--verify", ours.data_path)
    [email] = [line.split() for line in output.splitlines() if line.split()[:2] == ["orders", "email"]]
    assert email[2] == "26"
    assert "running, or not stopped cleanly" in output
    ours.stop()
    assert "stopped cleanly" in tool("inspect", "--verify", ours.data_path)
