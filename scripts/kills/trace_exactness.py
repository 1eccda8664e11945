#!/usr/bin/env python3
"""Compare the tables of pyq_trace, row by row, with the record of the clients.

    scripts/kills/trace_exactness.py                                100,000 messages, SQLite
    scripts/kills/trace_exactness.py --database=postgresql          or mariadb: a server of this machine
    scripts/kills/trace_exactness.py --kills=50                     SIGKILL of brokers, pyq_trace and database server

Two brokers with one topic and two channels each. The clients publish, finish, requeue, hold, touch,
disconnect and cancel, and some messages end as dead letters. `pyq_trace ship` stores the events meanwhile. Then
publish_log must have the messages that were published, and consume_log the deliveries with their outcomes; nothing
else, and nothing twice.

After a kill of a broker a client cannot know all. A publish without an answer may have a row. A delivery may have a row
if the kill cut its frame off. Of a delivery that was not confirmed, the outcome is that of the client's command, or the
broker knows of no end. The report counts them.
"""

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from clients import ERROR, MESSAGE, POLL_S, Consumer, Delivery, Publisher, identify, sized
from harness import Loop, Program, main, wait_until

from pyqd.testing import BrokerError, BrokerProcess
from pyqd.trace.database import Database

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.databases import Mariadb, Postgresql, running

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
DATABASES = {"sqlite": None, "postgresql": Postgresql, "mariadb": Mariadb}
BROKER_FLAGS = ("--trace-topic=*", "--trace-body-bytes=9", "--log-level=warn")
# Share of kills while messages are being published; the others come later.
KILLED_PUBLISHING = 0.6
DRAIN_S = 300.0
# Due later than that: nobody waits for the message.
SOON_NS = 600 * 10**9
PROBLEMS_SHOWN = 20
FINAL = ("finished", "dead_lettered", "cancelled")
# Outcomes of a delivery whose end the clients do not know.
UNKNOWN_ENDS = frozenset(("disconnected", "timed_out"))


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


class Shipper(Program):
    """`pyq_trace ship`, one process after the other."""

    def start(self, *more: str, **options: Any) -> "subprocess.Popen[bytes]":
        return super().start(*(more or ("--interval=50ms",)), **options)

    def stop(self) -> int:
        """End it by SIGTERM, and store the rest by another one. Returns: the first exit code that is not 0."""
        code = super().stop()
        if code == -signal.SIGTERM:
            # It had just been started, and had no handler yet.
            code = 0
        return code or self.start("--once").wait(DRAIN_S)


class TraceExactness(Loop):
    """The run. letters: dead letters by broker; killed: numbers of kills by victim."""

    COUNT = ("--kills", 0)
    OPTIONS = (
        ("--messages", {"type": int, "default": 100_000}),
        ("--database", {"choices": DATABASES, "default": "sqlite"}),
    )

    def start(self) -> None:
        kind = DATABASES[self.given.database]
        self.server = self.stack.enter_context(running(kind)) if kind else None
        self.url = self.server.new_database("trace") if self.server else f"sqlite:///{self.directory}/trace.db"
        self.record, self.killed = Record(), Counter[str]()
        self.brokers = [self.broker(f"broker{n}", *BROKER_FLAGS, f"--node-id={n}") for n in (1, 2)]
        for broker in self.brokers:
            set_up(broker)
        addresses = [f"--nsqd-http-address={broker.http_address}" for broker in self.brokers]
        self.shipper = Shipper(
            self.directory / "pyq_trace.log", "-m", "pyqd.tools.pyq_trace", "ship", f"--to={self.url}", *addresses
        )
        self.shipper.start()
        self.stack.callback(self.shipper.kill)
        self._done = threading.Event()
        self.stack.callback(self._done.set)
        self._count = self.given.messages // len(self.brokers)
        # Messages that each broker may have so far.
        self._limit = 0 if self.given.count else self._count
        common = self.record, self._done
        self.publishers = [
            Numbers(broker, *common, number, lambda: self._limit) for number, broker in enumerate(self.brokers)
        ]
        places = product(self.brokers, CHANNELS, (False, True))
        self.consumers = [
            Counting(broker, *common, seed, channel, leaves) for seed, (broker, channel, leaves) in enumerate(places)
        ]
        for client in (*self.publishers, *self.consumers):
            self.work(client.run)

    def fault(self, number: int) -> None:
        """Publish a part of the messages, and kill something during it or after it."""
        before, self._limit = self._limit, self._count * (number + 1) // self.given.count
        if self.rng.random() < KILLED_PUBLISHING:
            amount = before + int((self._limit - before) * self.rng.random())
            self._wait(lambda: any(each.confirmed >= amount for each in self.publishers), "publishers")
        else:
            self.pause()
        target = self.rng.choice(["broker", "broker", "shipper", *(["database"] if self.server else [])])
        self.killed[target] += 1
        victims: dict[str, Any] = {"broker": self.rng.choice(self.brokers), "database": self.server}
        victim = victims.get(target, self.shipper)
        victim.kill()
        self.pause(0.5)
        victim.start()
        self._wait(lambda: all(each.confirmed >= self._limit for each in self.publishers), "publishers")

    def note(self) -> str:
        return ", ".join(f"{name} {times}" for name, times in sorted(self.killed.items()))

    def _wait(self, condition: Any, what: str) -> None:
        wait_until(lambda: self.error is not None or condition(), what, DRAIN_S)
        self.raise_error()

    def finish(self) -> None:
        """Wait until no broker has a message left, and the tables are complete."""
        self._wait(lambda: all(each.confirmed >= self._count for each in self.publishers), "publishers")
        self._wait(lambda: all(is_drained(broker, self.record) for broker in self.brokers), "messages")
        self._done.set()
        self.join()
        for consumer in self.consumers:
            consumer.finish()
        self.letters = {broker.http_address: broker.published_messages(DEAD_TOPIC) for broker in self.brokers}
        code = self.shipper.stop()
        assert code == 0, f"pyq_trace ended with exit code {code}: {self.shipper.log_tail()}"

    def check(self) -> dict[str, Any]:
        comparison = Comparison(self)
        comparison.run()
        return {
            "database": self.given.database,
            "messages": len(self.record.publications),
            "deliveries": len(self.record.deliveries),
            "rows": len(comparison.published) + len(comparison.consumed),
            "outcomes": dict(sorted(comparison.outcomes.items())),
            "cancels": len(self.record.cancelled),
            "dead_letters": sum(map(len, self.letters.values())),
            "kills": dict(self.killed),
            "publishes_interrupted": len(self.record.uncertain),
            "publications_without_an_answer": comparison.uncertain_publications,
            "deliveries_without_a_confirmation": comparison.uncertain_deliveries,
            "deliveries_cut_off": comparison.cut_off,
            "differences": len(comparison.problems),
            "first_differences": comparison.problems[:PROBLEMS_SHOWN],
            "ok": not comparison.problems,
        }


def set_up(broker: BrokerProcess) -> None:
    """Make the topics, the channels and their limits."""
    for topic, channels in ((TOPIC, CHANNELS), (DEAD_TOPIC, ("kept",))):
        broker.request("POST", "/topic/create", topic=topic)
        for channel in channels:
            broker.request("POST", "/channel/create", topic=topic, channel=channel)
    for channel in CHANNELS:
        limits = {"max_attempts": ATTEMPTS_MAX, "dead_letter_topic": DEAD_TOPIC}
        broker.request("POST", "/channel/limits", topic=TOPIC, channel=channel, **limits)


def is_drained(broker: BrokerProcess, record: Record) -> bool:
    """Return whether a broker's channels are done. Cancels messages whose client was about to, or knew no id of."""
    is_empty = True
    for channel in CHANNELS:
        found = broker.topic_stats(TOPIC, channel)
        assert found is not None
        is_empty &= not (found["depth"] or found["in_flight_count"] or found["deferred_count"])
        if found["deferred_count"] and not (found["depth"] or found["in_flight_count"]):
            query = {"topic": TOPIC, "channel": channel, "state": "deferred", "body": "none", "limit": 1000}
            listed = json.loads(broker.request("GET", "/channel/messages", **query))["messages"]
            for message in listed:
                if message["due"] > time.time_ns() + SOON_NS:
                    record.cancel(broker, message["id"], channel=channel)
    return is_empty


class Comparison:
    """Comparison of the tables with the record. problems: differences, as text."""

    def __init__(self, run: TraceExactness) -> None:
        self.record, self.is_killed = run.record, bool(run.killed["broker"])
        self.letters = run.letters
        self.problems: list[str] = []
        self.uncertain_publications = self.uncertain_deliveries = self.cut_off = 0
        self.outcomes: Counter[str] = Counter()
        database = Database(run.url)
        with database.transaction("read", reading=True) as connection:
            self.published, self.consumed, self.gaps = (
                connection.execute(sa.text(f"SELECT * FROM {view}")).mappings().all()
                for view in ("publish_log", "consume_log", "gap_log")
            )
            where = "WHERE event = 'cancelled'"
            self.cancels = connection.execute(sa.text(f"SELECT * FROM event_log {where}")).mappings().all()
        database.close()

    def run(self) -> None:
        self.problems += [f"gap: {dict(row)}" for row in self.gaps]
        self._publications()
        self._letters()
        self._deliveries()
        self._cancels()

    def _publications(self) -> None:
        rows = {(row["nsqd"], row["message_id"]): row for row in self.published if row["topic"] == TOPIC}
        topics = Counter(row["topic"] for row in self.published)
        if len(rows) != topics[TOPIC]:
            self.problems.append(f"publish_log: {topics[TOPIC]} rows for {len(rows)} messages")
        uncertain = Counter(self.record.uncertain)
        for publication in self.record.publications:
            row = rows.pop((publication.nsqd, publication.message_id), None)
            body = body_of(publication.number)
            expected = (publication.client, len(body), body[:9])
            found = row and (row["client"], row["size"], bytes(row["body"]))
            if found != expected:
                self.problems.append(f"{publication}: publish_log has {found}")
        for (nsqd, message_id), row in rows.items():
            key = nsqd, number_of(bytes(row["body"]))
            if uncertain[key] <= 0:
                self.problems.append(f"{message_id} of {nsqd}: nobody published it")
            uncertain[key] -= 1
            self.uncertain_publications += 1

    def _letters(self) -> None:
        """Compare the rows of dead letters with the brokers' topics."""
        rows = sorted((row["nsqd"], row["message_id"]) for row in self.published if row["topic"] == DEAD_TOPIC)
        kept = sorted((nsqd, letter.id) for nsqd, letters in self.letters.items() for letter in letters)
        if rows != kept:
            self.problems.append(f"dead letters: publish_log has {len(rows)}, the topics have {len(kept)}")
        dead = sum(row["outcome"] == "dead_lettered" for row in self.consumed)
        # A kill may publish a dead letter twice.
        if len(kept) < dead or (len(kept) > dead and not self.is_killed):
            self.problems.append(f"consume_log has {dead} dead letters, the topics have {len(kept)}")

    def _deliveries(self) -> None:
        rows: dict[Place, list[Any]] = defaultdict(list)
        for row in sorted(self.consumed, key=lambda row: row["sent_at"]):
            rows[row["nsqd"], row["channel"], row["message_id"]].append(row)
            self.outcomes[row["outcome"]] += 1
        deliveries: dict[Place, list[Delivery]] = defaultdict(list)
        for delivery in self.record.deliveries:
            deliveries[delivery.key].append(delivery)
        broken, cancelled = set(self.record.broken), set(self.record.cancelled)
        places = {
            (row["nsqd"], channel, row["message_id"])
            for row in self.published
            if row["topic"] == TOPIC
            for channel in CHANNELS
        }
        for place in places | rows.keys() | deliveries.keys():
            found = rows.get(place, [])
            differences = self._differences(found, deliveries.get(place, []), place in cancelled, broken)
            if found:
                if found[-1]["outcome"] not in FINAL:
                    differences.append(f"the last delivery is {found[-1]['outcome']}")
            elif place not in cancelled:
                differences.append("no delivery")
            if place not in places:
                differences.append("not in publish_log")
            if differences:
                shown = [(row["attempt"], row["client"], row["outcome"]) for row in found]
                self.problems.append(f"{place}: {differences}; consume_log has {shown}")

    def _differences(
        self, rows: list[Any], deliveries: list[Delivery], is_cancelled: bool, broken: set[tuple[str, str]]
    ) -> list[str]:
        """Return the differences between the rows of a message in a channel and its deliveries."""
        differences = []
        left = list(rows)
        for delivery in deliveries:
            same = [row for row in left if (row["client"], row["attempt"]) == (delivery.client, delivery.attempt)]
            allowed = self._allowed(delivery, is_cancelled)
            self.uncertain_deliveries += not delivery.is_certain
            row = next((row for row in same if row["outcome"] in allowed), None)
            if row is None:
                differences.append(f"{delivery} is {[row['outcome'] for row in same]}")
            else:
                left.remove(row)
        for row in left:
            self.cut_off += 1
            if (row["nsqd"], row["client"]) not in broken or row["outcome"] == "finished":
                differences.append(f"nobody got attempt {row['attempt']}, which is {row['outcome']}")
        return differences

    def _allowed(self, delivery: Delivery, is_cancelled: bool) -> set[str]:
        """Return the outcomes that the row of a delivery may have."""
        ends = {delivery.outcome} | (set() if delivery.is_certain else UNKNOWN_ENDS)
        if delivery.attempt >= ATTEMPTS_MAX:
            dead = {end if end == "finished" else "dead_lettered" for end in ends}
            # A kill between a REQ and the dead letter: the message is delivered again.
            ends = ends | dead if self.is_killed else dead
        return ends | {"cancelled"} if is_cancelled else ends

    def _cancels(self) -> None:
        found = Counter((row["nsqd"], row["channel"], row["message_id"]) for row in self.cancels)
        expected = Counter(self.record.cancelled)
        for place in found.keys() | expected.keys():
            if found[place] != expected[place]:
                self.problems.append(f"{place}: cancelled {expected[place]} times, event_log has {found[place]}")


if __name__ == "__main__":
    sys.exit(main(TraceExactness))
