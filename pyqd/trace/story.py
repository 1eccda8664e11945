"""Story of one message: everything that the database has on it, in the order of its broker's log."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

import sqlalchemy as sa

from pyqd.fallback.trace_states import CLEARED, IN_FLIGHT, OVER, RELEASED, SEEK, STATE_AFTER, WAITING
from pyqd.trace import schema
from pyqd.trace.database import Database


@dataclass(frozen=True)
class Step:
    """One event of a message.

    after_s: time since the event before in the same channel; None if the clock was set back. position: in the broker's
    log; None for an event on many messages. is_end_missing: of a delivery whose end no event tells.
    """

    at: datetime
    event: str
    channel: str | None = None
    client: str | None = None
    user_agent: str | None = None
    attempt: int | None = None
    delay_ms: int | None = None
    due_at: datetime | None = None
    reason: str | None = None
    after_s: float | None = None
    position: int = 0
    message_count: int | None = None
    is_end_missing: bool = False


@dataclass
class ChannelStory:
    """A message in one channel. state: `waiting`, `in_flight` or one of OVER."""

    channel: str
    state: str = WAITING
    attempts: int = 0
    first_sent_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def is_over(self) -> bool:
        return self.state in OVER


@dataclass
class Story:
    """One message of one broker."""

    message_id: str
    topic: str
    nsqd: str
    published_at: datetime | None = None
    due_at: datetime | None = None
    client: str | None = None
    user_agent: str | None = None
    size: int | None = None
    body: bytes | None = None
    channels: dict[str, ChannelStory] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        # No fields, because views show all fields. Numbers and times of the last steps by channel: a message that is
        # requeued for days has many thousands of steps.
        self._last: dict[str | None, tuple[int, datetime]] = {}
        # False if a channel got the message when it was published.
        self.can_be_released = True
        self.released_at: datetime | None = None

    @property
    def is_over(self) -> bool:
        """True if each channel that is known is done with the message."""
        return bool(self.channels) and all(channel.is_over for channel in self.channels.values())

    def add(self, step: Step) -> None:
        """Add a step that follows those before it."""
        self.steps.append(step)
        self._last[step.channel] = len(self.steps), step.at

    def last_at(self, channel: str | None) -> datetime | None:
        """Return the time of the last step of a channel or of all channels; None for the channel: of any step."""
        if channel is None:
            return self.steps[-1].at if self.steps else None
        found = [self._last[key] for key in (channel, None) if key in self._last]
        return max(found)[1] if found else None


def stories_of(database: Database, message_id: str) -> list[Story]:
    """Return the stories of all messages with an id: another broker or topic may have used the same one.

    Raises: DatabaseError, SchemaError.
    """
    tables = schema.publications, schema.deliveries, schema.events
    with database.transaction("read", reading=True) as connection:
        database.store.searching(connection)
        names = {row.node_id: row.nsqd for row in connection.execute(sa.select(schema.nodes))}
        found = [connection.execute(sa.select(table).where(table.c.message_id == message_id)).all() for table in tables]
        keys = dict.fromkeys((row.node_id, row.topic) for rows in found for row in rows if row.node_id in names)
        bulk = connection.execute(_bulk_events({topic for _, topic in keys})).all() if keys else []
    stories = []
    for key in keys:
        publications, deliveries, events, bulk_events = (
            [row for row in rows if (row.node_id, row.topic) == key] for rows in (*found, bulk)
        )
        story = Story(message_id, key[1], names[key[0]])
        steps = [_step_of_event(row) for row in events]
        steps += [_step_of_bulk_event(row) for row in bulk_events if _reaches(row, message_id)]
        steps += [_publish(story, row) for row in publications]
        for step in _in_order(steps, deliveries):
            _follow(story, step)
        stories.append(story)
    return stories


def _bulk_events(topics: Collection[str]) -> sa.CompoundSelect[Any]:
    """Return the select of events on many messages of topics.

    Those of ephemeral channels are left out: there may be very many, and they do not tell which messages were dropped.
    """
    table = schema.bulk_events
    found = sa.select(table).where(table.c.topic.in_(topics))
    # Two selects, because databases use an index for each of them, and none for a condition with OR.
    reasons = (*CLEARED, SEEK, RELEASED)
    return sa.union_all(found.where(table.c.reason.in_(reasons)), found.where(table.c.reason.is_(None)))


def _publish(story: Story, row: Any) -> Step:
    """Fill in the head of a story. Returns: its first step."""
    story.published_at, story.due_at, story.size, story.body = row.published_at, row.due_at, row.size, row.body
    story.client, story.user_agent = row.client, row.user_agent
    story.can_be_released = row.held is not None
    return Step(
        row.published_at,
        "published",
        client=row.client,
        user_agent=row.user_agent,
        due_at=row.due_at,
        position=row.position,
    )


def _in_order(steps: list[Step], deliveries: Collection[Any]) -> list[Step]:
    """Return steps and those of deliveries in the order of the broker's log, whose clock may have been set back.

    The row of a delivery has the position of `sent` only. Its other steps are placed by their times: `stored` between
    `published` and `sent`, `finished` between `sent` and the next step of the channel.
    """
    rows = {row.position: row for row in deliveries}
    ordered: list[tuple[datetime, int, Step]] = []
    latest = published = datetime.min.replace(tzinfo=timezone.utc)
    finished_at: dict[str | None, datetime] = {}
    for step in sorted([*steps, *map(_sent, deliveries)], key=lambda step: step.position):
        # Others may come while the message is in flight.
        if step.event != "touched" and step.reason != RELEASED:
            latest = max(latest, finished_at.pop(step.channel, latest))
        latest = max(latest, step.at)
        ordered.append((latest, step.position, step))
        if step.event == "published":
            published = latest
        row = rows.get(step.position)
        if row is not None and row.stored_at is not None:
            stored = Step(row.stored_at, "stored", row.channel, position=row.position - 1)
            ordered.append((max(published, min(latest, stored.at)), stored.position, stored))
        if row is not None and row.outcome == "finished":
            finished = replace(step, at=row.outcome_at, event="finished", position=row.position + 1)
            finished_at[row.channel] = max(latest, finished.at)
            ordered.append((finished_at[row.channel], finished.position, finished))
        # The other ends have rows of their own.
    return [step for *_, step in sorted(ordered, key=lambda place: place[:2])]


def _sent(row: Any) -> Step:
    return Step(
        row.sent_at,
        "sent",
        row.channel,
        row.client,
        row.user_agent,
        row.attempt,
        position=row.position,
        is_end_missing=row.outcome != IN_FLIGHT and row.outcome_at is None,
    )


def _step_of_event(row: Any) -> Step:
    return Step(
        row.happened_at,
        row.event,
        row.channel,
        row.client,
        None,
        row.attempt,
        row.delay_ms,
        row.due_at,
        row.reason,
        position=row.position,
    )


def _step_of_bulk_event(row: Any) -> Step:
    return Step(
        row.happened_at,
        row.event,
        row.channel,
        reason=row.reason,
        position=row.position,
        message_count=row.message_count or 0,
    )


def _follow(story: Story, step: Step) -> None:
    """Add a step, and note its effect on the channels. Events on many messages count only if they concern this one."""
    if step.message_count is not None and not _concerns(story, step):
        return
    before = story.last_at(step.channel)
    if before is not None and step.at >= before:
        step = replace(step, after_s=(step.at - before).total_seconds())
    story.add(step)
    state = STATE_AFTER.get(step.event)
    if step.reason == RELEASED:
        story.released_at = step.at
    if step.channel is not None:
        channel = story.channels.setdefault(step.channel, ChannelStory(step.channel))
        if step.event == "sent":
            channel.attempts += 1
            channel.first_sent_at = channel.first_sent_at or step.at
        if state is not None:
            channel.state = state
            channel.ended_at = step.at if channel.is_over else None


def _reaches(row: Any, message_id: str) -> bool:
    """Return whether an event on many messages is one on a message with this id, as far as the id tells."""
    named = row.message_id or ""
    if row.reason == SEEK:
        return message_id > named if row.event == "stored" else message_id <= named
    return row.event != "expired" or message_id <= named


def _concerns(story: Story, step: Step) -> bool:
    """Return whether an event on many messages has changed the state of this one."""
    if not story.steps:
        # The message was published later.
        return False
    if step.channel is None:
        # `expired`, or messages that the topic held because it had no channel.
        return step.event == "expired" or not story.channels
    channel = story.channels.get(step.channel)
    if step.event == "stored":
        return step.reason == SEEK or _is_released(story, step)
    return channel is not None and not channel.is_over


def _is_released(story: Story, step: Step) -> bool:
    """Return whether the topic still held the message when it gave its messages to a channel."""
    # A release to several channels has an event for each, all of the same time.
    return story.can_be_released and (not story.channels or step.at == story.released_at)
