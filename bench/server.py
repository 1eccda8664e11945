"""Start the server under test in a process of its own, and stop it."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.connections import Address

Program = Literal["pyqd", "sink", "nsqd"]

REPOSITORY = Path(__file__).resolve().parent.parent
START_DEADLINE_S = 20.0
STOP_DEADLINE_S = 20.0
POLL_S = 0.01
LOG_TAIL_BYTES = 2000


class ServerError(Exception):
    """The server did not start or did not stay; the text ends with the tail of its log."""


@dataclass(frozen=True)
class Target:
    """A server that can be measured: `pyqd`, `sink`, `sink-store`, or an nsqd by the path of its executable.

    core_count: cores it may use; more than one includes the generator's.
    slowness: how many times as long as usual it may take to start and to stop.
    """

    name: str
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    program: Program = "pyqd"
    core_count: int = 1
    slowness: float = 1.0

    @classmethod
    def parse(cls, text: str, *, core_count: int = 1) -> "Target":
        """Return the target that the command line names. Raises: ValueError when there is no such executable."""
        if text == "pyqd":
            return cls(name="pyqd", command=(sys.executable, "-m", "pyqd.apps.daemon"))
        if text in ("sink", "sink-store"):
            options = ("--store",) if text == "sink-store" else ()
            return cls(name=text, command=(sys.executable, "-m", "bench.sinkd", *options), program="sink")
        path = Path(text).resolve()
        if not os.access(path, os.X_OK) or not path.is_file():
            raise ValueError(f"neither pyqd, sink, sink-store, nor an executable: {text}")
        return cls(
            name=path.name if core_count == 1 else f"{path.name}, {core_count} cores",
            command=(str(path),),
            # More running threads than cores would only add switches.
            environment=(("GOMAXPROCS", str(core_count)),),
            program="nsqd",
            core_count=core_count,
        )

    def version(self) -> str:
        """Return what the program says of its version; "" when it says nothing."""
        if self.program == "sink":
            return ""
        command = [*self.command, "-version"]
        try:
            asked = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=START_DEADLINE_S)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return asked.stdout.strip()


@dataclass(frozen=True)
class Launch:
    """How to start a server, as often as wanted, on the same ports and the same data."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    cores: tuple[int, ...]
    log_path: Path

    def start(self) -> subprocess.Popen[bytes]:
        def pin() -> None:
            # Before exec, so that every thread of the server inherits it.
            if self.cores:
                os.sched_setaffinity(0, self.cores)

        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=REPOSITORY,
                env=self.environment,
                preexec_fn=pin,
            )


@dataclass
class Server:
    """A running server, which can be stopped and started again. cores: the only ones it may use; (): any."""

    launch: Launch
    process: subprocess.Popen[bytes]
    tcp_address: Address
    http_address: Address
    data_path: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def cores(self) -> tuple[int, ...]:
        return self.launch.cores

    def log_tail(self) -> str:
        return self.launch.log_path.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace")

    def require_alive(self) -> None:
        if self.process.poll() is not None:
            raise ServerError(f"the server ended with status {self.process.returncode}\n{self.log_tail()}")

    def stop(self) -> None:
        """Stop it as an operator does. Raises: ServerError when SIGTERM is not enough."""
        if not stop(self.process):
            raise ServerError(f"the server did not end within {STOP_DEADLINE_S} s of SIGTERM\n{self.log_tail()}")

    def start(self) -> None:
        """Start it again after `stop`; returns at once, when it does not answer yet."""
        self.process = self.launch.start()


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


def stop(process: subprocess.Popen[bytes], deadline_s: float = STOP_DEADLINE_S) -> bool:
    """End the process, by SIGKILL if need be; return whether SIGTERM was enough."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(deadline_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
    return True


@contextmanager
def running(
    target: Target, *, cores: Sequence[int] = (), data_root: Path | None = None, flags: Sequence[str] = ()
) -> Iterator[Server]:
    """Run target with an empty data directory on free loopback ports; stop it and remove the data afterwards.

    cores: the only ones it may use; none leaves that to the kernel. flags: further flags of the daemon.
    """
    with tempfile.TemporaryDirectory(prefix="bench-", dir=data_root) as directory:
        data_path = Path(directory) / "data"
        data_path.mkdir()
        tcp, http = free_addresses(2)
        launch = Launch(
            command=(
                *target.command,
                f"-tcp-address={tcp[0]}:{tcp[1]}",
                f"-http-address={http[0]}:{http[1]}",
                f"-data-path={data_path}",
                *flags,
            ),
            environment={**os.environ, **dict(target.environment)},
            cores=tuple(cores),
            log_path=Path(directory) / "server.log",
        )
        server = Server(launch=launch, process=launch.start(), tcp_address=tcp, http_address=http, data_path=data_path)
        try:
            wait_until_listening(server, START_DEADLINE_S * target.slowness)
            yield server
        finally:
            stop(server.process, STOP_DEADLINE_S * target.slowness)
