"""`pyq_trace`: the life of messages, from the brokers' event logs to a database and back. Source: docs/trace.md."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from pyqd.primitives.program_start import begin_program

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. argv: None for that of the process. Returns: the exit code."""
    begin_program("pyq_trace")
    if argv is None and "ship" in sys.argv[1:2]:
        end_on_signals()
    # Here, as the imports take longer than some supervisors wait with their first signal.
    from pyqd.tools.trace.app import main as run

    return run(argv)


def end_on_signals() -> None:
    """End the process with success at SIGINT or SIGTERM, until `ship` has its own handlers: nothing is stored yet."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: os._exit(0))


if __name__ == "__main__":
    sys.exit(main())
