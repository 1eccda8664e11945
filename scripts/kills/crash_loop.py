#!/usr/bin/env python3
"""Kill the daemon at random times under load, start it again, and check every message against every channel.

    scripts/kills/crash_loop.py --kills=300                     this checkout's daemon
    scripts/kills/crash_loop.py --flag=-sync-every=1            with each OK after a group commit
    scripts/kills/crash_loop.py --kills=3 --nsqd=PATH           the same load and the same checks on an nsqd

A round: connect publishers and consumers, let them work for a random time, SIGKILL, start again, compare /stats. Some
rounds kill once more while the daemon starts. At the end everything is drained and each message is looked up.

Knowledge of a message, and therefore checked:

- Its OK was read (also from a socket whose daemon is dead already): every channel must deliver it until a FIN of it is
  sent. Without an OK it may be there or not; an MPUB is there whole or not at all.
- A confirmed FIN is never undone, a confirmed REQ with a delay never comes before its time, over any number of kills.
- A deferred message never comes before its due time. A message that was seen before never tells 1 attempt.
- A message comes again only for a reason: requeued, timed out, or a kill since it came last.
- After each start counters, depths and channels are as they were, give or take what was not confirmed.

tests/simulation has the same kills in all other operations: channels made, deleted, paused, sought and limited.
"""

import argparse
import random
import struct
import sys
import threading
import time
from array import array
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clients import Consumer, Delivery, Publisher, sized
from harness import Daemon, Loop, main, messages_in, wait_until

from pyqd.primitives.progress import Progress

MS_NS = 1_000_000
HEADER = struct.Struct(">IHIqI")
MAGIC_NUMBER = 0x70797164
FLAGS = (
    "-max-bytes-per-file=262144",
    "-msg-timeout=300ms",
    "-max-msg-timeout=2s",
    "-broadcast-address=127.0.0.1",
)
SIGNS_OF_A_CRASH = ("Traceback (most recent call last)", "AssertionError", "panic:", "Segmentation fault")
KINDS = ("plain", "rough", "late")
# Share of messages per action, in percent; the rest is FIN. "hold": let it time out.
ACTIONS = {
    "plain": (("requeue", 2), ("delay", 2), ("touch", 2)),
    "rough": (("requeue", 12), ("delay", 15), ("touch", 12), ("hold", 4)),
    "late": (("requeue", 5), ("delay", 10)),
}
ATTEMPTS_MAX = 6
DELAY_MS_MAX = 1500
# Small batches are stored through the mapping, large ones written.
BATCHES_MAX = (16, 16, 16, 150)
TOPICS, PUBLISHERS = 6, 3
# A start takes about half of that, most of it imports.
START_KILL_SHARE, START_KILL_S = 0.2, 0.5
DRAIN_S = 60.0
NOTES_MAX = 40
# A FIN_SENT may have come after a kill. A message that is FINISHED must not come again.
PENDING, FIN_SENT, FINISHED = range(3)
ONLY_PENDING = bytes(int(state == PENDING) for state in range(256))
# These figures must stay 0.
FAILURES = (
    "lost", "torn_batches", "fin_undone", "early_deferred", "early_requeued", "wrong_bodies", "attempts_errors",
    "unexplained", "counter_errors", "not_drained", "daemon_failures",
)  # fmt: skip
COUNTS = ("kills", "kills_while_starting", "published", "acknowledged", "delivered", "finished", "requeued")


@dataclass(slots=True)
class Copy:
    """Last delivery of a message by a channel. life: of the daemon; requeued: there is a reason why it comes again."""

    life: int
    attempt: int
    requeued: bool = False
    not_before_ns: int = 0


@dataclass
class Channel:
    """One channel. again: how many messages came again without a reason, so that they must have timed out."""

    topic: "Topic"
    name: str
    copies: dict[int, Copy] = field(default_factory=dict)
    states: bytearray = field(default_factory=bytearray)
    requeues_sent: int = 0
    requeues_confirmed: int = 0
    again: int = 0

    def owed(self) -> int:
        """Count the messages that the channel must still deliver."""
        pending = int.from_bytes(self.states.translate(ONLY_PENDING), "little")
        return (pending & int.from_bytes(self.topic.acknowledged, "little")).bit_count()


class Topic:
    """One topic. A message is an index; the arrays have one entry per message. commands: the messages of each."""

    def __init__(self, number: int) -> None:
        self.number, self.name = number, f"topic{number}"
        self.channels = [Channel(self, kind) for kind in KINDS[: 1 + (number - 1) % 3]]
        self.due_ns, self.size_bytes = array("q"), array("I")
        self.acknowledged, self.seen = bytearray(), bytearray()
        self.commands: list[range] = []

    def add(self, count: int, due_ns: int, rng: random.Random) -> range:
        """Return new messages that one command publishes."""
        first = len(self.seen)
        for _ in range(count):
            lot = rng.random()
            filling = rng.randrange(200) if lot < 0.95 else rng.randrange(5000 if lot < 0.995 else 90_000)
            self.size_bytes.append(HEADER.size + filling)
            self.due_ns.append(due_ns)
        for each in (self.acknowledged, self.seen, *(channel.states for channel in self.channels)):
            each.extend(bytes(count))
        self.commands.append(range(first, first + count))
        return self.commands[-1]

    def body(self, index: int) -> bytes:
        """Return the body of a message: its identity, and a filling that depends on it."""
        size_bytes = self.size_bytes[index]
        head = HEADER.pack(MAGIC_NUMBER, self.number, index, self.due_ns[index], size_bytes)
        filling = ((index * 31 + self.number) * 2654435761 & 0xFFFFFFFFFFFF).to_bytes(8, "big")
        return (head + filling * (size_bytes // 8 + 1))[:size_bytes]

    def index_of(self, body: bytes) -> int | None:
        """Return the message with a body; None: it was not sent to this topic."""
        if len(body) < HEADER.size:
            return None
        index: int = HEADER.unpack_from(body)[2]
        return index if index < len(self.seen) and body == self.body(index) else None


class Books:
    """All messages and deliveries, and the checks of single deliveries. left: to be published in this round."""

    def __init__(self, topic_count: int) -> None:
        self.topics = [Topic(number) for number in range(topic_count)]
        self.totals: Counter[str] = Counter()
        self.notes: list[str] = []
        self.lock = threading.Lock()
        self.life = self.left = 0

    def note(self, kind: str, text: str) -> None:
        """Count a failure and keep the first texts."""
        self.totals[kind] += 1
        if len(self.notes) < NOTES_MAX:
            self.notes.append(f"round {self.life}: {kind}: {text}")

    def channels(self) -> list[Channel]:
        return [channel for topic in self.topics for channel in topic.channels]

    def see(self, channel: Channel, index: int, attempt: int) -> None:
        """Check one delivery, and record it."""
        topic, copy, now_ns = channel.topic, channel.copies.get(index), time.time_ns()
        where = f"{topic.name}:{channel.name}, message {index}, attempt {attempt}"
        topic.seen[index] = 1
        self.totals["delivered"] += 1
        if topic.due_ns[index] > now_ns:
            self.note("early_deferred", where)
        if channel.states[index] == FINISHED:
            self.note("fin_undone", where)
        if copy is not None:
            is_early = now_ns < copy.not_before_ns
            if attempt == 1 or (copy.life == self.life and attempt <= copy.attempt):
                self.note("attempts_errors", f"{where}: before it was {copy.attempt}")
            if copy.life < self.life:
                if is_early:
                    self.note("early_requeued", where)
            elif is_early or not copy.requeued:
                channel.again += 1
        channel.copies[index] = Copy(self.life, attempt)

    def within(self, name: str, what: str, least: int, found: int, most: int) -> None:
        if not least <= found <= most:
            self.note("counter_errors", f"{name}: {what} is {found}, should be in [{least}, {most}]")

    def look(self, topic: Topic, stats: dict[str, Any]) -> None:
        """Compare a topic's /stats after a start with the operations done."""
        sent = len(topic.seen)
        self.within(topic.name, "message_count", topic.acknowledged.count(1), stats["message_count"], sent)
        found = {channel["channel_name"]: channel for channel in stats["channels"] or ()}
        known = {channel.name for channel in topic.channels}
        if found.keys() != known:
            self.note("counter_errors", f"{topic.name} has the channels {found.keys()}, should have {known}")
            return
        for channel in topic.channels:
            name, seen = f"{topic.name}:{channel.name}", found[channel.name]
            self.within(name, "requeues", channel.requeues_confirmed, seen["requeue_count"], channel.requeues_sent)
            if channel.again > seen["timeout_count"]:
                self.note("unexplained", f"{name}: {channel.again} came again, {seen['timeout_count']} timed out")
            depth = messages_in({"depth": stats["depth"], "channels": [seen]})
            self.within(name, "depth", channel.owed(), depth, sent - channel.states.count(FINISHED))

    def settle(self) -> None:
        """Look every message up in every channel."""
        for topic in self.topics:
            for command in topic.commands:
                is_acknowledged = topic.acknowledged[command.start]
                if not is_acknowledged and not any(topic.seen[command.start : command.stop]):
                    continue
                for channel in topic.channels:
                    for index in command:
                        if channel.states[index] == PENDING:
                            kind = "lost" if is_acknowledged else "torn_batches"
                            self.note(kind, f"{topic.name}:{channel.name}, message {index}")


class Numbers(Publisher):
    """Publishes to all topics, with all commands."""

    books: Books

    def command(self) -> tuple[tuple[Topic, range], bytes] | None:
        books, rng = self.books, self.rng
        if books.left <= 0:
            return None
        topic, lot = rng.choice(books.topics), rng.random()
        name = topic.name.encode()
        count = rng.randint(1, rng.choice(BATCHES_MAX)) if lot < 0.2 else 1
        defer_ms = rng.randint(1, DELAY_MS_MAX) if 0.2 <= lot < 0.5 else 0
        with books.lock:
            books.left -= count
            added = topic.add(count, time.time_ns() + defer_ms * MS_NS if defer_ms else 0, rng)
        bodies = b"".join(sized(topic.body(index)) for index in added)
        if lot < 0.2:
            return (topic, added), b"MPUB %s\n%s" % (name, sized(struct.pack(">i", count) + bodies))
        head = b"DPUB %s %d\n" % (name, defer_ms) if defer_ms else b"PUB %s\n" % name
        return (topic, added), head + bodies

    def on_ok(self, published: tuple[Topic, range], answer: bytes) -> None:
        topic, added = published
        if answer != b"OK":
            raise AssertionError(f"a publish was answered with {answer!r}")
        topic.acknowledged[added.start : added.stop] = b"\1" * len(added)


class Taker(Consumer):
    """Treats the messages of a channel as its kind says; finishes all if it is not rough."""

    books: Books
    channel: Channel
    is_rough = True

    def answer(self, delivery: Delivery, body: bytes) -> bytes:
        channel, message_id = self.channel, delivery.message_id.encode()
        index = delivery.key = channel.topic.index_of(body)
        if index is None:
            self.books.note("wrong_bodies", f"{self.place} delivered {body[:60]!r} of {len(body)} bytes")
            return b""
        self.books.see(channel, index, delivery.attempt)
        # An error names a message and no command, so a message has one command underway.
        is_underway = any(each.key == index for part in self.unanswered for each in part)
        action = "hold" if is_underway else self._choose(delivery.attempt)
        if action == "hold":
            return b""
        if action in ("fin", "touch"):
            delivery.outcome = "finished"
            channel.states[index] = FIN_SENT
            return (b"TOUCH %s\n" % message_id if action == "touch" else b"") + b"FIN %s\n" % message_id
        delivery.outcome = "requeued"
        delay_ms = self.rng.randint(1, DELAY_MS_MAX) if action == "delay" else 0
        channel.states[index] = PENDING
        channel.requeues_sent += 1
        copy = channel.copies[index]
        copy.requeued, copy.not_before_ns = True, time.time_ns() + delay_ms * MS_NS if delay_ms else 0
        return b"REQ %s %d\n" % (message_id, delay_ms)

    def _choose(self, attempt: int) -> str:
        lot = self.rng.randrange(100)
        for action, percent in ACTIONS[self.channel.name] if self.is_rough and attempt <= ATTEMPTS_MAX else ():
            if lot < percent:
                return action
            lot -= percent
        return "fin"

    def on_certain(self, delivery: Delivery) -> None:
        channel, index = self.channel, delivery.key
        copy = channel.copies[index]
        if delivery.outcome == "finished":
            channel.states[index] = FINISHED
            del channel.copies[index]
            self.books.totals["finished"] += 1
        elif delivery.outcome == "requeued":
            channel.requeues_confirmed += 1
            self.books.totals["requeued"] += 1
        elif channel.states[index] == FIN_SENT:
            channel.states[index] = PENDING
        else:
            channel.requeues_sent -= 1
            copy.not_before_ns = 0

    def on_break(self) -> None:
        """Note that the last commands have been carried out or not: requeued messages may come at once."""
        for delivery in (each for part in self.unanswered for each in part):
            self.channel.copies[delivery.key].not_before_ns = 0


class CrashLoop(Loop):
    """The rounds: connections, the time of the kill, the checks after the start."""

    COUNT = ("--kills", 30)
    SECONDS = 0.3
    OPTIONS = (
        ("--messages", {"type": int, "default": 20_000, "help": "most messages to publish in a round (%(default)s)"}),
        ("--nsqd", {"metavar": "PATH", "help": "run this nsqd instead of this checkout's daemon"}),
        ("--flag", {"action": "append", "default": [], "help": "another flag of the daemon"}),
    )

    def __init__(self, given: argparse.Namespace, directory: Path) -> None:
        super().__init__(given, directory)
        self.books = Books(TOPICS)
        self.daemon = Daemon(given.nsqd, directory, (*FLAGS, *given.flag))
        self.done = threading.Event()

    def run(self, progress: Progress) -> dict[str, Any]:
        try:
            return super().run(progress)
        except (RuntimeError, OSError, AssertionError) as error:
            self.books.note("daemon_failures", f"{type(error).__name__}: {error}")
            return self.check()

    def start(self) -> None:
        self.stack.callback(self.daemon.close)
        self.daemon.start()
        for topic in self.books.topics:
            self.daemon.request("POST", "/topic/create", topic=topic.name)
            for channel in topic.channels:
                self.daemon.request("POST", "/channel/create", topic=topic.name, channel=channel.name)

    def fault(self, number: int) -> None:
        books, totals = self.books, self.books.totals
        books.life, books.left = number, self.given.messages
        for _ in range(PUBLISHERS):
            publisher = Numbers(self.daemon.tcp_port, self.done, random.Random(self.rng.random()))
            publisher.books, publisher.window = books, self.rng.choice((1, 4, 64))
            self.work(publisher.connect_once)
        self._consume([each for each in books.channels() if each.name != "late" or self.rng.random() < 0.3])
        self.pause()
        if not self.daemon.is_running:
            books.note("daemon_failures", "the daemon ended by itself")
        self.daemon.kill()
        totals["kills"] += 1
        self.join()
        if self.rng.random() < START_KILL_SHARE:
            self.daemon.kill_while_starting(self.rng.random() * START_KILL_S)
            totals["kills_while_starting"] += 1
        self.daemon.start()
        self._look()

    def _consume(self, channels: list[Channel], is_rough: bool = True) -> None:
        for channel in channels:
            place, rdy = f"{channel.topic.name} {channel.name}", 5 if channel.name == "rough" and is_rough else 200
            taker = Taker(self.daemon.tcp_port, self.done, random.Random(self.rng.random()), place, rdy)
            taker.books, taker.channel, taker.is_rough = self.books, channel, is_rough
            self.work(taker.connect_once)

    def _look(self) -> int:
        """Compare /stats with the books. Returns: the number of messages that are not finished."""
        stats = {topic["topic_name"]: topic for topic in self.daemon.stats()["topics"] or ()}
        for topic in self.books.topics:
            if topic.name in stats:
                self.books.look(topic, stats[topic.name])
            else:
                self.books.note("counter_errors", f"{topic.name} is gone")
        return sum(map(messages_in, stats.values()))

    def note(self) -> str:
        return f"{self.books.totals['delivered']:,} delivered, {len(self.books.notes)} failures"

    def finish(self) -> None:
        """Consume all messages, and look each up."""
        self.books.life += 1
        self._consume(self.books.channels(), is_rough=False)
        try:
            wait_until(lambda: not sum(map(messages_in, self.daemon.stats()["topics"])), "an empty broker", DRAIN_S)
        finally:
            self.done.set()
            self.join()
            self.books.totals["not_drained"] = self._look()
            self.books.settle()

    def check(self) -> dict[str, Any]:
        books, text = self.books, self.daemon.log_text()
        for sign in SIGNS_OF_A_CRASH:
            if sign in text:
                books.note("daemon_failures", f"its log says {sign!r}")
        books.totals["published"] = sum(len(topic.seen) for topic in books.topics)
        books.totals["acknowledged"] = sum(topic.acknowledged.count(1) for topic in books.topics)
        return {
            "seed": self.given.seed,
            **{name: books.totals[name] for name in (*COUNTS, *FAILURES)},
            "ok": not any(books.totals[name] for name in FAILURES),
            "notes": books.notes,
        }


if __name__ == "__main__":
    sys.exit(main(CrashLoop))
