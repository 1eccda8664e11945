"""The command `pyqd`: the daemon, or one of the tools for its data when the first argument names one."""

import importlib
import sys
from collections.abc import Callable, Sequence

TOOLS = {
    "import": "pyqd.apps.import_nsqd",
    "export": "pyqd.apps.export_nsqd",
    "inspect": "pyqd.apps.inspect_data",
}
DAEMON = "pyqd.apps.daemon"
USAGE = """\
pyqd [flags]                                the daemon; its flags are below
pyqd --check-config [flags]                 says what would be in force, or what is wrong; starts nothing
pyqd --help                                 this text
pyqd import [--dry-run] DIR                 take over the data directory of a stopped nsqd
pyqd export [--from DATA_DIR] DIR           write what a stopped pyqd holds as a data directory of nsqd
pyqd inspect [--verify] [--json] DIR        list the queues of a data directory; changes nothing
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for. Returns: the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    module = DAEMON
    if arguments and arguments[0] in TOOLS:
        module = TOOLS[arguments.pop(0)]
    elif arguments and arguments[0].lstrip("-") in ("h", "help") and arguments[0].startswith("-"):
        sys.stderr.write(USAGE + "\n")
    run: Callable[[Sequence[str]], int] = importlib.import_module(module).main
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
