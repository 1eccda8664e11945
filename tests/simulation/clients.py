"""Clients of the simulated broker, over socket pairs: NSQ's frames parsed, answers passed to their callbacks."""

import contextlib
import socket
import struct
from collections import deque
from collections.abc import Callable

RESPONSE, ERROR, MESSAGE = range(3)
HEAD = struct.Struct(">ii")
MESSAGE_HEAD = struct.Struct(">qH16s")
HEARTBEAT = b"_heartbeat_"
RECEIVE_BYTES = 1 << 20

Answered = Callable[[bytes | None], None]
Delivered = Callable[["Client", int, int, bytes], None]


class Client:
    """One connection. answers: callbacks of the pending responses, in order; called with the data, or None for an
    error.
    """

    def __init__(self, number: int, sock: socket.socket, on_message: Delivered) -> None:
        self.number = number
        self.sock = sock
        self.on_message = on_message
        self.on_error: Callable[[bytes], None] = lambda data: None
        self.answers: deque[Answered] = deque()
        self.errors: list[bytes] = []
        self.closed = False
        self.reads = True
        self.channel: tuple[str, str] | None = None
        self.rdy = 0
        self.in_flight = 0
        self._held = b""

    def send(self, data: bytes) -> None:
        """Send a command. A closed connection takes nothing."""
        with contextlib.suppress(OSError):
            self.sock.sendall(data)

    def receive(self, limit: int | None = None) -> int:
        """Receive at most `limit` bytes. Returns: how many bytes."""
        received = 0
        while limit is None or received < limit:
            try:
                data = self.sock.recv(RECEIVE_BYTES if limit is None else min(RECEIVE_BYTES, limit - received))
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.closed = True
                break
            received += len(data)
            self._held += data
        self._take_frames()
        return received

    def _take_frames(self) -> None:
        held, at = self._held, 0
        while len(held) - at >= HEAD.size:
            size, kind = HEAD.unpack_from(held, at)
            if len(held) - at < 4 + size:
                break
            data = held[at + HEAD.size : at + 4 + size]
            at += 4 + size
            if kind == MESSAGE:
                _, attempts, guid = MESSAGE_HEAD.unpack_from(data)
                self.on_message(self, int(guid, 16), attempts, data[MESSAGE_HEAD.size :])
            elif kind == ERROR:
                self.errors.append(data)
            elif data == HEARTBEAT:
                self.send(b"NOP\n")
            elif self.answers:
                self.answers.popleft()(data)
        self._held = held[at:]

    def take_errors(self) -> list[bytes]:
        """Return the error frames since the last call."""
        errors, self.errors = self.errors, []
        return errors

    def close(self) -> None:
        """Hang up."""
        self.closed = True
        self.sock.close()
