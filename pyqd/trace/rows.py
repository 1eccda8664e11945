"""Conversion of trace events: a batch of decoded events becomes rows of the tables in pyqd.trace.schema.

A delivery is one row. Its outcome is that of the event that ends it, usually in the same batch. If the delivery is in
an earlier batch, `TraceBatch.earlier` holds its end, and the caller applies it to the row in the database.

An outcome changes in these cases only:

1. The first of `finished`, `requeued`, `timed_out` and `client_gone` ends a delivery in flight.
2. `dead_lettered`, `cancelled` and `dropped` set the outcome of the message's last delivery, unless that one was
   finished: they tell what became of the message after it came back.
3. A delivery in flight whose message is sent again was ended by no event: the broker was killed, or the event is
   missing. Its outcome is `disconnected` without a time.
4. An act that takes back all messages in flight of a channel, such as emptying it, cancels their deliveries.

Every event except `published`, `sent` and `finished` is also a row of its own. So is `stored`, if the message is not
sent in the same batch, and `finished`, if it ends no delivery.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from pyqd.fallback.trace_states import CLEARED, IN_FLIGHT, OUTCOMES, SEEK
from pyqd.hot.wire.trace_events import KINDS, TraceColumns
from pyqd.trace import schema
from pyqd.trace.literals import Literals
from pyqd.trace.schema import ID_CHARS, NAME_CHARS, TEXT_CHARS

PUBLISHED: Final = KINDS.index("published")
STORED: Final = KINDS.index("stored")
SENT: Final = KINDS.index("sent")
FINISHED: Final = KINDS.index("finished")
DROPPED: Final = KINDS.index("dropped")
LOST_EVENTS: Final = KINDS.index("lost_events")
# In place of the kind of an event on many messages.
BULK: Final = 255

# Outcome of the delivery that an event other than a FIN ends.
ENDS: Final = {
    KINDS.index("requeued"): "requeued",
    KINDS.index("timed_out"): "timed_out",
    KINDS.index("client_gone"): "disconnected",
}
# Outcome that an event gives to the last delivery of its message, in flight or not.
FATES: Final = {
    DROPPED: "cancelled",
    KINDS.index("cancelled"): "cancelled",
    KINDS.index("dead_lettered"): "dead_lettered",
}
UNRECORDED: Final = "disconnected"
# In all these cases clients lose their messages in flight.
TAKEN_BACK: Final = (*CLEARED, SEEK)

# Columns of a row of trace_deliveries.
POSITION: Final = 1
OUTCOME: Final = 10
OUTCOME_AT: Final = 11

Row = list[Any]
# Number of the message, and indexes of the channel and the topic.
Key = tuple[int, int, int]
# Number of the message, topic and channel.
Place = tuple[int, str, str]


@dataclass
class Earlier:
    """Events of a batch that concern a delivery stored before: its end, and what became of the message after it."""

    end: tuple[str, Any] | None = None
    fate: tuple[str, Any] | None = None
    # Index of the FIN, which becomes a row by `TraceBatch.event_row` if it ends no delivery of the database.
    finished: int | None = None

    def change(self, outcome: str) -> tuple[str, Any] | None:
        """Return the outcome and its time for a delivery that has had this one; None if it stays."""
        changed = self.end if outcome == IN_FLIGHT else None
        if self.fate and "finished" not in (outcome, changed and changed[0]):
            changed = self.fate
        return changed

    def end_with(self, outcome: str, at: Any) -> None:
        """Note an end, unless there was one before."""
        self.end = self.end or (outcome, at)


class Drop(NamedTuple):
    """The deliveries in flight of a channel are over."""

    position: int
    topic: str
    channel: str
    # Unix.
    at_us: int


@dataclass
class TraceBatch:
    """Rows of some consecutive events of one broker, by table, with values in the form for the database."""

    event_count: int
    # Unix, of the last event.
    last_us: int
    # Returns the row of trace_events for the event with an index.
    event_row: Callable[[int], Row]
    publications: list[Row] = field(default_factory=list)
    deliveries: list[Row] = field(default_factory=list)
    events: list[Row] = field(default_factory=list)
    bulk_events: list[Row] = field(default_factory=list)
    gaps: list[Row] = field(default_factory=list)
    drops: list[Drop] = field(default_factory=list)
    earlier: dict[Place, Earlier] = field(default_factory=dict)
    # Position and outcome of the last delivery of each message.
    last: dict[Place, tuple[int, str]] = field(default_factory=dict)

    def rows(self) -> Iterator[tuple[sa.Table, list[Row]]]:
        """Yield each table with its rows."""
        yield schema.publications, self.publications
        yield schema.deliveries, self.deliveries
        yield schema.events, self.events
        yield schema.bulk_events, self.bulk_events
        yield schema.gaps, self.gaps


def batch_of(decoded: TraceColumns, node_id: int, literals: Literals) -> TraceBatch:
    """Return the rows of decoded events."""
    assembly = _Assembly(decoded, node_id, literals)
    assembly.read_events()
    return assembly.finish()


def _chosen(values: Sequence[Any], bits: bytes, null: Any) -> list[Any]:
    """Return the values of a column, with `null` in rows without one."""
    if not any(bits):
        return [null] * len(values)
    return [value if bits[row >> 3] & 1 << (row & 7) else null for row, value in enumerate(values)]


def _kinds(decoded: TraceColumns) -> bytes:
    """Return the kinds of the events, with BULK for those on many messages."""
    if not any(decoded.count_bits):
        return decoded.kinds
    is_bulk = _chosen(bytes([1]) * decoded.rows, decoded.count_bits, 0)
    pairs = zip(decoded.kinds, is_bulk, strict=True)
    return bytes(BULK if bulk and kind != LOST_EVENTS else kind for kind, bulk in pairs)


class _Assembly:
    """State of one pass over the events of a batch."""

    def __init__(self, decoded: TraceColumns, node_id: int, literals: Literals) -> None:
        self.decoded = decoded
        self.node_id = node_id
        self.literals = literals
        self.null = literals.null
        self.topics = literals.texts(decoded.topics, NAME_CHARS)
        self.channels = literals.texts(decoded.channels, NAME_CHARS)
        self.clients = literals.texts(decoded.clients, TEXT_CHARS)
        self.agents = literals.texts(decoded.user_agents, TEXT_CHARS)
        self.reasons = literals.texts(decoded.reasons, TEXT_CHARS)
        self.names = literals.texts(KINDS, TEXT_CHARS)
        self.outcomes = {name: literals.plain(name) for name in OUTCOMES}
        self.kinds = _kinds(decoded)
        self.topic_indexes = array("i", decoded.topic_indexes)
        self.channel_indexes = array("i", decoded.channel_indexes)
        self.client_indexes = array("i", decoded.client_indexes)
        self.agent_indexes = array("i", decoded.user_agent_indexes)
        self.reason_indexes = array("i", decoded.reason_indexes)
        times_us = array("q", decoded.timestamps_us)
        self.positions = array("q", decoded.positions)
        self.times = literals.times(times_us)
        self.ids = self._ids()
        self.attempts = _chosen(array("i", decoded.attempts), decoded.attempt_bits, self.null)
        self.delays_ms = _chosen(array("q", decoded.delays_ms), decoded.delay_bits, self.null)
        self.counts = _chosen(array("q", decoded.counts), decoded.count_bits, self.null)
        self.dues = self._dues()
        self.batch = TraceBatch(decoded.rows, times_us[-1] if times_us else 0, self._event)
        self.last: dict[Key, Row] = {}
        self.earlier: dict[Key, Earlier] = {}
        # Time of the first act that took back all messages in flight, by channel and topic.
        self.dropped: dict[tuple[int, int], Any] = {}
        # Index of the `stored` event of a message that has not been sent yet.
        self.waiting: dict[Key, int] = {}

    def _ids(self) -> list[str]:
        """Return the forms of the message ids; an empty one if an event has none."""
        text, quote = self.decoded.ids.decode("ascii"), self.literals.quote
        if len(text) == ID_CHARS * self.decoded.rows:
            ids = [text[at : at + ID_CHARS] for at in range(0, len(text), ID_CHARS)]
        else:
            ids = [text[at:end] for at, end in pairwise(array("i", self.decoded.id_offsets))]
        return [f"{quote}{message_id}{quote}" for message_id in ids] if quote else ids

    def _dues(self) -> list[Any]:
        if not any(self.decoded.due_bits):
            return [self.null] * self.decoded.rows
        return _chosen(self.literals.times(array("q", self.decoded.dues_us)), self.decoded.due_bits, self.null)

    def read_events(self) -> None:
        """Go through the events of channels in their order."""
        # Locals, because this loop runs once per event.
        node_id, null, last, waiting = self.node_id, self.null, self.last, self.waiting
        topics, channels, clients, agents = self.topics, self.channels, self.clients, self.agents
        in_flight, finished, unrecorded = (self.outcomes[name] for name in (IN_FLIGHT, "finished", UNRECORDED))
        positions, ids, times, attempts = self.positions, self.ids, self.times, self.attempts
        client_indexes, agent_indexes = self.client_indexes, self.agent_indexes
        add_delivery = self.batch.deliveries.append
        guids = memoryview(self.decoded.guids).cast("Q")
        columns = zip(self.kinds, guids, self.channel_indexes, self.topic_indexes, strict=True)
        for row, (kind, guid, channel, topic) in enumerate(columns):
            if kind == PUBLISHED:
                continue
            key = (guid, channel, topic)
            if kind == STORED:
                waiting[key] = row
            elif kind == SENT:
                before = last.get(key)
                if before is not None:
                    if before[OUTCOME] is in_flight:
                        before[OUTCOME] = unrecorded
                elif attempts[row] != 1:
                    # A first delivery has none before it.
                    self._earlier(key).end_with(UNRECORDED, null)
                stored = waiting.pop(key, None)
                last[key] = delivery = [
                    node_id,
                    positions[row],
                    ids[row],
                    topics[topic],
                    channels[channel],
                    clients[client_indexes[row]],
                    agents[agent_indexes[row]],
                    attempts[row],
                    null if stored is None else times[stored],
                    times[row],
                    in_flight,
                    null,
                ]
                add_delivery(delivery)
            elif kind != FINISHED:
                self._read_other(row, kind, key)
            elif (found := last.get(key)) is None:
                earlier = self._earlier(key)
                earlier.end_with("finished", times[row])
                earlier.finished = row
            elif found[OUTCOME] is in_flight:
                found[OUTCOME] = finished
                found[OUTCOME_AT] = times[row]
            else:
                self.batch.events.append(self._event(row))

    def _read_other(self, row: int, kind: int, key: Key) -> None:
        """Read an event that is neither published, stored, sent nor finished."""
        if kind == LOST_EVENTS:
            self._read_gap(row)
            return
        if kind == BULK:
            self._read_bulk(row, key)
            return
        event = self._event(row)
        delivery = self.last.get(key)
        if kind in ENDS:
            if delivery is None:
                self._earlier(key).end_with(ENDS[kind], self.times[row])
            elif delivery[OUTCOME] is self.outcomes[IN_FLIGHT]:
                delivery[OUTCOME:] = self.outcomes[ENDS[kind]], self.times[row]
        elif kind in FATES:
            if delivery is not None:
                if delivery[OUTCOME] is not self.outcomes["finished"]:
                    delivery[OUTCOME:] = self.outcomes[FATES[kind]], self.times[row]
            elif key not in self.waiting:
                earlier = self._earlier(key)
                earlier.fate = FATES[kind], self.times[row]
                # A later FIN changes nothing.
                earlier.end_with(*earlier.fate)
        self.batch.events.append(event)

    def _earlier(self, key: Key) -> Earlier:
        found = self.earlier.get(key)
        if found is None:
            found = self.earlier[key] = Earlier()
            if key[1:] in self.dropped:
                found.end_with("cancelled", self.dropped[key[1:]])
        return found

    def _event(self, row: int) -> Row:
        """Return the row of trace_events for an event."""
        return [
            self.node_id,
            self.positions[row],
            self.ids[row],
            self.topics[self.topic_indexes[row]],
            self.channels[self.channel_indexes[row]],
            self.names[self.decoded.kinds[row]],
            self.times[row],
            self.clients[self.client_indexes[row]],
            self.attempts[row],
            self.delays_ms[row],
            self.dues[row],
            self.reasons[self.reason_indexes[row]],
        ]

    def _read_gap(self, row: int) -> None:
        reason = self.reasons[self.reason_indexes[row]]
        self.batch.gaps.append([self.node_id, self.positions[row], self.counts[row], self.times[row], reason])

    def _read_bulk(self, row: int, key: Key) -> None:
        kind, (_, channel, topic) = self.decoded.kinds[row], key
        reason = self.reason_indexes[row]
        self.batch.bulk_events.append(
            [
                self.node_id,
                self.positions[row],
                self.ids[row] if self.ids[row].strip(self.literals.quote) else self.null,
                self.topics[topic],
                self.channels[channel],
                self.names[kind],
                self.times[row],
                self.reasons[reason],
                self.counts[row],
            ]
        )
        # Without a channel the topic drops messages that it held for its channels, which no client has.
        if channel and kind in (DROPPED, STORED) and self.decoded.reasons[reason] in TAKEN_BACK:
            self._drop(row, key)

    def _drop(self, row: int, key: Key) -> None:
        """Cancel the deliveries in flight of a channel."""
        place = key[1:]
        is_first = place not in self.dropped
        self.dropped.setdefault(place, self.times[row])
        for other, earlier in self.earlier.items():
            if other[1:] == place:
                earlier.end_with("cancelled", self.times[row])
        for other, delivery in self.last.items():
            if other[1:] == place and delivery[OUTCOME] is self.outcomes[IN_FLIGHT]:
                delivery[OUTCOME:] = self.outcomes["cancelled"], self.times[row]
        if is_first:
            # Of the deliveries before the batch, a second drop would find none in flight.
            _, topic, channel = self._place(key)
            at_us = array("q", self.decoded.timestamps_us)[row]
            self.batch.drops.append(Drop(self.positions[row], topic, channel, at_us))

    def finish(self) -> TraceBatch:
        """Return the rows."""
        batch = self.batch
        batch.publications = self._publications()
        batch.events += [self._event(row) for row in self.waiting.values()]
        batch.earlier = {self._place(key): earlier for key, earlier in self.earlier.items()}
        names = {form: name for name, form in self.outcomes.items()}
        batch.last = {
            self._place(key): (delivery[POSITION], names[delivery[OUTCOME]]) for key, delivery in self.last.items()
        }
        return batch

    def _place(self, key: Key) -> Place:
        guid, channel, topic = key
        return guid, self.decoded.topics[topic] or "", self.decoded.channels[channel] or ""

    def _publications(self) -> list[Row]:
        decoded = self.decoded
        rows = [row for row, kind in enumerate(self.kinds) if kind == PUBLISHED]
        sizes = array("i", decoded.sizes)
        bodies = self._bodies(rows)
        guids = memoryview(decoded.guids).cast("Q")
        is_stored = [
            kind == STORED and guid == before
            for kind, guid, before in zip(self.kinds[1:], guids[1:], guids[:-1], strict=True)
        ]
        is_stored.append(False)
        return [
            [
                self.node_id,
                self.positions[row],
                self.ids[row],
                self.topics[self.topic_indexes[row]],
                self.clients[self.client_indexes[row]],
                self.agents[self.agent_indexes[row]],
                sizes[row],
                body,
                self.times[row],
                self.dues[row],
                self.null if is_stored[row] else 1,
            ]
            for row, body in zip(rows, bodies, strict=True)
        ]

    def _bodies(self, rows: list[int]) -> list[Any]:
        """Return the forms of the bodies of some events."""
        bits, bodies = self.decoded.body_bits, self.decoded.bodies
        if not any(bits):
            return [self.null] * len(rows)
        ends = array("i", self.decoded.body_offsets)
        return [
            self.literals.body(bodies[ends[row] : ends[row + 1]]) if bits[row >> 3] & 1 << (row & 7) else self.null
            for row in rows
        ]
