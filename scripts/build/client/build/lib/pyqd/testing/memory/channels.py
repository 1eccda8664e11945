"""Topics and channels of a MemoryBroker: the life of a message as in pyqd.

A topic gives each message to all of its channels, and holds messages as long as it has none or is paused. In a channel
an unfinished message is in one place: fresh, again, deferred or in flight. Fresh messages and those for another
delivery alternate, fresh first.

Time passes lazily: each call first moves the messages whose due time or timeout has come, in order of these times.
Queues keep entries that have moved on: these have a newer version.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pyqd.client.http import ChannelResult
from pyqd.testing.memory.clock import ManualClock


@dataclass(frozen=True)
class Stored:
    """Message of a topic. id: 16 hexadecimal digits. due_ns: due time of a deferred message, else 0."""

    id: bytes
    body: bytes
    timestamp_ns: int
    due_ns: int


class MessagePlace(Enum):
    """Place of an unfinished message in a channel."""

    READY = "ready"
    DEFERRED = "deferred"
    IN_FLIGHT = "in_flight"


@dataclass
class Subscriber:
    """Consumer of a channel, as the broker knows it. timeout_ns: of its messages in flight."""

    timeout_ns: int


class ChannelEntry:
    """One message in one channel. version: grows with each change of place or time."""

    __slots__ = ("attempts", "delivered_ns", "message", "place", "subscriber", "version")

    def __init__(self, message: Stored) -> None:
        self.message = message
        self.place = MessagePlace.READY
        self.attempts = 0
        self.subscriber: Subscriber | None = None
        self.delivered_ns = 0
        self.version = 0


Queue = deque[tuple[int, ChannelEntry]]


class MemoryChannel:
    """Messages of one channel that are not finished. timeout_ns_max: longest time in flight, touches included."""

    def __init__(self, name: str, clock: ManualClock, timeout_ns_max: int) -> None:
        self.name = name
        self.paused = False
        self.subscribers: list[Subscriber] = []
        self.message_count = self.requeue_count = self.timeout_count = 0
        self._clock = clock
        self._timeout_ns_max = timeout_ns_max
        self._entries: dict[bytes, ChannelEntry] = {}
        self._fresh: Queue = deque()
        self._again: Queue = deque()
        self._is_turn_of_again = False
        self._timed: list[tuple[int, int, int, ChannelEntry]] = []
        self._order = itertools.count()

    def add(self, message: Stored) -> None:
        """Take a published message."""
        self.message_count += 1
        entry = self._entries[message.id] = ChannelEntry(message)
        if message.due_ns > self._clock.now_ns:
            self._defer(entry, message.due_ns)
        else:
            self._fresh.append((entry.version, entry))

    def take(self, subscriber: Subscriber) -> ChannelEntry | None:
        """Deliver the next message; None if there is none, or if the channel is paused."""
        self._settle()
        if self.paused:
            return None
        entry = None
        if not self._is_turn_of_again:
            entry = first(self._fresh)
        if entry is not None:
            self._is_turn_of_again = True
        else:
            self._is_turn_of_again = False
            entry = first(self._again) or first(self._fresh)
        if entry is not None:
            entry.attempts += 1
            entry.subscriber = subscriber
            entry.delivered_ns = self._clock.now_ns
            self._set_timeout(entry, subscriber.timeout_ns)
        return entry

    def finish(self, id: bytes, subscriber: Subscriber) -> bool:
        """Finish a message; return False if the subscriber does not have it in flight."""
        entry = self._in_flight(id, subscriber)
        if entry is not None:
            self._remove(entry)
        return entry is not None

    def requeue(self, id: bytes, subscriber: Subscriber, delay_ns: int) -> bool:
        """Take a message back; return False if the subscriber does not have it in flight."""
        entry = self._in_flight(id, subscriber)
        if entry is None:
            return False
        self.requeue_count += 1
        self._schedule(entry, self._clock.now_ns + delay_ns)
        return True

    def touch(self, id: bytes, subscriber: Subscriber, timeout_ns: int) -> bool:
        """Begin a timeout again; return False if the subscriber does not have the message in flight."""
        entry = self._in_flight(id, subscriber)
        if entry is not None:
            self._set_timeout(entry, timeout_ns)
        return entry is not None

    def cancel(self, id: bytes) -> ChannelResult:
        """Finish a message that no subscriber has."""
        result = self._change_of(id)
        if result.status == "done":
            self._remove(self._entries[id])
        return result

    def reschedule(self, id: bytes, due_ns: int) -> ChannelResult:
        """Change the due time of a message that no subscriber has."""
        result = self._change_of(id)
        if result.status == "done":
            self._schedule(self._entries[id], due_ns)
        return result

    def _change_of(self, id: bytes) -> ChannelResult:
        """Return the result of a change of a message: done if it can be made."""
        self._settle()
        entry = self._entries.get(id)
        if entry is None:
            return ChannelResult(self.name, "finished")
        if entry.place is MessagePlace.IN_FLIGHT:
            return ChannelResult(self.name, "in_flight")
        return ChannelResult(self.name, "done", entry.place.value)

    def empty(self) -> None:
        """Drop all messages, those in flight too."""
        for entry in list(self._entries.values()):
            self._remove(entry)

    def in_flight_of(self, subscriber: Subscriber) -> int:
        """Return the number of messages that a subscriber has in flight."""
        self._settle()
        return sum(entry.subscriber is subscriber for entry in self._entries.values())

    def count(self, place: MessagePlace) -> int:
        """Return the number of messages in a place."""
        self._settle()
        return sum(entry.place is place for entry in self._entries.values())

    def stats(self) -> dict[str, Any]:
        """Return the counts that /stats has for a channel."""
        return {
            "channel_name": self.name,
            "depth": self.count(MessagePlace.READY),
            "in_flight_count": self.count(MessagePlace.IN_FLIGHT),
            "deferred_count": self.count(MessagePlace.DEFERRED),
            "message_count": self.message_count,
            "requeue_count": self.requeue_count,
            "timeout_count": self.timeout_count,
            "client_count": len(self.subscribers),
            "paused": self.paused,
        }

    def _in_flight(self, id: bytes, subscriber: Subscriber) -> ChannelEntry | None:
        self._settle()
        entry = self._entries.get(id)
        return entry if entry is not None and entry.subscriber is subscriber else None

    def _remove(self, entry: ChannelEntry) -> None:
        del self._entries[entry.message.id]
        entry.subscriber = None
        entry.version += 1

    def _schedule(self, entry: ChannelEntry, due_ns: int) -> None:
        """Deliver an entry again at a time, which may have passed."""
        if due_ns > self._clock.now_ns:
            self._defer(entry, due_ns)
        else:
            self._ready_again(entry)

    def _ready_again(self, entry: ChannelEntry) -> None:
        entry.place = MessagePlace.READY
        entry.subscriber = None
        entry.version += 1
        self._again.append((entry.version, entry))

    def _defer(self, entry: ChannelEntry, due_ns: int) -> None:
        entry.place = MessagePlace.DEFERRED
        entry.subscriber = None
        self._push(entry, due_ns)

    def _set_timeout(self, entry: ChannelEntry, timeout_ns: int) -> None:
        entry.place = MessagePlace.IN_FLIGHT
        latest_ns = entry.delivered_ns + self._timeout_ns_max
        self._push(entry, min(self._clock.now_ns + timeout_ns, latest_ns))

    def _push(self, entry: ChannelEntry, time_ns: int) -> None:
        entry.version += 1
        heapq.heappush(self._timed, (time_ns, next(self._order), entry.version, entry))

    def _settle(self) -> None:
        """Move the messages whose due time or timeout has come."""
        while self._timed and self._timed[0][0] <= self._clock.now_ns:
            _, _, version, entry = heapq.heappop(self._timed)
            if version == entry.version:
                self.timeout_count += entry.place is MessagePlace.IN_FLIGHT
                self._ready_again(entry)


def first(queue: Queue) -> ChannelEntry | None:
    """Remove and return the first entry of a queue that has not moved on."""
    while queue:
        version, entry = queue.popleft()
        if version == entry.version:
            return entry
    return None


class MemoryTopic:
    """All messages of a topic, and its channels. Messages that no channel has received are in `held`."""

    def __init__(self, name: str, clock: ManualClock, timeout_ns_max: int) -> None:
        self.name = name
        self.paused = False
        self.messages: dict[bytes, Stored] = {}
        self.held: deque[Stored] = deque()
        self.channels: dict[str, MemoryChannel] = {}
        self._clock = clock
        self._timeout_ns_max = timeout_ns_max

    def publish(self, message: Stored) -> None:
        """Take a message."""
        self.messages[message.id] = message
        self.held.append(message)
        self.release()

    def channel(self, name: str) -> MemoryChannel:
        """Return a channel, created if need be. The first one begins with the messages that the topic holds."""
        if name not in self.channels:
            self.channels[name] = MemoryChannel(name, self._clock, self._timeout_ns_max)
            self.release()
        return self.channels[name]

    def release(self) -> None:
        """Give the held messages to the channels, unless the topic is paused or has none."""
        while self.held and self.channels and not self.paused:
            message = self.held.popleft()
            for channel in self.channels.values():
                channel.add(message)

    def change(self, id: bytes, in_channel: Callable[[MemoryChannel], ChannelResult]) -> list[ChannelResult]:
        """Return the results of a change of one message, channel by channel."""
        if any(message.id == id for message in self.held):
            return [ChannelResult(name, "held") for name in (self.channels or [None])]
        return [in_channel(channel) for channel in self.channels.values()]

    def stats(self) -> dict[str, Any]:
        """Return the counts that /stats has for a topic."""
        return {
            "topic_name": self.name,
            "channels": [channel.stats() for channel in self.channels.values()],
            "depth": len(self.held),
            "message_count": len(self.messages),
            "paused": self.paused,
        }
