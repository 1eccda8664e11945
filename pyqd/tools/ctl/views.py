"""Tables of pyqctl, from the values that its JSON has too."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyqd.primitives.durations import MILLISECOND_NS, SECOND_NS, format_duration
from pyqd.tools.ctl.counters import paused_text
from pyqd.tools.ctl.output import Column, cell, cells, count, names, rate, size, table

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

Row = dict[str, Any]

REFRESHES_PER_S: Final = 4

NODE: Final = Column("Node", "nodes", names)
TOPIC: Final = Column("Topic", "topic", style="bold")
CHANNEL: Final = Column("Channel", "channel", style="bold")
STATE: Final = Column("State", "state")


def number(title: str, key: str) -> Column:
    """Return the column of a count."""
    return Column(title, key, count, is_number=True)


def per_second(title: str, key: str) -> Column:
    """Return the column of a rate."""
    return Column(title, key, rate, is_number=True)


def node_column(by_node: bool) -> Column:
    """Return the column with the broker's address, or with the number of brokers."""
    return NODE if by_node else Column("Nodes", "node_count", count, is_number=True)


def topics(rows: Sequence[Row], by_node: bool = False) -> Table:
    """Return the table of topics."""
    columns = (
        TOPIC,
        node_column(by_node),
        number("Channels", "channel_count"),
        number("Depth", "depth"),
        number("In channels", "channel_depth"),
        number("In flight", "channel_in_flight_count"),
        number("Deferred", "channel_deferred_count"),
        number("Messages", "message_count"),
        Column("Bytes", "message_bytes", size, is_number=True),
        STATE,
    )
    return table(columns, [counted(row) for row in rows])


def channels(rows: Sequence[Row], by_node: bool = False) -> Table:
    """Return the table of channels. Limits and dead letters have columns if any channel has them."""
    columns = [
        TOPIC,
        CHANNEL,
        node_column(by_node),
        number("Depth", "depth"),
        number("In flight", "in_flight_count"),
        number("Deferred", "deferred_count"),
        number("Messages", "message_count"),
        number("Requeued", "requeue_count"),
        number("Timed out", "timeout_count"),
        number("Clients", "client_count"),
    ]
    if any(row["limits"] for row in rows):
        columns += [
            per_second("Rate/s", "rate"),
            number("Attempts", "max_attempts"),
            number("Dead letters", "dead_letter_count"),
        ]
    return table([*columns, STATE], [{**(row["limits"] or {}), **counted(row)} for row in rows])


def counted(row: Row) -> Row:
    """Return a row with the number of its brokers, and its state."""
    return {**row, "node_count": len(row["nodes"]), "state": paused_text(row)}


def nodes(rows: Sequence[Row], now_s: float | None = None) -> Table:
    """Return the table of brokers. now_s: Unix time, for the time since each start; None for the current one."""
    now = time.time() if now_s is None else now_s
    columns = (
        Column("Node", "node", style="bold"),
        Column("State", "shown_state", wraps=True),
        Column("Kind", "kind"),
        Column("NSQ", "nsq_version"),
        Column("Host", "hostname"),
        Column("Up", "up", is_number=True),
        number("Topics", "topic_count"),
        number("Channels", "channel_count"),
        number("Clients", "client_count"),
        number("Depth", "depth"),
        number("In flight", "in_flight_count"),
        number("Deferred", "deferred_count"),
        Column("Lookup", "lookup"),
    )
    return table(columns, [{**row, **node_extras(row, now)} for row in rows])


def node_extras(row: Row, now_s: float) -> Row:
    """Return the values of a broker that are for people."""
    daemons = row.get("lookup_daemons")
    start_s = row.get("start_time")
    return {
        "shown_state": row["state"],
        "up": None if start_s is None else span(now_s - start_s),
        "lookup": daemons and f"{sum(daemon['connected'] for daemon in daemons)}/{len(daemons)}",
    }


def span(seconds: float) -> str:
    """Return a time span with its two greatest units, such as 3d 4h."""
    units = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
    left = max(0, int(seconds))
    parts: list[str] = []
    for unit, unit_s in units:
        value, left = divmod(left, unit_s)
        if value or (parts and len(parts) < 2) or (unit == "s" and not parts):
            parts.append(f"{value}{unit}")
        if len(parts) == 2:
            break
    return " ".join(parts)


def timestamp(timestamp_ns: int) -> str:
    """Return a time in UTC, to the millisecond."""
    moment = datetime.datetime.fromtimestamp(timestamp_ns // SECOND_NS, datetime.timezone.utc)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{timestamp_ns % SECOND_NS // MILLISECOND_NS:03d}Z"


WATCH_COLUMNS: Final = (
    TOPIC,
    CHANNEL,
    number("Depth", "depth"),
    number("In flight", "in_flight_count"),
    number("Deferred", "deferred_count"),
    per_second("In/s", "in_per_s"),
    per_second("Done/s", "done_per_s"),
    per_second("Requeued/s", "requeued_per_s"),
    per_second("Timed out/s", "timed_out_per_s"),
    number("Clients", "client_count"),
    STATE,
)


def watch(reading: Row, note: str, height_lines: int | None = None) -> RenderableType:
    """Return the table of a reading; with a height, as many rows as fit."""
    from rich.console import Group

    rows = [counted(row) for row in reading["rows"]]
    # The title, the head with its line, the line of rows that do not fit, and the errors.
    room = len(rows) if height_lines is None else max(1, height_lines - 6 - len(reading["errors"]))
    title = f"{timestamp(reading['time_ns'])}  {note}"
    parts: list[RenderableType] = [table(WATCH_COLUMNS, rows[:room], title)]
    if len(rows) > room:
        parts.append(cell(f"{len(rows) - room} more lines do not fit", "dim"))
    parts += [cell(error, "red") for error in reading["errors"]]
    return Group(*parts)


def live(console: Console, readings: Iterable[Row], note: str) -> None:
    """Show each reading in place of the one before; below it, if the output is no terminal."""
    if not console.is_terminal:
        for reading in readings:
            console.print(watch(reading, note))
        return
    from rich.live import Live

    with Live(console=console, refresh_per_second=REFRESHES_PER_S, screen=True, vertical_overflow="crop") as shown:
        for reading in readings:
            shown.update(watch(reading, note, console.height), refresh=True)


def duration(duration_ns: int) -> str:
    """Return a duration."""
    return format_duration(duration_ns)


MESSAGE_STATES: Final = ("ready", "in_flight", "deferred", "dead_letter")


def messages(rows: Sequence[Row], state: str, several_nodes: bool) -> Table:
    """Return the table of messages."""
    columns = [
        *([Column("Node", "node")] if several_nodes else []),
        Column("ID", "id", style="bold"),
        Column("Published", "timestamp", timestamp),
        Column("Attempts", "attempts", count, is_number=True),
        Column("Size", "size", size, is_number=True),
    ]
    if state == "in_flight":
        columns += [Column("Deadline", "deadline", timestamp), Column("Client", "client", client_text)]
    else:
        columns.append(Column("Due", "due", timestamp))
    if any("body" in row for row in rows):
        columns.append(Column("Body", "body"))
    return table(columns, rows)


def dead_letters(rows: Sequence[Row]) -> Table:
    """Return the table of dead letters, those that wait included."""
    columns = [
        Column("Node", "node"),
        Column("Held by", "held_by", style="bold"),
        Column("ID", "id", style="bold"),
        Column("State", "state"),
        Column("Published", "timestamp", timestamp),
        Column("Size", "size", size, is_number=True),
    ]
    if any("body" in row for row in rows):
        columns.append(Column("Body", "body"))
    held = [{**row, "held_by": "/".join(name for name in (row["topic"], row["channel"]) if name)} for row in rows]
    return table(columns, held)


def seeks(rows: Sequence[Row]) -> Table:
    """Return the table of the effects of a seek."""
    columns = (
        Column("Node", "node", style="bold"),
        number("From", "from"),
        number("To", "to"),
        number("Delivered again", "redeliver"),
        number("Of these finished", "finished"),
        number("Skipped", "skip"),
        number("In flight", "in_flight"),
        number("Parked", "parked"),
        number("Depth", "depth"),
        Column("State", "state"),
    )
    return table(columns, [{**row, "state": "dry run" if row["dry_run"] else "done"} for row in rows])


def limits(rows: Sequence[Row]) -> Table:
    """Return the table of a channel's limits."""
    columns = (
        Column("Node", "node", style="bold"),
        per_second("Rate/s", "rate"),
        per_second("Burst", "burst"),
        number("Attempts", "max_attempts"),
        Column("Dead-letter topic", "dead_letter_topic"),
        number("Dead letters", "dead_letter_count"),
        number("Waiting", "dead_letters_waiting"),
        Column("Waiting for", "waiting_for", wraps=True),
    )
    return table(columns, rows)


def retentions(rows: Sequence[Row]) -> Table:
    """Return the table of a topic's retention."""
    columns = (
        Column("Node", "node", style="bold"),
        Column("Bytes", "bytes", size, is_number=True),
        Column("Time", "time", is_number=True),
        Column("Bytes from", "bytes_origin"),
        Column("Time from", "time_origin"),
    )
    origins = ("flag of the broker", "topic")
    return table(
        columns,
        [
            {**row, **{f"{key}_origin": origins[row[f"own_{key}"] is not None] for key in ("bytes", "time")}}
            for row in rows
        ],
    )


def findings(rows: Sequence[Row], summary: Row) -> RenderableType:
    """Return the table of doctor's findings, each with its fix on a line of its own."""
    from rich.console import Group

    columns = (
        Column("Node", "node", style="bold"),
        Column("Check", "check"),
        Column("State", "state"),
        Column("Finding", "finding", wraps=True),
    )
    made = table(columns, [])
    for row in rows:
        made.add_row(*cells(columns, row))
        if row["fix"] is not None:
            made.add_row("", "", "", cell(f"→ {row['fix']}", "cyan"))
    counts = ", ".join(f"{number} {name if number != 1 else name[:-1]}" for name, number in summary.items())
    return Group(made, cell(counts))


def client_text(client: Row) -> str:
    """Return a client of a message in flight."""
    return f"{client['client_id']} {client['remote_address']}"


def outcomes(columns: Sequence[tuple[str, str]], rows: Sequence[Row]) -> Table:
    """Return a table of titles and keys, for the results of changes."""
    return table([Column(title, key) for title, key in columns], rows)
