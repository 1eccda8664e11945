#!/usr/bin/env python3
"""Publish and consume numbered messages with the Python client while brokers and consumers are killed.

    scripts/kills/client_kills.py                                   a million messages, blocking face
    scripts/kills/client_kills.py --face=asyncio
    scripts/kills/client_kills.py --messages=100000 --nsqd=PATH     on Go's nsqd

Three brokers are killed (SIGKILL) and started again at random, and so are the consumers. The publisher publishes each
number until a broker has acknowledged it. A consumer notes each number in a file before it finishes the message. At the
end no broker has a message left; then a number that no consumer has noted is lost. Duplicates are allowed: messages are
delivered at least once.

nsqd keeps messages in flight in memory: it is stopped (SIGTERM) instead of killed, with every message on its disk.

Everything is decided by --seed but the timing. Exit code: 0 if nothing was lost, 1 otherwise, 2 for bad usage.
"""

import argparse
import contextlib
import http.client
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

from client_workers import CHANNEL, TOPIC

from pyqd.primitives.command_line import CommandParser
from pyqd.primitives.progress import Progress
from pyqd.testing import BrokerProcess
from pyqd.testing.daemon import reserved_port

HOST = "127.0.0.1"
WORKERS = Path(__file__).with_name("client_workers.py")
WAIT_S = 20.0
DRAIN_S = 180.0
POLL_S = 0.05
BROKER_SHARE = 0.6
# A killed consumer's messages come again after the timeout, or at once if the broker notices the end of its connection.
FLAGS = ("--msg-timeout=5s",)


class Nsqd:
    """Go's nsqd, with the methods of BrokerProcess that are used here."""

    def __init__(self, program: str, directory: Path) -> None:
        self._program = program
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._reserved = reserved_port(), reserved_port()
        self.tcp_port, self.http_port = (each.getsockname()[1] for each in self._reserved)
        self.tcp_address = f"{HOST}:{self.tcp_port}"

    def start(self) -> None:
        (self._directory / "data").mkdir(parents=True, exist_ok=True)
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self._program,
                    f"-tcp-address={self.tcp_address}",
                    f"-http-address={HOST}:{self.http_port}",
                    f"-data-path={self._directory / 'data'}",
                    "-mem-queue-size=0",
                    "-msg-timeout=5s",
                ],
                stdout=log,
                stderr=log,
            )
        for _ in range(round(WAIT_S / POLL_S)):
            with contextlib.suppress(OSError, ValueError):
                self.stats()
                return
            time.sleep(POLL_S)
        raise RuntimeError("nsqd did not start")

    def kill(self) -> None:
        """Stop it; see the head of this file."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(WAIT_S)
            self._process = None

    def close(self) -> None:
        self.kill()
        for each in self._reserved:
            each.close()

    def stats(self) -> dict[str, Any]:
        connection = http.client.HTTPConnection(HOST, self.http_port, timeout=WAIT_S)
        with contextlib.closing(connection):
            connection.request("GET", "/stats?format=json")
            found: dict[str, Any] = json.loads(connection.getresponse().read())
            return found


class Consumers:
    """Processes that consume. Each has a ledger of its own."""

    def __init__(self, face: str, count: int, addresses: list[str], directory: Path) -> None:
        self.ledgers: list[Path] = []
        self.exit_codes: list[int] = []
        self._face = face
        self._addresses = addresses
        self._directory = directory
        self._processes = [self._spawn() for _ in range(count)]

    def _spawn(self) -> subprocess.Popen[bytes]:
        number = len(self.ledgers)
        self.ledgers.append(self._directory / f"ledger-{number}")
        command = [sys.executable, str(WORKERS), "consumer", self._face, str(self.ledgers[-1]), str(number)]
        with (self._directory / f"consumer-{number}.log").open("wb") as log:
            return subprocess.Popen([*command, *self._addresses], stdout=log, stderr=log)

    def kill_one(self, rng: random.Random) -> None:
        """Kill a consumer, and start another one."""
        chosen = rng.randrange(len(self._processes))
        self._processes[chosen].kill()
        self._processes[chosen].wait(WAIT_S)
        self._processes[chosen] = self._spawn()

    def stop(self) -> None:
        """Stop all as a container would be stopped, and note their exit codes."""
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        self.exit_codes = [process.wait(2 * WAIT_S) for process in self._processes]

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait(WAIT_S)

    def counts(self, count: int) -> "array[int]":
        """Return how often each number was noted."""
        found = array("L", bytes(8 * count))
        for path in self.ledgers:
            numbers = array("Q", path.read_bytes() if path.exists() else b"")
            numbers.byteswap()
            for number in numbers:
                found[number] += 1
        return found


class Run:
    """One run: brokers, publisher, consumers, kills."""

    def __init__(self, arguments: argparse.Namespace, directory: Path) -> None:
        self.arguments = arguments
        self.rng = random.Random(arguments.seed)
        self.broker_kill_count = self.consumer_kill_count = 0
        self.directory = directory
        self.brokers: list[Any] = []
        for number in range(arguments.brokers):
            home = directory / f"broker-{number}"
            home.mkdir()
            self.brokers.append(Nsqd(arguments.nsqd, home) if arguments.nsqd else BrokerProcess(home, FLAGS))

    def run(self, progress: Progress) -> dict[str, Any]:
        with contextlib.ExitStack() as stack:
            for broker in self.brokers:
                stack.callback(broker.close)
                broker.start()
            addresses = [broker.tcp_address for broker in self.brokers]
            started_s = time.monotonic()
            consumers = Consumers(self.arguments.face, self.arguments.consumers, addresses, self.directory)
            stack.callback(consumers.kill)
            publisher = self._publisher(addresses)
            stack.callback(publisher.wait, WAIT_S)
            stack.callback(publisher.kill)
            self._kill_while(publisher, consumers, progress)
            published_s = time.monotonic() - started_s
            answer = publisher.communicate(timeout=WAIT_S)[0]
            if publisher.returncode != 0:
                raise RuntimeError(f"the publisher ended with {publisher.returncode}: see {self.directory}")
            drained = self._wait_drained(progress)
            elapsed_s = time.monotonic() - started_s
            consumers.stop()
            return self._report(consumers, json.loads(answer), published_s, elapsed_s, drained)

    def _publisher(self, addresses: list[str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(WORKERS), "publisher", self.arguments.face, str(self.arguments.messages)]
        with (self.directory / "publisher.log").open("wb") as log:
            return subprocess.Popen([*command, *addresses], stdout=subprocess.PIPE, stderr=log)

    def _kill_while(self, publisher: subprocess.Popen[bytes], consumers: Consumers, progress: Progress) -> None:
        """Kill until the publisher has ended."""
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                publisher.wait(self.rng.uniform(0.2, 1.8) * self.arguments.interval)
                return
            if self.rng.random() < BROKER_SHARE:
                broker = self.rng.choice(self.brokers)
                broker.kill()
                time.sleep(self.rng.uniform(0.0, self.arguments.interval))
                broker.start()
                self.broker_kill_count += 1
            else:
                consumers.kill_one(self.rng)
                self.consumer_kill_count += 1
            noted = sum(path.stat().st_size for path in consumers.ledgers if path.exists()) // 8
            progress.move_to(noted, f"{self.broker_kill_count} brokers and {self.consumer_kill_count} consumers killed")

    def _wait_drained(self, progress: Progress) -> bool:
        """Wait until the brokers have no message."""
        deadline_s = time.monotonic() + DRAIN_S
        while time.monotonic() < deadline_s:
            if all(remaining(broker.stats()) == 0 for broker in self.brokers):
                return True
            time.sleep(POLL_S)
        progress.say("the brokers were not drained in time")
        return False

    def _report(
        self,
        consumers: Consumers,
        publisher: dict[str, Any],
        published_s: float,
        elapsed_s: float,
        drained: bool,
    ) -> dict[str, Any]:
        counts = consumers.counts(self.arguments.messages)
        lost = [number for number, count in enumerate(counts) if not count]
        delivered = sum(counts)
        return {
            "face": self.arguments.face,
            "messages": self.arguments.messages,
            "lost": len(lost),
            "first_lost": lost[:10],
            "drained": drained,
            "delivered": delivered,
            "duplicates": delivered - (self.arguments.messages - len(lost)),
            "broker_kills": self.broker_kill_count,
            "consumer_kills": self.consumer_kill_count,
            "publishes_repeated_by_the_client": publisher["retried"],
            "publishes_failed_and_repeated": publisher["failed"],
            "acknowledged": publisher["acknowledged"],
            "exit_codes_of_consumers": consumers.exit_codes,
            "published_s": round(published_s, 1),
            "elapsed_s": round(elapsed_s, 1),
        }


def remaining(stats: dict[str, Any]) -> int:
    """Return the number of messages that a broker has not delivered, or whose answer it waits for."""
    for topic in stats["topics"] or []:
        if topic["topic_name"] == TOPIC:
            names = ("depth", "in_flight_count", "deferred_count")
            channels = [each for each in topic["channels"] or [] if each["channel_name"] == CHANNEL]
            if not channels:
                return int(topic["depth"])
            return int(topic["depth"]) + sum(channels[0][name] for name in names)
    return 0


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = CommandParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--face", choices=("blocking", "asyncio"), default="blocking")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--consumers", type=int, default=2)
    parser.add_argument("--interval", type=float, default=0.5, help="mean seconds between two kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nsqd", metavar="PATH", help="use this nsqd instead of pyqd")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser.parse_args(arguments)


def main() -> int:
    arguments = parse(sys.argv[1:])
    with (
        tempfile.TemporaryDirectory(prefix="client-kills-", ignore_cleanup_errors=True) as directory,
        Progress("delivering", arguments.messages, "messages", line_s=10.0) as progress,
    ):
        report = Run(arguments, Path(directory)).run(progress)
    if arguments.json:
        print(json.dumps(report))
    else:
        for name, value in report.items():
            print(f"{name.replace('_', ' ')}: {value:,}" if isinstance(value, int) else f"{name}: {value}")
    is_complete = report["lost"] == 0 and report["acknowledged"] == arguments.messages and report["drained"]
    return 0 if is_complete else 1


if __name__ == "__main__":
    sys.exit(main())
