"""Command `pyqlookupd`: the lookup daemon."""

import sys
from collections.abc import Sequence

from pyqd.primitives.program_start import begin_program


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and run. Returns: the exit code."""
    begin_program("pyqlookupd", holds_hangups=True)
    # After that: until all code is loaded, a SIGHUP would end the daemon.
    from pyqd.apps.lookupd import main as run

    return run(argv)


if __name__ == "__main__":
    sys.exit(main())
