"""Traces of messages in a database: reading of the brokers' event logs, storing, and queries for a message's story.

    source        events of one broker, over HTTP
    fetcher       thread that reads them ahead of the writer
    rows          events to rows: one per published message, one per delivery with its outcome, one per other event
    schema        tables and views; migrations/ holds their versions
    stores        SQLite, PostgreSQL, MariaDB and MySQL: quick writing of many rows
    database      transactions: rows and position together
    shipper       brokers to database, with retries
    retention     removal of old rows
    story         one message by its id
    search        messages by topic, channel, time and state
    figures       counts and times of topics and channels

Needs SQLAlchemy and Alembic (`pip install pyqd[trace]`). docs/trace.md is the user's page.
"""

from __future__ import annotations

from typing import Final

# File of SQLite that holds traces unless a URL names another database, and the variable with the URL.
TRACES: Final = "trace.db"
DATABASE_VARIABLE: Final = "PYQD_TRACE_DATABASE"


class TraceError(Exception):
    """Any error of pyqd.trace."""


class DatabaseError(TraceError):
    """The database cannot be used at present; the operation may be repeated."""


class SchemaError(TraceError):
    """The tables are missing, or not those of this version; repeating does not help."""


class UrlError(TraceError):
    """The URL of a database is wrong, or its driver is not installed."""


class MovedError(TraceError):
    """Another shipper has stored events of this broker. position: of the first event that is not stored yet."""

    def __init__(self, position: int) -> None:
        super().__init__(f"another shipper has stored the events up to position {position}")
        self.position = position
