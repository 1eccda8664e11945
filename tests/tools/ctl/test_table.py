"""Tables fit the terminal, and their texts are what people read."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, RenderableType

from pyqd.tools.ctl.counters import channel_rows, channels_table
from pyqd.tools.ctl.listing import span
from pyqd.tools.ctl.table import Fitted, TableColumn, count, rate
from pyqd.tools.ctl.watch import reading_table
from tests.tools.ctl.pictures import STATS


def printed(view: RenderableType, width: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False, _environ={}).print(view)
    return file.getvalue().splitlines()


@pytest.mark.parametrize("width", range(60, 181, 10))
def test_numbers_are_never_cut(width: int) -> None:
    rows = channel_rows(STATS)
    lines = printed(channels_table(rows), width)
    assert max(len(line) for line in lines) <= width
    shown = next(line for line in lines if line.startswith("orders") and "billing" in line)
    left_out = "".join(lines).partition("left out for lack of width: ")[2]
    (billing,) = [row for row in rows if row["channel"] == "billing"]
    for title, key in (("Depth", "depth"), ("In flight", "in_flight_count"), ("Messages", "message_count")):
        assert (count(billing[key]) in shown.split()) is (title not in left_out), lines


def test_the_least_important_columns_are_left_out_first_and_named() -> None:
    columns = [TableColumn("Name", "name"), TableColumn("First", "a", rank=9), TableColumn("Second", "b", rank=8)]
    rows = [{"name": "x" * 10, "a": "a", "b": "b"}]
    assert printed(Fitted(columns, rows), 30)[0].split() == ["Name", "First", "Second"]
    narrow = printed(Fitted(columns, rows), 18)
    assert narrow[0].split() == ["Name", "Second"]
    assert "".join(narrow).endswith("left out for lack of width: First")


def test_text_is_cut_if_columns_do_not_help() -> None:
    (line,) = printed(Fitted([TableColumn("Name", "name")], [{"name": "x" * 100}]), 40)[2:]
    assert line == "x" * 39 + "…"


def test_a_column_without_any_text_is_left_out() -> None:
    columns = [TableColumn("Name", "name"), TableColumn("State", "state")]
    assert printed(Fitted(columns, [{"name": "a", "state": ""}]), 80)[0].split() == ["Name"]
    assert printed(Fitted(columns, [{"name": "a", "state": None}]), 80)[0].split() == ["Name", "State"]


def test_markup_in_a_cell_is_text() -> None:
    assert (
        printed(Fitted([TableColumn("Name", "name")], [{"name": "[bold]x[/bold]"}]), 80)[2].strip() == "[bold]x[/bold]"
    )


def test_a_watch_shows_as_many_rows_as_fit() -> None:
    rows = [{**row, "in_per_s": None} for row in channel_rows(STATS)]
    reading = {"time_ns": 0, "rows": rows, "errors": ["a:4151: gone"]}
    lines = printed(reading_table(reading, "every 2s", height_lines=9), 160)
    assert len(lines) <= 9
    assert lines[-2:] == [f"{len(rows) - 2} more lines do not fit", "a:4151: gone"]


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (0.5, "0.5"), (7.25, "7.2"), (12, "12"), (99.96, "100.0"), (1234.5, "1,234")]
)
def test_a_rate_has_a_decimal_where_it_tells_something(number: float, text: str) -> None:
    assert rate(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0s"), (0, "0s"), (59, "59s"), (60, "1m 0s"), (3600, "1h 0m"), (90_061, "1d 1h"), (1e7, "115d 17h")],
)
def test_a_span_has_its_two_greatest_units(seconds: float, text: str) -> None:
    assert span(seconds) == text
