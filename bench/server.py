"""Start the server under test in a process of its own, and stop it."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.connections import Address

REPOSITORY = Path(__file__).resolve().parent.parent
START_DEADLINE_S = 20.0
STOP_DEADLINE_S = 20.0
POLL_S = 0.01
LOG_TAIL_BYTES = 2000


class ServerError(Exception):
    """The server did not start or did not stay; the text ends with the tail of its log."""


@dataclass(frozen=True)
class Target:
    """A server that can be measured: `pyqd`, `sink`, or an nsqd by the path of its executable."""

    name: str
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Target":
        """Return the target that the command line names. Raises: ValueError when there is no such executable."""
        if text == "pyqd":
            return cls(name="pyqd", command=(sys.executable, "-m", "pyqd.apps.daemon"))
        if text == "sink":
            return cls(name="sink", command=(sys.executable, "-m", "bench.sinkd"))
        path = Path(text).resolve()
        if not os.access(path, os.X_OK) or not path.is_file():
            raise ValueError(f"neither pyqd, nor sink, nor an executable: {text}")
        # Alone on one core, more than one running thread would only add switches.
        return cls(name=path.name, command=(str(path),), environment=(("GOMAXPROCS", "1"),))


@dataclass(frozen=True)
class Server:
    """A running server."""

    process: subprocess.Popen[bytes]
    tcp_address: Address
    http_address: Address
    log_path: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def log_tail(self) -> str:
        return self.log_path.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace")

    def require_alive(self) -> None:
        if self.process.poll() is not None:
            raise ServerError(f"the server ended with status {self.process.returncode}\n{self.log_tail()}")


def free_addresses(count: int) -> list[Address]:
    """Return loopback addresses whose ports were free a moment ago."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses: list[Address] = [("127.0.0.1", found.getsockname()[1]) for found in sockets]
    for found in sockets:
        found.close()
    return addresses


def wait_until_listening(server: Server, deadline_s: float) -> None:
    end_s = time.monotonic() + deadline_s
    while True:
        server.require_alive()
        try:
            for address in (server.tcp_address, server.http_address):
                socket.create_connection(address, timeout=1.0).close()
            return
        except OSError:
            if time.monotonic() > end_s:
                raise ServerError(f"no listener within {deadline_s} s\n{server.log_tail()}") from None
            time.sleep(POLL_S)


def stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def running(
    target: Target, *, core: int | None = None, data_root: Path | None = None, flags: Sequence[str] = ()
) -> Iterator[Server]:
    """Run target with an empty data directory on free loopback ports; stop it and remove the data afterwards.

    core: the only core it may use; None leaves that to the kernel. flags: further flags of the daemon.
    """
    with tempfile.TemporaryDirectory(prefix="bench-", dir=data_root) as directory:
        data_path = Path(directory) / "data"
        data_path.mkdir()
        log_path = Path(directory) / "server.log"
        tcp, http = free_addresses(2)
        command = [
            *target.command,
            f"-tcp-address={tcp[0]}:{tcp[1]}",
            f"-http-address={http[0]}:{http[1]}",
            f"-data-path={data_path}",
            *flags,
        ]

        def pin() -> None:
            # Before exec, so that every thread of the server inherits it.
            if core is not None:
                os.sched_setaffinity(0, {core})

        with log_path.open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=REPOSITORY,
                env={**os.environ, **dict(target.environment)},
                preexec_fn=pin,
            )
        server = Server(process=process, tcp_address=tcp, http_address=http, log_path=log_path)
        try:
            wait_until_listening(server, START_DEADLINE_S)
            yield server
        finally:
            stop(process)
