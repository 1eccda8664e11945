"""`pyqctl`: topics, channels, messages and brokers from the command line. Source: docs/tools/pyqctl.md."""

import sys
from typing import Final

from pyqd.tools.ctl.app import main

# For its man page.
SYNOPSIS: Final = "Operate brokers: topics, channels, messages."

__all__ = ["SYNOPSIS", "main"]

if __name__ == "__main__":
    sys.exit(main())
