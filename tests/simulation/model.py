"""Plain model of the messages that a broker must and may deliver: topics, channels, and each message in each channel.

Time is counted in *stamps*, one for each event. A completed sync makes every event before its gathering durable
(`synced`). With --sync-every=1 an OK makes its message durable, and the channels that existed before it.

After a start the model is compared with the broker, and takes over the broker's state. The comparison covers:

- after a clean stop, everything, attempts too;
- after a kill, everything except the effects of the operation in progress (`Doubt`);
- after a power cut: every durable unfinished message is there; no message is there that was finished durably, or that
no client has published.
"""

import dataclasses
from collections import Counter
from typing import Any

QUEUED, IN_FLIGHT, DEFERRED = "queued", "in flight", "deferred"
# The topic of all dead letters. It is outside of the model: its messages are finished as they come, and counted.
GRAVEYARD = "dead"


class Violation(Exception):  # noqa: N818 - what was found, not what went wrong in the simulator
    """The broker broke a rule."""


def expect(condition: object, text: str, *details: Any) -> None:
    """Raise a Violation unless the condition holds."""
    if not condition:
        raise Violation(" ".join([text, *(repr(each) for each in details)]))


@dataclasses.dataclass(slots=True)
class Message:
    """One message of a topic. due_ns: as published, 0: at once. durable: its OK said so, or a sync."""

    number: int
    size_bytes: int
    stamp: int
    due_ns: int
    durable: bool = False
    guid: int = 0


@dataclasses.dataclass(slots=True)
class Copy:
    """One unfinished message in one channel. due_reached: its due time has come, at least once in this run.

    due_mono_ns: the monotonic clock at which the delay of a requeue in this run may have passed; 0: there was none.
    counted: a kill forgets none of its attempts. noted_due: it had come in an earlier run. If the clock has been set
    back since, it is to come again, but a power cut may bring back the notes of a stop, which name the messages that
    were due.
    """

    number: int
    state: str
    due_ns: int = 0
    attempts: int = 0
    counted: bool = False
    due_reached: bool = False
    noted_due: bool = False
    owner: int = 0
    deadline_ns: int = 0
    delivered_ns: int = 0
    due_mono_ns: int = 0
    # When the state was last changed: a power cut may take that back.
    stamp: int = 0

    def early_ns(self, wall_ns: int, mono_ns: int) -> int:
        """Return the time until the copy is due; 0 or less: it is."""
        return self.due_mono_ns - mono_ns if self.due_mono_ns else self.due_ns - wall_ns


@dataclasses.dataclass(slots=True)
class Channel:
    """One channel. done: stamp of the last FIN. reset: stamp of the last emptying or seek; 0: never."""

    name: str
    created: int
    copies: dict[int, Copy] = dataclasses.field(default_factory=dict)
    done: dict[int, int] = dataclasses.field(default_factory=dict)
    paused: bool = False
    paused_stamp: int = 0
    reset: int = 0
    # The unfinished messages before the last emptying or seek, until that is durable.
    before_reset: set[int] | None = None
    cancelled: set[int] = dataclasses.field(default_factory=set)
    synced: int = 0
    limits: Any = None
    limits_stamp: int = 0
    # The least that its limit of attempts has been; 0: none.
    attempts_least: int = 0
    # Records that a power cut has damaged, which count until the channel comes to them.
    lost: int = 0
    # The most attempts that a delivery of each message has told.
    delivered: dict[int, int] = dataclasses.field(default_factory=dict)
    # Messages that were given another due time than their publisher's.
    moved: set[int] = dataclasses.field(default_factory=set)
    # Copies beyond the first one of messages that a power cut has left twice, or several cuts more often. They may come
    # or not, also after further starts.
    twice: Counter[int] = dataclasses.field(default_factory=Counter)
    # With --sync-fin: the stamp of the FIN of each message that a completed round has covered.
    kept: dict[int, int] = dataclasses.field(default_factory=dict)
    # Whether both of two were in flight: then counts are not compared until the next start.
    muddled: bool = False

    @property
    def ephemeral(self) -> bool:
        return self.name.endswith("#ephemeral")

    def count(self, state: str) -> int:
        """Count the messages in a state."""
        return sum(copy.state == state for copy in self.copies.values())

    def spends(self, copy: Copy | None) -> bool:
        """Return whether a message may be a dead letter by now, or become one at any time."""
        return copy is not None and self.attempts_least != 0 and copy.attempts >= self.attempts_least

    def note_reset(self, stamp: int) -> None:
        """Note that the channel was moved or emptied, before its messages are others."""
        # Of two resets before a sync, a power cut may also leave the state between them. Possible dead letters were not
        # certainly there.
        copies = {number for number, copy in self.copies.items() if not self.spends(copy)}
        self.before_reset = copies if self.before_reset is None else self.before_reset & copies
        self.reset = stamp

    def note_limits(self, limits: Any, stamp: int) -> None:
        """Note the limits of the channel."""
        self.limits, self.limits_stamp = limits, stamp
        if limits.max_attempts:
            self.attempts_least = min(self.attempts_least or limits.max_attempts, limits.max_attempts)


@dataclasses.dataclass(slots=True)
class Topic:
    """One topic. held: numbers that no channel has been given, with when."""

    name: str
    created: int
    channels: dict[str, Channel] = dataclasses.field(default_factory=dict)
    held: dict[int, int] = dataclasses.field(default_factory=dict)
    messages: dict[int, Message] = dataclasses.field(default_factory=dict)
    number_of: dict[int, int] = dataclasses.field(default_factory=dict)
    paused: bool = False
    paused_stamp: int = 0
    emptied: int = 0
    emptied_in_doubt: bool = False
    # The last stamp of a message whose OK promised durability.
    acknowledged: int = 0
    # Messages accepted up to then.
    acknowledged_count: int = 0
    count: int = 0
    missing: int = 0
    # Held messages that channels may have been given before a power cut.
    held_again: set[int] = dataclasses.field(default_factory=set)
    # Retention and quota, as (retention_bytes, retention_time_ns, bytes_max).
    own_limits: tuple[int | None, int | None, int | None] = (None, None, None)
    own_stamp: int = 0
    # Channels that were deleted, with when: a power cut may bring them back.
    deleted: dict[str, int] = dataclasses.field(default_factory=dict)
    # Messages cancelled on its channels, and on those of the former topic of that name.
    cancelled_before: dict[str, set[int]] = dataclasses.field(default_factory=dict)

    def note_cancelled_before(self, other: "Topic") -> None:
        """Record the messages cancelled on channels of a topic, this or the former one, which may come back."""
        for name, numbers in list(other.cancelled_before.items()):
            self.cancelled_before[name] = self.cancelled_before.get(name, set()) | numbers
        for name, channel in other.channels.items():
            self.cancelled_before[name] = self.cancelled_before.get(name, set()) | channel.cancelled

    @property
    def ephemeral(self) -> bool:
        return self.name.endswith("#ephemeral")

    @property
    def shows(self) -> bool:
        """Return True if published messages go to channels at once."""
        return bool(self.channels) and not self.paused


@dataclasses.dataclass
class Doubt:
    """Effects that the operation in progress may or may not have had when the process dies.

    numbers: of (topic, channel), or of (topic, "") for what is held, which may be there or not. topics, channels: may
    be there or not. batch: messages of a topic that are all there or none. paused: may be paused or not. moved:
    messages that are there, in the old state or the new. resets: channels that may have been moved or
    emptied. limits: topics with old or new retention and quota.
    """

    numbers: dict[tuple[str, str], set[int]] = dataclasses.field(default_factory=dict)
    topics: set[str] = dataclasses.field(default_factory=set)
    channels: set[tuple[str, str]] = dataclasses.field(default_factory=set)
    batch: tuple[str, list[Message]] | None = None
    paused: set[tuple[str, str]] = dataclasses.field(default_factory=set)
    moved: dict[tuple[str, str], set[int]] = dataclasses.field(default_factory=dict)
    resets: set[tuple[str, str]] = dataclasses.field(default_factory=set)
    limits: set[str] = dataclasses.field(default_factory=set)


class Model:
    """All topics, and how far they are on stable storage."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        # Topics that were deleted, with when and the messages that they had.
        self.deleted: dict[str, tuple[int, Topic]] = {}
        self.stamp = 1
        self.synced = 0
        # Deletions are made durable by jobs of their own.
        self.deletions_synced = 0

    def tick(self) -> int:
        """Return a new stamp."""
        self.stamp += 1
        return self.stamp

    def add_topic(self, name: str) -> Topic:
        """Return a topic, made if it is missing."""
        if name not in self.topics:
            self.topics[name] = Topic(name, self.tick())
        return self.topics[name]

    def add_channel(self, topic: Topic, name: str, now_ns: int) -> Channel:
        """Return a channel, created if it is missing: a new one gets the held messages of the topic."""
        if name not in topic.channels:
            topic.channels[name] = Channel(name, self.tick())
            self.show_held(topic, now_ns)
        return topic.channels[name]

    def show_held(self, topic: Topic, now_ns: int) -> None:
        """Give channels the held messages of the topic."""
        if topic.shows:
            for channel in topic.channels.values():
                channel.lost += topic.missing
            topic.missing = 0
            held, topic.held = topic.held, {}
            for number in held:
                self.give(topic, topic.messages[number], now_ns)

    def give(self, topic: Topic, message: Message, now_ns: int) -> None:
        """Give each channel a message, or hold it."""
        if not topic.shows:
            topic.held[message.number] = self.stamp
            return
        for channel in topic.channels.values():
            if message.number in topic.held_again and (
                message.number in channel.done or message.number in channel.copies
            ):
                # It may remember that it is done with it, or not. It may have it twice already.
                channel.twice[message.number] += 1
                continue
            state = DEFERRED if message.due_ns else QUEUED
            counted = message.due_ns != 0
            # Held by the topic until now, it may be due already, and stays due if the clock is set back then.
            is_due = message.due_ns <= now_ns
            channel.copies[message.number] = Copy(
                message.number, state, message.due_ns, 0, counted, is_due, stamp=self.stamp
            )

    def publish(self, topic: Topic, messages: list[Message], now_ns: int) -> None:
        """Note messages as accepted."""
        for message in messages:
            topic.messages[message.number] = message
            topic.count += 1
            self.give(topic, message, now_ns)

    def acknowledge(self, topic: Topic, messages: list[Message], durably: bool, count: int = 0) -> None:
        """Note an OK. count: of the topic's messages, with these."""
        if durably:
            topic.acknowledged_count = max(topic.acknowledged_count, count)
        for message in messages:
            message.durable = message.durable or durably
            if durably:
                topic.acknowledged = max(topic.acknowledged, message.stamp)

    def finish(self, channel: Channel, number: int) -> None:
        """Note a message as finished."""
        del channel.copies[number]
        channel.done[number] = self.tick()

    def delete_topic(self, name: str) -> None:
        """Note a topic as deleted."""
        topic = self.topics.pop(name)
        _, former = self.deleted.get(name, (0, None))
        if former is not None:
            # A power cut may bring back the one as well as the other.
            topic.messages = {**former.messages, **topic.messages}
            topic.note_cancelled_before(former)
            topic.deleted = {**former.deleted, **dict.fromkeys(former.channels, self.stamp), **topic.deleted}
        self.deleted[name] = (self.tick(), topic)

    def delete_channel(self, topic: Topic, name: str) -> None:
        """Note a channel as deleted."""
        gone = topic.channels.pop(name)
        topic.cancelled_before[name] = topic.cancelled_before.get(name, set()) | gone.cancelled
        topic.deleted[name] = self.tick()
        if topic.ephemeral and not topic.channels:
            self.delete_topic(topic.name)

    def note_synced(self, stamp: int, apart_from: dict[str, set[int]] | None = None) -> None:
        """Note that all up to a stamp is on stable storage. apart_from: messages of topics that are not."""
        self.synced = max(self.synced, stamp)
        not_yet = apart_from or {}
        for topic in self.topics.values():
            for channel in topic.channels.values():
                if channel.reset <= stamp:
                    channel.before_reset = None
                    channel.synced = stamp
            for message in topic.messages.values():
                is_synced = message.stamp <= stamp and message.number not in not_yet.get(topic.name, ())
                message.durable = message.durable or is_synced
