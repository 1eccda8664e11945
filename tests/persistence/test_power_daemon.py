"""The whole daemon with --sync-every=1: confirmed messages of clients over TCP and HTTP survive a power cut."""

import http.client
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.persistence.power_daemon import PowerDaemon
from tests.persistence.test_power_loss import FLAGS, unfinished
from tests.support.nsq import ERROR, MESSAGE, Client, Closed, Frame, dpub, mpub, parse_message, pub
from tests.support.power import PowerFiles
from tests.support.server import wait_until
from tests.support.storage import broker_on

pytestmark = pytest.mark.slow

WAIT_S = 20
ENOUGH = 300


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[PowerDaemon]:
    running = PowerDaemon(tmp_path, "--sync-every=1", "--sync-timeout=1h")
    yield running
    running.end()


def publish_over_tcp(daemon: PowerDaemon, name: str, acknowledged: list[bytes], enough: threading.Semaphore) -> None:
    with daemon.client() as client:
        for number in range(1_000_000):
            bodies = [f"{name}{number:06}{part}".encode() for part in range(1 + number % 3)]
            command = (pub("t", bodies[0]), mpub("t", bodies), dpub("t", 3_600_000, bodies[0]))[number % 3]
            try:
                client.send(command)
                if client.read_frame().data != b"OK":
                    return
            except Exception:
                return
            acknowledged += bodies if number % 3 == 1 else bodies[:1]
            enough.release()


def publish_over_http(daemon: PowerDaemon, name: str, acknowledged: list[bytes], enough: threading.Semaphore) -> None:
    for number in range(1_000_000):
        body = f"{name}{number:06}0".encode()
        try:
            if daemon.post("/pub?topic=t" + ("&defer=3600000" if number % 2 else ""), body) != 200:
                return
        except (OSError, http.client.HTTPException):
            return
        acknowledged.append(body)
        enough.release()


def test_acknowledged_operations_survive_a_power_cut(daemon: PowerDaemon, tmp_path: Path) -> None:
    with daemon.client() as client:
        client.sub("t", "c", rdy_count=0)
        enough = threading.Semaphore(0)
        told: list[list[bytes]] = []
        threads = []
        for name, work in (("a", publish_over_tcp), ("b", publish_over_tcp), ("c", publish_over_http)):
            told.append([])
            threads.append(threading.Thread(target=work, args=(daemon, name, told[-1], enough)))
            threads[-1].start()
        for _ in range(ENOUGH):
            assert enough.acquire(timeout=WAIT_S)
        daemon.cut()
        for thread in threads:
            thread.join(WAIT_S)
    files = PowerFiles(tmp_path / "after", "after")
    broker = broker_on(tmp_path / "after", files, **FLAGS)
    now, later = unfinished(broker.topics["t"].channels_by_name["c"])
    assert all(told)
    assert {body for bodies in told for body in bodies} <= set(now) | set(later)
    broker.close()
    files.close()


def test_a_failed_sync_is_reported_to_waiting_publishers_and_the_next_sync_succeeds(daemon: PowerDaemon) -> None:
    assert daemon.post("/pub?topic=t", b"x") == 200
    assert daemon.toggle_failing() == b"True\n"
    with daemon.client() as client:
        client.send(pub("t", b"x"))
        assert client.read_frame().data.startswith(b"E_PUB_FAILED PUB failed ")
        client.expect_closed()
    assert daemon.post("/pub?topic=t", b"x") == 503
    assert daemon.toggle_failing() == b"False\n"
    with daemon.client() as client:
        client.pub("t", b"x")
    assert daemon.post("/pub?topic=t", b"x") == 200


def frames_until_closed(client: Client) -> list[Frame]:
    """Read whole frames until the daemon closes the connection between two of them."""
    frames = []
    while True:
        try:
            frames.append(client.read_frame())
        except Closed:
            return frames


@pytest.mark.parametrize("upgrade", ["plain", "deflate"])
def test_the_error_of_a_failed_sync_follows_the_half_sent_message(daemon: PowerDaemon, upgrade: str) -> None:
    bodies = [os.urandom(1 << 20) for _ in range(10)]
    with daemon.client(receive_buffer_bytes=4096) as client:
        if upgrade == "deflate":
            client.identify(deflate=True)
            client.start_deflate()
        client.sub("t", "c", rdy_count=len(bodies))
        for body in bodies:
            assert daemon.post("/pub?topic=t", body) == 200
        # The socket is full, and the rest of a message waits in the connection.
        seen = [0]

        def has_stopped() -> bool:
            seen.append(daemon.in_flight("t"))
            return seen[-1] != 0 and len(set(seen[-10:])) == 1

        wait_until(has_stopped, "the consumer takes no more")
        assert seen[-1] < len(bodies)
        assert daemon.toggle_failing() == b"True\n"
        client.send(pub("other", b"x"))
        *messages, failure = frames_until_closed(client)
    assert failure.type == ERROR
    assert failure.data.startswith(b"E_PUB_FAILED PUB failed ")
    assert {frame.type for frame in messages} == {MESSAGE}
    assert [parse_message(frame.data).body for frame in messages] == bodies[: len(messages)]
