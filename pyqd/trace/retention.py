"""Removal of old rows, by age and by size, a portion at a time and in short transactions."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from typing import Any, Final

import sqlalchemy as sa

from pyqd.trace import schema
from pyqd.trace.database import Database

CHECK_S: Final = 60.0
# Rows that one transaction removes from a table.
ROWS: Final = 20_000


class Retention:
    """Limits on the rows of a database. keep: age of the oldest event. keep_bytes: estimated size of all rows."""

    def __init__(self, keep: timedelta | None = None, keep_bytes: int | None = None) -> None:
        self._keep = keep
        self._keep_bytes = keep_bytes
        self._next_s = time.monotonic()

    def is_due(self, now_s: float) -> bool:
        """Return whether to call `remove_some` at a time of the monotonic clock."""
        return (self._keep is not None or self._keep_bytes is not None) and now_s >= self._next_s

    def remove_some(self, database: Database) -> int:
        """Remove rows of the oldest portion that exceeds a limit, in one transaction. Returns: their number.

        Raises: DatabaseError, SchemaError.
        """
        with database.transaction("remove old rows from") as connection:
            portion = self._excess(connection)
            if portion is None:
                self._next_s = time.monotonic() + CHECK_S
                return 0
            start = _start(connection, portion)
            removed = sum(_remove(connection, table, portion, start) for table in schema.ROW_TABLES)
            if not removed:
                table = schema.portions.c
                connection.execute(
                    sa.delete(schema.portions).where(
                        table.node_id == portion.node_id, table.first_position == portion.first_position
                    )
                )
            return removed

    def _excess(self, connection: sa.Connection) -> Any:
        """Return the oldest portion if it exceeds a limit."""
        table = schema.portions
        oldest = connection.execute(sa.select(table).order_by(table.c.newest_at).limit(1)).one_or_none()
        if oldest is None:
            return None
        # The difference, because a time so far in the past may be none of a datetime.
        if self._keep is not None and datetime.now(timezone.utc) - oldest.newest_at > self._keep:
            return oldest
        if self._keep_bytes is not None:
            size_bytes = connection.scalar(sa.select(sa.func.sum(table.c.size_bytes))) or 0
            if size_bytes > self._keep_bytes:
                return oldest
        return None


def _remove(connection: sa.Connection, table: sa.Table, portion: Any, start: int) -> int:
    """Remove some rows of a portion, from a position on. Returns: their number."""
    concerned = [table.c.node_id == portion.node_id, table.c.position >= start]
    end = connection.scalar(
        sa.select(table.c.position)
        .where(*concerned, table.c.position < portion.end_position)
        .order_by(table.c.position)
        .offset(ROWS)
        .limit(1)
    )
    concerned.append(table.c.position < (portion.end_position if end is None else end))
    return connection.execute(sa.delete(table).where(*concerned)).rowcount


def _start(connection: sa.Connection, portion: Any) -> int:
    """Return the position after the portion before: rows between the two portions go with the later one.

    The portion before may be there still: if the clock of the broker was wrong, it is the newer one by its time.
    """
    table = schema.portions.c
    before = sa.select(sa.func.max(table.end_position)).where(
        table.node_id == portion.node_id, table.first_position < portion.first_position
    )
    return connection.scalar(before) or 0
