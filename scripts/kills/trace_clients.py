"""Clients that keep a record of everything they did, for scripts/kills/trace_exactness.py.

A consumer knows the outcome of each delivery: it chose the command, and an error frame names a message whose command
came too late. From time to time it sends a *fence*, a FIN of no message. The error frame for it confirms all commands
before. If the broker is killed, the commands after the last fence are uncertain, and so are held messages.
"""

import json
import random
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from harness import ERROR, MESSAGE, Link, identify, sized

from pyqd.testing import BrokerError, BrokerProcess

TOPIC = "numbers"
DEAD_TOPIC = "numbers_dead"
CHANNELS = ("a", "b")
ATTEMPTS_MAX = 4
POLL_S = 0.05
WAIT_S = 60.0
# Publishes without an answer yet.
WINDOW = 200
RDY = 100
FENCE_EVERY = 50
# A holder's messages time out often. A leaver's never do while it is connected.
HOLDER_TIMEOUT_MS, LEAVER_TIMEOUT_MS = 1_000, 5_000
LEAVE_AFTER_MAX = 1_500
# Nobody waits so long: the message is cancelled.
LATER_MS = 3_600_000
# What becomes of a message depends on its number modulo 100.
POISON, REQUEUED, DELAYED, HELD, TOUCHED, CALLED_BACK, NEVER_SENT = 0, (1, 2), (3, 4), 5, 6, 7, 8


def body_of(number: int) -> bytes:
    """Return the message with a number."""
    return b"%09d%s" % (number, b"x" * (number % 300))


def number_of(body: bytes) -> int:
    return int(body[:9])


@dataclass(eq=False)
class Delivery:
    """A message that a consumer got. outcome: expected. is_certain: the broker has confirmed it."""

    nsqd: str
    channel: str
    message_id: str
    client: str
    attempt: int
    outcome: str = ""
    is_certain: bool = False


@dataclass(frozen=True)
class Publication:
    """A message whose publishing was confirmed."""

    nsqd: str
    message_id: str
    client: str
    number: int


class Record:
    """Record of all clients. Appending to a list needs no lock.

    uncertain: brokers and numbers of interrupted publishes; cancelled: brokers, channels and ids; broken: brokers and
    local addresses of connections that ended by a kill.
    """

    def __init__(self) -> None:
        self.publications: list[Publication] = []
        self.deliveries: list[Delivery] = []
        self.uncertain: list[tuple[str, int]] = []
        self.cancelled: list[tuple[str, str, str]] = []
        self.broken: list[tuple[str, str]] = []


class Client(ABC):
    """A client that is connected to one broker, and again after each kill. `run` is for a thread."""

    def __init__(self, broker: BrokerProcess, record: Record, done: threading.Event, seed: int) -> None:
        self.broker, self.record, self.done = broker, record, done
        self.nsqd = broker.http_address
        self.rng = random.Random(seed)

    def run(self) -> None:
        while not self.done.is_set() and not self.is_over():
            address = ""
            try:
                self.link = Link(self.broker.tcp_port, self.hello())
                address = self.link.address
                with self.link.socket:
                    self.serve()
            except OSError:
                if address:
                    self.record.broken.append((self.nsqd, address))
                self.on_break()
                self.done.wait(POLL_S)

    def is_over(self) -> bool:
        """Return whether the client has nothing more to do."""
        return False

    @abstractmethod
    def hello(self) -> bytes:
        """Return the first bytes of a connection."""

    @abstractmethod
    def serve(self) -> None:
        """Work until the connection breaks. Raises: OSError."""

    def on_break(self) -> None:  # noqa: B027
        """Note that a kill has ended the connection."""

    def frames(self) -> Iterator[tuple[int, bytes]]:
        return self.link.frames(POLL_S)

    def http(self, path: str, **query: object) -> dict[str, Any]:
        """POST, again after each kill of the broker; `is_repeated` of the result tells."""
        deadline_s = time.monotonic() + WAIT_S
        is_repeated = False
        while True:
            try:
                found: dict[str, Any] = json.loads(self.broker.request("POST", path, None, **query))
                return {**found, "is_repeated": is_repeated}
            except (BrokerError, OSError, ValueError):
                if time.monotonic() > deadline_s:
                    raise
                is_repeated = True
                time.sleep(POLL_S)

    def cancel(self, message_id: str, **query: object) -> None:
        """Cancel a message and note the channels that it was cancelled in."""
        answer = self.http("/message/cancel", topic=TOPIC, id=message_id, **query)
        for result in answer["results"]:
            # A kill between the act and its answer.
            if result["status"] == "done" or (answer["is_repeated"] and result["status"] == "finished"):
                self.record.cancelled.append((self.nsqd, result["channel"], message_id))


class Publisher(Client):
    """Publishes numbers, and cancels some that are due later. limit: how many messages may be published by now."""

    def __init__(
        self,
        broker: BrokerProcess,
        record: Record,
        done: threading.Event,
        seed: int,
        count: int,
        limit: Callable[[], int],
    ) -> None:
        super().__init__(broker, record, done, seed)
        self.confirmed = 0
        self._count, self._limit = count, limit
        self._next = seed * 10_000_000
        self._underway: deque[int] = deque()

    def is_over(self) -> bool:
        return self.confirmed >= self._count

    def hello(self) -> bytes:
        return identify(feature_negotiation=True, heartbeat_interval=60_000, message_ids=True, user_agent="numbers/1")

    def serve(self) -> None:
        is_known = False
        while not self.done.is_set() and not self.is_over():
            if is_known:
                self._publish()
            for kind, data in self.frames():
                assert kind != ERROR, data
                if not is_known:
                    is_known = True
                else:
                    self._note(data)

    def _publish(self) -> None:
        room = min(WINDOW, self._limit() - self.confirmed, self._count - self.confirmed) - len(self._underway)
        parts = []
        for _ in range(room):
            number, self._next = self._next, self._next + 1
            body = body_of(number)
            head = b"DPUB %s %d\n" % (TOPIC.encode(), LATER_MS) if number % 100 == NEVER_SENT else b"PUB numbers\n"
            parts.append(head + sized(body))
            self._underway.append(number)
        if parts:
            self.link.send(b"".join(parts))

    def _note(self, data: bytes) -> None:
        assert data.startswith(b"OK "), data
        number, message_id = self._underway.popleft(), data[3:].decode()
        self.record.publications.append(Publication(self.nsqd, message_id, self.link.address, number))
        self.confirmed += 1
        if number % 100 == NEVER_SENT:
            self.cancel(message_id)

    def on_break(self) -> None:
        self.record.uncertain += [(self.nsqd, number) for number in self._underway]
        self._underway.clear()


class Consumer(Client):
    """Consumer of one channel. leaves: disconnects now and then with messages in flight, and holds none otherwise."""

    def __init__(
        self, broker: BrokerProcess, record: Record, done: threading.Event, seed: int, channel: str, leaves: bool
    ) -> None:
        super().__init__(broker, record, done, seed)
        self.channel, self.leaves = channel, leaves
        # Deliveries that were answered since the fences that the broker has not answered yet.
        self._answered: deque[list[Delivery]] = deque()
        self._fence_count = self._confirmed_count = 0
        self._called_back: deque[Delivery] = deque()
        self._held: list[Delivery] = []

    def hello(self) -> bytes:
        timeout_ms = LEAVER_TIMEOUT_MS if self.leaves else HOLDER_TIMEOUT_MS
        settings = {"msg_timeout": timeout_ms, "user_agent": "counter/1", "output_buffer_timeout": 25}
        hello = identify(feature_negotiation=True, heartbeat_interval=60_000, **settings)
        return hello + b"SUB numbers %s\nRDY %d\n" % (self.channel.encode(), RDY)

    def serve(self) -> None:
        self._answered = deque([[]])
        self._called_back.clear()
        self._held.clear()
        count, leave_after = 0, self.rng.randint(50, LEAVE_AFTER_MAX)
        while not self.done.is_set():
            commands = []
            for kind, data in self.frames():
                if kind == MESSAGE:
                    commands.append(self._act(data))
                    count += 1
                elif kind == ERROR:
                    self._refused(data)
            if commands or len(self._answered[-1]):
                commands.append(self._fence(len(self._answered[-1]) >= FENCE_EVERY or not commands))
                self.link.send(b"".join(commands))
            while self._called_back and self._called_back[0].is_certain:
                self._call_back(self._called_back.popleft())
            if self.leaves and count >= leave_after:
                self._leave()
                return

    def _delivery(self, data: bytes) -> tuple[Delivery, int]:
        _, attempt = struct.unpack_from(">qH", data)
        delivery = Delivery(self.nsqd, self.channel, data[10:26].decode(), self.link.address, attempt)
        self.record.deliveries.append(delivery)
        return delivery, number_of(data[26:])

    def _act(self, data: bytes) -> bytes:
        """Return the command for a message."""
        delivery, number = self._delivery(data)
        message_id, lot, is_first = delivery.message_id.encode(), number % 100, delivery.attempt == 1
        if lot == HELD and is_first and not self.leaves:
            delivery.outcome = "timed_out"
            self._held.append(delivery)
            return b""
        self._answered[-1].append(delivery)
        delivery.outcome = "requeued"
        if lot == POISON or (is_first and (lot in REQUEUED or lot == HELD)):
            return b"REQ %s 0\n" % message_id
        if is_first and lot in DELAYED:
            return b"REQ %s %d\n" % (message_id, self.rng.randint(1, 300))
        if is_first and lot == CALLED_BACK:
            self._called_back.append(delivery)
            return b"REQ %s %d\n" % (message_id, LATER_MS)
        delivery.outcome = "finished"
        return (b"TOUCH %s\n" % message_id if lot == TOUCHED else b"") + b"FIN %s\n" % message_id

    def _fence(self, is_due: bool) -> bytes:
        if not is_due:
            return b""
        self._answered.append([])
        self._fence_count += 1
        return b"FIN ffffffff%08x\n" % (self._fence_count & 0xFFFFFFFF)

    def _refused(self, data: bytes) -> None:
        """Note an error: a fence, or a command that came after the timeout."""
        words = data.split()
        assert words[0] in (b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED"), data
        message_id = words[2].decode()
        if message_id.startswith("ffffffff"):
            for delivery in self._answered.popleft():
                delivery.is_certain = True
        elif words[0] != b"E_TOUCH_FAILED":
            part, late = next((part, each) for part in self._answered for each in part if each.message_id == message_id)
            part.remove(late)
            late.outcome, late.is_certain = "timed_out", True

    def _call_back(self, delivery: Delivery) -> None:
        if delivery.outcome == "requeued" and delivery.attempt < ATTEMPTS_MAX:
            self.cancel(delivery.message_id, channel=self.channel)

    def _leave(self) -> None:
        """Disconnect with some messages in flight, after all commands before have been carried out."""
        self.link.send(b"CLS\n")
        left = []
        deadline_s = time.monotonic() + WAIT_S
        is_over = False
        while not is_over:
            assert time.monotonic() < deadline_s, "no answer to CLS"
            for kind, data in self.frames():
                if kind == MESSAGE:
                    left.append(self._delivery(data)[0])
                elif kind == ERROR:
                    self._refused(data)
                else:
                    is_over = data == b"CLOSE_WAIT"
        for delivery in left:
            delivery.outcome, delivery.is_certain = "disconnected", True
        for part in self._answered:
            for delivery in part:
                delivery.is_certain = True
        while self._called_back:
            self._call_back(self._called_back.popleft())

    def finish(self) -> None:
        """Note that the broker has nothing in flight any more: all is carried out, and held messages have timed out."""
        for delivery in (*self._held, *(delivery for part in self._answered for delivery in part)):
            delivery.is_certain = True
