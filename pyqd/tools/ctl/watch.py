"""Command that shows depths and rates of topics and channels again and again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

import click

from pyqd.primitives.durations import SECOND_NS, format_duration
from pyqd.tools.ctl.cluster import ask
from pyqd.tools.ctl.completion import complete_channels, complete_topics
from pyqd.tools.ctl.counters import Reading, channel_rows, counted, rates, read_stats, topic_rows
from pyqd.tools.ctl.frame import command, duration
from pyqd.tools.ctl.listing import CHANNEL_SORTS, NODES, STATS, is_literal, sorted_rows
from pyqd.tools.ctl.nodes import AskedBroker
from pyqd.tools.ctl.session import CtlSession
from pyqd.tools.ctl.table import STATE, Fitted, Row, TableColumn, cell, number, per_second, timestamp

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

INTERVAL_NS_MIN: Final = SECOND_NS // 10
REFRESHES_PER_S: Final = 4
COLUMNS: Final = (
    TableColumn("Topic", "topic", style="bold"),
    TableColumn("Channel", "channel", style="bold"),
    number("Depth", "depth"),
    number("In flight", "in_flight_count", 1),
    number("Deferred", "deferred_count", 2),
    per_second("In/s", "in_per_s"),
    per_second("Done/s", "done_per_s"),
    per_second("Requeued/s", "requeued_per_s", 4),
    per_second("Timed out/s", "timed_out_per_s", 5),
    number("Clients", "client_count", 3),
    STATE,
)


@command("Every interval: " + STATS, NODES)
@click.argument("topic_pattern", default="*", shell_complete=complete_topics)
@click.argument("channel_pattern", default="*", shell_complete=complete_channels)
@click.option("--interval", "interval_ns", type=duration, default="2s", show_default=True, metavar="DURATION")
@click.option("-n", "--count", type=click.IntRange(min=1), help="end after so many readings with rates")
@click.option("--sort", type=click.Choice(CHANNEL_SORTS[:-1]), default="name", show_default=True)
@click.pass_obj
def watch(
    session: CtlSession, topic_pattern: str, channel_pattern: str, interval_ns: int, count: int | None, sort: str
) -> None:
    """Show depths and rates of topics and channels, until Ctrl-C.

    The rates are per second, between two readings. "Done" counts finished messages, and those dropped by emptying.
    As JSON, each reading is an object on a line of its own, the first one without rates.
    """
    interval_s = max(interval_ns, INTERVAL_NS_MIN) / SECOND_NS
    brokers = session.brokers()
    name = topic_pattern if is_literal(topic_pattern) else None
    shown = readings(session, brokers, name, interval_s, count)
    lines = (
        {**reading, "rows": sorted_rows(watched(reading["rows"], topic_pattern, channel_pattern), sort)}
        for reading in shown
    )
    with contextlib.suppress(KeyboardInterrupt):
        if session.output.is_json:
            for line in lines:
                session.output.show_line(line)
        else:
            show_live(session.output.console(), lines, f"every {format_duration(round(interval_s * SECOND_NS))}")


def readings(
    session: CtlSession, brokers: list[AskedBroker], topic: str | None, interval_s: float, count: int | None
) -> Iterator[dict[str, Any]]:
    """Yield readings with rates, at an interval. Raises: ClientError if no broker answers the first time."""
    before: Reading | None = None
    # The search for the brokers is not repeated: those that it has missed are missing from each reading.
    missed = [str(failure.error) for failure in session.failures]
    done = 0
    while count is None or done <= count:
        began_s = time.monotonic()
        found = ask(brokers, lambda broker: read_stats(broker, topic))
        if before is None:
            session.noted(found)
            session.failures.clear()
        now = Reading(began_s, [answer.value for answer in found.answers])
        yield {
            "time_ns": time.time_ns(),
            "rows": watch_rows(before, now),
            "errors": missed + [str(failure.error) for failure in found.failures],
        }
        before = now
        done += 1
        if count is None or done <= count:
            time.sleep(max(0.0, began_s + interval_s - time.monotonic()))


def watch_rows(before: Reading | None, now: Reading) -> list[Row]:
    """Return a row for each channel, and for each topic that has none, with rates since the last reading."""
    grown = rates(before, now)
    rows = channel_rows(now.stats)
    with_channels = {row["topic"] for row in rows}
    rows += [{**row, "channel": None} for row in topic_rows(now.stats) if row["topic"] not in with_channels]
    for row in rows:
        found = grown.get((row["topic"], row["channel"]))
        for key, value in zip(("in", "done", "requeued", "timed_out"), found or (None,) * 4, strict=True):
            row[f"{key}_per_s"] = value
    return sorted(rows, key=lambda row: (row["topic"], row["channel"] or ""))


def watched(rows: list[Row], topic_pattern: str, channel_pattern: str) -> list[Row]:
    return [
        row
        for row in rows
        if fnmatchcase(row["topic"], topic_pattern) and fnmatchcase(row["channel"] or "", channel_pattern)
    ]


def reading_table(reading: Row, note: str, height_lines: int | None = None) -> RenderableType:
    """Return the table of a reading; with a height, as many rows as fit."""
    from rich.console import Group

    rows = [counted(row) for row in reading["rows"]]
    # The title, the head with its line, the line of rows that do not fit, and the errors.
    room = len(rows) if height_lines is None else max(1, height_lines - 6 - len(reading["errors"]))
    title = f"{timestamp(reading['time_ns'])}  {note}"
    parts: list[RenderableType] = [Fitted(COLUMNS, rows[:room], title)]
    if len(rows) > room:
        parts.append(cell(f"{len(rows) - room} more lines do not fit", "dim"))
    parts += [cell(error, "red") for error in reading["errors"]]
    return Group(*parts)


def show_live(console: Console, readings: Iterable[Row], note: str) -> None:
    """Show each reading in place of the one before; below it, if the output is no terminal."""
    if not console.is_terminal:
        for reading in readings:
            console.print(reading_table(reading, note))
        return
    from rich.live import Live

    with Live(console=console, refresh_per_second=REFRESHES_PER_S, screen=True, vertical_overflow="crop") as shown:
        for reading in readings:
            shown.update(reading_table(reading, note, console.height), refresh=True)
