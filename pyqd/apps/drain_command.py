"""`pyqd drain`: has a running pyqd finish its messages in flight, and stop. Source: docs/http.md, "Drain"."""

import http.client
import sys
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from pyqd.apps.local_daemon import LocalDaemon, parser_for, with_daemon

PROG = "pyqd drain"
POLL_S = 0.2


def main(argv: Sequence[str] | None = None) -> int:
    """Drain, print the progress, and wait until the daemon is gone. Returns: the exit code."""
    parser = parser_for(PROG, "Have a running pyqd finish its messages in flight, and stop.")
    parser.add_argument("--timeout", help="longest wait for messages in flight (default: --drain-timeout, or 30s)")
    given = parser.parse_args(argv)
    query = "" if given.timeout is None else f"?timeout={quote(given.timeout)}"

    def run(daemon: LocalDaemon) -> int:
        progress = daemon.ask("POST", f"/drain{query}")
        shown = ""
        while progress is not None:
            shown = show(progress, shown)
            time.sleep(POLL_S)
            progress = asked(daemon)
        print("stopped", flush=True)
        return 0

    return with_daemon(PROG, given.http_address, run)


def asked(daemon: LocalDaemon) -> Any:
    """Return the progress; None if the daemon does not answer any more."""
    try:
        return daemon.ask("GET", "/drain")
    except (OSError, http.client.HTTPException):
        return None


def show(progress: Any, before: str) -> str:
    """Print a line if the number of messages has changed. Returns: the line."""
    line = f"{progress['in_flight']} messages in flight with {progress['consumers']} consumers"
    if line != before:
        print(line, flush=True)
    return line


if __name__ == "__main__":
    sys.exit(main())
