"""What a crash loop has sent and seen, and the checks of what comes. The program is scripts/crash_loop.py."""

import random
import struct
import time
from dataclasses import dataclass, field

MS_NS = 1_000_000
HEADER = struct.Struct(">IHHQqI")
MAGIC_NUMBER = 0x70797164
MSG_TIMEOUT_MS = 300


def body_of(number: int, topic: int, publisher: int, due_ns: int, size_bytes: int) -> bytes:
    """Return the body of a message: who it is, when it is due, and a filling that depends on both."""
    head = HEADER.pack(MAGIC_NUMBER, topic, publisher, number, due_ns, size_bytes)
    filling = (number * 2654435761 & 0xFFFFFFFFFFFF).to_bytes(8, "big")
    return (head + filling * (size_bytes // 8 + 1))[:size_bytes]


@dataclass(slots=True)
class Message:
    """One message as it was sent; batch: the first number of its MPUB and how many there are."""

    topic: int
    publisher: int
    due_ns: int
    size_bytes: int
    sent_at: int
    batch: tuple[int, int] | None = None
    acknowledged: bool = False


@dataclass(slots=True)
class Copy:
    """What a channel has delivered of a message that is not known to be finished."""

    deliveries: int = 0
    attempts: int = 0
    round: int = -1
    sent_after_ns: int = 0
    not_before_ns: int = 0
    requeued: bool = False
    connection: int = 0


FIN_SENT, FIN_CONFIRMED = 1, 2


@dataclass
class Channel:
    """One channel of a topic and what it has done so far. since: it must deliver what is sent from this moment on."""

    topic: int
    name: str
    kind: str
    since: int = 0
    copies: dict[int, Copy] = field(default_factory=dict)
    finished: dict[int, int] = field(default_factory=dict)
    paused: bool = False
    paused_round: int = -1
    requeues_sent: int = 0
    requeues_confirmed: int = 0
    timeouts_seen: int = 0


@dataclass
class Topic:
    """One topic."""

    name: str
    channels: list[Channel]
    sent: int = 0
    acknowledged: int = 0
    paused: bool = False
    paused_round: int = -1


@dataclass
class Totals:
    """What happened, and what must not have."""

    rounds: int = 0
    kills: int = 0
    kills_while_starting: int = 0
    published: int = 0
    acknowledged: int = 0
    expected: int = 0
    delivered: int = 0
    duplicated: int = 0
    finished_confirmed: int = 0
    unconfirmed_fin_undone: int = 0
    requeued: int = 0
    timed_out: int = 0
    pauses: int = 0
    attempts_lower: int = 0
    lost: int = 0
    fin_undone: int = 0
    early_deferred: int = 0
    early_requeued: int = 0
    wrong_bodies: int = 0
    torn_batches: int = 0
    attempts_errors: int = 0
    unexplained: int = 0
    delivered_while_paused: int = 0
    counter_errors: int = 0
    not_drained: int = 0
    daemon_failures: int = 0


FAILURES = (
    "lost", "fin_undone", "early_deferred", "early_requeued", "wrong_bodies", "torn_batches", "attempts_errors",
    "unexplained", "delivered_while_paused", "counter_errors", "not_drained", "daemon_failures",
)  # fmt: skip


class World:
    """All that was sent and seen; the checks of single deliveries."""

    def __init__(self, topic_count: int, rng: random.Random) -> None:
        self.rng = rng
        self.moment = 0
        self.round = 0
        self.messages: list[Message] = []
        self.totals = Totals()
        self.late_ns: list[int] = []
        self.notes: list[str] = []
        self.ready_ns = 0
        # When all sockets had last been looked at, and the time before.
        self.polled_ns = (0, 0)
        self.topics = [
            Topic(f"topic{index}", [Channel(index, kind, kind) for kind in ("plain", "rough", "late")[: 1 + index % 3]])
            for index in range(topic_count)
        ]
        self.topics[0].channels = [Channel(0, kind, kind) for kind in ("plain", "rough", "late")]

    def note(self, kind: str, text: str) -> None:
        """Count a failure and keep the first texts."""
        setattr(self.totals, kind, getattr(self.totals, kind) + 1)
        if len(self.notes) < 40:
            self.notes.append(f"round {self.round}: {kind}: {text}")

    def channels(self) -> list[Channel]:
        return [channel for topic in self.topics for channel in topic.channels]

    def new_message(
        self, topic: int, publisher: int, defer_ms: int = 0, batch: tuple[int, int] | None = None
    ) -> tuple[int, bytes]:
        """Make a message that is sent now. Returns: its number and its body."""
        number = len(self.messages)
        due_ns = time.time_ns() + defer_ms * MS_NS if defer_ms else 0
        lot = self.rng.random()
        size_bytes = HEADER.size + (
            self.rng.randrange(200) if lot < 0.95 else self.rng.randrange(5000 if lot < 0.995 else 90_000)
        )
        self.moment += 1
        self.messages.append(Message(topic, publisher, due_ns, size_bytes, self.moment, batch))
        self.topics[topic].sent += 1
        self.totals.published += 1
        return number, body_of(number, topic, publisher, due_ns, size_bytes)

    def acknowledge(self, numbers: range) -> None:
        for number in numbers:
            message = self.messages[number]
            message.acknowledged = True
            self.topics[message.topic].acknowledged += 1
        self.totals.acknowledged += len(numbers)

    def identify_body(self, channel: Channel, body: bytes) -> int | None:
        """Return the number of the message with this body, or None when nobody has sent such a body there."""
        if len(body) >= HEADER.size:
            magic, topic, publisher, number, due_ns, size_bytes = HEADER.unpack_from(body)
            if magic == MAGIC_NUMBER and topic == channel.topic and number < len(self.messages):
                message = self.messages[number]
                known = (message.topic, message.publisher, message.due_ns, message.size_bytes)
                if known == (topic, publisher, due_ns, size_bytes) and body == body_of(
                    number, topic, publisher, due_ns, size_bytes
                ):
                    return int(number)
        self.note("wrong_bodies", f"{channel.name} delivered {body[:60]!r} of {len(body)} bytes")
        return None

    def see(self, channel: Channel, number: int, attempts: int, connection: int, sent_after_ns: int) -> Copy:
        """Check one delivery against what is known of the message, and note it.

        sent_after_ns: the daemon cannot have sent it before.
        """
        now_ns = time.time_ns()
        message = self.messages[number]
        copy = channel.copies.get(number)
        where = f"{channel.name} of {self.topics[channel.topic].name}, message {number}, attempts {attempts}"
        self.totals.delivered += 1
        if message.due_ns > now_ns:
            self.note("early_deferred", f"{where}: {(message.due_ns - now_ns) / MS_NS:.3f} ms")
        topic = self.topics[channel.topic]
        if channel.paused and channel.paused_round < self.round:
            self.note("delivered_while_paused", where)
        if copy is None:
            if channel.finished.get(number) == FIN_CONFIRMED:
                self.note("fin_undone", where)
            copy = channel.copies[number] = Copy()
            if message.due_ns and channel.kind != "late" and not channel.paused and not topic.paused:
                self.late_ns.append(now_ns - max(message.due_ns, self.ready_ns))
        else:
            self.see_again(channel, number, copy, attempts, connection, now_ns, where)
        copy.deliveries += 1
        copy.attempts = attempts
        copy.round = self.round
        copy.sent_after_ns = sent_after_ns
        copy.not_before_ns = 0
        copy.requeued = False
        copy.connection = connection
        return copy

    def see_again(
        self, channel: Channel, number: int, copy: Copy, attempts: int, connection: int, now_ns: int, where: str
    ) -> None:
        """Check the delivery of a message that this channel has delivered before."""
        killed = copy.round < self.round
        # Where this program was slow to read, the daemon's time may have been over while ours was not.
        timed_out = now_ns - copy.sent_after_ns >= MSG_TIMEOUT_MS * MS_NS
        if attempts == 1:
            self.note("attempts_errors", f"{where}: seen {copy.deliveries} times before")
        elif killed and attempts <= copy.attempts:
            self.totals.attempts_lower += 1
        elif not killed and connection == copy.connection and attempts <= copy.attempts:
            self.note("attempts_errors", f"{where}: before it was {copy.attempts}, on the same connection")
        if now_ns < copy.not_before_ns and (killed or not timed_out):
            self.note("early_requeued", f"{where}: {(copy.not_before_ns - now_ns) / MS_NS:.3f} ms")
        if channel.finished.pop(number, 0) == FIN_SENT:
            self.totals.unconfirmed_fin_undone += 1
        if copy.requeued:
            return
        self.totals.duplicated += 1
        if timed_out and not killed:
            self.totals.timed_out += 1
        elif not killed:
            self.note("unexplained", where)
