"""State of a crash loop: every message sent, every delivery seen, and the checks of each.

A message is an index of its topic: indices grow in the order of sending. For each channel one byte per message says in
which state the message is:

    PENDING        the channel owes the message, if its publisher has the OK
    FIN_SENT       a FIN was sent; a kill may have come first
    FIN_CONFIRMED  the daemon has processed the FIN: the message must not come again
    UNSURE         the message may come or not: a kill cut the operation that decides about it
    NOT_OWED       the message must not come: sent before the channel was made, or skipped by a seek

So a new channel, a deletion and a seek are rewrites of these bytes. Between the request of a seek and its answer nobody
knows on which side of the seek a delivery or a FIN was; a delivery counts as later only if the daemon cannot have sent
it before the answer.
"""

import bisect
import random
import struct
import time
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

MS_NS = 1_000_000
S_NS = 1_000_000_000
HEADER = struct.Struct(">IHHQqI")
MAGIC_NUMBER = 0x70797164
MSG_TIMEOUT_MS = 300
# A message's lease runs from the time it is given to a consumer; a busy machine sends it that much later.
SENT_LATE_MS = 150
NOTES_MAX = 40

PENDING, FIN_SENT, FIN_CONFIRMED, UNSURE, NOT_OWED = range(5)
ONLY_PENDING = bytes(int(state == PENDING) for state in range(256))
NEVER, FOR_EVER = -1, 1 << 62


def body_of(index: int, topic: int, publisher: int, due_ns: int, size_bytes: int) -> bytes:
    """Return the body of a message: its identity, its due time, and a filling that depends on both."""
    head = HEADER.pack(MAGIC_NUMBER, topic, publisher, index, due_ns, size_bytes)
    filling = ((index * 31 + topic) * 2654435761 & 0xFFFFFFFFFFFF).to_bytes(8, "big")
    return (head + filling * (size_bytes // 8 + 1))[:size_bytes]


@dataclass(slots=True)
class Copy:
    """Deliveries of one message by one channel, until its FIN is confirmed.

    requeued: there is a reason why the message comes again. excused: a seek leaves open which delivery is the next.
    read_ns: when the last delivery was read.
    """

    deliveries: int = 0
    attempts: int = 0
    round: int = -1
    sent_after_ns: int = 0
    read_ns: int = 0
    not_before_ns: int = 0
    requeued: bool = False
    excused: bool = False
    connection: int = 0


@dataclass(frozen=True)
class Limits:
    """Limits of a channel, in the terms of /channel/limits."""

    rate: float = 0.0
    burst: float = 0.0
    max_attempts: int = 0


@dataclass
class Channel:
    """One channel of a topic.

    limits: in force since `limited_ns`; limits_before: not None while a change is not confirmed. seeking: a seek has no
    answer yet; sought_ns: when the last one got its answer. Of this life of the daemon: unanswered_fins: how many FINs
    of a message have no answer; finished_ns: when the FIN was sent that has succeeded. Of this round: timed_out: how
    many messages came again when their time-out had passed; sudden: those that came again before, as notes.
    """

    topic: int
    name: str
    kind: str
    copies: dict[Any, Copy] = field(default_factory=dict)
    states: bytearray = field(default_factory=bytearray)
    deleted: bool = False
    paused: bool = False
    paused_round: int = -1
    requeues_sent: int = 0
    requeues_confirmed: int = 0
    timeouts_seen: int = 0
    timed_out: int = 0
    sudden: list[str] = field(default_factory=list)
    dead_letters_seen: int = 0
    limits: Limits = Limits()
    limits_before: Limits | None = None
    limited_ns: int = 0
    rate_since_ns: int = 0
    rate_count: int = 0
    seeking: bool = False
    sought_ns: int = 0
    finished_while_seeking: set[int] = field(default_factory=set)
    unanswered_fins: Counter[Any] = field(default_factory=Counter)
    finished_ns: dict[Any, int] = field(default_factory=dict)
    letters: "Letters | None" = None

    def state(self, key: Any) -> int:
        """Return the state of a message."""
        return self.states[key] if key < len(self.states) else PENDING

    def set_state(self, key: Any, state: int) -> None:
        """Change the state of a message."""
        if key >= len(self.states):
            self.states += bytes(key + 1 - len(self.states))
        self.states[key] = state

    def send_fin(self, key: Any) -> None:
        """Note a FIN that is sent."""
        self.unanswered_fins[key] += 1
        if self.seeking:
            self.finished_while_seeking.add(key)
        if self.state(key) == PENDING:
            self.set_state(key, FIN_SENT)

    def finish(self, key: Any, sent_ns: int) -> None:
        """Note that a FIN has succeeded, whatever other deliveries of the message were read since it was sent."""
        if self.seeking:
            # The state stays FIN_SENT, which the seek's answer turns into UNSURE.
            return
        state = self.state(key)
        if sent_ns < self.sought_ns:
            if state == FIN_SENT:
                self.set_state(key, UNSURE)
        elif state in (PENDING, FIN_SENT):
            self.set_state(key, FIN_CONFIRMED)
            self.finished_ns[key] = sent_ns
            self.copies.pop(key, None)

    def fail_fin(self, key: Any) -> None:
        """Note that a FIN has failed: unless another one is underway, the message is owed."""
        if self.state(key) == FIN_SENT and not self.unanswered_fins[key]:
            self.set_state(key, PENDING)

    def doubt_fin(self, key: Any) -> None:
        """Note that either a FIN or a requeue has succeeded."""
        if self.state(key) in (PENDING, FIN_SENT):
            self.set_state(key, UNSURE)

    def note_kill(self) -> None:
        """Forget the state of closed connections."""
        self.unanswered_fins.clear()
        self.finished_ns.clear()

    def set_limits(self, limits: Limits, asked_ns: int, confirmed_ns: int) -> None:
        """Note limits that are in force."""
        self.limits, self.limits_before = limits, None
        self.limited_ns, self.rate_since_ns, self.rate_count = confirmed_ns, asked_ns, 0
        self.note_spent()

    def change_limits(self, limits: Limits) -> None:
        """Record requested limits: until the answer, either the old or the new ones are in force."""
        self.limits, self.limits_before = limits, self.limits
        self.note_spent()

    def note_spent(self) -> None:
        """Note the messages whose attempts are used up."""
        for key, copy in self.copies.items():
            if self.is_spent(copy.attempts):
                assert self.letters is not None
                self.letters.spent.add(key)
                copy.not_before_ns = 0

    def is_spent(self, attempts: int) -> bool:
        """Return whether a message with so many attempts may become a dead letter; its delay does not count then."""
        least = self.attempts_least()
        return self.letters is not None and 0 < least <= attempts

    def attempts_least(self) -> int:
        """Return the number of attempts from which on a message may become a dead letter; 0: none does."""
        both = [self.limits.max_attempts, 0 if self.limits_before is None else self.limits_before.max_attempts]
        return min((each for each in both if each), default=0)


@dataclass
class Letters(Channel):
    """Channel of a dead-letter topic. Its messages are known by their ids, as several can have one body.

    spent: messages of the source channel that had their last attempt; dead: messages seen here. unread_max: of a source
    channel with one attempt, how many messages kills can have left between the daemon and its consumers.
    """

    topic_name: str = ""
    states_by_id: dict[bytes, int] = field(default_factory=dict)
    spent: set[int] = field(default_factory=set)
    dead: set[int] = field(default_factory=set)
    unread_max: int = 0

    def unearned(self) -> set[int]:
        """Return the messages seen here that had attempts left, minus as many as kills can have left unread."""
        unseen = self.dead - self.spent
        return unseen if len(unseen) > self.unread_max else set()

    def state(self, key: Any) -> int:
        return self.states_by_id.get(key, PENDING)

    def set_state(self, key: Any, state: int) -> None:
        self.states_by_id[key] = state


@dataclass(frozen=True)
class Split:
    """Place of a log as a split of the messages.

    Acknowledged by event `acknowledged_until`: in front of the place. Index `sent_from` or higher: at it or behind it.
    """

    acknowledged_until: int
    sent_from: int


@dataclass
class Topic:
    """One topic. The arrays hold one entry per message; marks: positions known, in order.

    holding: the split from which on messages wait for a channel or the end of a pause; None: they go to the channels.
    busy: a change is under way.
    """

    name: str
    channels: list[Channel]
    publisher: Any = field(default_factory=lambda: array("H"))
    due_ns: Any = field(default_factory=lambda: array("q"))
    size_bytes: Any = field(default_factory=lambda: array("I"))
    batch_first: Any = field(default_factory=lambda: array("I"))
    batch_count: Any = field(default_factory=lambda: array("I"))
    acknowledged_at: Any = field(default_factory=lambda: array("q"))
    acknowledged: bytearray = field(default_factory=bytearray)
    seen: bytearray = field(default_factory=bytearray)
    marks: list[tuple[int, Split]] = field(default_factory=list)
    holding: Split | None = None
    earliest: int = 0
    paused: bool = False
    paused_round: int = -1
    busy: bool = False

    @property
    def sent(self) -> int:
        return len(self.due_ns)

    def split_at(self, position: int) -> Split:
        """Return the split that the marks give for a position."""
        low = bisect.bisect_right(self.marks, position, key=lambda mark: mark[0])
        high = bisect.bisect_left(self.marks, position, key=lambda mark: mark[0])
        return Split(
            self.marks[low - 1][1].acknowledged_until if low else NEVER,
            self.marks[high][1].sent_from if high < len(self.marks) else FOR_EVER,
        )

    def owed(self, channel: Channel) -> int:
        """Count the messages that a channel must still deliver."""
        states = channel.states.translate(ONLY_PENDING)
        pending = int.from_bytes(states + b"\1" * (self.sent - len(states)), "little")
        return (pending & int.from_bytes(self.acknowledged, "little")).bit_count()

    def possible(self, channel: Channel) -> int:
        """Count the messages that a channel may still deliver."""
        return self.sent - channel.states.count(FIN_CONFIRMED) - channel.states.count(NOT_OWED)


# Figures of the report; those of FAILURES must stay 0.
COUNTS = (
    "kills", "kills_while_starting", "published", "acknowledged", "expected", "delivered", "duplicated",
    "finished_confirmed", "unconfirmed_fin_undone", "requeued", "timed_out", "pauses", "channels_made",
    "channels_deleted", "seeks", "seeks_refused", "limits_set", "dead_letters", "changes_cut", "attempts_lower",
)  # fmt: skip
FAILURES = (
    "lost", "fin_undone", "early_deferred", "early_requeued", "wrong_bodies", "torn_batches", "attempts_errors",
    "unexplained", "not_owed", "over_rate", "past_attempts", "unearned_dead_letters", "delivered_while_paused",
    "counter_errors", "not_drained", "daemon_failures",
)  # fmt: skip


class World:
    """All messages and deliveries; the checks of single deliveries."""

    def __init__(self, topic_count: int, rng: random.Random) -> None:
        self.rng = rng
        # Grows with each acknowledgement and each request for a change, so that these have an order.
        self.event = 0
        self.round = 0
        self.totals: Counter[str] = Counter()
        self.late_ns: list[int] = []
        self.notes: list[str] = []
        self.ready_ns = 0
        # Time at which all sockets had last been polled, and the time before.
        self.polled_ns = (0, 0)
        self.topics = [
            Topic(f"topic{index}", [Channel(index, kind, kind) for kind in ("plain", "rough", "late")[: 1 + index % 3]])
            for index in range(topic_count)
        ]
        self.topics[0].channels = [Channel(0, kind, kind) for kind in ("plain", "rough", "late")]
        self.letters: dict[str, Letters] = {}

    def note(self, kind: str, text: str) -> None:
        """Count a failure and keep the first texts."""
        self.totals[kind] += 1
        if len(self.notes) < NOTES_MAX:
            self.notes.append(f"round {self.round}: {kind}: {text}")

    def channels(self) -> list[Channel]:
        return [channel for topic in self.topics for channel in topic.channels]

    def all_channels(self) -> list[Channel]:
        """Return the channels of topics and of dead-letter topics."""
        return [*self.channels(), *self.letters.values()]

    def where(self, channel: Channel) -> str:
        """Return the name of a channel for a note."""
        return f"{self.name_of_topic(channel)}:{channel.name}"

    def name_of_topic(self, channel: Channel) -> str:
        return channel.topic_name if isinstance(channel, Letters) else self.topics[channel.topic].name

    def new_message(
        self, topic_index: int, publisher: int, defer_ms: int = 0, batch: tuple[int, int] | None = None
    ) -> tuple[int, bytes]:
        """Make a message that is sent now. Returns: its index and its body."""
        topic = self.topics[topic_index]
        index = topic.sent
        due_ns = time.time_ns() + defer_ms * MS_NS if defer_ms else 0
        lot = self.rng.random()
        size_bytes = HEADER.size + (
            self.rng.randrange(200) if lot < 0.95 else self.rng.randrange(5000 if lot < 0.995 else 90_000)
        )
        first, count = batch or (index, 1)
        topic.publisher.append(publisher)
        topic.due_ns.append(due_ns)
        topic.size_bytes.append(size_bytes)
        topic.batch_first.append(first)
        topic.batch_count.append(count)
        topic.acknowledged_at.append(0)
        topic.acknowledged.append(0)
        topic.seen.append(0)
        self.totals["published"] += 1
        return index, body_of(index, topic_index, publisher, due_ns, size_bytes)

    def next_event(self) -> int:
        self.event += 1
        return self.event

    def acknowledge(self, topic_index: int, indices: range) -> None:
        topic, event = self.topics[topic_index], self.next_event()
        for index in indices:
            topic.acknowledged[index] = 1
            topic.acknowledged_at[index] = event
        self.totals["acknowledged"] += len(indices)

    def take(
        self, channel: Channel, guid: bytes, body: bytes, attempts: int, connection: int, sent_after_ns: int
    ) -> Any:
        """Check and note a delivery. Returns: the message's key in the channel; None: nothing to note of its FIN."""
        index = self.identify_body(channel, body)
        if index is None or channel.deleted:
            return None
        self.totals["delivered"] += 1
        self.topics[channel.topic].seen[index] = 1
        key: Any = index
        if isinstance(channel, Letters):
            key = guid
            if guid not in channel.copies:
                self.totals["dead_letters"] += 1
            channel.dead.add(index)
        elif channel.state(index) == NOT_OWED:
            if channel.seeking:
                channel.finished_while_seeking.add(index)
            elif sent_after_ns >= channel.sought_ns:
                self.note("not_owed", f"{self.where(channel)}, message {index}, attempts {attempts}")
            return None
        self.see(channel, key, index, attempts, connection, sent_after_ns)
        return key

    def identify_body(self, channel: Channel, body: bytes) -> int | None:
        """Return the index of the message with this body, or None if no such body was sent there."""
        if len(body) >= HEADER.size:
            magic, topic_index, publisher, index, due_ns, size_bytes = HEADER.unpack_from(body)
            topic = self.topics[channel.topic]
            if magic == MAGIC_NUMBER and topic_index == channel.topic and index < topic.sent:
                known = (topic.publisher[index], topic.due_ns[index], topic.size_bytes[index])
                if known == (publisher, due_ns, size_bytes) and body == body_of(
                    index, topic_index, publisher, due_ns, size_bytes
                ):
                    return int(index)
        self.note("wrong_bodies", f"{self.where(channel)} delivered {body[:60]!r} of {len(body)} bytes")
        return None

    def see(self, channel: Channel, key: Any, index: int, attempts: int, connection: int, sent_after_ns: int) -> None:
        """Check one delivery against the message's state, and record it.

        sent_after_ns: the daemon cannot have sent it before.
        """
        now_ns = time.time_ns()
        topic = self.topics[channel.topic]
        due_ns = topic.due_ns[index]
        copy = channel.copies.get(key)
        where = f"{self.where(channel)}, message {index}, attempts {attempts}"
        if due_ns > now_ns:
            self.note("early_deferred", f"{where}: {(due_ns - now_ns) / MS_NS:.3f} ms")
        if channel.paused and channel.paused_round < self.round:
            self.note("delivered_while_paused", where)
        self.check_limits(channel, key, attempts, sent_after_ns, now_ns, where)
        state = channel.state(key)
        if state == FIN_CONFIRMED and not channel.seeking and sent_after_ns >= channel.finished_ns.get(key, 0):
            self.note("fin_undone", where)
        if state == UNSURE and not channel.seeking and sent_after_ns >= channel.sought_ns:
            channel.set_state(key, PENDING)
        if copy is None:
            copy = Copy()
            on_time = not (isinstance(channel, Letters) or channel.sought_ns or channel.limits.rate)
            if due_ns and on_time and channel.kind != "late" and not channel.paused and topic.holding is None:
                self.late_ns.append(now_ns - max(due_ns, self.ready_ns))
        elif self.is_overtaken(channel, copy, attempts, connection, sent_after_ns):
            return
        else:
            self.see_again(channel, key, copy, attempts, connection, now_ns, where)
        channel.copies[key] = Copy(
            copy.deliveries + 1,
            attempts,
            self.round,
            sent_after_ns,
            now_ns,
            excused=channel.seeking or sent_after_ns < channel.sought_ns,
            connection=connection,
        )

    def is_overtaken(self, channel: Channel, copy: Copy, attempts: int, connection: int, sent_after_ns: int) -> bool:
        """Return whether a delivery timed out before the last one that was read, which came over another connection."""
        return (
            copy.round == self.round
            and connection != copy.connection
            and attempts < copy.attempts
            and sent_after_ns < copy.read_ns
            and not (copy.excused or channel.seeking)
        )

    def check_limits(
        self, channel: Channel, key: Any, attempts: int, sent_after_ns: int, now_ns: int, where: str
    ) -> None:
        """Check a delivery against the limits of its channel."""
        limits = channel.limits
        if channel.letters is not None and channel.is_spent(attempts):
            channel.letters.spent.add(key)
        if channel.limits_before is not None or sent_after_ns < channel.limited_ns:
            return
        if limits.max_attempts and attempts > limits.max_attempts:
            self.note("past_attempts", f"{where}: {limits.max_attempts} are allowed")
        if limits.rate:
            channel.rate_count += 1
            allowed = limits.burst + limits.rate * (now_ns - channel.rate_since_ns) / S_NS + 1
            if channel.rate_count > allowed:
                self.note("over_rate", f"{where}: {channel.rate_count} deliveries, {allowed:.1f} are allowed")

    def see_again(
        self, channel: Channel, key: Any, copy: Copy, attempts: int, connection: int, now_ns: int, where: str
    ) -> None:
        """Check the delivery of a message that this channel has delivered before."""
        if channel.state(key) == FIN_SENT:
            channel.set_state(key, PENDING)
            self.totals["unconfirmed_fin_undone"] += 1
        if copy.excused or channel.seeking:
            return
        killed = copy.round < self.round
        # If this program was slow to read, the daemon's time-out may have passed and this program's not.
        timed_out = now_ns - copy.sent_after_ns >= (MSG_TIMEOUT_MS - SENT_LATE_MS) * MS_NS
        if attempts == 1:
            self.note("attempts_errors", f"{where}: seen {copy.deliveries} times before")
        elif killed and attempts <= copy.attempts:
            self.totals["attempts_lower"] += 1
        elif not killed and connection == copy.connection and attempts <= copy.attempts:
            self.note("attempts_errors", f"{where}: before it was {copy.attempts}, on the same connection")
        if now_ns < copy.not_before_ns and (killed or not timed_out):
            self.note("early_requeued", f"{where}: {(copy.not_before_ns - now_ns) / MS_NS:.3f} ms")
        if copy.requeued:
            return
        self.totals["duplicated"] += 1
        if timed_out and not killed:
            channel.timed_out += 1
        elif not killed:
            channel.sudden.append(f"{where}: {(now_ns - copy.sent_after_ns) / MS_NS:.0f} ms after it was sent")

    def end_round(self, channel: Channel, timeout_count: int) -> None:
        """Judge the messages that came again before their time-out. timeout_count: of the daemon, which outlives kills.

        A daemon that was kept waiting between giving and sending a message sends it again early.
        """
        if timeout_count < channel.timeouts_seen:
            self.note(
                "counter_errors", f"{self.where(channel)}: {timeout_count} timeouts, {channel.timeouts_seen} before"
            )
        if channel.timed_out + len(channel.sudden) <= timeout_count - channel.timeouts_seen:
            channel.timed_out += len(channel.sudden)
        else:
            for text in channel.sudden:
                self.note("unexplained", text)
        self.totals["timed_out"] += channel.timed_out
        channel.timeouts_seen, channel.timed_out = timeout_count, 0
        channel.sudden.clear()

    def end_rounds(self, stats: dict[str, Any]) -> None:
        """Judge the messages of each channel in /stats."""
        for channel in self.all_channels():
            found = stats.get(self.name_of_topic(channel), {"channels": {}})["channels"]
            if channel.name in found:
                self.end_round(channel, found[channel.name]["timeout_count"])

    def begin_channel(self, channel: Channel, split: Split) -> None:
        """Set the states of a new channel's messages: those behind the split are owed."""
        topic, earlier = self.topics[channel.topic], channel.states
        channel.states = bytearray(topic.sent)
        for index in range(min(topic.sent, split.sent_from)):
            at = topic.acknowledged_at[index]
            channel.states[index] = NOT_OWED if at and at <= split.acknowledged_until else UNSURE
        # Deliveries before the answer to SUB were recorded.
        for index in {*channel.copies, *(index for index, state in enumerate(earlier) if state)}:
            if channel.states[index] == NOT_OWED:
                self.note("not_owed", f"{self.where(channel)}, message {index}")
            channel.states[index] = earlier[index] if index < len(earlier) else PENDING

    def end_seek(self, channel: Channel, split: Split, *, confirmed: bool) -> None:
        """Set the states after a seek to a split; not confirmed: a kill cut the seek, which was done or not."""
        topic, states = self.topics[channel.topic], channel.states
        states += bytes(topic.sent - len(states))
        for index in range(topic.sent):
            state = states[index]
            at = topic.acknowledged_at[index]
            if state == FIN_SENT or index in channel.finished_while_seeking:
                state = UNSURE
            elif index >= split.sent_from:
                state = PENDING if confirmed or state == PENDING else UNSURE
            elif at and at <= split.acknowledged_until:
                if state != FIN_CONFIRMED:
                    state = NOT_OWED if confirmed or state == NOT_OWED else UNSURE
            else:
                state = UNSURE
            if confirmed and at and at <= split.acknowledged_until and state == UNSURE:
                state = NOT_OWED
            states[index] = state
        for copy in channel.copies.values():
            copy.excused = True
            copy.not_before_ns = 0
        channel.finished_while_seeking.clear()
        channel.seeking = False
        channel.sought_ns = time.time_ns()
