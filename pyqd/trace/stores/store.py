"""Interface of a database to the rest of pyqd.trace: opening, locks, and statements for many rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import sqlalchemy as sa

from pyqd.trace.literals import Literals

# No statement of the shipper takes longer, unless the database hangs.
ANSWER_S = 60.0
CONNECT_S = 10.0


class OutcomeChange(NamedTuple):
    """New outcome of a delivery. Values in the form for the database."""

    position: int
    outcome: Any
    outcome_at: Any


class Store(ABC):
    """One kind of database.

    url: with a driver that the methods here know. answer_s: longest time for a statement; after it the connection is
    closed.
    """

    # Estimated bytes of a row in the database, with its part of the indexes; texts and body come on top.
    row_bytes = 200
    # Bytes in table and indexes for each byte of text.
    bytes_of_text = 2.0

    def __init__(self, url: sa.URL, answer_s: float = ANSWER_S) -> None:
        self.url = url
        self.answer_s = answer_s

    def exists(self) -> bool:
        """Return whether there may be a database: False for a file that does not exist."""
        return True

    @abstractmethod
    def engine(self) -> sa.Engine:
        """Return a new engine, whose connections have the settings that the shipper needs.

        Raises: UrlError, ValueError if an option in the URL is wrong.
        """

    @abstractmethod
    def literals(self, connection: sa.Connection) -> Literals:
        """Return the forms of values for `insert` and `change`."""

    @abstractmethod
    def insert(self, connection: sa.Connection, table: sa.Table, rows: Sequence[Sequence[Any]]) -> None:
        """Insert rows with values for all columns, in the form of `literals`."""

    @abstractmethod
    def change(self, connection: sa.Connection, node_id: int, changes: Sequence[OutcomeChange]) -> None:
        """Set the outcomes of deliveries."""

    def searching(self, connection: sa.Connection) -> None:
        """Have the rest of a transaction search by indexes, also while the tables have no statistics."""
        return

    @contextmanager
    def bounded(self, connection: sa.Connection) -> Iterator[None]:
        """Bound the time of a block in which the database may hang, if the driver itself does not."""
        yield

    @contextmanager
    def upgrading(self, connection: sa.Connection) -> Iterator[None]:
        """Keep other processes from changing the schema during a block. The connection is in a transaction."""
        yield
