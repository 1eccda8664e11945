"""`pyq_trace`: the life of messages, from the brokers' event logs to a database and back. Source: docs/trace.md."""

import sys

from pyqd.tools.trace.app import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
