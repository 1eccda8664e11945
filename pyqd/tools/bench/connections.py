"""Connections to a server, opened and negotiated until load can begin.

This half is plain Python: it works once per connection, not per message.
"""

import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pyqd.client.core.commands import MAGIC, auth, identify, sub

Address = tuple[str, int]

# The kernel queues this many handshakes and short commands without either side having to wait for the other.
OPEN_AT_ONCE = 64
FRAME_RESPONSE = 0
ANSWER_BYTES_MAX = 1 << 20


class LoadHandshakeError(Exception):
    """The server refused a handshake."""


class ForeignError(LoadHandshakeError):
    """The server does not speak NSQ's protocol."""


@dataclass(frozen=True)
class Handshake:
    """First commands of a connection: IDENTIFY if there are fields for it, AUTH with a secret, SUB for a consumer.

    identify: fields of IDENTIFY as in the protocol; with feature_negotiation the answer is an object, else OK.
    """

    identify: Mapping[str, int | str | bool] = field(default_factory=dict)
    topic: str = ""
    channel: str = ""
    secret: str = field(default="", repr=False)

    def preamble(self) -> bytes:
        parts = [MAGIC]
        if self.identify:
            parts.append(identify(self.identify))
        if self.secret:
            parts.append(auth(self.secret))
        if self.channel:
            parts.append(sub(self.topic, self.channel))
        return b"".join(parts)

    def answer_count(self) -> int:
        return bool(self.identify) + bool(self.secret) + bool(self.channel)


class Connections:
    """A number of open sockets; a context manager that closes them."""

    def __init__(self) -> None:
        self.sockets: list[socket.socket] = []

    @classmethod
    def open(cls, address: Address, count: int, handshake: Handshake, *, timeout_s: float) -> "Connections":
        """Open count connections and finish the handshake on each.

        Raises: LoadHandshakeError for another answer than OK; OSError, TimeoutError among them.
        """
        made = cls()
        try:
            while len(made.sockets) < count:
                made.open_some(address, min(OPEN_AT_ONCE, count - len(made.sockets)), handshake, timeout_s)
        except BaseException:
            made.close()
            raise
        return made

    def open_some(self, address: Address, count: int, handshake: Handshake, timeout_s: float) -> None:
        fresh = []
        for _ in range(count):
            connection = socket.create_connection(address, timeout=timeout_s)
            self.sockets.append(connection)
            fresh.append(connection)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(handshake.preamble())
        for connection in fresh:
            for _ in range(handshake.answer_count()):
                expect_ok(connection)
            connection.setblocking(False)

    def fds(self) -> Iterator[int]:
        return (connection.fileno() for connection in self.sockets)

    def close(self) -> None:
        for connection in self.sockets:
            connection.close()

    def __len__(self) -> int:
        return len(self.sockets)

    def __enter__(self) -> "Connections":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        piece = connection.recv(size - len(received))
        if not piece:
            raise LoadHandshakeError("connection closed by the server during the handshake")
        received += piece
    return received


def expect_ok(connection: socket.socket) -> bytes:
    """Read and return one answer, OK or an object, over any heartbeat that comes first. Raises: LoadHandshakeError."""
    while True:
        head = receive_exactly(connection, 8)
        size, frame_type = struct.unpack(">ii", head)
        if not 4 <= size <= ANSWER_BYTES_MAX:
            raise ForeignError("HTTP" if head.startswith(b"HTTP") else "")
        data = receive_exactly(connection, size - 4)
        if frame_type == FRAME_RESPONSE and (data == b"OK" or data.startswith(b"{")):
            return data
        if frame_type != FRAME_RESPONSE or data != b"_heartbeat_":
            raise LoadHandshakeError(
                f"handshake answered with frame type {frame_type}: {data.decode('utf-8', 'replace')}"
            )
