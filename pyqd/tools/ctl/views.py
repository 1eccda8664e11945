"""Tables of pyqctl, from the values that its JSON has too."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyqd.primitives.durations import MILLISECOND_NS, SECOND_NS
from pyqd.primitives.quantities import format_size
from pyqd.tools.ctl.counters import paused_text
from pyqd.tools.ctl.table import Column, Fitted, cell, count, names, new_table, rate

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Row = dict[str, Any]

REFRESHES_PER_S: Final = 4

NODE: Final = Column("Node", "nodes", names)
TOPIC: Final = Column("Topic", "topic", style="bold")
CHANNEL: Final = Column("Channel", "channel", style="bold")
STATE: Final = Column("State", "state")


def number(title: str, key: str, rank: int = 0) -> Column:
    """Return the column of a count."""
    return Column(title, key, count, is_number=True, rank=rank)


def per_second(title: str, key: str, rank: int = 0) -> Column:
    """Return the column of a rate."""
    return Column(title, key, rate, is_number=True, rank=rank)


def node_column(by_node: bool, rank: int) -> Column:
    """Return the column with the broker's address, or with the number of brokers."""
    return NODE if by_node else number("Nodes", "node_count", rank)


def topics(rows: Sequence[Row], by_node: bool = False) -> Fitted:
    """Return the table of topics."""
    columns = (
        TOPIC,
        node_column(by_node, 5),
        number("Channels", "channel_count", 4),
        number("Depth", "depth"),
        number("In channels", "channel_depth"),
        number("In flight", "channel_in_flight_count", 1),
        number("Deferred", "channel_deferred_count", 2),
        number("Messages", "message_count", 3),
        Column("Bytes", "message_bytes", format_size, is_number=True, rank=6),
        STATE,
    )
    return Fitted(columns, [counted(row) for row in rows])


def channels(rows: Sequence[Row], by_node: bool = False) -> Fitted:
    """Return the table of channels. Limits and dead letters have columns if any channel has them."""
    columns = [
        TOPIC,
        CHANNEL,
        node_column(by_node, 6),
        number("Depth", "depth"),
        number("In flight", "in_flight_count", 1),
        number("Deferred", "deferred_count", 2),
        number("Messages", "message_count", 5),
        number("Requeued", "requeue_count", 7),
        number("Timed out", "timeout_count", 8),
        number("Clients", "client_count", 3),
    ]
    if any(row["limits"] for row in rows):
        columns += [
            per_second("Rate/s", "rate", 9),
            number("Attempts", "max_attempts", 10),
            number("Dead letters", "dead_letter_count", 4),
        ]
    return Fitted([*columns, STATE], [{**(row["limits"] or {}), **counted(row)} for row in rows])


def counted(row: Row) -> Row:
    """Return a row with the number of its brokers, and its state."""
    return {**row, "node_count": len(row["nodes"]), "state": paused_text(row)}


def nodes(rows: Sequence[Row], now_s: float | None = None) -> Fitted:
    """Return the table of brokers. now_s: Unix time, for the time since each start; None for the current one."""
    now = time.time() if now_s is None else now_s
    columns = (
        Column("Node", "node", style="bold"),
        Column("State", "shown_state"),
        Column("Kind", "kind", rank=3),
        Column("NSQ", "nsq_version", rank=9),
        Column("Host", "hostname", rank=8),
        Column("Up", "up", is_number=True, rank=5),
        number("Topics", "topic_count", 6),
        number("Channels", "channel_count", 7),
        number("Clients", "client_count", 2),
        number("Depth", "depth"),
        number("In flight", "in_flight_count", 1),
        number("Deferred", "deferred_count", 4),
        Column("Lookup", "lookup", rank=3),
    )
    return Fitted(columns, [{**row, **node_extras(row, now)} for row in rows])


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
    number("In flight", "in_flight_count", 1),
    number("Deferred", "deferred_count", 2),
    per_second("In/s", "in_per_s"),
    per_second("Done/s", "done_per_s"),
    per_second("Requeued/s", "requeued_per_s", 4),
    per_second("Timed out/s", "timed_out_per_s", 5),
    number("Clients", "client_count", 3),
    STATE,
)


def watch(reading: Row, note: str, height_lines: int | None = None) -> RenderableType:
    """Return the table of a reading; with a height, as many rows as fit."""
    from rich.console import Group

    rows = [counted(row) for row in reading["rows"]]
    # The title, the head with its line, the line of rows that do not fit, and the errors.
    room = len(rows) if height_lines is None else max(1, height_lines - 6 - len(reading["errors"]))
    title = f"{timestamp(reading['time_ns'])}  {note}"
    parts: list[RenderableType] = [Fitted(WATCH_COLUMNS, rows[:room], title)]
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


MESSAGE_STATES: Final = ("ready", "in_flight", "deferred", "dead_letter")


def messages(rows: Sequence[Row], state: str, several_nodes: bool) -> Fitted:
    """Return the table of messages."""
    columns = [
        *([Column("Node", "node")] if several_nodes else []),
        Column("ID", "id", style="bold"),
        Column("Published", "timestamp", timestamp, is_number=True, rank=3),
        number("Attempts", "attempts", 4),
        Column("Size", "size", format_size, is_number=True, rank=2),
    ]
    if state == "in_flight":
        columns.append(Column("Deadline", "deadline", timestamp, is_number=True, rank=1))
        columns.append(Column("Client", "client", client_text))
    else:
        columns.append(Column("Due", "due", timestamp, is_number=True, rank=1))
    if any("body" in row for row in rows):
        columns.append(Column("Body", "body"))
    return Fitted(columns, rows)


def dead_letters(rows: Sequence[Row]) -> Fitted:
    """Return the table of dead letters, those that wait included."""
    columns = [
        Column("Node", "node"),
        Column("Held by", "held_by", style="bold"),
        Column("ID", "id", style="bold"),
        Column("State", "state", rank=2),
        Column("Published", "timestamp", timestamp, is_number=True, rank=1),
        Column("Size", "size", format_size, is_number=True, rank=3),
    ]
    if any("body" in row for row in rows):
        columns.append(Column("Body", "body"))
    held = [{**row, "held_by": "/".join(name for name in (row["topic"], row["channel"]) if name)} for row in rows]
    return Fitted(columns, held)


def seeks(rows: Sequence[Row]) -> Fitted:
    """Return the table of the effects of a seek."""
    columns = (
        Column("Node", "node", style="bold"),
        number("From", "from", 3),
        number("To", "to", 2),
        number("Delivered again", "redeliver"),
        number("Of these finished", "finished", 5),
        number("Skipped", "skip"),
        number("In flight", "in_flight", 6),
        number("Parked", "parked", 7),
        number("Depth", "depth", 1),
        Column("State", "state"),
    )
    return Fitted(columns, [{**row, "state": "dry run" if row["dry_run"] else "done"} for row in rows])


def limits(rows: Sequence[Row]) -> Fitted:
    """Return the table of a channel's limits."""
    columns = (
        Column("Node", "node", style="bold"),
        per_second("Rate/s", "rate"),
        per_second("Burst", "burst", 2),
        number("Attempts", "max_attempts"),
        Column("Dead-letter topic", "dead_letter_topic"),
        number("Dead letters", "dead_letter_count"),
        number("Waiting", "dead_letters_waiting", 1),
        Column("Waiting for", "waiting_for"),
    )
    return Fitted(columns, rows)


def retentions(rows: Sequence[Row]) -> Fitted:
    """Return the table of a topic's retention."""
    columns = (
        Column("Node", "node", style="bold"),
        Column("Bytes", "bytes", format_size, is_number=True),
        Column("Time", "time", is_number=True),
        Column("Bytes from", "bytes_origin"),
        Column("Time from", "time_origin"),
    )
    origins = ("flag of the broker", "topic")
    return Fitted(
        columns,
        [
            {**row, **{f"{key}_origin": origins[row[f"own_{key}"] is not None] for key in ("bytes", "time")}}
            for row in rows
        ],
    )


def findings(rows: Sequence[Row], summary: Row) -> RenderableType:
    """Return the table of doctor's findings, each with its fix on a line of its own."""
    from rich.console import Group

    made = new_table()
    for title in ("Node", "Check", "State"):
        made.add_column(title, no_wrap=True)
    made.add_column("Finding", overflow="fold")
    state = Column("State", "state")
    for row in rows:
        made.add_row(cell(row["node"], "bold"), cell(row["check"]), state.cell(row), cell(row["finding"]))
        if row["fix"] is not None:
            made.add_row("", "", "", cell(f"→ {row['fix']}", "cyan"))
    counts = ", ".join(f"{number} {name if number != 1 else name[:-1]}" for name, number in summary.items())
    return Group(made, cell(counts))


def client_text(client: Row) -> str:
    """Return a client of a message in flight."""
    return f"{client['client_id']} {client['remote_address']}"


def outcomes(columns: Sequence[tuple[str, str]], rows: Sequence[Row]) -> Fitted:
    """Return a table of titles and keys, for the results of changes."""
    return Fitted([Column(title, key) for title, key in columns], rows)
