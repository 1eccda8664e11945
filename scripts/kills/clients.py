"""Clients of NSQ that see single frames, know which of their commands were carried out, and live on over kills.

A consumer sends a *fence* after its commands: FIN of an id that cannot exist. The error frame for a fence confirms all
commands before it, except those that an error frame of their own has named.
"""

import contextlib
import json
import random
import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness import HOST, WAIT_S

ERROR, MESSAGE = 1, 2
READ_BYTES = 256 << 10
POLL_S = 0.05
FENCE = b"ffffffff"


def sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def identify(**settings: object) -> bytes:
    """Return the bytes of the magic and IDENTIFY."""
    return b"  V2IDENTIFY\n" + sized(json.dumps(settings).encode())


class Link:
    """One blocking connection. Answers heartbeats."""

    def __init__(self, port: int, hello: bytes) -> None:
        self.socket = socket.create_connection((HOST, port), WAIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.address = "{}:{}".format(*self.socket.getsockname())
        self._received = bytearray()
        self.send(hello)

    def send(self, data: bytes) -> None:
        """Send; to a broker that is gone nothing: the answers that it has sent before are still to be read."""
        self.socket.settimeout(WAIT_S)
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(data)

    def frames(self, timeout_s: float) -> Iterator[tuple[int, bytes]]:
        """Yield type and content of the frames of one read. Raises: OSError when the connection ends."""
        self.socket.settimeout(timeout_s)
        try:
            data = self.socket.recv(READ_BYTES)
        except TimeoutError:
            return
        if not data:
            raise ConnectionResetError("the broker has closed the connection")
        received, at = self._received, 0
        received += data
        while len(received) - at >= 8:
            size, kind = struct.unpack_from(">ii", received, at)
            if len(received) - at < 4 + size:
                break
            content = bytes(received[at + 8 : at + 4 + size])
            at += 4 + size
            if content == b"_heartbeat_":
                self.send(b"NOP\n")
            else:
                yield kind, content
        del received[:at]


class Client(ABC):
    """A client of one broker. `run`, for a thread, connects again after each end of a connection."""

    link: Link

    def __init__(self, port: int, done: threading.Event, rng: random.Random) -> None:
        self.port, self.done, self.rng = port, done, rng

    def run(self) -> None:
        while not (self.done.is_set() or self.is_over()):
            self.connect_once()
            self.done.wait(POLL_S)

    def connect_once(self) -> None:
        """Work until the connection ends."""
        try:
            self.link = Link(self.port, self.hello())
        except OSError:
            return
        with self.link.socket:
            try:
                self.serve()
            except OSError:
                self.on_break()

    def is_over(self) -> bool:
        """Return whether the client has nothing more to do."""
        return self.done.is_set()

    @abstractmethod
    def hello(self) -> bytes:
        """Return the first bytes of a connection."""

    @abstractmethod
    def serve(self) -> None:
        """Work until the connection breaks. Raises: OSError."""

    @abstractmethod
    def on_break(self) -> None:
        """Note that the broker has ended the connection."""


class Publisher(Client):
    """Publishes with up to `window` commands outstanding. `underway` has what each stands for, in order."""

    window = 1

    def __init__(self, port: int, done: threading.Event, rng: random.Random) -> None:
        super().__init__(port, done, rng)
        self.underway: deque[Any] = deque()

    def hello(self) -> bytes:
        return b"  V2"

    @abstractmethod
    def command(self) -> tuple[Any, bytes] | None:
        """Return a command and what it stands for; None: nothing to publish now."""

    @abstractmethod
    def on_ok(self, published: Any, answer: bytes) -> None:
        """Note the answer to a command."""

    def serve(self) -> None:
        while not self.is_over():
            parts = []
            while len(self.underway) < self.window and (command := self.command()):
                self.underway.append(command[0])
                parts.append(command[1])
            if parts:
                self.link.send(b"".join(parts))
            for kind, data in self.link.frames(POLL_S):
                if kind == ERROR:
                    raise AssertionError(f"a publish was answered with {data!r}")
                self.on_ok(self.underway.popleft(), data)

    def on_break(self) -> None:
        self.underway.clear()


@dataclass(eq=False)
class Delivery:
    """A message that a consumer got.

    client: its address. outcome: "finished" or "requeued" by its command; "timed_out" if that came too late.
    is_certain: the broker has confirmed the outcome. key: the message, for the consumer's own use.
    """

    message_id: str
    client: str
    attempt: int
    outcome: str = ""
    is_certain: bool = False
    key: Any = None


class Consumer(Client):
    """Consumes a channel, "TOPIC CHANNEL". `unanswered` has the answered deliveries by the fence after them."""

    settings: Mapping[str, object] = {}
    fence_every = 1

    def __init__(self, port: int, done: threading.Event, rng: random.Random, place: str, rdy: int) -> None:
        super().__init__(port, done, rng)
        self.place, self.rdy = place, rdy
        self.unanswered: deque[list[Delivery]] = deque()
        self._fence_count = 0

    def hello(self) -> bytes:
        settings = {"heartbeat_interval": 60_000, "output_buffer_timeout": 25, **self.settings}
        return identify(**settings) + b"SUB %s\nRDY %d\n" % (self.place.encode(), self.rdy)

    @abstractmethod
    def answer(self, delivery: Delivery, body: bytes) -> bytes:
        """Return the command for a message, and set its outcome. Nothing: the message is held."""

    def on_certain(self, delivery: Delivery) -> None:
        """Note that the outcome of a delivery is known."""

    def is_leaving(self) -> bool:
        """Return whether to end the connection now."""
        return False

    def serve(self) -> None:
        self.unanswered = deque([[]])
        while not self.done.is_set():
            commands = []
            for kind, data in self.link.frames(POLL_S):
                if kind == MESSAGE:
                    commands.append(self.take(data))
                elif kind == ERROR:
                    self.on_error(data)
            if self.unanswered[-1] and (len(self.unanswered[-1]) >= self.fence_every or not commands):
                self.unanswered.append([])
                self._fence_count += 1
                commands.append(b"FIN %b%08x\n" % (FENCE, self._fence_count))
            if commands:
                self.link.send(b"".join(commands))
            if self.is_leaving():
                return

    def take(self, data: bytes) -> bytes:
        """Return the command for the content of a message's frame."""
        delivery = self.delivery(data)
        command = self.answer(delivery, data[26:])
        if command:
            self.unanswered[-1].append(delivery)
        return command

    def delivery(self, data: bytes) -> Delivery:
        return Delivery(data[10:26].decode(), self.link.address, int.from_bytes(data[8:10], "big"))

    def on_error(self, data: bytes) -> None:
        """Note an error: a fence, or a command that came after the time-out."""
        name, _, message_id = data.decode().split()[:3]
        if name not in ("E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"):
            raise AssertionError(f"a consumer was answered with {data!r}")
        if message_id.startswith(FENCE.decode()):
            for delivery in self.unanswered.popleft():
                delivery.is_certain = True
                self.on_certain(delivery)
        elif name != "E_TOUCH_FAILED":
            parts = ((part, each) for part in self.unanswered for each in part)
            part, late = next((part, each) for part, each in parts if each.message_id == message_id)
            part.remove(late)
            late.outcome, late.is_certain = "timed_out", True
            self.on_certain(late)
