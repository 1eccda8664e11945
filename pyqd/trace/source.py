"""Event log of one broker, read over HTTP.

Source: docs/trace.md.
"""

from __future__ import annotations

import struct
from http import HTTPStatus
from typing import Final, NamedTuple

from pyqd.client.errors import ClientError, ProtocolError
from pyqd.client.http import HttpClient, Reply
from pyqd.fallback import records
from pyqd.hot.wire.trace_events import TraceColumns, decode

# Bytes of one answer: some 150,000 events.
POLLED_BYTES: Final = 2 << 20
# Place of a number in the header of a block.
DENSE_FROM: Final = struct.Struct("<q")
DENSE_FROM_AT: Final = 16


class NoTraceError(ClientError):
    """The broker has no event log that this program can read."""


class LogIdentity(NamedTuple):
    """Broker behind an address. log: stays the same over restarts, and is another one in a new data directory."""

    log: str
    nsqd: str


class EventPage(NamedTuple):
    """Some events of a log.

    next: position to ask for next. end: position after the newest event that the broker has.
    """

    log: str
    events: TraceColumns
    next: int
    end: int


class TraceSource:
    """Event log of the broker that a client is connected to. All methods raise ClientError."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self.address = client.address

    def close(self) -> None:
        self._client.close()

    def identity(self) -> LogIdentity:
        info = self._client.json("/info")
        try:
            nsqd = f"{info['broadcast_address']}:{info['http_port']}"
        except (KeyError, TypeError):
            raise ProtocolError(f"{self.address}: /info is not the answer of a broker") from None
        reply = self._get(position=0, max_bytes=1)
        return LogIdentity(self._header(reply, "x-pyqd-node"), nsqd)

    def read(self, expected: int, position: int, wait_ms: int) -> EventPage:
        """Return events.

        expected: position of the first one that the reader does not have; 0: it has none. position: to ask for; behind
        `expected` if the blocks in between are damaged, which becomes a gap before the next events. wait_ms: longest
        wait for the first event, if there is none yet.
        """
        reply = self._get(position=position, max_bytes=POLLED_BYTES, wait_ms=wait_ms)
        try:
            # Events that were overwritten before the first request are a gap too.
            events = decode(reply.body, expected or first_given(reply.body), True)
        except ValueError as error:
            raise NoTraceError(f"{self.address}: cannot read the event log: {error}; is the broker newer?") from None
        following, end = (self._number(reply, name) for name in ("x-pyqd-next", "x-pyqd-end"))
        return EventPage(self._header(reply, "x-pyqd-node"), events, following, end)

    def _get(self, **query: int) -> Reply:
        reply = self._client.request("GET", "/trace/log", query, retry=False)
        if reply.status == HTTPStatus.OK:
            return reply
        if reply.status == HTTPStatus.NOT_FOUND:
            raise NoTraceError(f"{self.address}: the broker has no event log: it is nsqd, or an older pyqd")
        raise self._client.refusal("/trace/log", query, reply)

    def _header(self, reply: Reply, name: str) -> str:
        try:
            return reply.headers[name]
        except KeyError:
            raise ProtocolError(f"{self.address}: /trace/log: the answer has no header {name}") from None

    def _number(self, reply: Reply, name: str) -> int:
        text = self._header(reply, name)
        try:
            return int(text)
        except ValueError:
            raise ProtocolError(f"{self.address}: /trace/log: the header {name} is no number: {text!r}") from None


def first_given(data: bytes) -> int:
    """Return the position of the oldest event known to have been before those of an answer; 0 if it is unknown.

    All positions from there to the first event in the answer were given to events.
    """
    try:
        record = next(records.decode(data), None)
    except ValueError:
        # The first block is damaged, and with it the number.
        return 0
    if record is None or len(record.body) < DENSE_FROM_AT + DENSE_FROM.size:
        return 0
    return int(DENSE_FROM.unpack_from(record.body, DENSE_FROM_AT)[0])
