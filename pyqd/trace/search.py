"""Messages by topic, channel, time and state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import GenericFunction

from pyqd.fallback.trace_states import CLEARED, SEEK, UNFINISHED, WAITING
from pyqd.trace import schema
from pyqd.trace.database import Database

# Deliveries after which the message is not delivered again.
LAST: Final = ("finished", "dead_lettered", "cancelled")
# Events after which a message that was never sent will not be.
REMOVED: Final = ("finished", "dead_lettered", "cancelled", "dropped")


class SecondsBetween(GenericFunction[float]):
    """Time from the first argument to the second, in seconds."""

    type = sa.Float()
    inherit_cache = True
    name = "seconds_between"


@compiles(SecondsBetween, "sqlite")
def _in_sqlite(element: Any, compiler: Any, **options: Any) -> str:
    start, end = (compiler.process(clause, **options) for clause in element.clauses)
    # SQLite's own times are whole milliseconds. Times are texts, YYYY-MM-DD HH:MM:SS.ffffff. The fraction is cut off
    # before a conversion, which would round it up to the next second.
    seconds = f"strftime('%s', substr({end}, 1, 19)) - strftime('%s', substr({start}, 1, 19))"
    fraction = f"substr({end}, 21, 6) - substr({start}, 21, 6)"
    return f"((({seconds}) * 1000000 + ({fraction})) / 1e6)"


@compiles(SecondsBetween, "postgresql")
def _in_postgresql(element: Any, compiler: Any, **options: Any) -> str:
    start, end = (compiler.process(clause, **options) for clause in element.clauses)
    return f"EXTRACT(EPOCH FROM ({end}) - ({start}))"


@compiles(SecondsBetween, "mysql")
@compiles(SecondsBetween, "mariadb")
def _in_mysql(element: Any, compiler: Any, **options: Any) -> str:
    start, end = (compiler.process(clause, **options) for clause in element.clauses)
    return f"(TIMESTAMPDIFF(MICROSECOND, {start}, {end}) / 1e6)"


@dataclass(frozen=True)
class TraceQuery:
    """Conditions; those that are None are not asked for.

    since, until: time of the last delivery, or for a message that was never sent the time at which the channel got it.
    state: of STATES. slower_than: time from publishing, or from the due time, to the end of the last delivery; messages
    whose publishing is not known do not count. attempts_above: deliveries. topics: the message is in one of them.
    """

    topic: str | None = None
    channel: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    state: str | None = None
    slower_than: timedelta | None = None
    attempts_above: int | None = None
    limit: int = 100
    topics: tuple[str, ...] | None = None


@dataclass(frozen=True)
class FoundMessage:
    """A message in a channel. state: `waiting`, or the outcome of its last delivery. at: see TraceQuery.since."""

    message_id: str
    topic: str
    channel: str
    nsqd: str
    state: str
    at: datetime
    attempts: int
    client: str | None
    outcome_at: datetime | None
    published_at: datetime | None
    due_at: datetime | None

    @property
    def taken_s(self) -> float | None:
        """Time from publishing, or from the due time, to the end of the last delivery."""
        since = self.due_at or self.published_at
        if since is None or self.outcome_at is None:
            return None
        return (self.outcome_at - since).total_seconds()


def find(database: Database, query: TraceQuery) -> list[FoundMessage]:
    """Return the messages of a query, the newest first. Raises: DatabaseError, SchemaError."""
    selects: list[tuple[sa.Table, Callable[[TraceQuery], sa.Select[Any]]]] = []
    if query.state != WAITING:
        selects.append((schema.deliveries, _delivered))
    if query.state in (None, UNFINISHED, WAITING) and query.slower_than is None and query.attempts_above is None:
        selects.append((schema.events, _waiting))
    with database.transaction("read", reading=True) as connection:
        found = [
            FoundMessage(**row._mapping)
            for table, select in selects
            for topic, channel in _places(connection, table, query)
            for row in connection.execute(select(replace(query, topic=topic, channel=channel)))
        ]
    return sorted(found, key=lambda row: row.at, reverse=True)[: query.limit]


def _places(connection: sa.Connection, table: sa.Table, query: TraceQuery) -> Iterator[tuple[str, str]]:
    """Yield the topics and channels of a query that a table has.

    One select for all would sort all rows of the table. A select for one channel reads its newest rows by an index.
    """
    topics: Iterable[str] = _names(connection, table.c.topic) if query.topics is None else query.topics
    for topic in topics if query.topic is None else [query.topic]:
        of_topic = table.c.topic == topic
        for channel in _names(connection, table.c.channel, of_topic) if query.channel is None else [query.channel]:
            yield topic, channel


def _names(connection: sa.Connection, column: sa.Column[Any], *conditions: sa.ColumnElement[bool]) -> Iterator[str]:
    """Yield the distinct values of the first column of an index, each by one look into the index."""
    query = sa.select(sa.func.min(column)).where(*conditions)
    name = connection.scalar(query)
    while name is not None:
        yield name
        name = connection.scalar(query.where(column > name))


def newest(database: Database, query: TraceQuery) -> list[FoundMessage]:
    """Return the messages of a query, those that no channel has got included, the newest first.

    Raises: DatabaseError, SchemaError.
    """
    found = find(database, query) + unclaimed(database, query)
    return sorted(found, key=lambda row: row.at, reverse=True)[: query.limit]


def unclaimed(database: Database, query: TraceQuery) -> list[FoundMessage]:
    """Return messages of which nothing is known but that they were published, the newest first.

    Their topic had no channel then, or was paused. If it has got one since, only the first delivery tells. Such a
    message has no channel, the state `waiting` and the time of its publishing. Raises: DatabaseError, SchemaError.
    """
    narrow = (query.channel, query.slower_than, query.attempts_above)
    if query.state not in (None, UNFINISHED, WAITING) or any(each is not None for each in narrow):
        return []
    with database.transaction("read", reading=True) as connection:
        return [FoundMessage(**row._mapping) for row in connection.execute(_unclaimed(query))]


def _unclaimed(query: TraceQuery) -> sa.Select[Any]:
    """Return the select of messages that were held when they were published, and that no channel is known to have got.

    They may have been rescheduled since.
    """
    publication, bulk = schema.publications, schema.bulk_events

    def elsewhere(table: sa.Table, *conditions: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
        names = ("node_id", "message_id", "topic")
        return sa.exists().where(*(table.c[name] == publication.c[name] for name in names), *conditions)

    cleared = sa.exists().where(
        bulk.c.node_id + 0 == publication.c.node_id,
        bulk.c.topic == publication.c.topic,
        bulk.c.reason.in_(CLEARED),
        bulk.c.position > publication.c.position,
    )
    conditions = [
        publication.c.held == 1,
        *narrowed(query, publication, publication.c.published_at),
        ~elsewhere(schema.deliveries),
        ~elsewhere(schema.events, schema.events.c.event.in_(("stored", *REMOVED))),
        ~cleared,
    ]
    return _newest(query, publication, publication.c.published_at, conditions, channel=sa.literal(""))


def _newest(
    query: TraceQuery, table: sa.Table, at: sa.Column[Any], conditions: Iterable[Any], **values: sa.ColumnElement[Any]
) -> sa.Select[Any]:
    """Return the select of the newest messages that a table has. values: fields of FoundMessage, those of a message
    that was never sent by default.
    """
    node, publication = schema.nodes, schema.publications
    source: sa.FromClause = table.join(node, node.c.node_id == table.c.node_id)
    if table is not publication:
        names = ("message_id", "node_id", "topic")
        source = source.outerjoin(publication, sa.and_(*(publication.c[name] == table.c[name] for name in names)))
    fields = {
        "message_id": table.c.message_id,
        "topic": table.c.topic,
        "channel": table.c.get("channel"),
        "nsqd": node.c.nsqd,
        "state": sa.literal(WAITING),
        "at": at,
        "attempts": sa.literal(0),
        "client": sa.null(),
        "outcome_at": sa.null(),
        "published_at": publication.c.published_at,
        "due_at": publication.c.due_at,
        **values,
    }
    columns = (value.label(name) for name, value in fields.items() if value is not None)
    return sa.select(*columns).select_from(source).where(*conditions).order_by(at.desc()).limit(query.limit)


def narrowed(query: TraceQuery, table: sa.Table, at: sa.Column[Any]) -> Iterator[sa.ColumnElement[bool]]:
    """Yield the conditions of a query on topic, channel and time."""
    if query.topic is not None:
        yield table.c.topic == query.topic
    if query.topics is not None:
        yield table.c.topic.in_(query.topics)
    if query.channel is not None:
        yield table.c.channel == query.channel
    if query.since is not None:
        yield at >= query.since
    if query.until is not None:
        yield at < query.until


def _same(one: Any, other: Any) -> sa.ColumnElement[bool]:
    """Return the condition that two rows concern the same message in the same channel of a broker."""
    names = ("node_id", "message_id", "topic", "channel")
    return sa.and_(*(one.c[name] == other.c[name] for name in names))


def _delivered(query: TraceQuery) -> sa.Select[Any]:
    """Return the select of messages that were sent, by their last deliveries."""
    delivery, publication = schema.deliveries, schema.publications
    later = schema.deliveries.alias("later")
    conditions = [
        *narrowed(query, delivery, delivery.c.sent_at),
        ~sa.exists().where(_same(later, delivery), later.c.position > delivery.c.position),
    ]
    if query.state == UNFINISHED:
        is_returned = _returned(delivery, delivery.c.position)
        conditions += [delivery.c.outcome.not_in(LAST) | is_returned, ~_removed(delivery)]
    elif query.state is not None:
        conditions.append(delivery.c.outcome == query.state)
    if query.state not in (None, "finished"):
        # In the words of the index of these rows, or else SQLite does not use it.
        conditions.append(delivery.c.outcome != sa.literal_column("'finished'"))
    if query.attempts_above is not None:
        conditions.append(delivery.c.attempt > query.attempts_above)
    if query.attempts_above:
        conditions.append(delivery.c.attempt > sa.literal_column("1"))
    if query.slower_than is not None:
        since = sa.func.coalesce(publication.c.due_at, publication.c.published_at)
        least_s = query.slower_than.total_seconds()
        conditions.append(SecondsBetween(since, delivery.c.outcome_at) > least_s)
        # A channel gets a message when it is published. Most rows need no look at other tables then.
        stored = delivery.c.stored_at
        conditions.append(stored.is_(None) | (SecondsBetween(stored, delivery.c.outcome_at) > least_s))
    return _newest(
        query,
        delivery,
        delivery.c.sent_at,
        conditions,
        state=delivery.c.outcome,
        attempts=delivery.c.attempt,
        client=delivery.c.client,
        outcome_at=delivery.c.outcome_at,
    )


def _removed(of: sa.Table) -> sa.ColumnElement[bool]:
    """Return the condition that a message was removed from a channel after a row, alone or with many others.

    A removal does not count if a later seek delivers the message again.
    """
    event, bulk = schema.events.alias("removal"), schema.bulk_events
    alone = sa.exists().where(
        _same(event, of),
        event.c.event.in_(REMOVED),
        event.c.position > of.c.position,
        ~_returned(of, event.c.position).correlate(of, event),
    )
    with_others = sa.exists().where(
        *_on_many(bulk, of),
        bulk.c.event == "dropped",
        bulk.c.position > of.c.position,
        bulk.c.reason.in_((*CLEARED, SEEK)),
        sa.or_(bulk.c.reason != SEEK, bulk.c.message_id >= of.c.message_id),
        ~_returned(of, bulk.c.position).correlate(of, bulk),
    )
    return sa.or_(alone, with_others)


def _returned(of: sa.Table, position: sa.Column[Any]) -> sa.Exists:
    """Return the condition that a seek after a position delivers the message of a row again."""
    seek = schema.bulk_events.alias("seek")
    return sa.exists().where(
        *_on_many(seek, of),
        seek.c.event == "stored",
        seek.c.reason == SEEK,
        seek.c.position > position,
        sa.or_(seek.c.message_id.is_(None), seek.c.message_id < of.c.message_id),
    )


def _on_many(bulk: Any, of: sa.Table) -> Iterator[sa.ColumnElement[bool]]:
    """Yield the conditions that an act on many messages concerns the channel of a row."""
    # Without the sum, SQLite would read all bulk events of the node and not use the index by reason.
    yield bulk.c.node_id + 0 == of.c.node_id
    yield bulk.c.topic == of.c.topic
    yield bulk.c.channel == of.c.channel


def _waiting(query: TraceQuery) -> sa.Select[Any]:
    """Return the select of messages that a channel has got and that were never sent."""
    event = schema.events
    conditions = [
        *narrowed(query, event, event.c.happened_at),
        event.c.event == "stored",
        ~sa.exists().where(_same(schema.deliveries, event)),
        ~_removed(event),
    ]
    return _newest(query, event, event.c.happened_at, conditions)
