"""Brokers and consumers that find each other by a lookup daemon: pyqlookupd, and Go's nsqlookupd and nsqd if given."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lookupd import conftest
from tests.lookupd.conftest import LookupDaemon
from tests.support.server import REPOSITORY, Daemon, Implementation, free_port, nsqd, pyqd, running, wait_until

# A broker that was cut off tries again after 15 s at most, and a loaded machine takes its time.
WAIT_S = 40.0
PYQLOOKUPD = (sys.executable, "-m", "pyqd.apps.lookupd")
CLIENTS = {"pynsq": "nsq", "gnsq": "gnsq"}

Start = Callable[..., Daemon]


@pytest.fixture(params=["pyqlookupd", "nsqlookupd"])
def lookupd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LookupDaemon]:
    command: tuple[str, ...] = PYQLOOKUPD
    if request.param == "nsqlookupd":
        path = request.config.getoption("nsqlookupd")
        if path is None:
            pytest.skip("no nsqlookupd: NSQLOOKUPD may name one")
        command = (path,)
    flags = ("-broadcast-address=127.0.0.1",)
    # Ports for the whole test, as the daemon is started again.
    ports = {"TCP": free_port(), "HTTP": free_port()}
    with conftest.running(LookupDaemon(command, tmp_path / "lookupd.log", flags, ports=ports)) as daemon:
        yield daemon


@pytest.fixture
def start(lookupd: LookupDaemon, tmp_path: Path) -> Iterator[Start]:
    """Start brokers that register with the lookup daemon."""
    with contextlib.ExitStack() as exits:
        started: list[Daemon] = []

        def start_one(implementation: Implementation | None = None, *flags: str) -> Daemon:
            directory = tmp_path / f"broker{len(started)}"
            own = (f"-lookupd-tcp-address={tcp_address(lookupd)}", *flags)
            started.append(exits.enter_context(running(Daemon(implementation or pyqd(), directory, own))))
            return started[-1]

        yield start_one


def tcp_address(lookupd: LookupDaemon) -> str:
    return f"127.0.0.1:{lookupd.ports['TCP']}"


def nodes(lookupd: LookupDaemon) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = lookupd.ask("GET", "/nodes")[1]["producers"]
    return found


def places(lookupd: LookupDaemon, topic: str) -> tuple[list[str], list[int]]:
    """Return the channels of a topic, and the ports of its brokers."""
    found = lookupd.ask("GET", f"/lookup?topic={topic}")[1]
    return sorted(found.get("channels", [])), sorted(each["tcp_port"] for each in found.get("producers", []))


def wait_for_places(lookupd: LookupDaemon, topic: str, channels: list[str], *brokers: Daemon) -> None:
    expected = channels, sorted(broker.tcp_port for broker in brokers)
    wait_until(lambda: places(lookupd, topic) == expected, f"{topic}: {expected}", WAIT_S)


def test_a_broker_is_named_with_its_topics_and_channels(lookupd: LookupDaemon, start: Start) -> None:
    broker = start(None, "-topology-region=r", "-topology-zone=z")
    wait_until(lambda: len(nodes(lookupd)) == 1, "the broker identifies itself", WAIT_S)
    (node,) = nodes(lookupd)
    info = broker.http("GET", "/info").json()
    expected = {key: info[key] for key in ("hostname", "tcp_port", "http_port", "version")}
    expected |= {"broadcast_address": "127.0.0.1", "topology_region": "r", "topology_zone": "z", "topics": []}
    assert {key: node[key] for key in expected} == expected
    for path in ("/topic/create?topic=t", "/channel/create?topic=t&channel=a", "/channel/create?topic=t&channel=b"):
        assert broker.http("POST", path).status == 200
    broker.http("POST", "/topic/create", topic="short#ephemeral")
    broker.http("POST", "/channel/create", topic="short#ephemeral", channel="c#ephemeral")
    wait_for_places(lookupd, "t", ["a", "b"], broker)
    wait_for_places(lookupd, "short%23ephemeral", ["c#ephemeral"], broker)
    broker.http("POST", "/channel/delete", topic="short#ephemeral", channel="c#ephemeral")
    wait_for_places(lookupd, "short%23ephemeral", [])
    broker.http("POST", "/topic/delete?topic=t")
    # The lookup daemon keeps the names of channels that are not ephemeral.
    wait_for_places(lookupd, "t", ["a", "b"])


def test_a_broker_that_stops_is_forgotten_and_comes_back_with_its_topics(lookupd: LookupDaemon, start: Start) -> None:
    broker = start()
    broker.http("POST", "/topic/create?topic=bare")
    broker.http("POST", "/topic/create?topic=t")
    broker.http("POST", "/channel/create?topic=t&channel=c")
    wait_for_places(lookupd, "t", ["c"], broker)
    broker.stop()
    wait_until(lambda: nodes(lookupd) == [], "the broker is forgotten")
    broker.start()
    wait_for_places(lookupd, "t", ["c"], broker)
    wait_for_places(lookupd, "bare", [], broker)
    broker.kill()
    wait_until(lambda: nodes(lookupd) == [], "the broker is forgotten after a kill")
    broker.start()
    wait_for_places(lookupd, "t", ["c"], broker)


def test_a_lookup_daemon_that_was_killed_learns_everything_again(lookupd: LookupDaemon, start: Start) -> None:
    broker = start()
    broker.http("POST", "/topic/create?topic=t")
    wait_for_places(lookupd, "t", [], broker)
    lookupd.kill()
    broker.http("POST", "/channel/create?topic=t&channel=c")
    broker.http("POST", "/topic/create?topic=u")
    assert broker.http("POST", "/pub?topic=u", b"x").status == 200
    lookupd.start()
    wait_for_places(lookupd, "t", ["c"], broker)
    wait_for_places(lookupd, "u", [], broker)
    (state,) = broker.http("GET", "/stats?format=json").json()["lookup_daemons"]
    assert (state["address"], state["connected"]) == (tcp_address(lookupd), True)
    assert state["reconnect_count"] == 1
    assert state["registration_count"] >= 3
    assert "; check that the lookup daemon runs" in state["last_error"]


def test_lookup_daemons_come_and_go_at_run_time(lookupd: LookupDaemon, start: Start) -> None:
    broker = start()
    key = "/config/nsqlookupd_tcp_addresses"
    broker.http("POST", "/topic/create?topic=t")
    wait_for_places(lookupd, "t", [], broker)
    for nothing in (b"[]", b"null"):
        assert broker.http("PUT", key, nothing).body == nothing
        wait_until(lambda: nodes(lookupd) == [], "the broker has left")
        assert "lookup_daemons" not in broker.http("GET", "/stats?format=json").json()
        text = f'["127.0.0.1:1","{tcp_address(lookupd)}"]'.encode()
        assert broker.http("PUT", key, text).body == text
        wait_for_places(lookupd, "t", [], broker)
    page = broker.http("GET", "/stats").body.decode()
    assert (
        "\nLookup daemons:\n   [127.0.0.1:1          ] not registered reconnects: 0    registrations: 0      " in page
    )
    assert f"   [{tcp_address(lookupd)}" in page
    metrics = broker.http("GET", "/metrics").body.decode()
    assert 'pyqd_lookupd_connected{address="127.0.0.1:1"} 0.0\n' in metrics
    assert f'pyqd_lookupd_connected{{address="{tcp_address(lookupd)}"}} 1.0\n' in metrics
    assert f'pyqd_lookupd_registrations_total{{address="{tcp_address(lookupd)}"}} 1.0\n' in metrics


def test_a_broker_that_drains_is_not_named_while_its_messages_are_in_flight(
    lookupd: LookupDaemon, start: Start
) -> None:
    broker = start()
    assert broker.http("POST", "/pub?topic=t", b"x").status == 200
    wait_for_places(lookupd, "t", [], broker)
    with socket.create_connection(broker.tcp_address, timeout=WAIT_S) as consumer:
        consumer.sendall(b"  V2SUB t c\nRDY 1\n")
        broker.wait_for_channel("t", "c", in_flight_count=1)
        assert broker.http("POST", "/drain?timeout=60s").status == 200
        wait_until(lambda: nodes(lookupd) == [], "the broker has left")
        addresses = f'["{tcp_address(lookupd)}"]'.encode()
        assert broker.http("PUT", "/config/nsqlookupd_tcp_addresses", addresses).status == 200
        assert broker.channel("t", "c") is not None
        time.sleep(0.3)
        assert nodes(lookupd) == []
    broker.kill()


@pytest.fixture(params=["pyqd", "nsqd"])
def other(request: pytest.FixtureRequest) -> Implementation:
    """The implementation of another broker of the cluster."""
    if request.param == "pyqd":
        return pyqd()
    path = request.config.getoption("nsqd")
    if path is None:
        pytest.skip("no nsqd: NSQD may name one")
    return nsqd(path)


def test_a_new_topic_has_the_channels_of_the_cluster_before_its_first_message(
    lookupd: LookupDaemon, start: Start, other: Implementation
) -> None:
    first, second = start(other), start()
    for channel in ("a", "b", "short#ephemeral"):
        first.http("POST", "/topic/create", topic="t")
        first.http("POST", "/channel/create", topic="t", channel=channel)
    wait_for_places(lookupd, "t", ["a", "b", "short#ephemeral"], first)
    assert second.http("POST", "/pub?topic=t", b"first").status == 200
    second.wait_for_channel("t", "a", depth=1)
    second.wait_for_channel("t", "b", depth=1)
    assert second.channel("t", "short#ephemeral") is None
    wait_for_places(lookupd, "t", ["a", "b", "short#ephemeral"], first, second)


class Consumer:
    """A consumer in a process of its own. bodies: what it has finished."""

    def __init__(self, library: str, lookupd: LookupDaemon, topic: str, channel: str, log: Path) -> None:
        self._log = log
        self._errors = log.with_suffix(".err")
        address = f"127.0.0.1:{lookupd.ports['HTTP']}"
        with log.open("wb") as out, self._errors.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.lookupd.consumer", library, address, topic, channel],
                cwd=REPOSITORY,
                stdout=out,
                stderr=err,
            )

    @property
    def bodies(self) -> set[str]:
        assert self.process.poll() is None, self._errors.read_text()
        return set(self._log.read_text().split())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)


@pytest.mark.interop
@pytest.mark.timeout(240)
@pytest.mark.parametrize("library", CLIENTS)
def test_consumers_find_all_brokers_again_after_each_part_was_killed(
    lookupd: LookupDaemon, start: Start, tmp_path: Path, library: str
) -> None:
    if importlib.util.find_spec(CLIENTS[library]) is None:
        pytest.skip(f"{library} is not installed")
    brokers = [start(), start()]
    consumer = Consumer(library, lookupd, "t", "c", tmp_path / "consumer.log")
    sent: set[str] = set()

    def publish_to_all(label: str) -> None:
        for number, broker in enumerate(brokers):
            sent.add(f"{label}-{number}")
            assert broker.http("POST", "/pub?topic=t", f"{label}-{number}".encode()).status == 200

    def all_arrive(label: str) -> None:
        publish_to_all(label)
        wait_until(lambda: consumer.bodies >= sent, f"{label}: {sent} from {tmp_path / 'consumer.log'}", WAIT_S)

    try:
        all_arrive("start")
        lookupd.kill()
        all_arrive("without-lookupd")
        lookupd.start()
        wait_for_places(lookupd, "t", ["c"], *brokers)
        brokers[0].kill_and_start()
        all_arrive("broker-killed")
        brokers[1].restart()
        all_arrive("broker-restarted")
        consumer.kill()
        publish_to_all("meanwhile")
        consumer = Consumer(library, lookupd, "t", "c", tmp_path / "second.log")
        sent = {body for body in sent if body.startswith("meanwhile")}
        all_arrive("consumer-killed")
    finally:
        consumer.kill()


@pytest.mark.interop
def test_brokers_of_both_kinds_serve_one_consumer(
    lookupd: LookupDaemon, start: Start, other: Implementation, tmp_path: Path
) -> None:
    brokers = [start(), start(other)]
    consumer = Consumer("pynsq", lookupd, "t", "c", tmp_path / "consumer.log")
    try:
        for number, broker in enumerate(brokers):
            assert broker.http("POST", "/pub?topic=t", str(number).encode()).status == 200
        wait_for_places(lookupd, "t", ["c"], *brokers)
        wait_until(lambda: consumer.bodies == {"0", "1"}, "messages of both brokers", WAIT_S)
    finally:
        consumer.kill()
