"""Start the server under test in a process of its own, and stop it."""

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pyqd.client.http import HttpClient
from pyqd.tools.bench.connections import Address

REPOSITORY = Path(__file__).resolve().parent.parent
START_DEADLINE_S = 20.0
STOP_DEADLINE_S = 20.0
# On SIGTERM an nsqd writes its memory queues to files, for up to half a minute; the files are removed anyway.
NSQD_STOP_S = 0.5
POLL_S = 0.01
LOG_TAIL_BYTES = 2000
SINK_OPTIONS: dict[str, tuple[str, ...]] = {"sink": (), "sink-store": ("--store",)}
# An executable of such a name is called by its path, or its runs would be mixed with those of this tree's.
OWN_NAMES = ("pyqd", *SINK_OPTIONS)

Figures = dict[str, float]


class RunError(Exception):
    """A run failed, or a message was lost or came twice."""


class ServerError(RunError):
    """The server did not start or did not stay; the text ends with the tail of its log."""


def address_text(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


def nsqd_options(tcp: Address, http: Address, data_path: Path) -> Sequence[str]:
    return (f"-tcp-address={address_text(tcp)}", f"-http-address={address_text(http)}", f"-data-path={data_path}")


@dataclass(frozen=True)
class Target:
    """A server that can be measured.

    program: "pyqd", "nsqd", "sink", or another broker without an HTTP address. options: of its addresses and its empty
    data directory. core_count: cores it may use; more than one includes the generator's. directory: where it is
    started. slowness: how many times as long as usual it may take to start and to stop.
    """

    name: str
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    program: str = "pyqd"
    core_count: int = 1
    slowness: float = 1.0
    directory: Path = REPOSITORY
    flags: tuple[str, ...] = ()
    options: Callable[[Address, Address, Path], Sequence[str]] = nsqd_options

    @property
    def has_http(self) -> bool:
        return self.program in ("pyqd", "nsqd", "sink")

    @classmethod
    def parse(cls, text: str, *, core_count: int = 1) -> "Target":
        """Return the target that the command line names, with flags behind it: `pyqd --sync-fin`.

        It is `pyqd`, a sink, or an executable by its path or its name in PATH. Raises: ValueError if there is no such
        executable, or none that says by -version that it is nsqd or pyqd.
        """
        word, *flags = shlex.split(text)
        if word == "pyqd":
            return cls(name=text, command=(sys.executable, "-m", "pyqd.apps.daemon"), flags=tuple(flags))
        if word in SINK_OPTIONS:
            command = (sys.executable, "-m", "bench.sinkd", *SINK_OPTIONS[word])
            return cls(name=text, command=command, program="sink", flags=tuple(flags))
        found = shutil.which(word)
        if found is None:
            raise ValueError(f"neither pyqd, sink, sink-store, nor an executable: {word}")
        path = Path(found).absolute()
        name = shlex.join([str(path) if path.name in OWN_NAMES else path.name, *flags])
        # More running threads than cores would only add switches.
        environment = (("GOMAXPROCS", str(core_count)),)
        target = cls(name, (str(path),), environment, core_count=core_count, flags=tuple(flags))
        program = target.version().partition(" ")[0]
        return replace(target, program=program, name=name if core_count == 1 else f"{name}, {core_count} cores")

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
        """Return the program's answer to -version, "" for a sink. Raises: ValueError if it is no nsqd and no pyqd."""
        if self.program == "sink":
            return ""
        what = " ".join(self.command)
        try:
            asked = subprocess.run(
                [*self.command, "-version"],
                stdin=subprocess.DEVNULL,
                cwd=self.directory,
                env={**os.environ, **dict(self.environment)},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=START_DEADLINE_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ValueError(f"{what} cannot be asked for its -version: {error}") from error
        if not asked.stdout.startswith(("nsqd v", "pyqd v")):
            said = (asked.stdout or asked.stderr).strip()[-LOG_TAIL_BYTES:]
            raise ValueError(f"{what} is neither nsqd nor pyqd: to -version it says {said!r}")
        return asked.stdout.strip()


@dataclass
class Server:
    """A running server, which can be stopped and started again on the same ports and data.

    cores: the only ones it may use; (): any.
    """

    target: Target
    command: tuple[str, ...]
    cores: tuple[int, ...]
    tcp_address: Address
    http_address: Address
    data_path: Path
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    def http(self) -> HttpClient:
        """Return an HTTP client of the server, which is a context manager."""
        return HttpClient(address_text(self.http_address), timeout_s=300.0, retry_timeout_s=0.0)

    def post(self, path: str, body: bytes = b"", **query: object) -> None:
        """POST over a connection of its own. Raises: RunError for any other status than 200."""
        with self.http() as client:
            post(client, path, body, **query)

    def log_tail(self) -> str:
        return log_path(self.data_path).read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace")

    def require_alive(self) -> None:
        if self.process.poll() is not None:
            raise ServerError(f"the server ended with status {self.process.returncode}\n{self.log_tail()}")

    def stop(self) -> None:
        """Stop it as an operator does. Raises: ServerError when SIGTERM is not enough."""
        if not stop(self.process):
            raise ServerError(f"the server did not end within {STOP_DEADLINE_S} s of SIGTERM\n{self.log_tail()}")

    def start(self) -> None:
        """Start it again after `stop`; returns at once, when it does not answer yet."""
        self.process = launch(self.target, self.command, self.cores, log_path(self.data_path))


def post(client: HttpClient, path: str, body: bytes = b"", **query: object) -> None:
    """POST on a kept connection. Raises: RunError for any other status than 200."""
    reply = client.request("POST", path, query, body, retry=False)
    if reply.status != 200:
        raise RunError(f"POST {path} {query}: {reply.status} {reply.body[:200]!r}")


def log_path(data_path: Path) -> Path:
    return data_path.parent / "server.log"


def launch(target: Target, command: Sequence[str], cores: Sequence[int], log_to: Path) -> "subprocess.Popen[bytes]":
    """Start a server, which does not answer yet. Raises: ServerError if it cannot be executed, or not on the cores."""

    def pin() -> None:
        # Before exec, so that every thread of the server inherits it.
        if cores:
            os.sched_setaffinity(0, cores)

    with log_to.open("ab") as log:
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=target.directory,
                env={**os.environ, **dict(target.environment)},
                preexec_fn=pin,
            )
        except (OSError, subprocess.SubprocessError) as error:
            on = f" on cores {cores}" if cores else ""
            raise ServerError(f"{command[0]} cannot be started{on}: {error}") from error


def free_addresses(count: int) -> list[Address]:
    """Return loopback addresses whose ports were free at the time of the call."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses: list[Address] = [("127.0.0.1", found.getsockname()[1]) for found in sockets]
    for found in sockets:
        found.close()
    return addresses


def wait_until_listening(server: Server, deadline_s: float) -> None:
    addresses = (server.tcp_address, server.http_address) if server.target.has_http else (server.tcp_address,)
    end_s = time.monotonic() + deadline_s
    while True:
        server.require_alive()
        try:
            for address in addresses:
                socket.create_connection(address, timeout=1.0).close()
            return
        except OSError:
            if time.monotonic() > end_s:
                raise ServerError(f"no listener within {deadline_s} s\n{server.log_tail()}") from None
            time.sleep(POLL_S)


def stop(process: "subprocess.Popen[bytes]", deadline_s: float = STOP_DEADLINE_S) -> bool:
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
    target: Target,
    *,
    cores: Sequence[int] = (),
    data_root: Path | None = None,
    flags: Sequence[str] = (),
    keeps: bool = False,
) -> Iterator[Server]:
    """Run target with an empty data directory on free loopback ports, and stop it afterwards.

    cores: the only ones it may use; none leaves that to the kernel. flags: further flags of the daemon. keeps: leave
    the data directory in data_root, because a file system that has just lost many files is slow to make others.
    """
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=data_root))
    try:
        data_path = directory / "data"
        data_path.mkdir()
        tcp, http = free_addresses(2)
        command = (*target.command, *target.options(tcp, http, data_path), *flags, *target.flags)
        process = launch(target, command, cores, log_path(data_path))
        server = Server(target, command, tuple(cores), tcp, http, data_path, process)
        try:
            wait_until_listening(server, START_DEADLINE_S * target.slowness)
            yield server
        finally:
            stop(server.process, (NSQD_STOP_S if target.program == "nsqd" else STOP_DEADLINE_S) * target.slowness)
    finally:
        if not keeps:
            shutil.rmtree(directory)
