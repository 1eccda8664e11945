"""PostgreSQL: rows go in by COPY, in text form."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import sqlalchemy as sa

from pyqd.trace.literals import COPY_TEXT, Literals
from pyqd.trace.stores.store import CONNECT_S, OutcomeChange, Store

# Rows of one write to the server.
ROWS: Final = 2000
# Key of the lock that upgrades of the schema hold; any number that no other program uses.
UPGRADE_LOCK: Final = 0x7079_7164_7472
CHANGE: Final = """
UPDATE trace_deliveries AS d SET outcome = c.outcome, outcome_at = c.outcome_at
FROM unnest(%s::bigint[], %s::text[], %s::timestamptz[]) AS c(position, outcome, outcome_at)
WHERE d.node_id = %s AND d.position = c.position
"""


class PostgresqlStore(Store):
    """Traces in PostgreSQL."""

    row_bytes = 175
    bytes_of_text = 1.9

    def engine(self) -> sa.Engine:
        arguments = {"connect_timeout": round(CONNECT_S)}
        engine = sa.create_engine(self.url, connect_args=arguments, hide_parameters=True)
        sa.event.listen(engine, "connect", self._prepare)
        return engine

    def _prepare(self, connection: Any, _record: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET statement_timeout = {round(self.answer_s * 1000)}")
            cursor.execute("SET timezone = 'UTC'")
        connection.commit()

    def literals(self, connection: sa.Connection) -> Literals:
        return COPY_TEXT

    def searching(self, connection: sa.Connection) -> None:
        """Have the rest of a transaction search by indexes."""
        # Without statistics, a search for 500 ids would read the whole table.
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")

    def insert(self, connection: sa.Connection, table: sa.Table, rows: Sequence[Sequence[Any]]) -> None:
        line = "\t".join(["%s"] * len(table.columns)) + "\n"
        cursor = connection.connection.driver_connection.cursor()  # type: ignore[union-attr]
        with cursor.copy(f"COPY {table.name} FROM STDIN") as copy:
            for start in range(0, len(rows), ROWS):
                copy.write("".join([line % tuple(row) for row in rows[start : start + ROWS]]))

    def change(self, connection: sa.Connection, node_id: int, changes: Sequence[OutcomeChange]) -> None:
        null = COPY_TEXT.null
        times = [None if change.outcome_at == null else change.outcome_at for change in changes]
        cursor = connection.connection.driver_connection.cursor()  # type: ignore[union-attr]
        positions = [change.position for change in changes]
        cursor.execute(CHANGE, (positions, [change.outcome for change in changes], times, node_id))

    @contextmanager
    def bounded(self, connection: sa.Connection) -> Iterator[None]:
        """Cut the connection if the block takes too long: psycopg waits for a server that has stopped for ever."""
        driver: Any = connection.connection.driver_connection
        timer = threading.Timer(self.answer_s, _cut, [driver.fileno()])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    @contextmanager
    def upgrading(self, connection: sa.Connection) -> Iterator[None]:
        """Hold a lock until the end of the transaction, whose statements may take any time."""
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(UPGRADE_LOCK)))
        yield


def _cut(descriptor: int) -> None:
    """Shut down a connection, which ends the wait of the thread that uses it."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as end:
        end.shutdown(socket.SHUT_RDWR)
