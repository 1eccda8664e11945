"""Reading of trace databases for tests."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import sqlalchemy as sa

from pyqd.trace.database import Database
from tests.support.trace_log import AT_US

TIMES = ("at", "happened_at", "published_at", "due_at", "sent_at", "outcome_at", "noticed_at")


def rows_of(database: Database, view: str, order: str = "message_id") -> list[dict[str, Any]]:
    """Return the rows of a view. Times are microseconds after the first event of a TraceLog."""
    with database.transaction("read", reading=True) as connection:
        rows = connection.execute(sa.text(f"SELECT * FROM {view} ORDER BY {order}")).mappings()
        return [
            {
                name: since_start_us(value) if name in TIMES and value is not None else value
                for name, value in row.items()
            }
            for row in rows
        ]


def since_start_us(value: str | datetime) -> int:
    """Return the microseconds of a time after the first event of a TraceLog."""
    # SQLite has no type for times.
    time = datetime.fromisoformat(value) if isinstance(value, str) else value
    time = time if time.tzinfo else time.replace(tzinfo=timezone.utc)
    delta = time - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (delta.days * 86400 + delta.seconds) * 1_000_000 + delta.microseconds - AT_US


def outcomes_of(database: Database) -> list[tuple[str, str, int, str, int | None]]:
    """Return id, channel, attempt, outcome and its time of all deliveries, in the order of their sending."""
    return [
        (row["message_id"].lstrip("0"), row["channel"], row["attempt"], row["outcome"], row["outcome_at"])
        for row in rows_of(database, "consume_log", "sent_at, message_id, channel")
    ]


def events_of(database: Database) -> list[tuple[str, str | None, str]]:
    """Return id, channel and name of all events that have a row of their own."""
    rows = rows_of(database, "event_log", "happened_at, message_id, channel")
    return [(row["message_id"].lstrip("0"), row["channel"], row["event"]) for row in rows]
