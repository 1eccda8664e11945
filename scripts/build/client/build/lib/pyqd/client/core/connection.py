"""State machine of one connection to a broker, without I/O: received bytes in, events out; commands in, bytes out.

    IDENTIFYING --(TLS, compression granted)--> UPGRADING --(auth_required)--> AUTHENTICATING --> READY --> CLOSED

The upgrades are layers around the frames. A broker that compresses sends the first compressed bytes right behind its
answer to IDENTIFY, perhaps in one packet. Until the connection is ready, frames are therefore cut off one at a time,
and the remaining bytes belong to the next layer.

Source: docs/nsq/tcp-protocol.md, "IDENTIFY" and "Upgrades"; the style is that of h11.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyqd.client.core import commands
from pyqd.client.core.layers import DeflateLayer, Layer, SnappyLayer, TlsLayer
from pyqd.client.errors import AuthenticationError, ProtocolError, RefusedError, TlsError, refusal

if TYPE_CHECKING:
    from pyqd.fallback.client_frames import FrameSplitter
else:
    try:
        from pyqd.hot.wire.client_frames import FrameSplitter
    except ImportError:  # For a copy of the Python modules without the compiled ones.
        from pyqd.fallback.client_frames import FrameSplitter

RESPONSE, ERROR, MESSAGE = 0, 1, 2
HEARTBEAT: Final = b"_heartbeat_"
CLOSE_WAIT: Final = b"CLOSE_WAIT"
OK: Final = b"OK"
FRAME_BYTES_MAX: Final = 1 << 30
# Answers to IDENTIFY and AUTH; a longer one is not NSQ's.
ANSWER_BYTES_MAX: Final = 1 << 20
# Numbers in the answer to IDENTIFY that the client works with, and their limits.
NUMBERS: Final = {"max_rdy_count": (1, 1 << 62), "msg_timeout": (1, 1 << 40), "deflate_level": (0, 9)}
# Beginnings of the answers of other servers than brokers, no longer than the bytes that _next_answer() judges.
STRANGERS: Final = {
    b"HTTP": "this is an HTTP port; give the broker's TCP port, 4150 by default",
    b"\x00\x00\x00\x0eE_BA": "this is a lookup daemon; give lookupd='host:4161', or a broker's address",
    b"\x15\x03": "this is a port for TLS only; TLS of NSQ begins on the broker's TCP port, 4150 by default",
}
# Fields of the answer of a broker that knows no feature negotiation.
OLD_BROKER: Final = {"max_rdy_count": 2500, "msg_timeout": 60_000}


class Ready(NamedTuple):
    """The connection is set up. info: the broker's answer to IDENTIFY."""

    info: Mapping[str, Any]


class Messages(NamedTuple):
    """Messages that arrived, as tuples: (MESSAGE, timestamp_ns, attempts, id, body)."""

    frames: list[tuple[Any, ...]]


class CommandAnswer(NamedTuple):
    """Answer to the oldest command that has an answer."""

    data: bytes


class Refusal(NamedTuple):
    """Error frame. The broker closes the connection after most of them."""

    data: bytes


class CloseWait(NamedTuple):
    """The broker sends no more messages; those in flight may still be answered."""


Event = Ready | Messages | CommandAnswer | Refusal | CloseWait


class CoreState(enum.Enum):
    IDENTIFYING = enum.auto()
    UPGRADING = enum.auto()
    AUTHENTICATING = enum.auto()
    READY = enum.auto()
    CLOSED = enum.auto()


class ConnectionCore:
    """One connection, from magic to the last frame.

    identity: fields of IDENTIFY. new_tls: makes the TLS layer, if TLS is wanted. broker: its address, for error texts.
    """

    def __init__(
        self,
        identity: Mapping[str, object],
        *,
        new_tls: Callable[[], TlsLayer] | None = None,
        auth_secret: str | None = None,
        broker: str = "",
    ) -> None:
        self.state = CoreState.IDENTIFYING
        self.info: Mapping[str, Any] = {}
        self.broker = broker
        # Whether commands are sent as they are, without a layer around them.
        self.is_plain = new_tls is None
        self._identity = identity
        self._new_tls = new_tls
        self._auth_secret = auth_secret
        self._tls: TlsLayer | None = None
        self._compression: Layer | None = None
        # Upgrades that are granted and not made yet, in their order.
        self._upgrades: list[str] = []
        self._owes_nop = False
        self._head = bytearray()
        # Returns the frames that are complete now, in order: (RESPONSE, data), (ERROR, data) or (MESSAGE, timestamp_ns,
        # attempts, id, body). An incomplete one is kept.
        self._feed = FrameSplitter(FRAME_BYTES_MAX, ProtocolError).feed
        # Commands whose bytes take_output() returns.
        self.queued: list[bytes] = [commands.MAGIC, commands.identify(identity)]

    @property
    def is_ready(self) -> bool:
        return self.state is CoreState.READY

    @property
    def gives_ids(self) -> bool:
        """True if the broker returns the ids of published messages and knows DMPUB."""
        return self.info.get("message_ids") is True

    def send(self, command: bytes) -> int:
        """Queue a command, whose bytes take_output() returns; return the number of queued commands."""
        self.queued.append(command)
        return len(self.queued)

    def take_output(self) -> bytes:
        """Return the bytes to send now; empty if there are none. Raises: ProtocolError, TlsError."""
        data = b""
        if self.queued:
            data = self.queued[0] if len(self.queued) == 1 else b"".join(self.queued)
            self.queued.clear()
            if self._compression is not None:
                data = self._compression.send(data)
        if self._tls is not None:
            if data and not self._tls.is_established:
                raise ProtocolError(f"{self.broker}: a command was queued in the middle of the TLS handshake")
            sealed = self._tls.send(data) if data else b""
            return self._tls.take_output() + sealed
        return data

    def receive(self, data: bytes) -> list[Event]:
        """Return the events of received bytes. Raises: ProtocolError, TlsError, RefusedError, AuthenticationError."""
        if self._tls is not None:
            data = self._tls.receive(data)
        if self.state is not CoreState.READY:
            return self._set_up(data)
        if self._compression is not None:
            data = self._compression.receive(data)
        frames = self._feed(data)
        if frames and frames[0][0] == MESSAGE and all(frame[0] == MESSAGE for frame in frames):
            return [Messages(frames)]
        return self._mixed_events(frames)

    def _mixed_events(self, frames: list[tuple[Any, ...]]) -> list[Event]:
        events: list[Event] = []
        messages: list[tuple[Any, ...]] = []
        for frame in frames:
            kind = frame[0]
            if kind == MESSAGE:
                messages.append(frame)
                continue
            if messages:
                events.append(Messages(messages))
                messages = []
            data = frame[1]
            if kind == ERROR:
                events.append(Refusal(data))
            elif data == HEARTBEAT:
                self.queued.append(commands.NOP)
            elif data == CLOSE_WAIT:
                events.append(CloseWait())
            else:
                # As CommandAnswer(data), without its function in Python.
                events.append(tuple.__new__(CommandAnswer, (data,)))
        if messages:
            events.append(Messages(messages))
        return events

    def _set_up(self, data: bytes) -> list[Event]:
        """Consume answers up to the one that makes the connection ready, and the events behind it."""
        self._feed_head(data)
        while self.state is not CoreState.READY:
            if self._tls is not None and not self._tls.is_established:
                return []
            frame = self._next_answer()
            if frame is None:
                return []
            self._answer(*frame)
        rest = bytes(self._head)
        self._head.clear()
        frames = self._feed(rest) if rest else []
        return [Ready(self.info), *self._mixed_events(frames)]

    def _feed_head(self, data: bytes) -> None:
        """Add bytes of the present layer to those that wait to be cut into answers."""
        if data:
            self._head += data if self._compression is None else self._compression.receive(data)

    def _next_answer(self) -> tuple[int, bytes] | None:
        """Cut off one frame; None if it is incomplete."""
        head = self._head
        if len(head) < 4:
            return None
        size = int.from_bytes(head[:4], "big", signed=True)
        kind = int.from_bytes(head[4:8], "big", signed=True)
        # The size is judged alone, because another server may send less than a frame, and close.
        if not 4 <= size <= ANSWER_BYTES_MAX or (len(head) >= 8 and kind not in (RESPONSE, ERROR)):
            hints = (hint for beginning, hint in STRANGERS.items() if head.startswith(beginning))
            hint = next(hints, "is this NSQ's TCP port?")
            raise ProtocolError(f"{self.broker}: {bytes(head[:16])!r} instead of an answer to IDENTIFY: {hint}")
        if len(head) < 4 + size:
            return None
        data = bytes(head[8 : 4 + size])
        del head[: 4 + size]
        return kind, data

    def _answer(self, kind: int, data: bytes) -> None:
        """Go on with the set-up after an answer."""
        doing = {CoreState.IDENTIFYING: "IDENTIFY", CoreState.AUTHENTICATING: "AUTH"}.get(self.state, "upgrade")
        if kind == ERROR:
            self.state = CoreState.CLOSED
            raise refusal(data, self.broker, doing)
        if data == HEARTBEAT:
            if self.state is CoreState.AUTHENTICATING:
                self.queued.append(commands.NOP)
            else:
                # A broker makes all upgrades right behind IDENTIFY, so that it would read a plain NOP as their bytes.
                self._owes_nop = True
            return
        if self.state is CoreState.IDENTIFYING:
            self._take_info(data)
        elif self.state is CoreState.UPGRADING:
            if data != OK:
                raise ProtocolError(f"{self.broker}: {data[:100]!r} instead of OK after an upgrade")
            self._upgrade()
        elif self.state is CoreState.AUTHENTICATING:
            self.state = CoreState.READY

    def _take_info(self, data: bytes) -> None:
        """Read the answer to IDENTIFY and begin the granted upgrades."""
        if data == OK:
            self.info = OLD_BROKER
        else:
            try:
                self.info = dict(json.loads(data))
            except (ValueError, TypeError, RecursionError):
                raise ProtocolError(f"{self.broker}: {data[:100]!r} instead of JSON; is this NSQ's TCP port?") from None
        for name, (least, most) in NUMBERS.items():
            value = self.info.get(name)
            if value is not None and (type(value) is not int or not least <= value <= most):
                raise ProtocolError(f"{self.broker}: {name} is {value!r} in the answer to IDENTIFY")
        if self._new_tls is not None and not self.info.get("tls_v1"):
            raise TlsError(f"{self.broker}: the broker offers no TLS on its TCP port")
        for name in ("snappy", "deflate"):
            if self._identity.get(name) and not self.info.get(name):
                raise RefusedError(f"the broker offers no {name}", self.broker, "IDENTIFY")
        wanted = ["tls"] if self._new_tls is not None else []
        self._upgrades = wanted + [name for name in ("deflate", "snappy") if self._identity.get(name)]
        self.state = CoreState.UPGRADING
        self._upgrade()

    def _upgrade(self) -> None:
        """Put the next granted layer around the connection; without one, authenticate or be ready."""
        if not self._upgrades:
            self._authenticate()
            return
        rest = bytes(self._head)
        self._head.clear()
        match self._upgrades.pop(0):
            case "tls":
                assert self._new_tls is not None
                self._tls = self._new_tls()
                self._tls.start()
                rest = self._tls.receive(rest) if rest else b""
            case "snappy":
                self._compression = SnappyLayer()
                self.is_plain = False
            case _:
                self.is_plain = False
                self._compression = DeflateLayer(int(self.info.get("deflate_level") or 6))
        self._feed_head(rest)

    def _authenticate(self) -> None:
        if self._owes_nop:
            self._owes_nop = False
            self.queued.append(commands.NOP)
        if not self.info.get("auth_required"):
            self.state = CoreState.READY
            return
        if self._auth_secret is None:
            self.state = CoreState.CLOSED
            raise AuthenticationError("the broker requires a secret: give auth_secret=", self.broker, "AUTH")
        self.state = CoreState.AUTHENTICATING
        self.queued.append(commands.auth(self._auth_secret))
