"""Command `pyqd`: the daemon, or one of the tools for its data if the first argument names one."""

import importlib
import os
import sys
from collections.abc import Callable, Sequence

from pyqd.primitives.program_start import begin_program

# Modules, and functions in them.
TOOLS = {
    "up": ("pyqd.apps.up", "main"),
    "import": ("pyqd.apps.data_commands", "import_nsqd"),
    "export": ("pyqd.apps.data_commands", "export_nsqd"),
    "inspect": ("pyqd.apps.data_commands", "inspect"),
    "drain": ("pyqd.apps.steering", "drain"),
    "restart": ("pyqd.apps.steering", "restart"),
}
DAEMON = ("pyqd.apps.daemon", "main")
HELP = "help"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program that the command line names. Returns: the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    word = arguments[0] if arguments else ""
    # Before other code is loaded: until the daemon handles SIGHUP, it would end by one.
    begin_program("pyqd", holds_hangups=word not in TOOLS)
    module, function = DAEMON
    if word in TOOLS:
        module, function = TOOLS[arguments.pop(0)]
    elif word == HELP:
        arguments = ["--help"]
    elif word and not word.startswith("-"):
        from pyqd.config.options import PROGRAM
        from pyqd.primitives.goflags import exit_with_mistake

        exit_with_mistake(PROGRAM, unknown_command(word))
    run: Callable[[Sequence[str]], int] = getattr(importlib.import_module(module), function)
    return run(arguments)


def unknown_command(word: str) -> str:
    """Return the text for a first argument that is neither a command nor a flag."""
    from pyqd.primitives.goflags import suggestion
    from pyqd.primitives.goquote import go_quote_str

    text = f"unknown command {go_quote_str(word)}"
    if os.path.isdir(word):
        return f"{text}; a data directory is named by a flag, --data-path={word}"
    found = suggestion(word, (*TOOLS, HELP))
    return text + (found or f"; the commands are {', '.join(TOOLS)}; without a command the daemon starts")


if __name__ == "__main__":
    sys.exit(main())
