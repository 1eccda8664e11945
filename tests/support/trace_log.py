"""Log of trace events in memory, written by docs/trace.md as a broker would write it, and read like /trace/log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pyqd.hot.wire.trace_events import TraceColumns, decode
from tests.support import trace_blocks as blocks

EVENTS_OF_A_BLOCK = 1000
AT_US = 1_795_177_302_000_000
AGENT = "pyqd-client/1.0"


@dataclass
class _Block:
    """Entries of the block that is being filled."""

    first: int
    entries: list[bytes] = field(default_factory=list)
    event_count: int = 0
    places: dict[tuple[str, str], int] = field(default_factory=dict)
    clients: dict[str, int] = field(default_factory=dict)
    context: tuple[int, int, int] = (0, 0, 0)

    def place(self, topic: str, channel: str) -> int:
        """Return the number of a place, which is defined if it is new."""
        if (topic, channel) not in self.places:
            self.places[topic, channel] = len(self.places) + 1
            self.entries.append(blocks.place(topic.encode(), channel.encode()))
        return self.places[topic, channel]

    def client(self, address: str | None) -> int:
        """Return the number of a client, which is defined if it is new."""
        if address is None:
            return 0
        if address not in self.clients:
            self.clients[address] = len(self.clients) + 1
            self.entries.append(blocks.client(address.encode(), AGENT.encode()))
        return self.clients[address]


class TraceLog:
    """Events of one broker. Each is one microsecond after the one before, unless a time is given."""

    def __init__(self, events_of_a_block: int = EVENTS_OF_A_BLOCK) -> None:
        self.events_of_a_block = events_of_a_block
        self.records: list[tuple[int, bytes]] = []
        self.next = 1
        self.at_us = AT_US
        self._block = _Block(1)

    def add(
        self,
        kind: str,
        guid: int,
        topic: str = "orders",
        channel: str = "",
        *,
        client: str | None = None,
        at_us: int | None = None,
        reason: str | None = None,
        delay_ms: int = 0,
        size: int = 0,
        **values: Any,
    ) -> int:
        """Add an event and return its position. values: attempt, due_ns, count, body."""
        block = self._block
        self.at_us = self.at_us + 1 if at_us is None else at_us
        context = block.place(topic, channel), self.at_us, block.client(client)
        if context != block.context:
            block.context = context
            block.entries.append(blocks.context(context[0], 1000 * self.at_us, context[2]))
        value = size or delay_ms or (blocks.REASON[reason] if reason else 0)
        block.entries.append(blocks.event(kind, guid, value=value, **values))
        block.event_count += 1
        position = self.next
        self.next += 1
        if block.event_count == self.events_of_a_block:
            self.seal()
        return position

    def seal(self) -> None:
        block = self._block
        if block.event_count:
            body = blocks.block(block.first, block.event_count, *block.entries)
            self.records.append((block.first, blocks.record(body, seq=block.first)))
        self._block = _Block(self.next)

    def skip(self, count: int) -> None:
        """Leave out positions, as if their events had been overwritten."""
        self.seal()
        self.next += count
        self._block = _Block(self.next)

    @property
    def oldest(self) -> int:
        """Return the position of the first event that is there."""
        return self.records[0][0] if self.records else self.next

    def answer(self, position: int, bytes_max: int = 1 << 30) -> tuple[bytes, int]:
        """Return whole blocks from the one that holds a position on, and the position after them.

        There is at least one block, unless the position is the end.
        """
        self.seal()
        found: list[bytes] = []
        size, following = 0, position
        for number, (_, record) in enumerate(self.records, start=1):
            end = self.records[number][0] if number < len(self.records) else self.next
            if end > position:
                size += len(record)
                if found and size > bytes_max:
                    break
                found.append(record)
                following = end
        return b"".join(found), following

    def decoded(self, position: int = 0, bytes_max: int = 1 << 30) -> TraceColumns:
        """Return the events from a position on."""
        return decode(self.answer(position, bytes_max)[0], position, skip_damaged=True)


def add_all(log: TraceLog, events: Iterable[tuple[str, int]], attempt: int = 1) -> None:
    """Add events of one message in the channel `a`."""
    for kind, guid in events:
        log.add(kind, guid, channel="a", client="10.0.0.7:5", attempt=attempt)
