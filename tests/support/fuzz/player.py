"""Player of a case against a daemon: non-blocking sockets, and a small bound on every wait.

The daemon's answers are read to find the ids of messages, and otherwise ignored: a server may refuse nonsense as it
likes. The campaign checks afterwards whether the daemon is well.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from typing import Any

from tests.support.fuzz.cases import Case, Port, Step
from tests.support.nsq import MESSAGE, MESSAGE_HEADER
from tests.support.readiness import is_readable, is_writable
from tests.support.streams import DeflateStream, SnappyStream

SEND_WAIT_S = 0.2
UPGRADE_WAIT_S = 0.15
RECEIVED_BYTES_MAX = 4 << 20
ANSWERED_MAX = 50
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Gone(Exception):  # noqa: N818 - an outcome
    """The connection is of no more use."""


class Connection:
    """One connection of a case: a socket, its layers, the received bytes."""

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext) -> None:
        self.socket = socket.create_connection(address, timeout=5)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.context = context
        self.received = bytearray()
        self.ids: list[bytes] = []
        self.secured: ssl.SSLObject | None = None
        self.compressed: Any = None
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()

    def do(self, step: Step) -> None:
        """Do one step. Raises: Gone, OSError, and whatever a decoder says of nonsense."""
        if step.kind == "send":
            self.send(step.data)
        elif step.kind == "raw":
            self.send_raw(step.data)
        elif step.kind == "answer":
            self.read()
            answered, self.ids = self.ids[:ANSWERED_MAX], []
            self.send(b"".join(step.data % message_id for message_id in answered))
        elif step.kind == "read":
            self.read()
        elif step.kind == "pause":
            time.sleep(int(step.data) / 1e3)
        elif step.kind == "half_close":
            self.socket.shutdown(socket.SHUT_WR)
        elif step.kind in ("close", "reset"):
            if step.kind == "reset":
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            raise Gone
        else:
            self.upgrade(step.kind)

    def upgrade(self, kind: str) -> None:
        """Begin a layer, after the frame that grants it has come."""
        early = self.take_frame()
        if kind == "tls":
            self.start_tls(early)
            return
        self.compressed = SnappyStream(None) if kind == "snappy" else DeflateStream(None)
        self.received += self.compressed.decode(early)

    def take_frame(self) -> bytes:
        """Wait shortly for a frame. Returns: the bytes after it, which belong to the next layer."""
        deadline_s = time.monotonic() + UPGRADE_WAIT_S
        while time.monotonic() < deadline_s:
            size = 4 + int.from_bytes(self.received[:4], "big") if len(self.received) >= 4 else 8
            if len(self.received) >= size:
                early = bytes(self.received[size:])
                self.received.clear()
                return early
            self.wait_readable(deadline_s)
            self.read()
        return b""

    def start_tls(self, early: bytes = b"") -> None:
        self._incoming.write(early)
        self.secured = self.context.wrap_bio(self._incoming, self._outgoing, server_hostname="127.0.0.1")
        deadline_s = time.monotonic() + 4 * UPGRADE_WAIT_S
        while True:
            try:
                self.secured.do_handshake()
                self.send_raw(self._outgoing.read())
                return
            except ssl.SSLWantReadError:
                self.send_raw(self._outgoing.read())
            if time.monotonic() > deadline_s:
                raise Gone
            self.wait_readable(deadline_s)
            with contextlib.suppress(BlockingIOError):
                self._incoming.write(self.receive_raw())

    def wait_readable(self, deadline_s: float) -> None:
        is_readable(self.socket, max(0.0, deadline_s - time.monotonic()))

    def receive_raw(self) -> bytes:
        data = self.socket.recv(256 << 10)
        if not data:
            raise Gone
        return data

    def send(self, data: bytes) -> None:
        if not data:
            return
        if self.compressed is not None:
            data = self.compressed.encode(data)
        if self.secured is not None:
            self.secured.write(data)
            data = self._outgoing.read()
        self.send_raw(data)

    def send_raw(self, data: bytes) -> None:
        """Send. If the socket does not take the bytes soon, the rest is dropped and the connection is unusable."""
        left = memoryview(data)
        while left:
            try:
                left = left[self.socket.send(left) :]
            except BlockingIOError:
                self.read()
                if not is_writable(self.socket, SEND_WAIT_S):
                    raise Gone from None

    def read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(64):
                self.take(self.receive_raw())
        self.find_ids()

    def take(self, data: bytes) -> None:
        if self.secured is not None:
            self._incoming.write(data)
            plain = []
            with contextlib.suppress(ssl.SSLWantReadError):
                while piece := self.secured.read(64 << 10):
                    plain.append(piece)
            data = b"".join(plain)
        if self.compressed is not None:
            data = self.compressed.decode(data)
        self.received += data
        if len(self.received) > RECEIVED_BYTES_MAX:
            self.received.clear()

    def find_ids(self) -> None:
        """Take whole message frames off the received bytes, as far as they are frames."""
        at = 0
        while len(self.received) - at >= 8:
            size, frame_type = struct.unpack_from(">ii", self.received, at)
            if frame_type != MESSAGE or not 4 <= size <= RECEIVED_BYTES_MAX:
                if not 4 <= size <= 4096 or len(self.received) - at < 4 + size or len(self.received) - at == 4 + size:
                    break
            elif len(self.received) - at < 4 + size:
                break
            else:
                self.ids.append(bytes(self.received[at + 18 : at + 8 + MESSAGE_HEADER.size]))
            at += 4 + size
        del self.received[:at]

    def close(self) -> None:
        self.socket.close()


class Player:
    """Plays cases. addresses: of the daemon's ports. context: of TLS clients."""

    def __init__(self, addresses: dict[Port, tuple[str, int]], context: ssl.SSLContext) -> None:
        self.addresses = addresses
        self.context = context

    def play(self, case: Case) -> None:
        """Do all steps of a case; a connection that breaks drops the rest of its own."""
        connections: dict[int, Connection | None] = {}
        steps = [iter(script.steps) for script in case.scripts]
        try:
            for index in case.order:
                step = next(steps[index])
                try:
                    if index not in connections:
                        connections[index] = None
                        connections[index] = self.connect(case.scripts[index].port)
                    connection = connections[index]
                    if connection is not None:
                        connection.do(step)
                except (Gone, OSError, ssl.SSLError, ValueError, AssertionError, ArithmeticError):
                    self.drop(connections, index)
                except Exception as error:
                    # The errors of the decoders of compressed streams have no common base class.
                    if type(error).__module__ not in ("zlib", "cramjam"):
                        raise
                    self.drop(connections, index)
        finally:
            for index in connections:
                self.drop(connections, index)

    def connect(self, port: Port) -> Connection:
        connection = Connection(self.addresses[port], self.context)
        if port == "https":
            try:
                connection.start_tls()
            except BaseException:
                connection.close()
                raise
        return connection

    def drop(self, connections: dict[int, Connection | None], index: int) -> None:
        connection = connections[index]
        if connection is not None:
            connection.close()
        connections[index] = None
