"""`pyqd drain`: has a running pyqd finish its messages in flight, and stop. Source: docs/http.md, "Drain"."""

import contextlib
import http.client
import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pyqd.apps.local_daemon import LocalDaemon, parser_for, with_daemon
from pyqd.primitives.http_client import HttpClientConnection

PROG = "pyqd drain"
POLL_S = 0.2
# First letters of the program's file or module in the command line of a daemon.
NAME = b"pyqd"


def main(argv: Sequence[str] | None = None) -> int:
    """Drain, print the progress, and wait until the daemon is gone. Returns: the exit code."""
    parser = parser_for(PROG, "Have a running pyqd finish its messages in flight, and stop.")
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
                    time.sleep(POLL_S)
                    progress = asked(daemon, connection)
                if process is not None:
                    # The daemon closes its connections before it writes everything to disk.
                    ended = select.poll()
                    ended.register(process, select.POLLIN)
                    ended.poll()
        print("stopped", flush=True)
        return 0

    return with_daemon(PROG, given.http_address, run)


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
    """Print a line if the number of messages has changed. Returns: the line."""
    line = f"{progress['in_flight']} messages in flight with {progress['consumers']} consumers"
    if line != before:
        print(line, flush=True)
    return line


if __name__ == "__main__":
    sys.exit(main())
