"""`pyqd import`, `pyqd export` and `pyqd inspect`: work on the data directory of a stopped nsqd or pyqd.

Each function returns an exit code: 1 if nothing was imported or exported, or if something is damaged or unreadable.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pyqd.broker.exporter import Exporter
from pyqd.broker.importer import Importer
from pyqd.broker.inspection import Inspection
from pyqd.config.options import build
from pyqd.diskqueue.files import Files
from pyqd.diskqueue.lock import DirectoryLock
from pyqd.primitives.command_line import CommandParser
from pyqd.primitives.errors import StartupError, StorageError


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold the lock of a data directory. Raises: StartupError."""
    lock = DirectoryLock(path)
    try:
        yield
    finally:
        lock.release()


def log_nothing() -> None:
    """Keep damage out of the log: the output has it."""
    logging.getLogger("pyqd").addHandler(logging.NullHandler())


def failed(parser: CommandParser, reason: object) -> int:
    """Print why a command failed. Returns: its exit code."""
    print(f"{parser.prog}: {reason}", file=sys.stderr)
    return 1


def import_nsqd(argv: Sequence[str] | None = None) -> int:
    """Import the data directory of a stopped nsqd, or report the effect of an import."""
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
        with locked(root):
            report = importer.run(given.dry_run)
            leftovers = importer.leftovers()
    except StartupError as error:
        return failed(parser, error)
    if report is None:
        reason = "it is a directory of pyqd" if leftovers else "it has no files of nsqd"
        return failed(parser, f"nothing to import in {root}: {reason}")
    sys.stdout.write(report.text())
    return 0


def export_nsqd(argv: Sequence[str] | None = None) -> int:
    """Write the data of a stopped pyqd as a data directory of Go's nsqd, and print the report."""
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
    source, target = os.path.abspath(given.source), os.path.abspath(given.directory)
    log_nothing()
    try:
        with locked(source):
            report = Exporter(Files(), source, target, time.time_ns()).run()
    except StartupError as error:
        return failed(parser, error)
    print("\n".join(report.lines()))
    return 0


def inspect(argv: Sequence[str] | None = None) -> int:
    """List the queues of a data directory, without a lock on it."""
    parser = CommandParser(
        prog="pyqd inspect", description="List the queues of a data directory of pyqd, also of a running one."
    )
    parser.add_argument("--verify", action="store_true", help="check the checksum of every record")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("directory", metavar="DIR", help="data directory of pyqd")
    given = parser.parse_args(argv)
    log_nothing()
    try:
        inspection = Inspection(os.path.abspath(given.directory), given.verify)
    except (StartupError, StorageError) as error:
        return failed(parser, error)
    print(json.dumps(inspection.as_dict(), indent=2) if given.json else "\n".join(inspection.lines()))
    return 1 if inspection.problems else 0
