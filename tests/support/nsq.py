"""A bare client of the V2 protocol for tests: blocking sockets, one deadline for each wait, nothing hidden.

The module-level functions encode commands; a Client sends bytes and checks the expected answers. Heartbeat frames are
answered with NOP and skipped, unless a test asks to see them.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from tests.support.streams import DeflateStream, SnappyStream

MAGIC = b"  V2"
HEARTBEAT = b"_heartbeat_"
RESPONSE, ERROR, MESSAGE = 0, 1, 2
MESSAGE_HEADER = struct.Struct(">qH16s")
WAIT_S = 10.0
FENCE_TOPIC = "fence"


class Frame(NamedTuple):
    """One frame as it came: its type, and its data without the type."""

    type: int
    data: bytes


class Message(NamedTuple):
    """A delivered message; the id is 16 ASCII bytes."""

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


class Closed(Exception):  # noqa: N818 (an outcome, not an error)
    """The server closed the connection between two frames."""


def int32(value: int) -> bytes:
    """Encode a signed 32-bit size or count."""
    return struct.pack(">i", value)


def sized(body: bytes) -> bytes:
    """Return the body behind its size, as the commands with a body take it."""
    return int32(len(body)) + body


def identify(body: bytes | dict[str, object]) -> bytes:
    return b"IDENTIFY\n" + sized(body if isinstance(body, bytes) else json.dumps(body).encode())


def pub(topic: str, body: bytes) -> bytes:
    return b"PUB " + topic.encode() + b"\n" + sized(body)


def dpub(topic: str, defer_ms: int | str, body: bytes) -> bytes:
    return f"DPUB {topic} {defer_ms}\n".encode() + sized(body)


def mpub_body(bodies: Sequence[bytes], *, body_size: int | None = None, count: int | None = None) -> bytes:
    """Encode a multi-publish body; body_size and count may lie."""
    inner = int32(len(bodies) if count is None else count) + b"".join(map(sized, bodies))
    return int32(len(inner) if body_size is None else body_size) + inner


def mpub(topic: str, bodies: Sequence[bytes], *, body_size: int | None = None, count: int | None = None) -> bytes:
    return b"MPUB " + topic.encode() + b"\n" + mpub_body(bodies, body_size=body_size, count=count)


def sub(topic: str, channel: str) -> bytes:
    return f"SUB {topic} {channel}\n".encode()


def rdy(count: int) -> bytes:
    return f"RDY {count}\n".encode()


def fin(message_id: bytes) -> bytes:
    return b"FIN " + message_id + b"\n"


def req(message_id: bytes, defer_ms: int | str) -> bytes:
    return b"REQ " + message_id + f" {defer_ms}\n".encode()


def touch(message_id: bytes) -> bytes:
    return b"TOUCH " + message_id + b"\n"


def parse_message(data: bytes) -> Message:
    """Decode the data of a message frame. Source: docs/nsq/tcp-protocol.md, "Server to client framing"."""
    assert len(data) >= MESSAGE_HEADER.size, data
    timestamp_ns, attempts, message_id = MESSAGE_HEADER.unpack_from(data)
    return Message(timestamp_ns, attempts, message_id, data[MESSAGE_HEADER.size :])


class Client:
    """One connection to a server. Every read waits wait_s at most, then fails with TimeoutError."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        magic: bytes = MAGIC,
        wait_s: float = WAIT_S,
        receive_buffer_bytes: int = 0,
    ) -> None:
        self.wait_s = wait_s
        self._received = bytearray()
        self._socket: Any = socket.socket()
        if receive_buffer_bytes:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self._socket.settimeout(wait_s)
        try:
            self._socket.connect(address)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.sendall(magic)
        except OSError:
            self._socket.close()
            raise

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    @property
    def local_address(self) -> str:
        """This end's host:port, as the server names the client in /stats."""
        host, port = self._socket.getsockname()
        return f"{host}:{port}"

    def close(self) -> None:
        self._socket.close()

    def close_sending(self) -> None:
        """Half-close: the server reads end of file, this side can still read the server's answers."""
        self._socket.shutdown(socket.SHUT_WR)

    def send(self, data: bytes) -> None:
        self._socket.settimeout(self.wait_s)
        self._socket.sendall(data)

    def send_what_is_taken(self, data: bytes) -> None:
        """Send to a server that may close at any byte; that it does is not this call's business."""
        with contextlib.suppress(ConnectionError):
            self.send(data)

    def send_in_bytes(self, data: bytes) -> None:
        for index in range(len(data)):
            self.send(data[index : index + 1])

    def read_frame(self, *, heartbeats: bool = False, wait_s: float | None = None) -> Frame:
        """Read one frame.

        heartbeats: return them instead of answering them.
        Raises: Closed; TimeoutError; AssertionError when the connection ends inside a frame.
        """
        deadline_s = time.monotonic() + (self.wait_s if wait_s is None else wait_s)
        while True:
            size, frame_type = struct.unpack(">ii", self._peek(8, deadline_s))
            assert size >= 4, f"a frame says it has {size} bytes"
            data = self._peek(4 + size, deadline_s)[8:]
            del self._received[: 4 + size]
            frame = Frame(frame_type, data)
            if heartbeats or frame != (RESPONSE, HEARTBEAT):
                return frame
            self.send_what_is_taken(b"NOP\n")

    def read_message(self, *, wait_s: float | None = None) -> Message:
        frame = self.read_frame(wait_s=wait_s)
        assert frame.type == MESSAGE, frame
        return parse_message(frame.data)

    def read_messages(self, count: int) -> list[Message]:
        return [self.read_message() for _ in range(count)]

    def finish_exactly(self, count: int) -> list[Message]:
        """Read exactly so many messages and finish them. Asserts that the server sends no more messages."""
        messages = self.read_messages(count)
        for message in messages:
            self.fin(message)
        self.expect_alive()
        return messages

    def expect_response(self, data: bytes) -> None:
        assert self.read_frame() == (RESPONSE, data)

    def expect_ok(self, count: int = 1) -> None:
        for _ in range(count):
            self.expect_response(b"OK")

    def expect_error(self, code: str, text: str | bytes = "") -> None:
        """Read one frame, which must be this error to the letter."""
        description = text.encode() if isinstance(text, str) else text
        assert self.read_frame() == (ERROR, code.encode() + (b" " + description if description else b""))

    def expect_fatal(self, code: str, text: str | bytes = "") -> None:
        """Read this error, and then the end of the connection."""
        self.expect_error(code, text)
        self.expect_closed()

    def expect_closed(self) -> None:
        """Wait for the end of the connection; nothing but heartbeats may come before it."""
        try:
            frame = self.read_frame()
        except Closed:
            return
        raise AssertionError(f"a frame instead of the end of the connection: {frame}")

    def expect_alive(self) -> None:
        """Assert that the next thing the server says is the answer to a command sent now."""
        self.send(b"NOP\n" + pub(FENCE_TOPIC, b"alive"))
        self.expect_ok()

    def expect_alive_after_messages(self) -> list[Message]:
        """Assert that the server answers a command sent now. Returns: the messages that came before the answer."""
        self.send(pub(FENCE_TOPIC, b"alive"))
        messages = []
        while (frame := self.read_frame()).type == MESSAGE:
            messages.append(parse_message(frame.data))
        assert frame == (RESPONSE, b"OK")
        return messages

    def identify(self, **fields: object) -> dict[str, object]:
        """Negotiate, and return the server's reply."""
        self.send(identify({"feature_negotiation": True, **fields}))
        frame = self.read_frame()
        assert frame.type == RESPONSE, frame
        reply: dict[str, object] = json.loads(frame.data)
        return reply

    def start_tls(self, context: ssl.SSLContext) -> None:
        """Do the handshake that was granted, and read the OK that follows it."""
        assert not self._received, "the server sent more than its answer"
        self._socket.settimeout(self.wait_s)
        self._socket = context.wrap_socket(self._socket, server_hostname="127.0.0.1", do_handshake_on_connect=False)
        self._socket.do_handshake()
        self.expect_ok()

    def start_snappy(self) -> SnappyStream:
        """Read and write snappy from now on, and read the OK."""
        self._socket = stream = SnappyStream(self._socket)
        self._received[:] = stream.receive_early(bytes(self._received))
        self.expect_ok()
        return stream

    def start_deflate(self, level: int = 6) -> DeflateStream:
        """Read and write deflate from now on, and read the OK."""
        self._socket = stream = DeflateStream(self._socket, level)
        self._received[:] = stream.receive_early(bytes(self._received))
        self.expect_ok()
        return stream

    def pub(self, topic: str, body: bytes) -> None:
        self.send(pub(topic, body))
        self.expect_ok()

    def pub_each(self, topic: str, bodies: Iterable[bytes]) -> None:
        for body in bodies:
            self.pub(topic, body)

    def mpub(self, topic: str, bodies: Sequence[bytes]) -> None:
        self.send(mpub(topic, bodies))
        self.expect_ok()

    def dpub(self, topic: str, defer_ms: int | str, body: bytes) -> None:
        self.send(dpub(topic, defer_ms, body))
        self.expect_ok()

    def sub(self, topic: str, channel: str = "c", *, rdy_count: int | None = None) -> None:
        """Subscribe, and say RDY when a count is given."""
        self.send(sub(topic, channel))
        self.expect_ok()
        if rdy_count is not None:
            self.rdy(rdy_count)

    def rdy(self, count: int) -> None:
        self.send(rdy(count))

    def fin(self, message: Message) -> None:
        self.send(fin(message.id))

    def req(self, message: Message, defer_ms: int) -> None:
        self.send(req(message.id, defer_ms))

    def touch(self, message: Message) -> None:
        self.send(touch(message.id))

    def _peek(self, count: int, deadline_s: float) -> bytes:
        while len(self._received) < count:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"no whole frame in time; have {bytes(self._received[:200])!r}")
            self._socket.settimeout(left_s)
            try:
                chunk = self._socket.recv(65536)
            except (ConnectionResetError, ssl.SSLEOFError):
                raise Closed from None
            if not chunk:
                assert not self._received, f"the connection ended inside a frame: {bytes(self._received[:200])!r}"
                raise Closed
            self._received += chunk
        return bytes(self._received[:count])
