"""An HTTP server in a process of its own, one for each module's tests."""

from __future__ import annotations

import http.client
import os
import selectors
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.preloaded import REPOSITORY, spawn
from tests.support.server import Reply
from tests.support.two_servers import (  # noqa: F401 -- pytest finds fixtures and hooks in the names of this module
    _the_servers_stay_well,
    client,
    connect,
    early_topics,
    narrow_early_topics,
    narrow_server,
    own_server,
    pytest_generate_tests,
    server,
    timed_topic,
    topic,
)

WAIT_S = 10.0
FLAGS = ("--max-msg-size=1000", "--max-body-size=3000", "--max-req-timeout=1m", "--broadcast-address=127.0.0.1")


class HttpApp:
    """A process of tests/api/http_app.py."""

    def __init__(
        self, directory: Path, address: str = "127.0.0.1:0", flags: Sequence[str] = FLAGS, wait_s: float | None = None
    ) -> None:
        self.data_path = directory / "data"
        self.data_path.mkdir()
        self.log_path = directory / "log"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, str(REPOSITORY)])}
        if wait_s is not None:
            flags = [*flags, *(f"--http-{part}-timeout={wait_s}s" for part in ("idle", "header", "body", "write"))]
        with self.log_path.open("wb") as log:
            command = [sys.executable, "-m", "tests.api.http_app", str(self.data_path), address, *flags]
            pipe = subprocess.PIPE
            self.process = spawn(command, directory, environment, stdin=pipe, stdout=pipe, stderr=log.fileno())
        self.address = self._read_line()

    def _read_line(self) -> str:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if selector.select(WAIT_S):
                line = self.process.stdout.readline().decode().strip()
                if line:
                    return line
        self.kill()
        raise AssertionError(f"the server did not start: {self.log_text()}")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def log_text(self) -> str:
        return self.log_path.read_text()

    def stop(self) -> int:
        """Let the server end by itself. Returns: its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            return self.process.wait(WAIT_S)
        finally:
            self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), WAIT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def request(self, method: str, target: str, body: bytes | None = None) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            connection.request(method, target, body=body)
            return read_reply(connection.getresponse())
        finally:
            connection.close()

    def get(self, target: str) -> Reply:
        return self.request("GET", target)

    def post(self, target: str, body: bytes = b"") -> Reply:
        return self.request("POST", target, body)

    def exchange(self, data: bytes) -> bytes:
        """Send bytes as they are, and return all that comes until the server closes."""
        with self.connect() as connection:
            connection.sendall(data)
            return read_to_end(connection)


def read_reply(response: http.client.HTTPResponse) -> Reply:
    headers = dict(response.getheaders())
    return Reply(response.status, headers, response.read())


def read_to_end(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpApp]:
    running = HttpApp(tmp_path_factory.mktemp("http"))
    yield running
    assert running.stop() == 0, running.log_text()
