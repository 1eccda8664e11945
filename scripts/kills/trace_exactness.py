#!/usr/bin/env python3
"""Compare the tables of pyq_trace, row by row, with the record of the clients.

    scripts/kills/trace_exactness.py                                100,000 messages, SQLite
    scripts/kills/trace_exactness.py --database=postgresql          or mariadb: a server of this machine
    scripts/kills/trace_exactness.py --kills=50                     SIGKILL of brokers, pyq_trace and database server
    scripts/kills/trace_exactness.py --messages=2000 --json

Two brokers with one topic and two channels each. The clients (trace_clients.py) publish, finish, requeue, hold, touch,
disconnect and cancel, and some messages end as dead letters. `pyq_trace ship` stores the events meanwhile. Then
publish_log must have the messages that were published, and consume_log the deliveries with their outcomes; nothing
else, and nothing twice.

After a kill of a broker a client cannot know all. A publish without an answer may have a row. A delivery may have a row
if the kill cut its frame off. Of a delivery that was not confirmed, the outcome is that of the client's command, or the
broker knows of no end. The report counts them.

Exit code: 0 if the tables agree, 1 otherwise, 2 for bad usage.
"""

import argparse
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from trace_clients import (
    ATTEMPTS_MAX,
    CHANNELS,
    DEAD_TOPIC,
    TOPIC,
    Consumer,
    Delivery,
    Publisher,
    Record,
    body_of,
    number_of,
)

from pyqd.primitives.command_line import CommandParser
from pyqd.primitives.progress import Progress
from pyqd.testing import BrokerProcess
from pyqd.trace.database import Database

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.databases import Mariadb, Postgresql, Server, running

DATABASES = {"sqlite": None, "postgresql": Postgresql, "mariadb": Mariadb}
BROKER_FLAGS = ("--trace-topic=*", "--trace-body-bytes=9", "--log-level=warn")
POLL_S = 0.005
# Share of kills while messages are being published; the others come later.
KILLED_PUBLISHING = 0.6
DRAIN_S = 300.0
STOP_S = 60.0
# Due later than that: nobody waits for the message.
SOON_NS = 600 * 10**9
PROBLEMS_SHOWN = 20
FINAL = ("finished", "dead_lettered", "cancelled")
# Outcomes of a delivery whose end the clients do not know.
UNKNOWN_ENDS = frozenset(("disconnected", "timed_out"))

Place = tuple[str, str, str]


class Shipper:
    """`pyq_trace ship`, one process after the other."""

    def __init__(self, url: str, brokers: list[BrokerProcess], log_path: Path) -> None:
        addresses = [f"--nsqd-http-address={broker.http_address}" for broker in brokers]
        self.command = [sys.executable, "-m", "pyqd.tools.pyq_trace", "ship", f"--to={url}", *addresses]
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen([*self.command, "--interval=50ms"], stdout=log, stderr=log)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_S)

    def stop(self) -> int:
        """End it by SIGTERM, and store the rest by another one. Returns: the first exit code that is not 0."""
        assert self._process is not None
        self._process.terminate()
        code = self._process.wait(STOP_S)
        if code == -signal.SIGTERM:
            # It had just been started, and had no handler yet.
            code = 0
        with self._log_path.open("ab") as log:
            return code or subprocess.run([*self.command, "--once"], stdout=log, stderr=log, check=False).returncode

    def log_tail(self) -> str:
        return self._log_path.read_text(errors="replace")[-2000:]


class Run:
    """One run: brokers, clients, shipper, kills."""

    def __init__(self, arguments: argparse.Namespace, directory: Path, server: Server | None) -> None:
        self.arguments = arguments
        self.record = Record()
        self.brokers = [
            BrokerProcess(directory / name, (*BROKER_FLAGS, f"--node-id={number + 1}"))
            for number, name in enumerate(("one", "two"))
        ]
        self.url = server.new_database("trace") if server else f"sqlite:///{directory}/trace.db"
        self.server = server
        self.shipper = Shipper(self.url, self.brokers, directory / "pyq_trace.log")
        self.killed: Counter[str] = Counter()
        self._rng = random.Random(arguments.seed)
        self._done = threading.Event()
        # Messages that each broker may have so far.
        self._limit = 0

    def run(self, progress: Progress) -> None:
        """Do everything up to the stored tables. Raises: errors of a client."""
        with contextlib.ExitStack() as stack:
            for broker in self.brokers:
                broker.directory.mkdir()
                stack.callback(broker.close)
                broker.start()
                set_up(broker)
            self.shipper.start()
            stack.callback(self.shipper.kill)
            publishers, consumers = self._clients()
            stack.callback(self._done.set)
            for client in (*publishers, *consumers):
                client.start()
            self._kill(publishers, progress)
            self._drain(publishers)
            self._done.set()
            for client in (*publishers, *consumers):
                client.join(STOP_S)
            for consumer in consumers:
                consumer.finish()
            if self.record.error is not None:
                raise self.record.error
            self.letters = {broker.http_address: broker.published_messages(DEAD_TOPIC) for broker in self.brokers}
            code = self.shipper.stop()
            assert code == 0, f"pyq_trace ended with exit code {code}: {self.shipper.log_tail()}"

    def _clients(self) -> tuple[list[Publisher], list[Consumer]]:
        common = self.record, self._done
        count = self.arguments.messages // len(self.brokers)
        publishers = [
            Publisher(broker, *common, number, count, lambda: self._limit) for number, broker in enumerate(self.brokers)
        ]
        places = [
            (broker, channel, leaves) for broker in self.brokers for channel in CHANNELS for leaves in (False, True)
        ]
        consumers = [
            Consumer(broker, *common, seed, channel, leaves) for seed, (broker, channel, leaves) in enumerate(places)
        ]
        return publishers, consumers

    def _kill(self, publishers: list[Publisher], progress: Progress) -> None:
        """Publish in equal parts, and kill something during each."""
        count, kills = self.arguments.messages // len(self.brokers), self.arguments.kills
        for number in range(kills):
            before, self._limit = self._limit, count * (number + 1) // kills
            if self._rng.random() < KILLED_PUBLISHING:
                amount = before + int((self._limit - before) * self._rng.random())
                self._wait(lambda amount=amount: any(each.confirmed >= amount for each in publishers), "publishers")
            else:
                time.sleep(self._rng.uniform(0.0, 2 * self.arguments.interval))
            self._kill_one()
            self._wait(lambda: all(each.confirmed >= self._limit for each in publishers), "publishers")
            progress.move_to(number + 1, ", ".join(f"{name} {times}" for name, times in sorted(self.killed.items())))
        self._limit = count

    def _kill_one(self) -> None:
        targets = ["broker", "broker", "shipper", *(["database"] if self.server else [])]
        target = self._rng.choice(targets)
        self.killed[target] += 1
        victim: Any = {"broker": self._rng.choice(self.brokers), "shipper": self.shipper, "database": self.server}[
            target
        ]
        victim.kill()
        time.sleep(self._rng.uniform(0.0, self.arguments.interval))
        victim.start()

    def _wait(self, condition: Any, what: str) -> None:
        deadline_s = time.monotonic() + DRAIN_S
        while not condition():
            if self.record.error is not None:
                raise self.record.error
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"{what} are not done: {[broker.stats()['topics'] for broker in self.brokers]}")
            time.sleep(POLL_S)

    def _drain(self, publishers: list[Publisher]) -> None:
        """Wait until no broker has a message left."""
        for publisher in publishers:
            self._wait(publisher.is_over, "publishers")
            publisher.join(STOP_S)
        for publisher in publishers:
            self._wait(lambda publisher=publisher: is_drained(publisher), "channels")


def set_up(broker: BrokerProcess) -> None:
    """Make the topics, the channels and their limits."""
    for topic, channels in ((TOPIC, CHANNELS), (DEAD_TOPIC, ("kept",))):
        broker.request("POST", "/topic/create", topic=topic)
        for channel in channels:
            broker.request("POST", "/channel/create", topic=topic, channel=channel)
    for channel in CHANNELS:
        limits = {"max_attempts": ATTEMPTS_MAX, "dead_letter_topic": DEAD_TOPIC}
        broker.request("POST", "/channel/limits", topic=TOPIC, channel=channel, **limits)


def is_drained(publisher: Publisher) -> bool:
    """Return whether a broker's channels are done. Cancels messages whose client was about to, or knew no id of."""
    broker = publisher.broker
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
                    publisher.cancel(message["id"], channel=channel)
    return is_empty


# Comparison.


class Check:
    """Comparison of the tables with the record. problems: differences, as text."""

    def __init__(self, run: Run) -> None:
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
        """Compare all tables."""
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
            deliveries[delivery.nsqd, delivery.channel, delivery.message_id].append(delivery)
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


def report_of(run: Run, check: Check, seconds: float) -> dict[str, Any]:
    """Return the figures of a run."""
    return {
        "database": run.arguments.database,
        "messages": len(run.record.publications),
        "deliveries": len(run.record.deliveries),
        "rows": len(check.published) + len(check.consumed),
        "outcomes": dict(sorted(check.outcomes.items())),
        "cancels": len(run.record.cancelled),
        "dead_letters": sum(map(len, run.letters.values())),
        "kills": dict(run.killed),
        "publishes_interrupted": len(run.record.uncertain),
        "publications_without_an_answer": check.uncertain_publications,
        "deliveries_without_a_confirmation": check.uncertain_deliveries,
        "deliveries_cut_off": check.cut_off,
        "differences": len(check.problems),
        "first_differences": check.problems[:PROBLEMS_SHOWN],
        "seconds": round(seconds, 1),
    }


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = CommandParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--database", choices=DATABASES, default="sqlite")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--interval", type=float, default=0.5, help="mean seconds until a kill")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="keep the directory, and tell its name")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser.parse_args(arguments)


def main() -> int:
    arguments = parse(sys.argv[1:])
    started_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        kind = DATABASES[arguments.database]
        server = stack.enter_context(running(kind)) if kind else None
        if arguments.keep:
            directory = tempfile.mkdtemp(prefix="trace-exactness-")
            print(directory, file=sys.stderr)
        else:
            temporary = tempfile.TemporaryDirectory(prefix="trace-exactness-", ignore_cleanup_errors=True)
            directory = stack.enter_context(temporary)
        progress = stack.enter_context(Progress("killing", arguments.kills, "kills", line_s=10.0))
        run = Run(arguments, Path(directory), server)
        run.run(progress)
        check = Check(run)
        check.run()
        report = report_of(run, check, time.monotonic() - started_s)
    if arguments.json:
        print(json.dumps(report))
    else:
        for name, value in report.items():
            print(f"{name.replace('_', ' ')}: {value:,}" if isinstance(value, int) else f"{name}: {value}")
    return 0 if not check.problems else 1


if __name__ == "__main__":
    sys.exit(main())
