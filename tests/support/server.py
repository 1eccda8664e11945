"""Daemons under test: started on free loopback ports, watched, stopped, killed and started again.

A Daemon is one process with one data directory. Its standard output and error go to a file, so that a test can say
after the fact that nothing crashed. Every wait here has a bound.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.support.preloaded import REPOSITORY as REPOSITORY
from tests.support.preloaded import Process, program_environment, spawn
from tests.support.readiness import is_readable

WAIT_S = 10.0
START_WAIT_S = 20.0
# The answer comes when a new process has loaded its code, which takes ten seconds beside many other tests.
RESTART_WAIT_S = 60.0
POLL_S = 0.01
START_COUNT_MAX = 5
LOCAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
PORTS_FROM = 10_000
PORTS_TRIED = 100
PORTS_KEPT = 100
LISTENING = "0A"

# Texts that no log of a healthy daemon contains; the second row is from Go's runtime and the C library.
SIGNS_OF_A_CRASH = (
    "Traceback (most recent call last)",
    "AssertionError",
    "Fatal Python error",
    "Exception ignored in",
    "panic:",
    "fatal error:",
    "Segmentation fault",
)

_given: deque[int] = deque(maxlen=PORTS_KEPT)


class DaemonError(AssertionError):
    """The daemon did not start, crashed, or did not stop as it should; the text ends with the tail of its log."""


@dataclass(frozen=True)
class Implementation:
    """A server the suite can run against: how it is called, and the flags it needs to be comparable."""

    name: str
    argv: tuple[str, ...]
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reply:
    """An HTTP reply: status, headers with lower-case names, and the whole body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def pyqd() -> Implementation:
    """Return this repository's daemon, run by the interpreter that runs the tests."""
    return Implementation("pyqd", (sys.executable, "-m", "pyqd.apps.daemon"))


def unshared_pyqd() -> Implementation:
    """Return the same as a process that shares no memory with others, for measurements; see preloaded.py."""
    return Implementation("pyqd", (sys.executable, "-u", "-m", "pyqd.apps.daemon"))


def patched_pyqd(program: Path, patch: str) -> Implementation:
    """Return this repository's daemon with a patch, which `program` applies before it runs the daemon.

    `sys.argv[0]` is the path of `program`: files beside it can switch the patch.
    """
    program.write_text(f"{patch}\nfrom pyqd.apps.daemon import main\nraise SystemExit(main())\n")
    return Implementation("pyqd", (sys.executable, str(program)))


def nsqd(path: str) -> Implementation:
    """Return the nsqd binary at path.

    Its queue scan looks at 20 random channels every 100 ms. A session of tests makes hundreds, so its flag selects
    all of them: otherwise a time-out would take as many seconds as there are hundreds.
    """
    return Implementation("nsqd", (path,), ("-queue-scan-selection-count=10000",))


def wait_until(condition: Callable[[], bool], what: str, wait_s: float = WAIT_S) -> None:
    """Poll until condition() is true. Raises: AssertionError naming `what` after wait_s seconds."""
    deadline_s = time.monotonic() + wait_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {wait_s} s: {what}")
        time.sleep(POLL_S)


def free_port() -> int:
    """Return a loopback TCP port that was free when it was probed.

    It lies below the range that the system gives to outgoing connections, or one of these could have it whenever the
    daemon is not running. Each worker of xdist has its own ports, and gives none twice in PORTS_KEPT calls: a daemon
    binds its port a second after the probe, and again after each restart.
    """
    first = int(LOCAL_PORTS.read_text().split()[0])
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    worker_count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    ports = range(PORTS_FROM + worker, first if first > 2 * PORTS_FROM else 65536, worker_count)
    for _ in range(PORTS_TRIED):
        port = random.SystemRandom().choice(ports)
        if port in _given:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            _given.append(port)
            return port
    raise DaemonError("no free ports")


def listens(pid: int, port: int) -> bool:
    """Return whether it is this process that listens on a TCP port. Source: proc(5), /proc/pid/net/tcp."""
    inodes = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == LISTENING and int(words[1].rpartition(":")[2], 16) == port:
            inodes.add(f"socket:[{words[9]}]")
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(descriptor.readlink()) in inodes:
                return True
    return False


@contextlib.contextmanager
def daemons_running() -> Iterator[Callable[[Daemon], Daemon]]:
    """Give a block a function that starts a daemon.

    After the block each daemon must stop cleanly; after an error in the block all are killed.
    """
    started: list[Daemon] = []

    def start(daemon: Daemon) -> Daemon:
        started.append(daemon)
        return daemon.start()

    try:
        yield start
        for daemon in started:
            daemon.stop()
    finally:
        for daemon in started:
            daemon.kill()


@contextlib.contextmanager
def running(daemon: Daemon) -> Iterator[Daemon]:
    """Start a daemon for a block; see `daemons_running`."""
    with daemons_running() as start:
        yield start(daemon)


class Adopted:
    """Process that is no child of this one, with the methods of a Popen. Its exit code is unknown, and shown as 0."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        return 0 if is_readable(self._fd, 0.0) else None

    def wait(self, timeout: float) -> int:
        """Wait for the end. Raises: subprocess.TimeoutExpired."""
        if not is_readable(self._fd, timeout):
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        os.close(self._fd)
        return 0

    def send_signal(self, number: int) -> None:
        signal.pidfd_send_signal(self._fd, number)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.send_signal(signal.SIGKILL)


class Daemon:
    """One daemon process at a time over one data directory.

    directory: the parent of the data directory; the log lies beside it. Flags are in Go's style, as nsqd takes them.
    """

    def __init__(self, implementation: Implementation, directory: Path, flags: Sequence[str] = ()) -> None:
        self.implementation = implementation
        self.data_path = directory / "data"
        self.data_path.mkdir(parents=True, exist_ok=True)
        self.log_path = directory / "log"
        self.flags = tuple(flags)
        self.tcp_port = 0
        self.http_port = 0
        self._process: Process | Adopted | None = None
        self._log_checked_bytes = 0

    @property
    def tcp_address(self) -> tuple[str, int]:
        return ("127.0.0.1", self.tcp_port)

    @property
    def http_address(self) -> tuple[str, int]:
        return ("127.0.0.1", self.http_port)

    @property
    def pid(self) -> int:
        assert self._process is not None, "the daemon is not running"
        return self._process.pid

    def log_text(self) -> str:
        """Return all the daemon has written so far, over restarts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def empty_log(self) -> None:
        """Empty the daemon's log, for runs whose log would fill the disk."""
        os.truncate(self.log_path, 0)
        self._log_checked_bytes = 0

    def start(self) -> Daemon:
        """Start the process and wait until /ping answers. Another process may take a port first: then try others."""
        assert self._process is None, "the daemon is running already"
        for _ in range(START_COUNT_MAX):
            if self.tcp_port == 0:
                self.tcp_port, self.http_port = free_port(), free_port()
            log_start_bytes = self.log_path.stat().st_size if self.log_path.exists() else 0
            self._spawn()
            if self._wait_ready():
                return self
            said = self.log_path.read_bytes()[log_start_bytes:].decode(errors="replace")
            self._reap()
            if "address already in use" not in said.lower():
                raise self._error("the daemon ended before it was ready")
            self.tcp_port = 0
        raise self._error("no free ports")

    def stop(self) -> None:
        """Send SIGTERM, wait for the end, and assert that it was a clean one."""
        if self._process is None:
            return
        self.assert_healthy()
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(START_WAIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise self._error("the daemon did not stop after SIGTERM") from None
        self._process = None
        if code != 0:
            raise self._error(f"the daemon stopped with exit code {code}")
        self._check_log()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._reap()

    def kill_and_start(self) -> None:
        """Kill the process and start another: same data directory, same ports."""
        self.kill()
        self.start()

    def wait_ended(self) -> int:
        """Wait until the process has ended by itself. Returns: its exit code."""
        assert self._process is not None
        code = self._process.wait(START_WAIT_S)
        self._process = None
        self._check_log()
        return code

    def hand_over(self) -> None:
        """Have the process hand over to a successor, which is the process of this daemon from then on."""
        assert self._process is not None
        reply = self.http("POST", "/restart")
        assert reply.status == 200, reply
        successor = Adopted(reply.json()["pid"])
        assert self._process.wait(START_WAIT_S) == 0
        self._process = successor
        assert self.http("GET", "/restart").json()["pid"] == successor.pid

    def adopt(self, pid: int) -> None:
        """Take a process that another one has started for the process of this daemon."""
        self._process = Adopted(pid)

    def restart(self) -> None:
        """Stop cleanly and start again: same data directory, same ports."""
        self.stop()
        self.start()

    def assert_healthy(self) -> None:
        """Assert that the process is running and that its log has no sign of a crash since the last look."""
        if self._process is not None:
            code = self._process.poll()
            if code is not None:
                self._process = None
                raise self._error(f"the daemon died with exit code {code}")
        self._check_log()

    def has_ended(self) -> bool:
        """Return whether the daemon has ended itself, as a broken invariant makes it."""
        try:
            self.assert_healthy()
        except DaemonError as error:
            return "the daemon died with exit code 1" in str(error)
        return False

    def http(self, method: str, path: str, body: bytes | None = None, **query: str) -> Reply:
        """Send one HTTP request on its own connection and return the whole reply."""
        wait_s = RESTART_WAIT_S if path == "/restart" else WAIT_S
        connection = http.client.HTTPConnection(*self.http_address, timeout=wait_s)
        try:
            connection.request(method, f"{path}?{urlencode(query)}" if query else path, body=body)
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, headers, response.read())
        finally:
            connection.close()

    def topics(self) -> dict[str, dict[str, Any]]:
        reply = self.http("GET", "/stats", format="json")
        assert reply.status == 200, reply
        return {topic["topic_name"]: topic for topic in reply.json()["topics"] or []}

    def topic(self, name: str) -> dict[str, Any] | None:
        """Return one topic of /stats; None if there is none of that name."""
        return self.topics().get(name)

    def channel(self, topic: str, channel: str) -> dict[str, Any] | None:
        """Return one channel of /stats; None if there is none of that name."""
        channels = (self.topic(topic) or {}).get("channels") or []
        return next((entry for entry in channels if entry["channel_name"] == channel), None)

    def wait_for_topic(self, name: str, **fields: object) -> None:
        """Wait until the topic exists and /stats shows these values for it."""
        self._wait_for(lambda: self.topic(name), f"topic {name}", fields)

    def wait_for_channel(self, topic: str, channel: str, **fields: object) -> None:
        """Wait until the channel exists and /stats shows these values for it."""
        self._wait_for(lambda: self.channel(topic, channel), f"channel {topic}:{channel}", fields)

    def _wait_for(self, read: Callable[[], dict[str, Any] | None], what: str, fields: Mapping[str, object]) -> None:
        seen: dict[str, Any] = {}

        def settled() -> bool:
            stats = read()
            seen.clear()
            seen.update({key: stats[key] for key in fields} if stats is not None else {})
            return stats is not None and seen == dict(fields)

        try:
            wait_until(settled, what)
        except AssertionError:
            raise self._error(f"{what} should come to {dict(fields)}, is at {seen or 'nothing'}") from None

    def _spawn(self) -> None:
        # Not in the repository: with -m the current directory would come before PYTHONPATH, and with it another build
        # of the package could not be put under test.
        arguments = [
            *self.implementation.argv,
            f"-tcp-address=127.0.0.1:{self.tcp_port}",
            f"-http-address=127.0.0.1:{self.http_port}",
            f"-data-path={self.data_path}",
            "-broadcast-address=127.0.0.1",
            *self.implementation.flags,
            *self.flags,
        ]
        with self.log_path.open("ab") as log:
            fd = log.fileno()
            self._process = spawn(arguments, self.log_path.parent, program_environment(), stdout=fd, stderr=fd)

    def _wait_ready(self) -> bool:
        assert self._process is not None
        deadline_s = time.monotonic() + START_WAIT_S
        while self._process.poll() is None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                status = self.http("GET", "/ping").status
                # It must be this one: the daemon of another test may have taken a port first. The kernel takes 2 ms to
                # list its sockets, so a connection that is refused has to be the first to say that nothing listens.
                if all(listens(self._process.pid, port) for port in (self.tcp_port, self.http_port)):
                    # A server that refuses HTTP is ready, and so is one that says that its disk is full.
                    return status in (200, 403, 500)
            if time.monotonic() > deadline_s:
                self.kill()
                raise self._error(f"the daemon was not ready within {START_WAIT_S} s")
            time.sleep(POLL_S)
        return False

    def _reap(self) -> None:
        assert self._process is not None
        self._process.wait(START_WAIT_S)
        self._process = None

    def _check_log(self) -> None:
        with self.log_path.open("rb") as log:
            log.seek(self._log_checked_bytes)
            fresh = log.read()
        # Only whole lines count as looked at, so that no sign is missed for being half written.
        self._log_checked_bytes += fresh.rfind(b"\n") + 1
        text = fresh.decode(errors="replace")
        for sign in SIGNS_OF_A_CRASH:
            if sign in text:
                raise self._error(f"the daemon's log says {sign!r}")

    def _error(self, text: str) -> DaemonError:
        tail = "\n".join(self.log_text().splitlines()[-40:])
        return DaemonError(f"{self.implementation.name}: {text}; the end of its log:\n{tail}")
