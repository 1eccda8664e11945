"""Decoder of trace events into columns, in Python, and the states of a message by its events.

Compiled form: pyqd.hot.wire.trace_events. An event costs a few microseconds. pyqd/hot/wire/trace_events.pxd describes
the buffers.

Source: docs/trace.md, "Format".
"""

import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from pyqd.fallback.columns import checks, spans
from pyqd.fallback.records import HEADER_BYTES, LOST
from pyqd.primitives.durations import MICROSECOND_NS

VERSION: Final = 1
KINDS: Final[list[str | None]] = [
    None,
    "published",
    "stored",
    "sent",
    "finished",
    "requeued",
    "timed_out",
    "touched",
    "client_gone",
    "cancelled",
    "rescheduled",
    "delivered_now",
    "dead_lettered",
    "dropped",
    "expired",
    "lost_events",
]
REASONS: Final[list[str | None]] = [
    None,
    "attempts",
    "ephemeral",
    "emptied",
    "channel_deleted",
    "topic_deleted",
    "seek",
    "sampled",
    "copy",
    "released",
    "unknown_gap",
]
PUBLISHED: Final = KINDS.index("published")
STORED: Final = KINDS.index("stored")
REQUEUED: Final = KINDS.index("requeued")
EXPIRED: Final = KINDS.index("expired")
LOST_EVENTS: Final = KINDS.index("lost_events")
UNKNOWN_GAP: Final = REASONS.index("unknown_gap")
WAITING: Final = "waiting"
IN_FLIGHT: Final = "in_flight"
# State after an event; after all others it stays.
STATE_AFTER: Final = {
    "stored": WAITING,
    "sent": IN_FLIGHT,
    "requeued": WAITING,
    "timed_out": WAITING,
    "rescheduled": WAITING,
    "delivered_now": WAITING,
    "finished": "finished",
    "dead_lettered": "dead_lettered",
    "cancelled": "cancelled",
    "dropped": "dropped",
}
OVER: Final = ("finished", "dead_lettered", "cancelled", "dropped")

# Reasons for which a channel drops all its messages.
CLEARED: Final = ("emptied", "channel_deleted", "topic_deleted")
# A seek drops the messages up to an id, and delivers those above it again.
SEEK: Final = "seek"
# Messages that the topic had held come to a channel.
RELEASED: Final = "released"

# Kinds whose value is the number of further messages with the same event.
REPEATED: Final = frozenset(
    KINDS.index(kind)
    for kind in ("sent", "finished", "timed_out", "touched", "client_gone", "cancelled", "delivered_now")
)

CONTEXT: Final = 64
PLACE: Final = 65
CLIENT: Final = 66
CHANNELS: Final = 67

HAS_DUE: Final = 1
HAS_BODY: Final = 2
IS_STORED: Final = 4
IS_BULK: Final = 8
IS_RUN: Final = 16

EVENT_BYTES: Final = 16
ENTRY_HEADER_BYTES: Final = 8
ROWS_MAX: Final = 1 << 26
GUID_MASK: Final = (1 << 64) - 1

_BLOCK = struct.Struct("<HHIqqq")
_EVENT = struct.Struct("<BBHIQ")
_CONTEXT = struct.Struct("<BBHHHq")
_PLACE = struct.Struct("<BBB")
_CLIENT = struct.Struct("<BBH")
_CHANNELS = struct.Struct("<BBHH")
_NUMBER = struct.Struct("<q")


class Decoded(Protocol):
    """Result of both decoders: columns as buffers in Arrow's layout."""

    @property
    def rows(self) -> int: ...
    @property
    def damaged(self) -> int: ...
    @property
    def following(self) -> int: ...
    @property
    def positions(self) -> bytes: ...
    @property
    def timestamps_ns(self) -> bytes: ...
    @property
    def timestamps_us(self) -> bytes: ...
    @property
    def kinds(self) -> bytes: ...
    @property
    def guids(self) -> bytes: ...
    @property
    def id_offsets(self) -> bytes: ...
    @property
    def ids(self) -> bytes: ...
    @property
    def id_bits(self) -> bytes: ...
    @property
    def topics(self) -> list[str | None]: ...
    @property
    def topic_indexes(self) -> bytes: ...
    @property
    def channels(self) -> list[str | None]: ...
    @property
    def channel_indexes(self) -> bytes: ...
    @property
    def clients(self) -> list[str | None]: ...
    @property
    def client_indexes(self) -> bytes: ...
    @property
    def user_agents(self) -> list[str | None]: ...
    @property
    def user_agent_indexes(self) -> bytes: ...
    @property
    def reasons(self) -> list[str | None]: ...
    @property
    def reason_indexes(self) -> bytes: ...
    @property
    def attempts(self) -> bytes: ...
    @property
    def attempt_bits(self) -> bytes: ...
    @property
    def sizes(self) -> bytes: ...
    @property
    def size_bits(self) -> bytes: ...
    @property
    def dues_ns(self) -> bytes: ...
    @property
    def dues_us(self) -> bytes: ...
    @property
    def due_bits(self) -> bytes: ...
    @property
    def delays_ms(self) -> bytes: ...
    @property
    def delay_bits(self) -> bytes: ...
    @property
    def counts(self) -> bytes: ...
    @property
    def count_bits(self) -> bytes: ...
    @property
    def body_offsets(self) -> bytes: ...
    @property
    def bodies(self) -> bytes: ...
    @property
    def body_bits(self) -> bytes: ...


@dataclass(frozen=True)
class TraceColumns:
    """Columns of one answer; see `Decoded`."""

    rows: int
    damaged: int
    following: int
    positions: bytes
    timestamps_ns: bytes
    timestamps_us: bytes
    kinds: bytes
    guids: bytes
    id_offsets: bytes
    ids: bytes
    id_bits: bytes
    topics: list[str | None]
    topic_indexes: bytes
    channels: list[str | None]
    channel_indexes: bytes
    clients: list[str | None]
    client_indexes: bytes
    user_agents: list[str | None]
    user_agent_indexes: bytes
    reasons: list[str | None]
    reason_indexes: bytes
    attempts: bytes
    attempt_bits: bytes
    sizes: bytes
    size_bits: bytes
    dues_ns: bytes
    dues_us: bytes
    due_bits: bytes
    delays_ms: bytes
    delay_bits: bytes
    counts: bytes
    count_bits: bytes
    body_offsets: bytes
    bodies: bytes
    body_bits: bytes


Texts = dict[bytes, int]


def _no_text() -> Texts:
    return {b"": 0}


@dataclass
class _Rows:
    """Rows under construction, a list for each column; 0 or None where a row has no value."""

    wanted: int
    expected: int
    end: int = 0
    positions: list[int] = field(default_factory=list)
    timestamps_ns: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    guids: list[int] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)
    clients: list[tuple[int, int]] = field(default_factory=list)
    reasons: list[int] = field(default_factory=list)
    attempts: list[int | None] = field(default_factory=list)
    sizes: list[int | None] = field(default_factory=list)
    dues_ns: list[int | None] = field(default_factory=list)
    delays_ms: list[int | None] = field(default_factory=list)
    counts: list[int | None] = field(default_factory=list)
    bodies: list[bytes | None] = field(default_factory=list)
    topic_texts: Texts = field(default_factory=_no_text)
    channel_texts: Texts = field(default_factory=_no_text)
    address_texts: Texts = field(default_factory=_no_text)
    user_agent_texts: Texts = field(default_factory=_no_text)

    def add(
        self,
        position: int,
        timestamp_ns: int,
        kind: int,
        guid: int,
        place: tuple[int, int],
        client: tuple[int, int] = (0, 0),
        *,
        reason: int = 0,
        attempt: int | None = None,
        size: int | None = None,
        due_ns: int | None = None,
        delay_ms: int | None = None,
        count: int | None = None,
        body: bytes | None = None,
    ) -> None:
        """Add a row, unless its position is before the wanted one."""
        if position < self.wanted:
            return
        if len(self.positions) > ROWS_MAX:
            raise ValueError("there are too many rows to decode at once")
        self.positions.append(position)
        self.timestamps_ns.append(timestamp_ns)
        self.kinds.append(kind)
        self.guids.append(guid)
        self.places.append(place)
        self.clients.append(client)
        self.reasons.append(reason)
        self.attempts.append(attempt)
        self.sizes.append(size)
        self.dues_ns.append(due_ns)
        self.delays_ms.append(delay_ms)
        self.counts.append(count)
        self.bodies.append(body)

    def add_gap(self, first: int, dense_from: int, timestamp_ns: int) -> None:
        """Add a row for the events between the expected position and the first one of a block, if there is a gap."""
        if self.expected == 0 or first <= self.expected:
            return
        if self.expected >= dense_from:
            self.add(self.expected, timestamp_ns, LOST_EVENTS, 0, (0, 0), count=first - self.expected)
        else:
            self.add(self.expected, timestamp_ns, LOST_EVENTS, 0, (0, 0), reason=UNKNOWN_GAP)


def decode(data: bytes, expected: int, skip_damaged: bool = False) -> TraceColumns:
    """Decode the body of an answer of GET /trace/log.

    expected: position of the first row; 0: the oldest one. Rows before it are left out. skip_damaged: leave out records
    with a wrong checksum; their events are part of a gap. Raises: ValueError if a record is damaged or not of this
    format.
    """
    found, cut = spans(data)
    if cut is not None:
        raise ValueError(cut)
    rows = _Rows(expected, expected)
    damaged = 0
    for (at, header), is_sound in zip(found, checks(data, found), strict=True):
        if not is_sound:
            if not skip_damaged:
                raise ValueError(f"cannot decode the record at offset {at}: its checksum is wrong")
            damaged += 1
        elif not header[7] & LOST:
            try:
                _decode_block(data[at + HEADER_BYTES : at + HEADER_BYTES + header[0]], header[4], rows)
            except ValueError as error:
                raise ValueError(f"cannot decode the record at offset {at}: {error}") from None
    return _columns_of(rows, damaged, max(expected, rows.end))


def _entries(block: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield kind and bytes of each entry of a block. Raises: ValueError."""
    at = _BLOCK.size
    while at < len(block):
        if len(block) - at < EVENT_BYTES:
            raise ValueError("an entry is cut")
        kind, first, second = block[at], block[at + 1], int.from_bytes(block[at + 2 : at + 4], "little")
        if PUBLISHED <= kind <= EXPIRED:
            body_bytes = second if first & HAS_BODY else 0
            size = EVENT_BYTES * (1 + bool(first & HAS_DUE) + bool(first & IS_BULK)) + body_bytes
            if first & IS_RUN:
                size = (size + EVENT_BYTES - 1) & -EVENT_BYTES
                size += 4 * (1 + int.from_bytes(block[at + 4 : at + 8], "little"))
        elif kind == CONTEXT:
            size = EVENT_BYTES
        elif kind == PLACE:
            size = ENTRY_HEADER_BYTES + first + block[at + 2]
        elif kind == CLIENT:
            size = ENTRY_HEADER_BYTES + first + second
        elif kind == CHANNELS:
            size = ENTRY_HEADER_BYTES + 2 * int.from_bytes(block[at + 4 : at + 6], "little")
        else:
            raise ValueError(f"an entry is of an unknown kind, {kind}")
        span = (size + EVENT_BYTES - 1) & -EVENT_BYTES
        if span > len(block) - at:
            raise ValueError("an entry is cut")
        yield kind, block[at : at + size]
        at += span


class _Block:
    """Names and context of the block that is being decoded."""

    def __init__(self, rows: _Rows) -> None:
        self.rows = rows
        self.places: list[tuple[int, int]] = [(0, 0)]
        self.clients: list[tuple[int, int]] = [(0, 0)]
        self.sets: dict[int, list[int]] = {}
        self.place = 0
        self.client = (0, 0)
        self.timestamp_ns = 0

    def define(self, kind: int, entry: bytes) -> None:
        """Enter a definition. Raises: ValueError if it refers to a name that is not defined."""
        rows = self.rows
        if kind == PLACE:
            _, size, _ = _PLACE.unpack_from(entry)
            names = entry[ENTRY_HEADER_BYTES:]
            self.places.append(
                (_index(rows.topic_texts, names[:size]), _index(rows.channel_texts, names[size:])),
            )
        elif kind == CLIENT:
            _, size, _ = _CLIENT.unpack_from(entry)
            names = entry[ENTRY_HEADER_BYTES:]
            self.clients.append(
                (_index(rows.address_texts, names[:size]), _index(rows.user_agent_texts, names[size:])),
            )
        elif kind == CONTEXT:
            _, _, place, client, _, timestamp_ns = _CONTEXT.unpack(entry)
            self.check(place)
            if client >= len(self.clients):
                raise ValueError("an entry refers to a client that is not defined")
            self.place, self.client, self.timestamp_ns = place, self.clients[client], timestamp_ns
        else:
            _, _, place, count = _CHANNELS.unpack_from(entry)
            members = struct.unpack_from(f"<{count}H", entry, ENTRY_HEADER_BYTES)
            for member in (place, *members):
                self.check(member)
            self.sets[place] = list(members)

    def check(self, place: int) -> None:
        if not 0 < place < len(self.places):
            raise ValueError("an entry refers to a name that is not defined")

    def add_event(self, entry: bytes, position: int) -> int:
        """Add the rows of an event. Returns: position of the next one."""
        kind, flags, attempt, value, guid = _EVENT.unpack_from(entry)
        if not self.place:
            raise ValueError("an event has no context")
        if flags & ~(HAS_DUE | HAS_BODY | IS_STORED | IS_BULK | IS_RUN):
            raise ValueError("it has a later format")
        if flags & IS_RUN:
            if kind != PUBLISHED or flags & ~(IS_RUN | IS_STORED):
                raise ValueError("it has a later format")
            return self.add_run(entry, position, flags, value + 1, guid)
        at = EVENT_BYTES
        due_ns = count = body = None
        if flags & HAS_DUE:
            (due_ns,) = _NUMBER.unpack_from(entry, at)
            at += EVENT_BYTES
        if flags & IS_BULK:
            (count,) = _NUMBER.unpack_from(entry, at)
            at += EVENT_BYTES
        if flags & HAS_BODY:
            body, attempt = entry[at:], 0
        is_reason = kind not in (PUBLISHED, REQUEUED) and kind not in REPEATED and value < len(REASONS)
        message_count = value + 1 if kind in REPEATED and not flags else 1
        if message_count > ROWS_MAX:
            raise ValueError("there are too many rows to decode at once")
        for index in range(message_count):
            self.rows.add(
                position,
                self.timestamp_ns,
                kind,
                guid + index & GUID_MASK,
                self.places[self.place],
                self.client,
                reason=value if is_reason else 0,
                attempt=None if kind == PUBLISHED else attempt or None,
                size=value if kind == PUBLISHED else None,
                due_ns=due_ns,
                delay_ms=value if kind == REQUEUED else None,
                count=count,
                body=body,
            )
            position = self.add_stored(position + 1, flags, guid + index & GUID_MASK)
        return position

    def add_run(self, entry: bytes, position: int, flags: int, message_count: int, guid: int) -> int:
        """Add the rows of a run of publishes. Returns: position of the next one."""
        for index, (size,) in enumerate(struct.iter_unpack("<I", entry[EVENT_BYTES : EVENT_BYTES + 4 * message_count])):
            place = self.places[self.place]
            number = guid + index & GUID_MASK
            self.rows.add(position, self.timestamp_ns, PUBLISHED, number, place, self.client, size=size)
            position = self.add_stored(position + 1, flags, number)
        return position

    def add_stored(self, position: int, flags: int, guid: int) -> int:
        """Add the rows of the channels that have got a published message. Returns: position of the next one."""
        if flags & IS_STORED:
            for member in self.sets.get(self.place, ()):
                self.rows.add(position, self.timestamp_ns, STORED, guid, self.places[member])
                position += 1
        return position


def _decode_block(block: bytes, started_ns: int, rows: _Rows) -> None:
    """Add the rows of a block. Raises: ValueError."""
    if len(block) < _BLOCK.size:
        raise ValueError("it has a later format")
    version, _, row_count, first, dense_from, _ = _BLOCK.unpack_from(block)
    if version != VERSION:
        raise ValueError("it has a later format")
    if first < rows.end or first <= 0:
        raise ValueError("its events are some of those before it again")
    rows.add_gap(first, dense_from, started_ns)
    state = _Block(rows)
    position = first
    for kind, entry in _entries(block):
        if kind >= CONTEXT:
            state.define(kind, entry)
        else:
            position = state.add_event(entry, position)
    if position - first != row_count:
        raise ValueError("it has another number of events than its header says")
    rows.expected = max(rows.expected, position)
    rows.end = position


def _index(texts: Texts, text: bytes) -> int:
    return texts.setdefault(text, len(texts))


def _bits(present: list[bool]) -> bytes:
    """Return the bits of a column: 1 for each row with a value."""
    bits = bytearray((len(present) + 7) // 8)
    for row, is_present in enumerate(present):
        if is_present:
            bits[row >> 3] |= 1 << (row & 7)
    return bytes(bits)


def _numbers(code: str, values: list[int | None]) -> tuple[bytes, bytes]:
    """Return the buffer and the bits of a column of numbers; code: of their type, as in `array`."""
    return array(code, [value or 0 for value in values]).tobytes(), _bits([value is not None for value in values])


def _offsets(sizes: list[int]) -> bytes:
    offsets = array("i", [0])
    for size in sizes:
        offsets.append(offsets[-1] + size)
    return offsets.tobytes()


def _decoded(texts: Texts) -> list[str | None]:
    return [text.decode("utf-8", "replace") if text else None for text in texts]


def _columns_of(rows: _Rows, damaged: int, following: int) -> TraceColumns:
    """Return the buffers of the rows."""
    attempts, attempt_bits = _numbers("i", rows.attempts)
    sizes, size_bits = _numbers("i", rows.sizes)
    dues_ns, due_bits = _numbers("q", rows.dues_ns)
    delays_ms, delay_bits = _numbers("q", rows.delays_ms)
    counts, count_bits = _numbers("q", rows.counts)
    bodies = [body or b"" for body in rows.bodies]
    return TraceColumns(
        rows=len(rows.positions),
        damaged=damaged,
        following=following,
        positions=array("q", rows.positions).tobytes(),
        timestamps_ns=array("q", rows.timestamps_ns).tobytes(),
        timestamps_us=array("q", [value // MICROSECOND_NS for value in rows.timestamps_ns]).tobytes(),
        kinds=bytes(rows.kinds),
        guids=array("Q", rows.guids).tobytes(),
        id_offsets=_offsets([16 if guid else 0 for guid in rows.guids]),
        ids="".join([f"{guid:016x}" for guid in rows.guids if guid]).encode(),
        id_bits=_bits([guid != 0 for guid in rows.guids]),
        topics=_decoded(rows.topic_texts),
        topic_indexes=array("i", [topic for topic, _ in rows.places]).tobytes(),
        channels=_decoded(rows.channel_texts),
        channel_indexes=array("i", [channel for _, channel in rows.places]).tobytes(),
        clients=_decoded(rows.address_texts),
        client_indexes=array("i", [address for address, _ in rows.clients]).tobytes(),
        user_agents=_decoded(rows.user_agent_texts),
        user_agent_indexes=array("i", [agent for _, agent in rows.clients]).tobytes(),
        reasons=list(REASONS),
        reason_indexes=array("i", rows.reasons).tobytes(),
        attempts=attempts,
        attempt_bits=attempt_bits,
        sizes=sizes,
        size_bits=size_bits,
        dues_ns=dues_ns,
        dues_us=array("q", [(value or 0) // MICROSECOND_NS for value in rows.dues_ns]).tobytes(),
        due_bits=due_bits,
        delays_ms=delays_ms,
        delay_bits=delay_bits,
        counts=counts,
        count_bits=count_bits,
        body_offsets=_offsets([len(body) for body in bodies]),
        bodies=b"".join(bodies),
        body_bits=_bits([body is not None for body in rows.bodies]),
    )
