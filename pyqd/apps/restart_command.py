"""`pyqd restart`: has a running pyqd hand its sockets over to a new process. Source: docs/http.md, "Restart"."""

import http.client
import sys
import time
from collections.abc import Sequence

from pyqd.apps.local_daemon import LocalDaemon, parser_for, with_daemon

PROG = "pyqd restart"
POLL_S = 0.05
# The new process loads its code and checks its files before the answer comes.
ANSWER_S = 90.0
# For the stop of the former process, and for loading the data.
LOAD_S = 1200.0


def main(argv: Sequence[str] | None = None) -> int:
    """Restart, and wait until the new process serves. Returns: the exit code."""
    parser = parser_for(PROG, "Have a running pyqd hand its sockets over to a new process of the same command line.")
    given = parser.parse_args(argv)

    def run(daemon: LocalDaemon) -> int:
        former = daemon.ask("GET", "/restart")["pid"]
        pid = daemon.ask("POST", "/restart", ANSWER_S)["pid"]
        end_s = time.monotonic() + LOAD_S
        while time.monotonic() < end_s:
            time.sleep(POLL_S)
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
                print(f"{PROG}: {state['error']}; process {former} goes on serving", file=sys.stderr)
                return 1
        print(f"{PROG}: neither process has answered for {LOAD_S:.0f} s; see the log", file=sys.stderr)
        return 1

    return with_daemon(PROG, given.http_address, run)


if __name__ == "__main__":
    sys.exit(main())
