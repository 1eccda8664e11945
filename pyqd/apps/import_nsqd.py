"""`pyqd import`: imports the data directory of a stopped nsqd, or reports the effect of an import."""

import os
import sys
import time
from collections.abc import Sequence

from pyqd.broker.importer import Importer
from pyqd.config.options import build
from pyqd.diskqueue.files import Files
from pyqd.diskqueue.lock import DirectoryLock
from pyqd.primitives.command_line import CommandParser
from pyqd.primitives.errors import StartupError


def main(argv: Sequence[str] | None = None) -> int:
    """Import and print the report. Returns: the exit code: 1 if nothing was imported."""
    parser = CommandParser(
        prog="pyqd import", description="Take over the data directory of a stopped nsqd; its files are kept."
    )
    parser.add_argument("--dry-run", action="store_true", help="read everything, print the report, change nothing")
    parser.add_argument("directory", metavar="DIR", help="data directory of nsqd, which becomes pyqd's")
    given = parser.parse_args(argv)
    root = os.path.abspath(given.directory)
    options = build({})
    importer = Importer(
        Files(), root, node_id=options.node_id, segment_bytes_max=options.max_bytes_per_file, now=time.time_ns
    )
    try:
        lock = DirectoryLock(root)
        try:
            report = importer.run(given.dry_run)
            leftovers = importer.leftovers()
        finally:
            lock.release()
    except StartupError as error:
        print(f"pyqd import: {error}", file=sys.stderr)
        return 1
    if report is None:
        reason = "it is a directory of pyqd" if leftovers else "it has no files of nsqd"
        print(f"pyqd import: nothing to import in {root}: {reason}", file=sys.stderr)
        return 1
    sys.stdout.write(report.text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
