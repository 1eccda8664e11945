"""Output of pyqctl: JSON, or text and tables. Messages for people go to standard error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pyqd.tools.ctl.table import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

# Width of a table that goes to a file or a pipe.
WIDTH_CHARS: Final = 160


class CommandOutput:
    """Standard output of a command. as_json: None if a terminal decides."""

    def __init__(self, as_json: bool | None) -> None:
        self.is_json = not sys.stdout.isatty() if as_json is None else as_json

    def console(self) -> Console:
        from rich.console import Console

        class PipeConsole(Console):
            """Console that leaves it to the caller to end the program."""

            def on_broken_pipe(self) -> None:
                raise

        width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH_CHARS
        return PipeConsole(highlight=False, soft_wrap=False, width=width, legacy_windows=False)

    def show(self, value: Any, view: Callable[[], RenderableType]) -> None:
        """Print a value as JSON, or the view of it."""
        if self.is_json:
            self.line(json.dumps(value, indent=2))
        else:
            self.console().print(view())

    def show_line(self, value: Any) -> None:
        """Print a value as JSON on one line, for output that goes on."""
        self.line(json.dumps(value))

    def line(self, text: str) -> None:
        print(text, flush=True)


def say(text: str) -> None:
    print(f"pyqctl: {printable(text)}", file=sys.stderr, flush=True)
