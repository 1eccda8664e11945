"""The whole daemon with --sync-every=1: what clients over TCP and HTTP were told survives a power cut."""

import http.client
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.persistence.test_power_loss import FLAGS, unfinished
from tests.support.nsq import Client, dpub, mpub, pub
from tests.support.power import PowerFiles
from tests.support.server import REPOSITORY
from tests.support.storage import broker_on

WAIT_S = 20
ENOUGH = 300


class Running:
    """A process of power_daemon.py."""

    def __init__(self, directory: Path) -> None:
        (directory / "before").mkdir()
        flags = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--sync-every=1", "--sync-timeout=1h"]
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.persistence.power_daemon", str(directory / "after")),
                *(f"--data-path={directory / 'before'}", *flags),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=REPOSITORY,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path])},
        )
        self.tcp_port, self.http_port = map(int, self.line().split())

    def line(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def post(self, target: str, body: bytes) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=WAIT_S)
        try:
            connection.request("POST", target, body=body)
            return connection.getresponse().status
        finally:
            connection.close()

    def client(self) -> Client:
        return Client(("127.0.0.1", self.tcp_port))


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    yield running
    running.process.kill()
    running.process.wait(WAIT_S)
    assert running.process.stdout is not None
    running.process.stdout.close()


def publish_over_tcp(daemon: Running, name: str, acknowledged: list[bytes], enough: threading.Semaphore) -> None:
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


def publish_over_http(daemon: Running, name: str, acknowledged: list[bytes], enough: threading.Semaphore) -> None:
    for number in range(1_000_000):
        body = f"{name}{number:06}0".encode()
        try:
            if daemon.post("/pub?topic=t" + ("&defer=3600000" if number % 2 else ""), body) != 200:
                return
        except (OSError, http.client.HTTPException):
            return
        acknowledged.append(body)
        enough.release()


def test_what_clients_were_told_survives_a_power_cut(daemon: Running, tmp_path: Path) -> None:
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
        daemon.process.send_signal(signal.SIGUSR1)
        assert daemon.process.wait(WAIT_S) == 0
        for thread in threads:
            thread.join(WAIT_S)
    files = PowerFiles(tmp_path / "after", "after")
    broker = broker_on(tmp_path / "after", files, **FLAGS)
    now, later = unfinished(broker.topic_of["t"].channel_of["c"])
    assert all(told)
    assert {body for bodies in told for body in bodies} <= set(now) | set(later)
    broker.close()
    files.close()


def test_a_failed_sync_is_told_to_those_who_wait_and_ends_with_the_next(daemon: Running) -> None:
    assert daemon.post("/pub?topic=t", b"x") == 200
    daemon.process.send_signal(signal.SIGUSR2)
    assert daemon.line() == b"True\n"
    with daemon.client() as client:
        client.send(pub("t", b"x"))
        assert client.read_frame().data.startswith(b"E_PUB_FAILED PUB failed ")
        client.expect_closed()
    assert daemon.post("/pub?topic=t", b"x") == 503
    daemon.process.send_signal(signal.SIGUSR2)
    assert daemon.line() == b"False\n"
    with daemon.client() as client:
        client.pub("t", b"x")
    assert daemon.post("/pub?topic=t", b"x") == 200
