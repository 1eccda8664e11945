"""Trace database: one transaction stores the rows of some events and the position after them."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError, SQLAlchemyError

from pyqd.fallback.trace_states import IN_FLIGHT
from pyqd.hot.wire.trace_events import TraceColumns
from pyqd.trace import DatabaseError, MovedError, SchemaError, UrlError, schema
from pyqd.trace.addresses import shown, store_of
from pyqd.trace.recent import RecentDeliveries
from pyqd.trace.rows import Drop, Place, TraceBatch, batch_of
from pyqd.trace.stores.store import ANSWER_S, OutcomeChange
from pyqd.trace.versions import VERSION_TABLE, Versions, current

# Keys of one query.
KEYS: Final = 500
# Words of all databases about a table that is not there.
MISSING: Final = ("no such table", "does not exist", "doesn't exist")
# One of so many rows is measured for the estimate of the size.
SAMPLE: Final = 64
# Limits of a portion.
PORTION_ROWS: Final = 200_000
PORTION_TIME: Final = timedelta(hours=1)
EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class TraceNode:
    """Log of a broker in the database. position: of the first event that is not stored yet; 0: none is stored."""

    node_id: int
    log: str
    nsqd: str
    position: int


class Database:
    """A trace database.

    url: of SQLAlchemy. answer_s: longest time for an answer of the database. versions: of the tables. Only one thread
    at a time may write. Raises: UrlError.
    """

    def __init__(self, url: str, answer_s: float = ANSWER_S, versions: Versions | None = None) -> None:
        self.store = store_of(url, answer_s)
        self.name = shown(self.store.url)
        try:
            self.engine = self.store.engine()
        except ValueError as error:
            raise UrlError(f"{self.name}: an option has a wrong value: {error}") from None
        self._versions = versions or Versions()
        # Statements for many rows bypass SQLAlchemy.
        self._driver_error = self.engine.dialect.loaded_dbapi.Error
        # Last deliveries, by number of the node.
        self._recent: dict[int, RecentDeliveries] = {}

    def close(self) -> None:
        self.engine.dispose()

    @contextlib.contextmanager
    def errors(self, operation: str) -> Iterator[None]:
        """Turn errors of a block into DatabaseError with a text for the operator. operation: such as "write to"."""
        try:
            yield
        except (SQLAlchemyError, self._driver_error) as error:
            cause = self._first(error)
            # The other connections of the pool are as old as this one.
            self.engine.dispose()
            text = _text(cause)
            raise DatabaseError(f"cannot {operation} {self.name}: {text}{self._missing(text)}") from error

    def _first(self, error: BaseException) -> BaseException:
        """Return the first of the errors that led to an error of the database.

        If a connection breaks in a statement that bypasses SQLAlchemy, the rollback fails too, and PyMySQL's error of
        that has no text.
        """
        earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return self._first(earlier) if isinstance(earlier, (SQLAlchemyError, self._driver_error)) else error

    def _missing(self, text: str) -> str:
        """Return the remedy for an error that has its cause in a missing table; "" for any other."""
        if not any(words in text for words in MISSING):
            return ""
        with contextlib.suppress(SQLAlchemyError), self.engine.connect() as connection:
            there = set(sa.inspect(connection).get_table_names())
            missing = sorted(set(schema.metadata.tables) - there)
            if missing and VERSION_TABLE in there:
                return (
                    f"; missing are {', '.join(missing)}: to have them made again, empty, drop the table "
                    f"{VERSION_TABLE} and start `pyq_trace ship`"
                )
        return ""

    @contextlib.contextmanager
    def transaction(self, operation: str, *, reading: bool = False) -> Iterator[sa.Connection]:
        """Run a block in a transaction. reading: the block writes nothing.

        Raises: DatabaseError; SchemaError if the tables are not of this version.
        """
        with self.errors(operation), self.engine.connect() as raw:
            connection = raw.execution_options(reading=reading)
            with self.store.bounded(connection), connection.begin():
                self._check(connection)
                yield connection

    def _check(self, connection: sa.Connection) -> None:
        try:
            version = connection.scalar(sa.text(f"SELECT version_num FROM {VERSION_TABLE}"))
        except (ProgrammingError, OperationalError):
            if connection.invalidated:
                raise
            with self.engine.connect() as other:
                if sa.inspect(other).has_table(VERSION_TABLE):
                    raise
            version = None
        self._versions.check(version)

    def upgrade(self) -> bool:
        """Make or upgrade the tables. Returns: whether something was done. Raises: DatabaseError, SchemaError."""
        with self.errors("make the tables in"), self.engine.connect() as connection:
            with self.store.bounded(connection), connection.begin():
                if current(connection) == self._versions.newest:
                    return False
            # Not bounded: an index of many rows may take longer than any other statement.
            with connection.begin():
                return self._versions.upgrade(connection, self.store)

    def node(self, log: str, nsqd: str) -> TraceNode:
        """Return the log of a broker, which is added if it is new. nsqd: cut to the length of the column.

        Raises: as `transaction`.
        """
        table = schema.nodes
        nsqd = nsqd[: schema.TEXT_CHARS]
        with self.transaction("write to") as connection:
            found = connection.execute(sa.select(table).where(table.c.log == log).with_for_update()).one_or_none()
            if found is not None:
                if found.nsqd != nsqd:
                    connection.execute(sa.update(table).where(table.c.log == log).values(nsqd=nsqd))
                return TraceNode(found.node_id, log, nsqd, found.position)
            # Also more than the numbers of rows whose node was removed.
            highest = [
                connection.scalar(sa.select(sa.func.max(rows.c.node_id))) or 0 for rows in (table, *schema.ROW_TABLES)
            ]
            node = TraceNode(max(highest) + 1, log, nsqd, 0)
            values = {"node_id": node.node_id, "log": log, "nsqd": nsqd, "position": 0}
            connection.execute(sa.insert(table).values(values))
            return node

    def nodes(self) -> list[TraceNode]:
        """Return the logs of all brokers. Raises: as `transaction`."""
        table = schema.nodes
        with self.transaction("read", reading=True) as connection:
            rows = connection.execute(sa.select(table).order_by(table.c.node_id))
            return [TraceNode(row.node_id, row.log, row.nsqd, row.position) for row in rows]

    def write(self, node: TraceNode, decoded: TraceColumns) -> TraceNode:
        """Store events that follow the node's position. Returns: the node with the position after them.

        Raises: MovedError if the events after the position have been stored by another shipper; as `transaction`.
        """
        recent = self._recent.setdefault(node.node_id, RecentDeliveries())
        recent.begin(node.position)
        try:
            with uncollected(), self.transaction("write to") as connection:
                self._lock(connection, node)
                batch = batch_of(decoded, node.node_id, self.store.literals(connection))
                changed = self._apply_ends(connection, node, batch, recent)
                self._insert(connection, node, batch, decoded.following)
        except Exception:
            recent.clear()
            raise
        recent.learn(batch, changed, decoded.following)
        return replace(node, position=decoded.following)

    def _lock(self, connection: sa.Connection, node: TraceNode) -> None:
        table = schema.nodes
        query = sa.select(table.c.position).where(table.c.node_id == node.node_id).with_for_update()
        position = connection.scalar(query)
        if position is None:
            raise SchemaError(f"{self.name}: the row of node {node.node_id} in trace_nodes is gone")
        if position != node.position:
            raise MovedError(position)

    def _apply_ends(
        self, connection: sa.Connection, node: TraceNode, batch: TraceBatch, recent: RecentDeliveries
    ) -> dict[Place, tuple[int, str]]:
        """Set the outcomes of deliveries that were stored before. Returns: position and outcome of the changed ones.

        A FIN becomes a row of the batch if the event of its delivery is missing: it ends none that is stored.
        """
        known = {place: recent.find(place) for place in batch.earlier}
        unknown = sorted({f"{place[0]:016x}" for place, delivery in known.items() if delivery is None})
        found = self._last_deliveries(connection, node, unknown) if unknown else {}
        literals = self.store.literals(connection)
        changes = []
        changed = {}
        for place, earlier in batch.earlier.items():
            delivery = known[place] or found.get(place)
            if delivery is None:
                if earlier.finished is not None:
                    batch.events.append(batch.event_row(earlier.finished))
                continue
            position, before = delivery
            new = earlier.change(before)
            if earlier.finished is not None and (new is None or new[0] != "finished"):
                batch.events.append(batch.event_row(earlier.finished))
            if new is not None:
                changes.append(OutcomeChange(position, literals.plain(new[0]), new[1]))
                changed[place] = position, new[0]
        if changes:
            self.store.change(connection, node.node_id, changes)
        for drop in batch.drops:
            connection.execute(_cancel(node.node_id, drop))
        return changed

    def _insert(self, connection: sa.Connection, node: TraceNode, batch: TraceBatch, following: int) -> None:
        """Insert the rows of a batch, and note the position after it."""
        store = self.store
        size_bytes = row_count = 0
        for table, rows in batch.rows():
            if rows:
                store.insert(connection, table, rows)
                row_count += len(rows)
                size_bytes += round(len(rows) * (store.row_bytes + store.bytes_of_text * _mean_chars(rows)))
        values: dict[str, Any] = {"position": following, "shipped_at": datetime.now(timezone.utc)}
        if batch.event_count:
            at = values["event_at"] = _time(batch.last_us)
            self._note_portion(connection, node, following, at, row_count, size_bytes)
        connection.execute(sa.update(schema.nodes).where(schema.nodes.c.node_id == node.node_id).values(values))

    def _last_deliveries(
        self, connection: sa.Connection, node: TraceNode, ids: Sequence[str]
    ) -> dict[Place, tuple[int, str]]:
        """Return position and outcome of the last delivery of messages."""
        table = schema.deliveries.c
        columns = (table.node_id, table.message_id, table.topic, table.channel, table.position, table.outcome)
        found: dict[Place, tuple[int, str]] = {}
        self.store.searching(connection)
        for start in range(0, len(ids), KEYS):
            # A condition for the node would tempt databases without statistics to read all of its rows.
            query = sa.select(*columns).where(table.message_id.in_(ids[start : start + KEYS]))
            for node_id, message_id, topic, channel, position, outcome in connection.execute(query):
                if node_id != node.node_id:
                    continue
                key = int(message_id, 16), topic, channel
                before = found.get(key)
                if before is None or before[0] < position:
                    found[key] = position, outcome
        return found

    def _note_portion(
        self, connection: sa.Connection, node: TraceNode, following: int, at: datetime, row_count: int, size_bytes: int
    ) -> None:
        """Count rows for retention: with those of the newest portion, or as a new one. at: time of the last event."""
        table = schema.portions
        own = table.c.node_id == node.node_id
        newest = connection.execute(
            sa.select(table).where(own).order_by(table.c.first_position.desc()).limit(1)
        ).one_or_none()
        values = {"end_position": following, "newest_at": at, "row_count": row_count, "size_bytes": size_bytes}
        if newest is None or newest.row_count >= PORTION_ROWS or at - newest.oldest_at > PORTION_TIME:
            first = {"node_id": node.node_id, "first_position": node.position, "oldest_at": at}
            connection.execute(sa.insert(table).values(first | values))
            return
        values["newest_at"] = max(newest.newest_at, at)
        values["row_count"] += newest.row_count
        values["size_bytes"] += newest.size_bytes
        connection.execute(sa.update(table).where(own, table.c.first_position == newest.first_position).values(values))


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector off during a block.

    The rows of a batch are some 100,000 objects without cycles. The collector would walk over them repeatedly, which
    takes a third of the CPU time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _cancel(node_id: int, drop: Drop) -> sa.Update:
    """Return the statement that ends deliveries in flight of a channel."""
    table = schema.deliveries.c
    concerned = [
        # Without the sum, SQLite would read all deliveries of the node by their key.
        table.node_id + 0 == node_id,
        table.topic == drop.topic,
        table.channel == drop.channel,
        table.outcome == IN_FLIGHT,
        # In the words of the index of these rows, or else SQLite does not use it.
        table.outcome != sa.literal_column("'finished'"),
        table.position < drop.position,
    ]
    return sa.update(schema.deliveries).where(*concerned).values(outcome="cancelled", outcome_at=_time(drop.at_us))


def _time(time_us: int) -> datetime:
    return EPOCH + timedelta(microseconds=time_us)


def _mean_chars(rows: Sequence[Sequence[Any]]) -> float:
    """Return the mean of the lengths of all texts of a row, estimated by some rows."""
    sample = rows[::SAMPLE]
    return sum(len(value) for row in sample for value in row if isinstance(value, str | bytes)) / len(sample)


def _text(cause: BaseException) -> str:
    """Return the first line of an error's text."""
    if isinstance(cause, DBAPIError) or (len(cause.args) == 2 and isinstance(cause.args[0], int)):
        # MySQL: number and text.
        return f"{cause.args[1]} ({cause.args[0]})"
    lines = str(cause).strip().splitlines()
    return lines[0] if lines else type(cause).__name__
