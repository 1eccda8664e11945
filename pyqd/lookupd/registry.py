"""Registry of a lookup daemon: producers, topics, channels, and the registrations of producers for them.

A producer is one connection of a broker that has sent IDENTIFY. It has a small number, the lowest that is free, and a
topic or channel has the numbers of its producers as bits. A producer has the topics and channels it is registered for,
by numbers likewise, so that its end costs no search.

Topics and channels that HTTP created, or whose producers have left, stay without producers. Everything is in memory
alone: brokers build it up again when they connect.

Answers about a topic are cached as bytes until something about it changes, or until the earliest timestamp at which a
producer becomes inactive or a tombstone ends.

Invariants: 1. the bit of a producer is set in a topic or channel exactly if the number of that topic or channel is set
in the producer. 2. a producer registered for a channel need not be registered for its topic: HTTP may delete the topic
alone.

Source: docs/nsq/lookupd.md.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from sortedcontainers import SortedDict

from pyqd.http.messages import to_json
from pyqd.primitives.durations import MINUTE_NS, SECOND_NS
from pyqd.primitives.names import is_ephemeral_str

ALL: Final = "*"
NEVER: Final = 1 << 63
# Go's zero time in nanoseconds since 1970, as it overflows there. `/debug` shows it if there is no tombstone.
NO_TOMBSTONE: Final = -6795364578871345152
# Bytes of answers that are kept.
CACHED_BYTES_MAX: Final = 16 << 20

# Bits that are set, by the value of a byte.
_BITS_OF = [tuple(bit for bit in range(8) if byte >> bit & 1) for byte in range(256)]


class BitSet:
    """Set of whole numbers from 0, a bit for each. The lowest free number is given out, so that the highest stays low.

    A lookup daemon has up to nodes x topics x channels registrations: 3 million with 1,000 nodes, 1,000 topics and 2
    channels. A set of Python takes 32 to 70 bytes for an entry, this one an eighth of a byte for each number up to the
    highest.
    """

    __slots__ = ("_bytes", "count")

    def __init__(self) -> None:
        self._bytes = bytearray()
        self.count = 0

    def __contains__(self, number: int) -> bool:
        place = number >> 3
        return place < len(self._bytes) and self._bytes[place] >> (number & 7) & 1 == 1

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        for place, byte in enumerate(self._bytes):
            if byte:
                for bit in _BITS_OF[byte]:
                    yield 8 * place + bit

    def add(self, number: int) -> bool:
        """Add a number. Returns: whether it is new."""
        place, mask = number >> 3, 1 << (number & 7)
        missing = place + 1 - len(self._bytes)
        if missing > 0:
            self._bytes.extend(bytes(missing))
        elif self._bytes[place] & mask:
            return False
        self._bytes[place] |= mask
        self.count += 1
        return True

    def discard(self, number: int) -> bool:
        """Remove a number. Returns: whether it was there."""
        if number not in self:
            return False
        self._bytes[number >> 3] &= ~(1 << (number & 7))
        self.count -= 1
        assert self.count >= 0
        return True


@dataclass(frozen=True, slots=True)
class Peer:
    """Identity of a broker: the fields of its IDENTIFY and its remote address, by their names in the HTTP API."""

    remote_address: str
    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    topology_zone: str = ""
    topology_region: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the broker's entry in the answer of `/lookup`."""
        return {name: getattr(self, name) for name in self.__slots__}

    def is_node(self, name: str) -> bool:
        """Return whether `/topic/tombstone` means this broker. nsqadmin puts IPv6 addresses in brackets."""
        address, _, port = name.rpartition(":")
        return port == str(self.http_port) and address in (self.broadcast_address, f"[{self.broadcast_address}]")


class RegisteredBroker:
    """One broker that is connected. last_update_ns: of its IDENTIFY or last PING."""

    __slots__ = ("json", "last_update_ns", "number", "peer", "places")

    def __init__(self, peer: Peer, number: int, now_ns: int) -> None:
        self.peer = peer
        self.number = number
        self.last_update_ns = now_ns
        # Numbers of the topics and channels that it is registered for.
        self.places = BitSet()
        self.json = to_json(peer.as_dict())


class RegisteredName:
    """One topic or channel. number: of it, the lowest that was free. channel: "" for a topic."""

    __slots__ = ("channel", "number", "producers", "topic")

    def __init__(self, topic: str, channel: str, number: int) -> None:
        self.topic = topic
        self.channel = channel
        self.number = number
        self.producers = BitSet()


def lookup_answer(channels: list[str], producers: list[bytes]) -> bytes:
    """Return the JSON of `/lookup`. producers: JSON of each."""
    return b'{"channels":%b,"producers":[%b]}' % (to_json(channels), b",".join(producers))


class Registry:
    """Registrations of one lookup daemon. Times are of the monotonic clock, given by the caller.

    inactive_ns: a producer without PING for longer is hidden. tombstone_ns: a tombstone hides a producer for so long.
    """

    def __init__(self, inactive_ns: int = 5 * MINUTE_NS, tombstone_ns: int = 45 * SECOND_NS) -> None:
        self.inactive_ns = inactive_ns
        self.tombstone_ns = tombstone_ns
        self._producers: list[RegisteredBroker | None] = []
        self._free_producers: list[int] = []
        self._places: list[RegisteredName | None] = []
        self._free_places: list[int] = []
        self._topics = SortedDict()
        # By topic, then by name. They may outlive the topic's own registration, and come before it.
        self._channels_of = SortedDict()
        # Topic and number of a producer to the timestamp of its tombstone.
        self._tombstones: dict[tuple[str, int], int] = {}
        self._answers: dict[str, tuple[int, bytes]] = {}
        self._answer_bytes = 0

    # Producers

    def add(self, peer: Peer, now_ns: int) -> RegisteredBroker:
        """Add a broker that has sent IDENTIFY."""
        number = heapq.heappop(self._free_producers) if self._free_producers else len(self._producers)
        producer = RegisteredBroker(peer, number, now_ns)
        if number == len(self._producers):
            self._producers.append(producer)
        else:
            assert self._producers[number] is None, "a number is given to one producer at a time"
            self._producers[number] = producer
        return producer

    def remove(self, producer: RegisteredBroker) -> None:
        """Remove a broker whose connection has closed. Its topics and channels stay."""
        assert self._producers[producer.number] is producer
        for place in list(self.places_of(producer)):
            place.producers.discard(producer.number)
            self._forget_tombstone(place.topic, producer.number)
            self._changed(place.topic)
        self._producers[producer.number] = None
        heapq.heappush(self._free_producers, producer.number)

    def ping(self, producer: RegisteredBroker, now_ns: int) -> None:
        """Record the time of a PING."""
        if not self.is_active(producer, now_ns):
            for place in self.places_of(producer):
                self._changed(place.topic)
        producer.last_update_ns = now_ns

    def is_active(self, producer: RegisteredBroker, now_ns: int) -> bool:
        """Return whether a producer was heard of lately."""
        return now_ns - producer.last_update_ns <= self.inactive_ns

    def producers(self) -> Iterator[RegisteredBroker]:
        return (producer for producer in self._producers if producer is not None)

    # Registrations

    def register(self, producer: RegisteredBroker, topic: str, channel: str = "") -> tuple[bool, bool]:
        """Register a producer for a topic, and for a channel of it if one is given.

        Returns: whether it was not registered for the topic, and for the channel, before.
        """
        place = self._topics.get(topic) or self.create_topic(topic)
        new_topic, new_channel = place.producers.add(producer.number), False
        if new_topic:
            producer.places.add(place.number)
            self._changed(topic)
        if channel:
            place = self._channel_place(topic, channel) or self._new_channel(topic, channel)
            new_channel = place.producers.add(producer.number)
            if new_channel:
                producer.places.add(place.number)
        return new_topic, new_channel

    def unregister(self, producer: RegisteredBroker, topic: str, channel: str = "") -> list[str]:
        """End a registration; that of a topic ends those of its channels.

        The named topic or channel is deleted if it is ephemeral and has no producer left. Channels stay without their
        topic, as in nsqlookupd. Returns: the channels whose registration ended with the topic's.
        """
        ended = []
        if channel:
            place = self._channel_place(topic, channel)
        else:
            ended = [each.channel for each in self._channels(topic) if self._end(producer, each)]
            place = self._topics.get(topic)
        if place is not None:
            self._end(producer, place)
            if not place.producers and is_ephemeral_str(channel or topic):
                self._delete(place)
        return ended

    def _end(self, producer: RegisteredBroker, place: RegisteredName) -> bool:
        """End one registration. Returns: whether there was one."""
        ended = place.producers.discard(producer.number)
        if ended:
            producer.places.discard(place.number)
            if not place.channel:
                self._forget_tombstone(place.topic, producer.number)
            self._changed(place.topic)
        return ended

    def create_topic(self, topic: str) -> RegisteredName:
        """Create a topic without producers, if it is missing."""
        place: RegisteredName | None = self._topics.get(topic)
        if place is None:
            place = self._topics[topic] = self._new_place(topic, "")
            self._changed(topic)
        return place

    def create_channel(self, topic: str, channel: str) -> None:
        """Create a channel without producers, and its topic, if they are missing."""
        self.create_topic(topic)
        if self._channel_place(topic, channel) is None:
            self._new_channel(topic, channel)

    def topic_deletion(self, topic: str) -> Iterator[RegisteredName]:
        """Delete a topic and its channels, or all topics if the name is `*`, step by step.

        The registry may change between two steps. Yields: each channel and topic after its deletion.
        """
        for place in [*self._channels(topic), *self._topic_places(topic)]:
            if self._places[place.number] is place:
                self._delete(place)
                yield place

    def delete_channel(self, topic: str, channel: str) -> bool:
        """Delete a channel. Returns: whether it was there."""
        place = self._channel_place(topic, channel)
        if place is None:
            return False
        self._delete(place)
        return True

    def tombstone(self, topic: str, node: str, now_ns: int) -> int:
        """Hide producers of a topic. node: as for `Peer.is_node`. Returns: number of hidden ones."""
        count = 0
        for place in self._topic_places(topic):
            for number in place.producers:
                if self._producer(number).peer.is_node(node):
                    self._tombstones[place.topic, number] = now_ns
                    self._changed(place.topic)
                    count += 1
        return count

    # Answers

    def topics(self) -> list[str]:
        """Return the names of all topics, in order."""
        return list(self._topics)

    def channels(self, topic: str) -> list[str]:
        """Return the names of the channels of a topic in order; `*`: of all topics, a name once for each topic."""
        return sorted(place.channel for place in self._channels(topic))

    def lookup(self, topic: str, now_ns: int) -> bytes | None:
        """Return the JSON of `/lookup`; None for an unknown topic. The answer about one topic is cached."""
        if topic == ALL:
            return self._lookup_all(now_ns)
        known = self._answers.get(topic)
        if known is not None:
            if now_ns < known[0]:
                return known[1]
            self._changed(topic)
        place = self._topics.get(topic)
        if place is None:
            return None
        until_ns = NEVER
        found: list[bytes] = []
        for number in place.producers:
            producer = self._producer(number)
            hidden_until_ns = self._hidden_until(topic, number)
            if now_ns < hidden_until_ns:
                until_ns = min(until_ns, hidden_until_ns)
            elif self.is_active(producer, now_ns):
                until_ns = min(until_ns, producer.last_update_ns + self.inactive_ns + 1)
                found.append(producer.json)
        answer = lookup_answer(self.channels(topic), found)
        if self._answer_bytes + len(answer) <= CACHED_BYTES_MAX:
            self._answers[topic] = (until_ns, answer)
            self._answer_bytes += len(answer)
        return answer

    def _lookup_all(self, now_ns: int) -> bytes | None:
        """Return the JSON of `/lookup` for `*`; None if there is no topic. A producer is in it once."""
        if not self._topics:
            return None
        # By producer, not by topic: the first topic of most producers is enough.
        found = [
            producer.json
            for producer in self.producers()
            if self.is_active(producer, now_ns)
            and any(
                not place.channel and now_ns >= self._hidden_until(place.topic, producer.number)
                for place in self.places_of(producer)
            )
        ]
        return lookup_answer(self.channels(ALL), found)

    def nodes(self, now_ns: int) -> Iterator[bytes]:
        """Yield the JSON of each active producer for `/nodes`. The registry may change between two of them."""
        for producer in self.producers():
            if self.is_active(producer, now_ns):
                topics = sorted(place.topic for place in self.places_of(producer) if not place.channel)
                hidden = [now_ns < self._hidden_until(topic, producer.number) for topic in topics]
                shown = {**producer.peer.as_dict(), "tombstones": hidden, "topics": topics}
                yield to_json(shown)

    def debug(self, ahead_ns: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Yield each registration that has producers, by its key in `/debug`. The registry may change meanwhile.

        ahead_ns: makes Unix times of the times that the caller has given.
        """
        clients = [self._debug_row(producer, "", ahead_ns) for producer in self.producers()]
        if clients:
            yield "client::", clients
        for place in self._places:
            if place is not None and place.producers:
                topic = "" if place.channel else place.topic
                producers = map(self._producer, place.producers)
                key = f"channel:{place.topic}:{place.channel}" if place.channel else f"topic:{place.topic}:"
                yield key, [self._debug_row(producer, topic, ahead_ns) for producer in producers]

    def places_of(self, producer: RegisteredBroker) -> Iterable[RegisteredName]:
        """Yield the topics and channels that a producer is registered for."""
        for number in producer.places:
            place = self._places[number]
            assert place is not None, "a deleted topic or channel has no producers"
            yield place

    def counts(self) -> dict[str, int]:
        """Return the numbers of producers, topics, channels and registrations."""
        places = [place for place in self._places if place is not None]
        return {
            "producers": len(self._producers) - len(self._free_producers),
            "topics": len(self._topics),
            "channels": len(places) - len(self._topics),
            "registrations": sum(len(place.producers) for place in places),
        }

    # Parts

    def _producer(self, number: int) -> RegisteredBroker:
        producer = self._producers[number]
        assert producer is not None, "a producer ends its registrations before it leaves"
        return producer

    def _topic_places(self, topic: str) -> list[RegisteredName]:
        if topic == ALL:
            return list(self._topics.values())
        place = self._topics.get(topic)
        return [] if place is None else [place]

    def _channels(self, topic: str) -> Iterator[RegisteredName]:
        channels = self._channels_of.values() if topic == ALL else filter(None, [self._channels_of.get(topic)])
        return (place for of_topic in channels for place in of_topic.values())

    def _channel_place(self, topic: str, channel: str) -> RegisteredName | None:
        of_topic = self._channels_of.get(topic)
        return None if of_topic is None else of_topic.get(channel)

    def _new_channel(self, topic: str, channel: str) -> RegisteredName:
        place = self._new_place(topic, channel)
        self._channels_of.setdefault(topic, SortedDict())[channel] = place
        self._changed(topic)
        return place

    def _new_place(self, topic: str, channel: str) -> RegisteredName:
        number = heapq.heappop(self._free_places) if self._free_places else len(self._places)
        place = RegisteredName(topic, channel, number)
        if number == len(self._places):
            self._places.append(place)
        else:
            assert self._places[number] is None
            self._places[number] = place
        return place

    def _delete(self, place: RegisteredName) -> None:
        """Delete a topic or channel, with all registrations for it."""
        for number in list(place.producers):
            self._producer(number).places.discard(place.number)
            if not place.channel:
                self._forget_tombstone(place.topic, number)
        if place.channel:
            of_topic = self._channels_of[place.topic]
            del of_topic[place.channel]
            if not of_topic:
                del self._channels_of[place.topic]
        else:
            del self._topics[place.topic]
        self._places[place.number] = None
        heapq.heappush(self._free_places, place.number)
        self._changed(place.topic)

    def _changed(self, topic: str) -> None:
        """Drop the cached answer about a topic."""
        known = self._answers.pop(topic, None)
        if known is not None:
            self._answer_bytes -= len(known[1])

    def _forget_tombstone(self, topic: str, number: int) -> None:
        self._tombstones.pop((topic, number), None)

    def _hidden_until(self, topic: str, number: int) -> int:
        """Return until when a tombstone hides a producer of a topic; 0: there is none."""
        at_ns = self._tombstones.get((topic, number))
        return 0 if at_ns is None else at_ns + self.tombstone_ns

    def _debug_row(self, producer: RegisteredBroker, topic: str, ahead_ns: int) -> dict[str, Any]:
        at_ns = self._tombstones.get((topic, producer.number))
        shown = producer.peer.as_dict()
        return {
            "id": shown.pop("remote_address"),
            **shown,
            "last_update": producer.last_update_ns + ahead_ns,
            "tombstoned": at_ns is not None,
            "tombstoned_at": NO_TOMBSTONE if at_ns is None else at_ns + ahead_ns,
        }
