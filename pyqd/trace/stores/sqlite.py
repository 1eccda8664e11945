"""SQLite: the embedded default. A transaction survives a kill of the process; after a power failure the last ones may
be missing, rows and position together."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from pyqd.trace import SchemaError
from pyqd.trace.literals import VALUES, Literals
from pyqd.trace.stores.store import OutcomeChange, Store

# Key of the path and the identity of a connection's file.
FILE: Final = "file"
# Rows of one INSERT: a statement with many rows costs 40 % less per row than one with a single row. SQLite allows 32766
# variables in a statement.
ROWS: Final = 50
LOCK_POLL_S: Final = 0.02
SETTINGS: Final = (
    "PRAGMA synchronous = NORMAL",
    "PRAGMA cache_size = -65536",
    "PRAGMA temp_store = MEMORY",
    # A checkpoint writes each page once, however often it has changed since the last one.
    "PRAGMA wal_autocheckpoint = 8000",
)


class SqliteStore(Store):
    """Traces in a file of SQLite."""

    row_bytes = 105
    bytes_of_text = 1.6

    def exists(self) -> bool:
        path = self.url.database
        return not path or path == ":memory:" or path.startswith("file:") or Path(path).exists()

    def engine(self) -> sa.Engine:
        engine = sa.create_engine(self.url, connect_args={"timeout": self.answer_s}, hide_parameters=True)
        sa.event.listen(engine, "do_connect", self._make_private)
        sa.event.listen(engine, "connect", self._prepare)
        sa.event.listen(engine, "begin", _begin)
        return engine

    def _make_private(self, *_: object) -> None:
        """Make a new file that only its owner can read: it has bodies. SQLite gives its other files the same mode."""
        if not self.exists():
            with contextlib.suppress(OSError):
                os.close(os.open(str(self.url.database), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))

    def _prepare(self, connection: Any, record: Any) -> None:
        # The driver would begin transactions by itself, and only for some statements.
        connection.isolation_level = None
        self._use_wal(connection)
        for setting in SETTINGS:
            connection.execute(setting)
        _, _, path = connection.execute("PRAGMA database_list").fetchone()
        record.info[FILE] = (path, _identity(path)) if path else None

    def _use_wal(self, connection: Any) -> None:
        # If several connections do this to a new file at once, SQLite refuses some of them without waiting: each may
        # hold what another waits for. Source: SQLite, sqlite3_busy_handler.
        end_s = time.monotonic() + self.answer_s
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() >= end_s:
                    raise
            time.sleep(LOCK_POLL_S)

    def literals(self, connection: sa.Connection) -> Literals:
        return VALUES

    def insert(self, connection: sa.Connection, table: sa.Table, rows: Sequence[Sequence[Any]]) -> None:
        cursor: Any = connection.connection.cursor()
        values = f"({','.join('?' * len(table.columns))})"
        whole = len(rows) - len(rows) % ROWS
        if whole:
            cursor.executemany(f"INSERT INTO {table.name} VALUES {','.join([values] * ROWS)}", _flat(rows[:whole]))
        if whole < len(rows):
            cursor.executemany(f"INSERT INTO {table.name} VALUES {values}", rows[whole:])

    def change(self, connection: sa.Connection, node_id: int, changes: Sequence[OutcomeChange]) -> None:
        connection.connection.cursor().executemany(
            f"UPDATE trace_deliveries SET outcome = ?, outcome_at = ? WHERE node_id = {node_id} AND position = ?",
            [(change.outcome, change.outcome_at, change.position) for change in changes],
        )


def _flat(rows: Sequence[Sequence[Any]]) -> Iterator[list[Any]]:
    """Yield the values of ROWS rows at a time."""
    for start in range(0, len(rows), ROWS):
        yield list(chain.from_iterable(rows[start : start + ROWS]))


def _identity(path: str) -> tuple[int, int] | None:
    """Return the numbers of a file that no other one has meanwhile; None if there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _begin(connection: sa.Connection) -> None:
    is_reading = connection.get_execution_options().get("reading")
    file = connection.info.get(FILE)
    if file is not None and _identity(file[0]) != file[1]:
        # SQLite would go on with the removed file, and lose all rows with it.
        text = "the file was removed or replaced while it was in use"
        if is_reading:
            raise sqlite3.OperationalError(text)
        raise SchemaError(f"{file[0]}: {text}: start `pyq_trace ship` again")
    # A transaction that reads first and writes later could find the database changed in between, and fail.
    mode = "" if is_reading else " IMMEDIATE"
    connection.exec_driver_sql(f"BEGIN{mode}")
