"""Figures of topics and channels: counts by outcome, and times by percentile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from pyqd.trace import schema
from pyqd.trace.database import Database
from pyqd.trace.search import SecondsBetween, TraceQuery, narrowed

# Upper limits of classes of durations, in seconds: a percentile is the limit of its class.
LIMITS_S: Final = tuple(round(digit * 10.0**exponent, 6) for exponent in range(-4, 5) for digit in (1, 2, 5))
PERCENTILES: Final = (50, 90, 99)


@dataclass(frozen=True)
class TopicFigures:
    """Published messages of a topic."""

    topic: str
    message_count: int
    size_bytes: int
    first_at: datetime | None
    last_at: datetime | None


@dataclass
class ChannelFigures:
    """Deliveries of a channel. outcomes: counts. percentiles_s: upper limits of the time from sending to FIN."""

    topic: str
    channel: str
    delivery_count: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    percentiles_s: dict[int, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class GapFigures:
    """Events of a broker that were overwritten or damaged before they were stored.

    event_count: of the gaps whose size is known. unknown_count: gaps whose size is not.
    """

    nsqd: str
    event_count: int
    unknown_count: int
    last_at: datetime


@dataclass(frozen=True)
class TraceFigures:
    """Figures of all topics and channels, in the order of their names. gaps: of all brokers that have any."""

    topics: list[TopicFigures]
    channels: list[ChannelFigures]
    gaps: list[GapFigures]


def figures_of(
    database: Database, topic: str | None = None, since: datetime | None = None, until: datetime | None = None
) -> TraceFigures:
    """Return the figures of the messages that were published, and the deliveries that were sent, in a span of time.

    Gaps are those that were noticed in it, as it is unknown which topics they concern.
    Raises: DatabaseError, SchemaError.
    """
    publication, delivery = schema.publications.c, schema.deliveries.c
    query = TraceQuery(topic, since=since, until=until)
    number = _class_of(SecondsBetween(delivery.sent_at, delivery.outcome_at))
    topics = (
        sa.select(
            publication.topic,
            sa.func.count().label("message_count"),
            sa.func.coalesce(sa.func.sum(publication.size), 0).label("size_bytes"),
            sa.func.min(publication.published_at).label("first_at"),
            sa.func.max(publication.published_at).label("last_at"),
        )
        .where(*narrowed(query, schema.publications, publication.published_at))
        .group_by(publication.topic)
        .order_by(publication.topic)
    )
    channels = (
        sa.select(
            delivery.topic,
            delivery.channel,
            delivery.outcome,
            number.label("number"),
            sa.func.count().label("count"),
        )
        .where(*narrowed(query, schema.deliveries, delivery.sent_at))
        .group_by(delivery.topic, delivery.channel, delivery.outcome, sa.literal_column("number"))
        .order_by(delivery.topic, delivery.channel)
    )
    with database.transaction("read", reading=True) as connection:
        # Sums are decimals in some databases.
        found = [
            TopicFigures(topic, int(count), int(size_bytes), *times)
            for topic, count, size_bytes, *times in connection.execute(topics)
        ]
        rows = connection.execute(channels).all()
        gaps = [
            GapFigures(nsqd, int(event_count), int(unknown_count), last_at)
            for nsqd, event_count, unknown_count, last_at in connection.execute(_gaps(replace(query, topic=None)))
        ]
    return TraceFigures(found, _summed(rows), gaps)


def _gaps(query: TraceQuery) -> sa.Select[Any]:
    """Return the select of lost events by broker."""
    gap, node = schema.gaps.c, schema.nodes.c
    return (
        sa.select(
            node.nsqd,
            sa.func.coalesce(sa.func.sum(gap.event_count), 0),
            sa.func.sum(sa.case((gap.event_count.is_(None), 1), else_=0)),
            sa.func.max(gap.noticed_at),
        )
        .join_from(schema.gaps, schema.nodes, gap.node_id == node.node_id)
        .where(*narrowed(query, schema.gaps, gap.noticed_at))
        .group_by(node.nsqd)
        .order_by(node.nsqd)
    )


def _class_of(duration_s: sa.ColumnElement[float]) -> sa.ColumnElement[int]:
    """Return the number of the class of a duration; the number of limits for a longer one."""
    cases: list[tuple[Any, Any]] = [
        (duration_s <= sa.literal_column(f"{limit_s}"), sa.literal_column(f"{number}"))
        for number, limit_s in enumerate(LIMITS_S)
    ]
    return sa.case(*cases, else_=sa.literal_column(str(len(LIMITS_S))))


def _summed(rows: Sequence[Any]) -> list[ChannelFigures]:
    """Return the figures of each channel from counts by outcome and class."""
    found: dict[tuple[str, str], ChannelFigures] = {}
    finished: dict[tuple[str, str], list[int]] = {}
    for topic, channel, outcome, number, count in rows:
        figures = found.setdefault((topic, channel), ChannelFigures(topic, channel))
        figures.delivery_count += count
        figures.outcomes[outcome] = figures.outcomes.get(outcome, 0) + count
        if outcome == "finished":
            counts = finished.setdefault((topic, channel), [0] * (len(LIMITS_S) + 1))
            counts[number] += count
    for key, figures in found.items():
        figures.percentiles_s = {percent: _percentile(finished.get(key, []), percent) for percent in PERCENTILES}
    return list(found.values())


def _percentile(counts: Sequence[int], percent: int) -> float | None:
    """Return the limit of the class that a percentile lies in; None without values, infinity beyond the last limit."""
    total, seen = sum(counts), 0
    if not total:
        return None
    for number, count in enumerate(counts):
        seen += count
        if seen * 100 >= total * percent:
            return LIMITS_S[number] if number < len(LIMITS_S) else float("inf")
    raise AssertionError("the counts add up to their sum")
