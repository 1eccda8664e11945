"""The daemon of a test: pyqd as it is installed, which also stops when its standard input ends.

The standard input is a pipe from the process that runs the tests, so no daemon outlives a test run that was killed.
"""

import os
import signal
import sys
import threading

from pyqd.apps.daemon import main

INPUT = 0


def stop_at_end_of_input() -> None:
    """Wait for the end of the standard input, then stop the daemon as SIGTERM does."""
    while os.read(INPUT, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=stop_at_end_of_input, daemon=True).start()
    sys.exit(main())
