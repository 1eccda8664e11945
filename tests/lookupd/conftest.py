"""Lookup daemons under test: pyqlookupd, and nsqlookupd if its path is given."""

import contextlib
import http.client
import json
import os
import re
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.preloaded import REPOSITORY, Process, spawn

WAIT_S = 20.0
BROKER = {"broadcast_address": "10.1.1.1", "hostname": "host", "tcp_port": 4150, "http_port": 4151, "version": "1.3.0"}
_LISTENING = re.compile(r"(TCP|HTTP): listening on 127\.0\.0\.1:(\d+)")


@dataclass
class LookupDaemon:
    """One process at a time with its log. ports: those of the last process, which the next one has too."""

    command: tuple[str, ...]
    log: Path
    flags: tuple[str, ...] = ()
    process: Process | None = None
    ports: dict[str, int] = field(default_factory=dict)
    brokers: list["Broker"] = field(default_factory=list)

    def start(self) -> None:
        tcp_port, http_port = self.ports.get("TCP", 0), self.ports.get("HTTP", 0)
        addresses = (f"-tcp-address=127.0.0.1:{tcp_port}", f"-http-address=127.0.0.1:{http_port}")
        with self.log.open("wb") as log:
            command = [*self.command, *addresses, *self.flags]
            self.process = spawn(command, REPOSITORY, os.environ, stdout=subprocess.DEVNULL, stderr=log.fileno())
        deadline_s = time.monotonic() + WAIT_S
        found: dict[str, int] = {}
        while len(found) < 2:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline_s, self.log.read_text()
            found = {name: int(port) for name, port in _LISTENING.findall(self.log.read_text())}
            time.sleep(0.02)
        self.ports = found

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(WAIT_S)

    def kill(self) -> None:
        """End the process as a crash does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(WAIT_S)

    def ask(self, method: str, target: str) -> tuple[int, Any]:
        """Return status and body of an answer, JSON decoded."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports["HTTP"], timeout=WAIT_S)
        with contextlib.closing(connection):
            connection.request(method, target)
            answer = connection.getresponse()
            body = answer.read()
            is_json = "json" in (answer.getheader("Content-Type") or "")
            return answer.status, json.loads(body) if is_json else body

    def broker(self, **changes: Any) -> "Broker":
        """Return the connection of a broker that has sent IDENTIFY; closed at the end of the test."""
        self.brokers.append(Broker(self.ports["TCP"]))
        self.brokers[-1].identify({**BROKER, **changes})
        return self.brokers[-1]


class Broker:
    """A connection as a broker has one. info: the reply to IDENTIFY."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        self.info: dict[str, Any] = {}

    def identify(self, identity: dict[str, Any]) -> None:
        body = json.dumps(identity).encode()
        self.socket.sendall(b"  V1IDENTIFY\n" + struct.pack(">i", len(body)) + body)
        self.info = json.loads(self.answer())

    def answer(self) -> bytes:
        """Return the next answer; b"" if the connection has closed."""
        head = self.read(4)
        return self.read(struct.unpack(">i", head)[0]) if head else b""

    def read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                return b""
            data += piece
        return data

    def send(self, *lines: str) -> list[bytes]:
        """Send commands and return their answers."""
        self.socket.sendall("".join(f"{line}\n" for line in lines).encode())
        return [self.answer() for _ in lines]

    def close(self) -> None:
        self.socket.close()


@contextlib.contextmanager
def running(daemon: LookupDaemon) -> Iterator[LookupDaemon]:
    daemon.start()
    try:
        yield daemon
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.log.read_text()
    finally:
        for broker in daemon.brokers:
            broker.close()
        assert daemon.process is not None
        daemon.process.kill()
        daemon.process.wait()


@pytest.fixture
def pyqlookupd(tmp_path: Path) -> Iterator[LookupDaemon]:
    command = (sys.executable, "-m", "pyqd.apps.lookupd")
    with running(LookupDaemon(command, tmp_path / "pyqlookupd.log")) as daemon:
        yield daemon


@pytest.fixture
def nsqlookupd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LookupDaemon]:
    path = request.config.getoption("nsqlookupd")
    if path is None:
        pytest.skip("no nsqlookupd: NSQLOOKUPD may name one")
    with running(LookupDaemon((path,), tmp_path / "nsqlookupd.log")) as daemon:
        yield daemon
