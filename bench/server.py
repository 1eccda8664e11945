"""Start the server under test in a process of its own, and stop it."""

import os
import shutil
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

from pyqd.tools.bench.connections import Address

Program = Literal["pyqd", "sink", "nsqd"]

REPOSITORY = Path(__file__).resolve().parent.parent
START_DEADLINE_S = 20.0
STOP_DEADLINE_S = 20.0
# On SIGTERM an nsqd writes its memory queues to files, for up to half a minute; the files are removed anyway.
NSQD_STOP_S = 0.5
POLL_S = 0.01
LOG_TAIL_BYTES = 2000
VERSION_TAIL_CHARACTERS = 300
# An executable of such a name is called by its path, or its runs would be mixed with those of this tree's.
OWN_NAMES = ("pyqd", "sink", "sink-store", "sink-sync")
SINK_OPTIONS: dict[str, tuple[str, ...]] = {
    "sink": (),
    "sink-store": ("--store",),
    "sink-sync": ("--store", "--sync"),
}


class ServerError(Exception):
    """The server did not start or did not stay; the text ends with the tail of its log."""


@dataclass(frozen=True)
class Target:
    """A server that can be measured: `pyqd`, `sink`, `sink-store`, `sink-sync`, or an nsqd or a pyqd by its executable.

    core_count: cores it may use; more than one includes the generator's.    directory: where it is started
    slowness: how many times as long as usual it may take to start and to stop.
    """

    name: str
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    program: Program = "pyqd"
    core_count: int = 1
    slowness: float = 1.0
    directory: Path = REPOSITORY

    @classmethod
    def parse(cls, text: str, *, core_count: int = 1) -> "Target":
        """Return the target that the command line names: one of this tree's, a path, or a name to be found in PATH.

        Raises: ValueError when there is no such executable, or none that says by -version that it is nsqd or pyqd.
        """
        if text == "pyqd":
            return cls(name="pyqd", command=(sys.executable, "-m", "pyqd.apps.daemon"))
        if text in SINK_OPTIONS:
            command = (sys.executable, "-m", "bench.sinkd", *SINK_OPTIONS[text])
            return cls(name=text, command=command, program="sink")
        found = shutil.which(text)
        if found is None:
            raise ValueError(f"neither pyqd, sink, sink-store, sink-sync, nor an executable: {text}")
        path = Path(found).absolute()
        name = str(path) if path.name in OWN_NAMES else path.name
        return cls(
            name=name if core_count == 1 else f"{name}, {core_count} cores",
            command=(str(path),),
            # More running threads than cores would only add switches.
            environment=(("GOMAXPROCS", str(core_count)),),
            program="nsqd" if ask_version((str(path),)).startswith("nsqd") else "pyqd",
            core_count=core_count,
        )

    @classmethod
    def of_checkout(cls, path: Path) -> "Target":
        """Return the pyqd that was built in another checkout. Raises: ValueError if it does not start there."""
        path = path.absolute()
        python = path / ".venv" / "bin" / "python"
        if not python.exists():
            raise ValueError(f"{path} has no .venv/bin/python: build that checkout first (make build)")
        # Its .venv may be that of another checkout, so Python must look for packages in this one first.
        target = cls(
            name=str(path),
            command=(str(python), "-m", "pyqd.apps.daemon"),
            environment=(("PYTHONPATH", str(path)),),
            directory=path,
        )
        target.version()
        return target

    def version(self) -> str:
        """Return the program's version, "" for a sink. Raises: ValueError if it is not a server."""
        return "" if self.program == "sink" else ask_version(self.command, self.directory, dict(self.environment))


def ask_version(
    command: Sequence[str], directory: Path = REPOSITORY, environment: Mapping[str, str] | None = None
) -> str:
    """Return a program's answer to -version. Raises: ValueError unless it is "nsqd v..." or "pyqd v..."."""
    what = " ".join(command)
    try:
        asked = subprocess.run(
            [*command, "-version"],
            stdin=subprocess.DEVNULL,
            cwd=directory,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=START_DEADLINE_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"{what} cannot be asked for its -version: {error}") from error
    said = asked.stdout.strip()
    if not said.startswith(("nsqd v", "pyqd v")):
        heard = repr((said or asked.stderr.strip())[-VERSION_TAIL_CHARACTERS:]) if said or asked.stderr else "nothing"
        raise ValueError(f"{what} is neither nsqd nor pyqd: to -version it says {heard}")
    return said


@dataclass(frozen=True)
class Launch:
    """Command of a server, to start it repeatedly on the same ports and the same data."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    cores: tuple[int, ...]
    log_path: Path
    directory: Path = REPOSITORY

    def start(self) -> subprocess.Popen[bytes]:
        """Start it; it does not answer yet. Raises: ServerError when it cannot be executed, or not on these cores."""

        def pin() -> None:
            # Before exec, so that every thread of the server inherits it.
            if self.cores:
                os.sched_setaffinity(0, self.cores)

        with self.log_path.open("ab") as log:
            try:
                return subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.directory,
                    env=self.environment,
                    preexec_fn=pin,
                )
            except (OSError, subprocess.SubprocessError) as error:
                on = f" on cores {self.cores}" if self.cores else ""
                raise ServerError(f"{self.command[0]} cannot be started{on}: {error}") from error


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
    """Return loopback addresses whose ports were free at the time of the call."""
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
            directory=target.directory,
        )
        server = Server(launch=launch, process=launch.start(), tcp_address=tcp, http_address=http, data_path=data_path)
        try:
            wait_until_listening(server, START_DEADLINE_S * target.slowness)
            yield server
        finally:
            stop(server.process, (NSQD_STOP_S if target.program == "nsqd" else STOP_DEADLINE_S) * target.slowness)
