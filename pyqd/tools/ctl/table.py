"""Tables that fit the terminal: numbers are never cut, and where it is narrow the least important columns are left out.

rich is imported when a table is printed: loading it takes longer than a command that prints JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyqd.primitives.loglines import escape_control
from pyqd.primitives.timestamps import format_timestamp

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table
    from rich.text import Text

# Bodies and names come from outside. A terminal would obey control characters, C1 and marks of direction among them.
UNPRINTABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
GAP_CHARS: Final = 2
# Text is cut to no less, before columns are left out.
TEXT_CHARS_MIN: Final = 16
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

Row = dict[str, Any]


class TableColumn(NamedTuple):
    """Column of a table. key: of the value in a row. show: text of a value. style: of all cells, as rich names it.

    rank: columns with a higher one are left out first; those with 0 stay.
    """

    title: str
    key: str
    show: Callable[[Any], str] = str
    style: str = ""
    is_number: bool = False
    rank: int = 0

    def text(self, row: Row) -> str:
        value = row.get(self.key)
        return "-" if value is None else printable(self.show(value))

    def cell(self, row: Row) -> Text:
        """Return a cell: zeros and missing values are dim, states have the colour of a traffic light."""
        value = row.get(self.key)
        style = STATE_STYLES.get(value, "") if isinstance(value, str) else ""
        return cell(self.text(row), "dim" if value is None or value == 0 else style)


NODE: Final = TableColumn("Node", "node", style="bold")
STATE: Final = TableColumn("State", "state")


class Fitted:
    """Table for rich that leaves out columns, empty ones first, and then cuts text until it fits.

    rows: values by the keys of the columns.
    """

    def __init__(self, columns: Sequence[TableColumn], rows: Sequence[Row], title: str = "") -> None:
        self._columns = columns
        self._rows = rows
        self._title = title

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich.cells import cell_len

        texts = {column: [column.text(row) for row in self._rows] for column in self._columns}
        natural = {
            column: max(cell_len(text) for text in (column.title, *texts[column]))
            for column in self._columns
            # Such as the state of topics, if none is paused.
            if not texts[column] or any(texts[column])
        }
        least = {column: chars if column.is_number else min(chars, TEXT_CHARS_MIN) for column, chars in natural.items()}
        kept, left_out = list(natural), []
        while total_chars(least[column] for column in kept) > options.max_width:
            last = max(kept, key=lambda column: column.rank)
            if not last.rank:
                break
            kept.remove(last)
            left_out.append(last.title)
        widths = cut({column: natural[column] for column in kept}, least, options.max_width)
        made = new_table(self._title)
        for column in kept:
            made.add_column(
                column.title,
                justify="right" if column.is_number else "left",
                style=column.style,
                no_wrap=True,
                overflow="ellipsis",
                width=widths[column],
            )
        for row in self._rows:
            made.add_row(*(column.cell(row) for column in kept))
        yield made
        if left_out:
            yield cell(f"left out for lack of width: {', '.join(left_out)}", "dim")


def number(title: str, key: str, rank: int = 0) -> TableColumn:
    return TableColumn(title, key, count, is_number=True, rank=rank)


def per_second(title: str, key: str, rank: int = 0) -> TableColumn:
    return TableColumn(title, key, rate, is_number=True, rank=rank)


def new_table(title: str = "") -> Table:
    from rich import box
    from rich.table import Table

    return Table(
        box=box.SIMPLE_HEAD,
        title=title or None,
        title_justify="left",
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="bold",
    )


def total_chars(widths: Iterator[int]) -> int:
    found = list(widths)
    return sum(found) + GAP_CHARS * max(0, len(found) - 1)


def cut(natural: dict[TableColumn, int], least: dict[TableColumn, int], max_chars: int) -> dict[TableColumn, int]:
    """Return the widths of columns, of which the widest ones are made narrower until the table fits."""
    widths = dict(natural)
    while total_chars(iter(widths.values())) > max_chars:
        shrinkable = [column for column in widths if widths[column] > least[column]]
        if not shrinkable:
            break
        widths[max(shrinkable, key=lambda column: widths[column])] -= 1
    return widths


def plain_columns(**keys: str) -> tuple[TableColumn, ...]:
    """Return columns of text by their titles. keys: of the values in a row."""
    return tuple(TableColumn(title.replace("_", " "), key) for title, key in keys.items())


def cell(text: str, style: str = "") -> Text:
    """Return the text of a cell; brackets in it are no markup."""
    from rich.text import Text

    return Text(printable(text), style=style)


def printable(text: str) -> str:
    return UNPRINTABLE.sub(escaped, text)


def escaped(match: re.Match[str]) -> str:
    return escape_control(match) if match[0] < "\x80" else f"\\u{ord(match[0]):04x}"


def count(value: float) -> str:
    return f"{value:,.0f}"


def messages_text(value: int) -> str:
    return f"{value:,} message{'' if value == 1 else 's'}"


def rate(value: float) -> str:
    """Return a rate per second: with one decimal below 100, if it has decimals."""
    return f"{value:,.1f}" if value < 100 and value % 1 else f"{value:,.0f}"


def names(values: Sequence[str]) -> str:
    return ", ".join(values)


def timestamp(timestamp_ns: int) -> str:
    return f"{format_timestamp(timestamp_ns)}Z"
