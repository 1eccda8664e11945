"""MariaDB and MySQL: rows go in by INSERT with many rows.

LOAD DATA LOCAL would take a third less time of the server. It is not used, because many servers refuse it, and because
a client that allows it sends any file that the server asks for.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import sqlalchemy as sa

from pyqd.trace import DatabaseError, UrlError
from pyqd.trace.literals import Literals, statement_text
from pyqd.trace.stores.store import CONNECT_S, OutcomeChange, Store

# Bytes of one statement; the server's smallest default of max_allowed_packet is 4 MiB.
STATEMENT_BYTES: Final = 512 << 10
ROWS: Final = 1000
# The first row gives the columns their names.
CHANGE: Final = """
UPDATE trace_deliveries AS d
JOIN (SELECT 0 AS position, '' AS outcome, NULL AS outcome_at UNION ALL SELECT %s) AS c ON d.position = c.position
SET d.outcome = c.outcome, d.outcome_at = c.outcome_at
WHERE d.node_id = %d
"""
UPGRADE_LOCK: Final = "pyqd_trace_schema"
UPGRADE_WAIT_S: Final = 60


class MysqlStore(Store):
    """Traces in MariaDB or MySQL."""

    row_bytes = 160
    bytes_of_text = 1.7

    def engine(self) -> sa.Engine:
        arguments = {"connect_timeout": CONNECT_S, "read_timeout": self.answer_s, "write_timeout": self.answer_s}
        query = {"charset": "utf8mb4", **self.url.query}
        engine = sa.create_engine(self.url.set(query=query), connect_args=arguments, hide_parameters=True)
        _check_options(engine)
        sa.event.listen(engine, "connect", _prepare)
        return engine

    def literals(self, connection: sa.Connection) -> Literals:
        driver: Any = connection.connection.driver_connection
        return statement_text(driver.escape)

    def insert(self, connection: sa.Connection, table: sa.Table, rows: Sequence[Sequence[Any]]) -> None:
        values = f"({','.join(['%s'] * len(table.columns))})"
        cursor = connection.connection.cursor()
        start = f"INSERT INTO {table.name} VALUES "
        for texts in _portions([values % tuple(row) for row in rows]):
            cursor.execute(start + ",".join(texts))

    def change(self, connection: sa.Connection, node_id: int, changes: Sequence[OutcomeChange]) -> None:
        cursor = connection.connection.cursor()
        for texts in _portions([f"{change.position}, {change.outcome}, {change.outcome_at}" for change in changes]):
            cursor.execute(CHANGE % (" UNION ALL SELECT ".join(texts), node_id))

    @contextmanager
    def upgrading(self, connection: sa.Connection) -> Iterator[None]:
        """Hold a lock: statements that change the schema end the transaction."""
        got = connection.scalar(sa.select(sa.func.get_lock(UPGRADE_LOCK, UPGRADE_WAIT_S)))
        if got != 1:
            raise DatabaseError(f"another process has been changing the tables for {UPGRADE_WAIT_S} s")
        try:
            yield
            # The next process must see the version when it gets the lock.
            connection.exec_driver_sql("COMMIT")
        finally:
            connection.execute(sa.select(sa.func.release_lock(UPGRADE_LOCK)))


def _check_options(engine: sa.Engine) -> None:
    """Check the names of the options in a URL, which become arguments of the driver. Raises: UrlError."""
    _, arguments = engine.dialect.create_connect_args(engine.url)
    for name in arguments.keys() - inspect.signature(engine.dialect.loaded_dbapi.connect).parameters.keys():
        raise UrlError(f"unknown option {name!r} in the URL of the database; the options are those of PyMySQL")


def _portions(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield rows for one statement each."""
    start = size = 0
    for end, text in enumerate(texts):
        if end > start and (size + len(text) > STATEMENT_BYTES or end - start == ROWS):
            yield texts[start:end]
            start, size = end, 0
        size += len(text)
    if start < len(texts):
        yield texts[start:]


def _prepare(connection: Any, _record: object) -> None:
    with connection.cursor() as cursor:
        # Columns of the type DATETIME have no zone; the view on them must not depend on the session's.
        cursor.execute("SET time_zone = '+00:00', SESSION sql_mode = 'STRICT_ALL_TABLES'")
