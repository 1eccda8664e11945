"""A lookup daemon as a process, and the side of a broker that registers with it.

Source: docs/nsq/lookupd.md, "TCP protocol": IDENTIFY, REGISTER, PING; an answer is its size and its data.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlencode

from tests.support.preloaded import program_environment, spawn
from tests.support.server import START_COUNT_MAX, START_WAIT_S, Daemon, free_port, wait_until

WAIT_S = 10.0
MAGIC = b"  V1"
OK = b"OK"


class Lookupd:
    """A running lookup daemon. command: the beginning of its command line."""

    def __init__(self, command: Sequence[str], directory: Path) -> None:
        self._log = directory / "nsqlookupd.log"
        for _ in range(START_COUNT_MAX):
            self.tcp_port, self.http_port = free_port(), free_port()
            with self._log.open("wb") as log:
                addresses = (f"-tcp-address=127.0.0.1:{self.tcp_port}", f"-http-address=127.0.0.1:{self.http_port}")
                fds = {"stdout": log.fileno(), "stderr": log.fileno()}
                self._process = spawn([*command, *addresses], directory, program_environment(), **fds)
            if self._is_ready():
                return
            self.stop()
        raise AssertionError(self._log.read_text(errors="replace"))

    def _is_ready(self) -> bool:
        deadline_s = time.monotonic() + START_WAIT_S
        while self._process.poll() is None and time.monotonic() < deadline_s:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self._get("/ping") == OK and self._process.poll() is None:
                    return True
            time.sleep(0.01)
        return False

    def _get(self, path: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=WAIT_S)
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        finally:
            connection.close()

    @property
    def http_address(self) -> str:
        return f"127.0.0.1:{self.http_port}"

    @property
    def tcp_address(self) -> str:
        return f"127.0.0.1:{self.tcp_port}"

    def wait_for(self, topic: str, *daemons: Daemon) -> None:
        """Wait until just these brokers are named for a topic."""
        ports = sorted(daemon.tcp_port for daemon in daemons)
        path = f"/lookup?{urlencode({'topic': topic})}"

        def named() -> bool:
            producers = json.loads(self._get(path)).get("producers", [])
            return sorted(producer["tcp_port"] for producer in producers) == ports

        wait_until(named, f"brokers of {topic} at the lookup daemon")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(START_WAIT_S)


class Registration:
    """A broker's connection to a lookup daemon. fields: of IDENTIFY, in place of the broker's own."""

    def __init__(self, lookupd: Lookupd, daemon: Daemon, *topics: str, **fields: object) -> None:
        self._socket = socket.create_connection(("127.0.0.1", lookupd.tcp_port), timeout=WAIT_S)
        identity = {
            "broadcast_address": "127.0.0.1",
            "hostname": "broker",
            "tcp_port": daemon.tcp_port,
            "http_port": daemon.http_port,
            "version": "1.3.0",
            **fields,
        }
        body = json.dumps(identity).encode()
        answer = json.loads(self._ask(MAGIC + b"IDENTIFY\n" + struct.pack(">i", len(body)) + body))
        assert answer["tcp_port"] == lookupd.tcp_port, answer
        for topic in topics:
            self.register(topic)
        assert self._ask(b"PING\n") == OK

    def register(self, topic: str) -> None:
        answer = self._ask(b"REGISTER %s\n" % topic.encode())
        assert answer == OK, answer

    def _ask(self, command: bytes) -> bytes:
        self._socket.sendall(command)
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            assert more, "the lookup daemon closed the connection"
            data += more
        return data

    def close(self) -> None:
        """Leave: the broker is not named any more."""
        self._socket.close()


@contextlib.contextmanager
def lookupd(command: Sequence[str], directory: Path) -> Iterator[Lookupd]:
    running = Lookupd(command, directory)
    try:
        yield running
    finally:
        running.stop()
