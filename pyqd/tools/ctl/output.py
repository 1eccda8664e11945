"""Output of pyqctl: JSON, or text and tables by rich. Messages for people go to standard error."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyqd.primitives.loglines import escape_control

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

# Of a table that goes to a file or a pipe.
WIDTH_CHARS: Final = 160
# Bodies and names come from outside. A terminal would obey control characters, C1 and marks of direction among them.
UNPRINTABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
SIZE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class Column(NamedTuple):
    """Column of a table. key: of the value in a row. show: text of a value. style: of the whole column, by rich."""

    title: str
    key: str
    show: Callable[[Any], str] = str
    style: str = ""
    is_number: bool = False
    wraps: bool = False


class Output:
    """Standard output of a command. as_json: None if a terminal decides."""

    def __init__(self, as_json: bool | None) -> None:
        self.is_json = not sys.stdout.isatty() if as_json is None else as_json

    def console(self) -> Console:
        """Return the console for tables."""
        from rich.console import Console

        class PipeConsole(Console):
            """Console that leaves it to the caller to end the program."""

            def on_broken_pipe(self) -> None:
                """Raise the BrokenPipeError that is being handled."""
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
        """Print a line of text."""
        print(text, flush=True)


def say(text: str) -> None:
    """Print a message on standard error."""
    print(f"pyqctl: {printable(text)}", file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """Return a text with its control characters escaped."""
    return UNPRINTABLE.sub(escaped, text)


def escaped(match: re.Match[str]) -> str:
    """Return the escape of an unprintable character."""
    return escape_control(match) if match[0] < "\x80" else f"\\u{ord(match[0]):04x}"


def cell(text: str, style: str = "") -> Text:
    """Return the text of a cell; brackets in it are no markup."""
    from rich.text import Text

    return Text(printable(text), style=style, overflow="ellipsis")


def table(columns: Sequence[Column], rows: Sequence[dict[str, Any]], title: str = "") -> Table:
    """Return the table of some rows."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(
            column.title,
            justify="right" if column.is_number else "left",
            style=column.style,
            no_wrap=not column.wraps,
            overflow="fold" if column.wraps else "ellipsis",
        )
    for row in rows:
        made.add_row(*cells(columns, row))
    return made


def cells(columns: Sequence[Column], row: dict[str, Any]) -> list[Text]:
    """Return the cells of a row."""
    return [cell(text_of(column, row), style_of(column, row)) for column in columns]


def text_of(column: Column, row: dict[str, Any]) -> str:
    """Return the text of a cell; a dash for a value that is missing."""
    value = row.get(column.key)
    return "-" if value is None else column.show(value)


def style_of(column: Column, row: dict[str, Any]) -> str:
    """Return the style of a cell: zeros and missing values are dim, states have the colour of a traffic light."""
    value = row.get(column.key)
    if value is None or value == 0:
        return "dim"
    return STATE_STYLES.get(value, "") if isinstance(value, str) else ""


STATE_STYLES: Final = {
    "ok": "green",
    "OK": "green",
    "done": "green",
    "returned": "green",
    "warning": "yellow",
    "paused": "yellow",
    "draining": "yellow",
    "failure": "bold red",
    "failed": "bold red",
    "no answer": "bold red",
    "not found": "dim",
    "skipped": "dim",
}


def count(value: float) -> str:
    """Return a whole number with separators."""
    return f"{value:,.0f}"


def messages(value: int) -> str:
    """Return a number of messages in words."""
    return f"{value:,} message{'' if value == 1 else 's'}"


def rate(value: float) -> str:
    """Return a rate per second: with one decimal below 100."""
    return f"{value:,.1f}" if 0 < value < 100 else f"{value:,.0f}"


def size(value: float) -> str:
    """Return a number of bytes with its binary unit."""
    index = 0
    while value >= 1024 and index < len(SIZE_UNITS) - 1:
        value /= 1024
        index += 1
    return f"{value:.0f} {SIZE_UNITS[index]}" if index == 0 or value >= 100 else f"{value:.1f} {SIZE_UNITS[index]}"


def names(values: Sequence[str]) -> str:
    """Return a list of names."""
    return ", ".join(values)
