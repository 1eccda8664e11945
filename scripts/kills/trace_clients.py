"""Clients that keep a record of everything they did, for scripts/kills/trace_exactness.py.

If a broker is killed, the commands after the last confirmed fence are uncertain, and so are held messages.
"""

import json
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from clients import ERROR, MESSAGE, POLL_S, Consumer, Delivery, Publisher, identify, sized

from pyqd.testing import BrokerError, BrokerProcess

TOPIC = "numbers"
DEAD_TOPIC = "numbers_dead"
CHANNELS = ("a", "b")
ATTEMPTS_MAX = 4
WAIT_S = 60.0
RDY = 100
# A holder's messages time out often. A leaver's never do while it is connected.
HOLDER_TIMEOUT_MS, LEAVER_TIMEOUT_MS = 1_000, 5_000
LEAVE_AFTER_MAX = 1_500
# Nobody waits so long: the message is cancelled.
LATER_MS = 3_600_000
# What becomes of a message depends on its number modulo 100.
POISON, REQUEUED, DELAYED, HELD, TOUCHED, CALLED_BACK, NEVER_SENT = 0, (1, 2), (3, 4), 5, 6, 7, 8
# Broker, channel and id of a message.
Place = tuple[str, str, str]


def body_of(number: int) -> bytes:
    """Return the message with a number."""
    return b"%09d%s" % (number, b"x" * (number % 300))


def number_of(body: bytes) -> int:
    return int(body[:9])


@dataclass(frozen=True)
class Publication:
    """A message whose publishing was confirmed."""

    nsqd: str
    message_id: str
    client: str
    number: int


class Record:
    """Record of all clients. Appending to a list needs no lock.

    deliveries: each has its Place as its key. uncertain: brokers and numbers of interrupted publishes; cancelled:
    messages; broken: brokers and local addresses of connections that ended by a kill.
    """

    def __init__(self) -> None:
        self.publications: list[Publication] = []
        self.deliveries: list[Delivery] = []
        self.uncertain: list[tuple[str, int]] = []
        self.cancelled: list[Place] = []
        self.broken: list[tuple[str, str]] = []

    def cancel(self, broker: BrokerProcess, message_id: str, **query: object) -> None:
        """Cancel a message, over kills of the broker, and note the channels that it was cancelled in."""
        deadline_s = time.monotonic() + WAIT_S
        is_repeated = False
        while True:
            try:
                answer = json.loads(broker.request("POST", "/message/cancel", topic=TOPIC, id=message_id, **query))
                break
            except (BrokerError, OSError, ValueError):
                if time.monotonic() > deadline_s:
                    raise
                is_repeated = True
                time.sleep(POLL_S)
        for result in answer["results"]:
            # A kill between the act and its answer.
            if result["status"] == "done" or (is_repeated and result["status"] == "finished"):
                self.cancelled.append((broker.http_address, result["channel"], message_id))


class Numbers(Publisher):
    """Publishes numbers, and cancels some that are due later. limit: how many messages may be published by now."""

    window = 200

    def __init__(
        self, broker: BrokerProcess, record: Record, done: threading.Event, seed: int, limit: Callable[[], int]
    ) -> None:
        super().__init__(broker.tcp_port, done, random.Random(seed))
        self.broker, self.record, self.limit = broker, record, limit
        self.confirmed = 0
        self._next = seed * 10_000_000

    def hello(self) -> bytes:
        # IDENTIFY has an answer, too.
        self.underway = deque([None])
        return identify(feature_negotiation=True, heartbeat_interval=60_000, message_ids=True, user_agent="numbers/1")

    def command(self) -> tuple[int, bytes] | None:
        if self.confirmed + len(self.underway) >= self.limit():
            return None
        number, self._next = self._next, self._next + 1
        head = b"DPUB %s %d\n" % (TOPIC.encode(), LATER_MS) if number % 100 == NEVER_SENT else b"PUB numbers\n"
        return number, head + sized(body_of(number))

    def on_ok(self, published: int | None, answer: bytes) -> None:
        if published is None:
            return
        assert answer.startswith(b"OK "), answer
        message_id = answer[3:].decode()
        self.record.publications.append(Publication(self.broker.http_address, message_id, self.link.address, published))
        self.confirmed += 1
        if published % 100 == NEVER_SENT:
            self.record.cancel(self.broker, message_id)

    def on_break(self) -> None:
        nsqd = self.broker.http_address
        self.record.broken.append((nsqd, self.link.address))
        self.record.uncertain += [(nsqd, number) for number in self.underway if number is not None]
        super().on_break()


class Counting(Consumer):
    """Consumer of one channel. leaves: disconnects now and then with messages in flight, and holds none otherwise."""

    fence_every = 50

    def __init__(
        self, broker: BrokerProcess, record: Record, done: threading.Event, seed: int, channel: str, leaves: bool
    ) -> None:
        super().__init__(broker.tcp_port, done, random.Random(seed), f"{TOPIC} {channel}", RDY)
        self.broker, self.record, self.channel, self.leaves = broker, record, channel, leaves
        timeout_ms = LEAVER_TIMEOUT_MS if leaves else HOLDER_TIMEOUT_MS
        self.settings = {"feature_negotiation": True, "msg_timeout": timeout_ms, "user_agent": "counter/1"}
        self._called_back: deque[Delivery] = deque()
        self._held: list[Delivery] = []
        self._left = 0

    def serve(self) -> None:
        self._called_back.clear()
        self._held.clear()
        self._left = self.rng.randint(50, LEAVE_AFTER_MAX)
        super().serve()

    def _record(self, delivery: Delivery) -> None:
        delivery.key = self.broker.http_address, self.channel, delivery.message_id
        self.record.deliveries.append(delivery)

    def answer(self, delivery: Delivery, body: bytes) -> bytes:
        self._record(delivery)
        self._left -= 1
        message_id, lot, is_first = delivery.message_id.encode(), number_of(body) % 100, delivery.attempt == 1
        if lot == HELD and is_first and not self.leaves:
            delivery.outcome = "timed_out"
            self._held.append(delivery)
            return b""
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

    def _call_back(self) -> None:
        while self._called_back and self._called_back[0].is_certain:
            delivery = self._called_back.popleft()
            if delivery.outcome == "requeued" and delivery.attempt < ATTEMPTS_MAX:
                self.record.cancel(self.broker, delivery.message_id, channel=self.channel)

    def is_leaving(self) -> bool:
        self._call_back()
        if not self.leaves or self._left > 0:
            return False
        self._leave()
        return True

    def _leave(self) -> None:
        """Disconnect with some messages in flight, after all commands before have been carried out."""
        self.link.send(b"CLS\n")
        left: list[Delivery] = []
        deadline_s = time.monotonic() + WAIT_S
        is_over = False
        while not is_over:
            assert time.monotonic() < deadline_s, "no answer to CLS"
            for kind, data in self.link.frames(POLL_S):
                if kind == MESSAGE:
                    left.append(self.delivery(data))
                    self._record(left[-1])
                elif kind == ERROR:
                    self.on_error(data)
                else:
                    is_over = data == b"CLOSE_WAIT"
        for delivery in left:
            delivery.outcome = "disconnected"
        for delivery in (*left, *(each for part in self.unanswered for each in part)):
            delivery.is_certain = True
        self._call_back()

    def on_break(self) -> None:
        self.record.broken.append((self.broker.http_address, self.link.address))

    def finish(self) -> None:
        """Note that the broker has nothing in flight any more: all is carried out, and held messages have timed out."""
        for delivery in (*self._held, *(delivery for part in self.unanswered for delivery in part)):
            delivery.is_certain = True
