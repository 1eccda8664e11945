"""`pyqd inspect`: lists the queues of a data directory. Changes no file and takes no lock."""

import json
import logging
import os
import sys
from collections.abc import Sequence

from pyqd.broker.inspection import Inspection
from pyqd.primitives.command_line import CommandParser
from pyqd.primitives.errors import StartupError


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table. Returns: the exit code: 1 if a file is damaged or cannot be read."""
    parser = CommandParser(
        prog="pyqd inspect", description="List the queues of a data directory of pyqd, also of a running one."
    )
    parser.add_argument("--verify", action="store_true", help="check the checksum of every record")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("directory", metavar="DIR", help="data directory of pyqd")
    given = parser.parse_args(argv)
    # Damage is in the output.
    logging.getLogger("pyqd").addHandler(logging.NullHandler())
    try:
        inspection = Inspection(os.path.abspath(given.directory), given.verify)
    except StartupError as error:
        print(f"pyqd inspect: {error}", file=sys.stderr)
        return 1
    if given.json:
        print(json.dumps(inspection.as_dict(), indent=2))
    else:
        print("\n".join(inspection.lines()))
    return 1 if inspection.problems else 0


if __name__ == "__main__":
    sys.exit(main())
