"""`pyqctl`: topics, channels, messages and brokers from the command line. Source: docs/tools/pyqctl.md."""

import sys

from pyqd.tools.ctl.app import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
