"""`pyqd drain` and `pyqd restart`: steer a running pyqd over HTTP. Source: docs/http.md, "Drain", "Restart"."""

import contextlib
import http.client
import ipaddress
import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pyqd.primitives.addresses import UnixAddress, is_ip_address, split_address
from pyqd.primitives.command_line import CommandParser
from pyqd.primitives.http_client import HttpAddress, HttpClientConnection

TIMEOUT_S = 30.0
TOKEN_VARIABLE = "PYQD_TOKEN"
DRAIN_POLL_S = 0.2
# First letters of the program's file or module in the command line of a daemon.
NAME = b"pyqd"
RESTART_POLL_S = 0.05
# The new process loads its code and checks its files before the answer comes.
ANSWER_S = 90.0
# For the stop of the former process, and for loading the data.
LOAD_S = 1200.0


class DaemonRefusedError(Exception):
    """Answer of the daemon that is no success; str() of it is the daemon's text."""


class LocalDaemon:
    """HTTP API of one daemon. address: as --http-address has it. Raises: ValueError for an invalid one."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._place = split_address(address)
        token = os.environ.get(TOKEN_VARIABLE)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    @property
    def is_here(self) -> bool:
        """True if the address tells that the daemon runs on this machine."""
        place = self._place
        if isinstance(place, UnixAddress) or place.host in ("", "localhost"):
            return True
        return is_ip_address(place.host) and ipaddress.ip_address(place.host).is_loopback

    def connect(self, timeout_s: float = TIMEOUT_S) -> HttpClientConnection:
        """Return an open connection. Raises: OSError."""
        place = self._place
        if isinstance(place, UnixAddress):
            address = HttpAddress("localhost", 0, False, place.path)
        else:
            address = HttpAddress(place.host or "127.0.0.1", place.port, False)
        connection = HttpClientConnection(address, timeout_s=timeout_s)
        connection.open()
        return connection

    def ask(self, method: str, path: str, timeout_s: float = TIMEOUT_S) -> Any:
        """Return the JSON of an answer. Raises: OSError, http.client.HTTPException, DaemonRefusedError."""
        with self.connect(timeout_s) as connection:
            return self.ask_on(connection, method, path)

    def ask_on(self, connection: HttpClientConnection, method: str, path: str) -> Any:
        """Return the JSON of an answer on a connection, which stays open. Raises as `ask` does."""
        reply = connection.exchange(method, path, headers=self._headers)
        if reply.status != 200:
            raise DaemonRefusedError(f"{method} {path}: {reply.status} {reply.body.decode(errors='replace').strip()}")
        return json.loads(reply.body)


def parser_for(prog: str, description: str) -> CommandParser:
    parser = CommandParser(prog=prog, description=description)
    parser.add_argument(
        "--http-address",
        default="127.0.0.1:4151",
        help="of the daemon: <addr>:<port>, or the path of a unix socket (default: %(default)s); a login token is taken"
        f" from {TOKEN_VARIABLE}",
    )
    return parser


def with_daemon(prog: str, address: str, run: Callable[[LocalDaemon], int]) -> int:
    """Run a command on a daemon, and report an error in one line. Returns: the exit code."""
    try:
        return run(LocalDaemon(address))
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        print(f"{prog}: cannot reach pyqd at {address}: {reason}; --http-address names another", file=sys.stderr)
    except (DaemonRefusedError, ValueError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
    return 1


def drain(argv: Sequence[str] | None = None) -> int:
    """Drain, print the progress, and wait until the daemon is gone. Returns: the exit code."""
    parser = parser_for("pyqd drain", "Have a running pyqd finish its messages in flight, and stop.")
    parser.add_argument("--timeout", help="longest wait for messages in flight (default: --drain-timeout, or 30s)")
    given = parser.parse_args(argv)
    query = "" if given.timeout is None else f"?timeout={quote(given.timeout)}"

    def run(daemon: LocalDaemon) -> int:
        # One connection for all requests: another one could be the first of a new process, or start it by socket
        # activation.
        with daemon.connect() as connection:
            progress = daemon.ask_on(connection, "POST", f"/drain{query}")
            with process_of(daemon, progress) as process:
                shown = ""
                while progress is not None:
                    shown = show(progress, shown)
                    time.sleep(DRAIN_POLL_S)
                    progress = asked(daemon, connection)
                if process is not None:
                    # The daemon closes its connections before it writes everything to disk.
                    ended = select.poll()
                    ended.register(process, select.POLLIN)
                    ended.poll()
        print("stopped", flush=True)
        return 0

    return with_daemon("pyqd drain", given.http_address, run)


def asked(daemon: LocalDaemon, connection: HttpClientConnection) -> Any:
    """Return the progress; None if the daemon has closed the connection. Raises: TimeoutError if it is silent."""
    try:
        return daemon.ask_on(connection, "GET", "/drain")
    except TimeoutError:
        raise
    except (OSError, http.client.HTTPException):
        return None


@contextlib.contextmanager
def process_of(daemon: LocalDaemon, progress: Any) -> Iterator[int | None]:
    """Open the process of a daemon for the time of the block. Yields: its pidfd; None if it is not on this machine.

    A container may publish its port on loopback, and its process ids mean other processes here.
    """
    pid = progress.get("pid") if daemon.is_here else None
    fd = None
    with contextlib.suppress(OSError):
        if pid is not None:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if any(os.path.basename(word).startswith(NAME) for word in words):
                fd = os.pidfd_open(pid)
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


def show(progress: Any, before: str) -> str:
    line = f"{progress['in_flight']} messages in flight with {progress['consumers']} consumers"
    if line != before:
        print(line, flush=True)
    return line


def restart(argv: Sequence[str] | None = None) -> int:
    """Restart, and wait until the new process serves. Returns: the exit code."""
    prog = "pyqd restart"
    parser = parser_for(prog, "Have a running pyqd hand its sockets over to a new process of the same command line.")
    given = parser.parse_args(argv)

    def run(daemon: LocalDaemon) -> int:
        former = daemon.ask("GET", "/restart")["pid"]
        pid = daemon.ask("POST", "/restart", ANSWER_S)["pid"]
        end_s = time.monotonic() + LOAD_S
        while time.monotonic() < end_s:
            time.sleep(RESTART_POLL_S)
            try:
                state = daemon.ask("GET", "/restart", ANSWER_S)
            except ConnectionRefusedError:
                raise
            except (OSError, http.client.HTTPException):
                # The former process closes the connections that it has accepted.
                continue
            if state["pid"] == pid:
                print(f"process {pid} has taken over from {former}")
                return 0
            if state["pid"] == former and not state["restarting"]:
                print(f"{prog}: {state['error']}; process {former} goes on serving", file=sys.stderr)
                return 1
        print(f"{prog}: neither process has answered for {LOAD_S:.0f} s; see the log", file=sys.stderr)
        return 1

    return with_daemon(prog, given.http_address, run)
