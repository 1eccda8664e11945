"""`pyqd export`: writes the data of a stopped pyqd as a data directory of Go's nsqd."""

import logging
import os
import sys
import time
from collections.abc import Sequence

from pyqd.broker.exporter import Exporter
from pyqd.diskqueue.files import Files
from pyqd.diskqueue.lock import DirectoryLock
from pyqd.primitives.command_line import CommandParser
from pyqd.primitives.errors import StartupError


def main(argv: Sequence[str] | None = None) -> int:
    """Export and print the report. Returns: the exit code: 1 if nothing was exported."""
    parser = CommandParser(
        prog="pyqd export", description="Write the data of a stopped pyqd as a data directory of nsqd."
    )
    parser.add_argument(
        "--from",
        dest="source",
        default=os.curdir,
        metavar="DATA_DIR",
        help="data directory of pyqd (default: this one)",
    )
    parser.add_argument("directory", metavar="DIR", help="target: an empty directory, or a new one")
    given = parser.parse_args(argv)
    # Damage is in the report.
    logging.getLogger("pyqd").addHandler(logging.NullHandler())
    source, target = os.path.abspath(given.source), os.path.abspath(given.directory)
    try:
        lock = DirectoryLock(source)
        try:
            report = Exporter(Files(), source, target, time.time_ns()).run()
        finally:
            lock.release()
    except StartupError as error:
        print(f"pyqd export: {error}", file=sys.stderr)
        return 1
    print("\n".join(report.lines()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
