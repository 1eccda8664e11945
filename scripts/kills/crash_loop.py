#!/usr/bin/env python3
"""Kill the daemon at random times under load, start it again, and check every message against every channel.

    scripts/kills/crash_loop.py --kills=300                     this checkout's daemon
    scripts/kills/crash_loop.py --flag=-sync-every=1            with each OK after a group commit
    scripts/kills/crash_loop.py --kills=3 --nsqd=PATH           the same load and the same checks on an nsqd

A round: connect publishers and consumers, let them work for a random time while channels are changed, SIGKILL, start
again, compare /stats. Some rounds kill once more while the daemon starts. At the end everything is drained and each
message is looked up.

Knowledge of a message, and therefore checked:

- Its OK was read (also from a socket whose daemon is dead already): every channel that was there when it was sent must
  deliver it until a FIN of it is sent. Without an OK it may be there or not; an MPUB is there whole or not at all.
- A consumer's commands are confirmed by a *fence*: FIN of an id that cannot exist, answered with an error, in order. A
  confirmed FIN is never undone, a confirmed REQ with a delay never comes before its time, over any number of kills.
- A deferred message never comes before its due time. A message that this program has seen before never tells 1 attempt.
- A message comes again only for a reason: requeued, timed out, a seek, or a kill since it came last.
- A channel gets only what is sent after it was made, or was held for it. One that was deleted does not come back.
- A seek makes everything behind its place come again and nothing in front of it.
- A channel with a rate stays below it. With a number of attempts no message is delivered more often, and one that used
  up its attempts is finished or becomes a dead letter; only such a message does.
- After each start counters, depths, pauses, limits and channels are as they were, give or take what was not confirmed.

A change (pause, make, delete, seek, limit) counts when its answer was read; a kill before that leaves both possible.
Everything is decided by --seed but the timing. Exit code: 0 when all held, 1 when something did not, 2 for bad usage.
"""

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from crash_changes import HOST, WAIT_S, Changes, Cut, limits_shown
from crash_checks import (
    FAILURES,
    FIN_CONFIRMED,
    FIN_SENT,
    MS_NS,
    MSG_TIMEOUT_MS,
    PENDING,
    Channel,
    Limits,
    Split,
    Topic,
    Totals,
    World,
)
from crash_clients import DELAY_MS_MAX, Consumer, Publisher

from pyqd.primitives.command_line import CommandParser
from pyqd.primitives.progress import Progress

REPOSITORY = Path(__file__).resolve().parents[2]
POLL_S = 0.003
TICK_S = 0.004
DRAIN_POLL_S = 0.1
SIGNS_OF_A_CRASH = ("Traceback (most recent call last)", "AssertionError", "panic:", "Segmentation fault")
FLAGS = (
    "-max-bytes-per-file=262144",
    f"-msg-timeout={MSG_TIMEOUT_MS}ms",
    "-max-msg-timeout=2s",
    "-broadcast-address=127.0.0.1",
)
BURST_COMMANDS = 60
VERBOSE_KILLS = 10
BURST_S = 0.002
CHANGES_MAX = 6
CUT_S = 0.004
START_KILL_S = 0.06
# Seeks go back that far in one topic of three; in the others, as far as a channel lags behind.
RETENTION_BYTES = 1 << 20

# The next daemon imports its code while this one is under load, and starts on a signal of this process.
PREPARED = """
import runpy, sys
import pyqd.apps.daemon
del sys.modules["pyqd.apps.daemon"]
if sys.stdin.readline():
    runpy.run_module("pyqd.apps.daemon", run_name="__main__", alter_sys=True)
"""


class Daemon:
    """The process, one after another over one data directory. nsqd: the program to run instead of this checkout's.

    flags: given to each process after those of this program.
    """

    def __init__(self, nsqd: str | None, directory: Path, flags: list[str]) -> None:
        self.flags = flags
        self.command = [nsqd] if nsqd else [sys.executable, "-c", PREPARED]
        self.prepares = not nsqd
        self.directory = directory
        self.data_path = directory / "data"
        self.data_path.mkdir(exist_ok=True)
        self.log_path = directory / "log"
        self.tcp_port = free_port()
        self.http_port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.prepared: subprocess.Popen[bytes] | None = None
        self.killed = False

    def launch(self) -> subprocess.Popen[bytes]:
        paths = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                [
                    *self.command,
                    f"-tcp-address={HOST}:{self.tcp_port}",
                    f"-http-address={HOST}:{self.http_port}",
                    f"-data-path={self.data_path}",
                    *FLAGS,
                    *self.flags,
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env=os.environ | {"PYTHONPATH": os.pathsep.join([*paths, str(REPOSITORY)])},
            )

    def spawn(self) -> None:
        """Start the daemon, and prepare the next one."""
        self.process, self.prepared = self.prepared or self.launch(), None
        self.killed = False
        assert self.process.stdin is not None
        if self.prepares:
            self.process.stdin.write(b"\n")
        self.process.stdin.close()

    def wait_ready(self) -> None:
        """Wait until the HTTP listener, which comes last, takes connections. Raises: RuntimeError."""
        assert self.process is not None
        deadline_s = time.monotonic() + WAIT_S
        while True:
            if self.process.poll() is not None:
                raise RuntimeError(f"the daemon ended with {self.process.returncode}; see {self.log_path}")
            with contextlib.suppress(OSError):
                socket.create_connection((HOST, self.http_port), WAIT_S).close()
                break
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"the daemon was not ready within {WAIT_S} s; see {self.log_path}")
            time.sleep(POLL_S)
        if self.prepares:
            self.prepared = self.launch()

    def kill(self) -> bool:
        """Send SIGKILL and reap. Returns: whether the process was still running until then."""
        assert self.process is not None
        alive = self.process.poll() is None
        self.killed = True
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(WAIT_S)
        return alive

    def stop(self) -> None:
        """End all processes."""
        for process in (self.process, self.prepared):
            if process is not None:
                process.kill()
                process.wait(WAIT_S)

    @contextlib.contextmanager
    def connected(self) -> Iterator[Any]:
        """Give a function that asks over one HTTP connection and returns the JSON; None for a status but 200."""
        connection = http.client.HTTPConnection(HOST, self.http_port, timeout=WAIT_S)

        def ask(path: str) -> Any:
            connection.request("GET", path)
            response = connection.getresponse()
            content = response.read()
            return json.loads(content) if response.status == 200 else None

        try:
            yield ask
        finally:
            connection.close()


def stats_by_name(ask: Any) -> dict[str, Any]:
    """Return /stats by topic, with the channels by name too. Raises: RuntimeError."""
    stats = ask("/stats?format=json&include_clients=false")
    if stats is None:
        raise RuntimeError("/stats was refused")
    topics = stats["topics"] or []
    for topic in topics:
        topic["channels"] = {channel["channel_name"]: channel for channel in topic["channels"] or []}
    return {topic["topic_name"]: topic for topic in topics}


def free_port() -> int:
    """Return a port below those of outgoing connections: none of these takes it between a kill and the next start."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_768)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port


class Harness:
    """The rounds: connections, the time of the kill, the checks after the start."""

    def __init__(self, arguments: argparse.Namespace, daemon: Daemon) -> None:
        self.arguments = arguments
        self.daemon = daemon
        self.rng = random.Random(arguments.seed)
        # The number of failures that --verbose has printed.
        self.shown = 0
        self.world = World(arguments.topics, random.Random(self.rng.random()))
        self.changes = Changes(self.world, daemon, random.Random(self.rng.random()), self.consume)
        self.extended = False
        self.recovery_s: list[float] = []

    async def connect(self, connection: Any) -> Any:
        await asyncio.wait_for(
            asyncio.get_running_loop().create_connection(lambda: connection, HOST, self.daemon.tcp_port), WAIT_S
        )
        return connection

    async def consume(self, channel: Channel, rough: bool = True) -> Consumer:
        """Subscribe to a channel. Raises: Cut."""
        rdy = 5 if channel.kind == "rough" and rough else 200
        try:
            consumer: Consumer = await self.connect(Consumer(self.world, channel, rdy, rough))
        except OSError as error:
            raise Cut from error
        waits = [asyncio.create_task(event.wait()) for event in (consumer.subscribed, consumer.gone)]
        await asyncio.wait(waits, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if not consumer.subscribed.is_set():
            if not self.daemon.killed:
                self.world.note("daemon_failures", f"SUB to {self.world.where(channel)} failed")
            raise Cut
        return consumer

    async def close(self, connections: list[Any]) -> None:
        """Read the rest of connections whose daemon is gone, or close them."""
        for connection in connections:
            await asyncio.wait_for(connection.gone.wait(), WAIT_S)

    def start(self) -> None:
        if self.rng.random() < self.arguments.start_kills:
            self.daemon.spawn()
            time.sleep(self.rng.random() * START_KILL_S)
            self.daemon.kill()
            self.world.totals.kills_while_starting += 1
        started_s, started_ns = time.monotonic(), time.time_ns()
        self.daemon.spawn()
        self.daemon.wait_ready()
        self.recovery_s.append(time.monotonic() - started_s)
        self.world.ready_ns = time.time_ns()
        for channel in self.world.channels():
            # The burst is full after a start.
            channel.rate_since_ns, channel.rate_count = started_ns, 0

    async def set_up(self) -> None:
        """Make the first channels before anything is published."""
        for channel in self.world.channels():
            consumer = await self.consume(channel)
            consumer.transport.abort()
            await self.close([consumer])
        with self.daemon.connected() as ask:
            self.extended = ask(f"/topic/positions?topic={self.world.topics[0].name}") is not None
        if self.extended:
            self.changes.extend()
            for topic in self.world.topics[::3]:
                await self.changes.call("POST", f"/topic/retention?topic={topic.name}&bytes={RETENTION_BYTES}")

    async def connect_all(self) -> tuple[list[Consumer], list[Publisher]]:
        """Connect consumers and publishers; some channels have no consumer in some rounds."""
        consumers: list[Consumer] = []
        for channel in [*self.world.channels(), *self.world.letters.values()]:
            if channel.kind not in ("late", "letters") or self.rng.random() < 0.3:
                for _ in range(2 if channel.kind == "rough" else 1):
                    consumers.append(await self.consume(channel))
        publishers = []
        for number in range(self.arguments.publishers):
            publisher = await self.connect(Publisher(self.world, number, 16))
            publisher.write(b"  V2")
            publishers.append(publisher)
        return consumers, publishers

    async def load(self, seconds: float) -> None:
        """Work for a time, kill, and read the bytes that the daemon had sent."""
        world, changes = self.world, self.changes
        consumers, publishers = await self.connect_all()
        left = self.arguments.messages
        end_s = time.monotonic() + seconds
        begin_s = sorted(end_s - self.rng.random() * seconds for _ in range(self.rng.randrange(CHANGES_MAX)))
        tasks = []
        while (now_s := time.monotonic()) < end_s:
            world.polled_ns = (world.polled_ns[1], time.time_ns())
            for publisher in publishers:
                left = publisher.tick(left)
            while begin_s and begin_s[0] <= now_s:
                begin_s.pop(0)
                tasks.append(asyncio.create_task(changes.change_something()))
            await asyncio.sleep(min(TICK_S, max(end_s - now_s, 0)))
        # Many kills cut a change.
        for _ in range(self.rng.randrange(CHANGES_MAX)):
            tasks.append(asyncio.create_task(changes.change_something()))
        if tasks:
            await asyncio.sleep(self.rng.random() * CUT_S)
        # Most kills come while the daemon works off a burst, and this program does not look.
        if self.rng.random() < 0.8:
            bursts = [b"".join(part for _ in range(BURST_COMMANDS) for part in each.commands()) for each in publishers]
            for publisher, burst in zip(publishers, bursts, strict=True):
                publisher.write(burst)
            time.sleep(self.rng.random() * BURST_S)
        if not self.daemon.kill():
            world.note("daemon_failures", "the daemon ended by itself")
        world.totals.kills += 1
        for consumer in consumers:
            letters = consumer.channel.letters
            if letters is not None and consumer.channel.attempts_least() == 1:
                letters.note_unread(consumer.rdy)
        await asyncio.gather(*tasks)
        await self.close(consumers + publishers + changes.connections)
        changes.connections.clear()
        for channel in [*world.channels(), *world.letters.values()]:
            channel.note_kill()

    def look(self) -> None:
        """Compare /stats after a start with the operations done."""
        world = self.world
        with self.daemon.connected() as ask:
            stats = stats_by_name(ask)
            self.changes.settle(stats)
            for topic in world.topics if self.extended else ():
                self.changes.note_positions(
                    topic, ask(f"/topic/positions?topic={topic.name}"), Split(world.next_event(), topic.sent)
                )
        for name, letters in world.letters.items():
            channels = stats.get(name, {}).get("channels")
            if not channels:
                world.note("counter_errors", f"{name} is gone")
            elif letters.name in channels:
                world.end_round(letters, channels[letters.name]["timeout_count"])
        for topic in world.topics:
            found = stats.get(topic.name)
            if found is None:
                world.note("counter_errors", f"{topic.name} is gone")
                continue
            self.within(topic.name, "message_count", topic.acknowledged.count(1), found["message_count"], topic.sent)
            self.within(topic.name, "paused", topic.paused, found["paused"], topic.paused)
            there, known = set(found["channels"]), {channel.name for channel in topic.channels}
            if there != known:
                world.note("counter_errors", f"{topic.name} has the channels {there}, should have {known}")
            for channel in topic.channels:
                if channel.name in there:
                    self.look_at(topic, channel, found["channels"][channel.name], found["depth"])

    def look_at(self, topic: Topic, channel: Channel, seen: dict[str, Any], held: int) -> None:
        name = f"{topic.name}:{channel.name}"
        self.within(name, "paused", channel.paused, seen["paused"], channel.paused)
        self.within(name, "requeue_count", channel.requeues_confirmed, seen["requeue_count"], channel.requeues_sent)
        self.within(name, "timeout_count", channel.timeouts_seen, seen["timeout_count"], 1 << 62)
        self.world.end_round(channel, seen["timeout_count"])
        if limits_shown(seen) != channel.limits:
            self.world.note("counter_errors", f"{name} has {limits_shown(seen)}, should have {channel.limits}")
        elif channel.limits != Limits():
            letters = seen["limits"]["dead_letter_count"]
            self.within(name, "dead_letter_count", channel.dead_letters_seen, letters, 1 << 62)
            channel.dead_letters_seen = letters
        count = seen["depth"] + seen["in_flight_count"] + seen["deferred_count"] + held
        # A message that used up its attempts may be a dead letter, or not.
        spent = 0 if channel.letters is None else len(channel.letters.spent)
        self.within(name, "depth in all", topic.owed(channel) - spent, count, topic.possible(channel))

    def within(self, name: str, what: str, least: int, found: int, most: int) -> None:
        if not least <= found <= most:
            self.world.note("counter_errors", f"{name}: {what} is {found}, should be in [{least}, {most}]")

    async def drain(self) -> None:
        """Consume all messages, until the daemon reports none or the counts stop changing."""
        world = self.world
        world.round += 1
        for topic in world.topics:
            if topic.paused:
                await self.changes.pause(topic, topic, False)
            for channel in topic.channels:
                if channel.paused:
                    await self.changes.pause(topic, channel, False)
                if channel.limits.rate:
                    await self.changes.limit(topic, channel, Limits(), "rate=0")
        consumers = [
            await self.consume(channel, rough=False) for channel in [*world.channels(), *world.letters.values()]
        ]
        moved_s, delivered = time.monotonic(), -1
        with self.daemon.connected() as ask:
            while time.monotonic() - moved_s < max(4.0, 2.5 * DELAY_MS_MAX / 1000):
                if world.totals.delivered != delivered:
                    moved_s, delivered = time.monotonic(), world.totals.delivered
                await asyncio.sleep(DRAIN_POLL_S)
                left = await asyncio.get_running_loop().run_in_executor(
                    None, lambda: left_in(stats_by_name(ask), world)
                )
                if not left:
                    break
            self.end_drain(stats_by_name(ask))
        world.totals.not_drained = left
        for consumer in consumers:
            consumer.transport.abort()
        await self.close(consumers)

    def end_drain(self, stats: dict[str, Any]) -> None:
        """Judge the deliveries of the drain by the counters after it."""
        for channel in [*self.world.channels(), *self.world.letters.values()]:
            found = stats.get(self.world.name_of_topic(channel), {"channels": {}})["channels"]
            if channel.name in found:
                self.world.end_round(channel, found[channel.name]["timeout_count"])

    async def run(self) -> None:
        self.daemon.spawn()
        self.daemon.wait_ready()
        await self.set_up()
        with Progress(total=self.arguments.kills, unit="kills") as progress:
            for number in range(self.arguments.kills):
                self.world.round = number
                self.world.totals.rounds += 1
                await self.load(self.rng.uniform(0.02, self.arguments.seconds))
                self.start()
                self.look()
                self.show(progress)
            progress.describe("draining")
            await self.drain()
        self.settle()

    def show(self, progress: Progress) -> None:
        """Show that one more kill is done; with --verbose print a line after every 10, and the failures since."""
        notes = self.world.notes
        note = f"{self.world.totals.delivered} delivered, {len(notes)} failures"
        progress.advance(note=note)
        if self.arguments.verbose and progress.done % VERBOSE_KILLS == 0:
            for text in (f"{progress.done} kills, {note}", *notes[self.shown :]):
                progress.say(text, sys.stdout)
            self.shown = len(notes)

    def settle(self) -> None:
        """Look every message up in every channel that had to deliver it."""
        world, totals = self.world, self.world.totals
        for topic in world.topics:
            for index in range(topic.sent):
                acknowledged = topic.acknowledged[index]
                first, count = topic.batch_first[index], topic.batch_count[index]
                if not acknowledged and not any(topic.seen[first : first + count]):
                    continue
                for channel in topic.channels:
                    state = channel.state(index)
                    totals.expected += state in (PENDING, FIN_SENT, FIN_CONFIRMED)
                    if state != PENDING or (channel.letters is not None and index in channel.letters.dead):
                        continue
                    world.note("lost" if acknowledged else "torn_batches", f"{world.where(channel)}, message {index}")
        for name, letters in world.letters.items():
            unearned = letters.unearned()
            totals.dead_letters_unread += len(letters.dead - letters.spent) - len(unearned)
            for index in unearned:
                world.note("unearned_dead_letters", f"{name}, message {index}")
        said = self.daemon.log_path.read_text(errors="replace")
        for sign in SIGNS_OF_A_CRASH:
            if sign in said:
                world.note("daemon_failures", f"its log says {sign!r}")


def left_in(stats: dict[str, Any], world: World) -> int:
    """Count the messages that are anywhere with a consumer."""
    with_channels = {topic.name for topic in world.topics if topic.channels} | set(world.letters)
    return sum(
        topic["depth"]
        + sum(each["depth"] + each["in_flight_count"] + each["deferred_count"] for each in topic["channels"].values())
        for topic in stats.values()
        if topic["topic_name"] in with_channels
    )


def report_of(harness: Harness, arguments: argparse.Namespace, elapsed_s: float) -> dict[str, Any]:
    """Return all figures by name."""
    late = sorted(harness.world.late_ns) or [0]
    totals = harness.world.totals
    figures: dict[str, Any] = {"daemon": arguments.nsqd or "pyqd", "seed": arguments.seed}
    figures |= {name: getattr(totals, name) for name in Totals.__dataclass_fields__}
    figures["late_ms"] = {
        name: round(late[min(int(len(late) * part), len(late) - 1)] / MS_NS, 2)
        for name, part in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    }
    figures["start_s"] = {
        "mean": round(sum(harness.recovery_s) / max(len(harness.recovery_s), 1), 3),
        "max": round(max(harness.recovery_s, default=0.0), 3),
    }
    figures["elapsed_s"] = round(elapsed_s, 1)
    figures["kills_per_minute"] = round(60 * (totals.kills + totals.kills_while_starting) / elapsed_s, 1)
    figures["ok"] = not any(figures[name] for name in FAILURES)
    figures["notes"] = harness.world.notes
    return figures


def print_table(figures: dict[str, Any]) -> None:
    for name, value in figures.items():
        if name != "notes":
            mark = "  <-- must be 0" if name in FAILURES and value else ""
            print(f"{name.replace('_', ' '):26} {value}{mark}")
    for note in figures["notes"]:
        print(f"  {note}")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = CommandParser(description="kill the daemon under load, again and again, and check everything")
    parser.add_argument("--kills", type=int, default=30, help="how many kills under load (30)")
    parser.add_argument("--seed", type=int, default=None, help="of all that is random but timing; printed")
    parser.add_argument("--seconds", type=float, default=0.6, help="longest load before a kill (0.6)")
    parser.add_argument("--messages", type=int, default=1500, help="most messages to publish in a round (1500)")
    parser.add_argument("--topics", type=int, default=6, help="how many topics (6)")
    parser.add_argument("--publishers", type=int, default=3, help="how many connections publish (3)")
    parser.add_argument("--start-kills", type=float, default=0.15, help="part of starts that are killed too (0.15)")
    parser.add_argument("--seconds-max", type=float, default=3600, help="give up after so long (3600)")
    parser.add_argument("--nsqd", metavar="PATH", help="run this nsqd instead of this checkout's daemon")
    parser.add_argument(
        "--flag", action="append", default=[], help="another flag of the daemon, as in --flag=-sync-every=1; repeatable"
    )
    parser.add_argument("--directory", help="keep data and log there; a temporary one is removed when all went well")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--verbose", action="store_true", help="print how far it is, every 10 kills")
    arguments = parser.parse_args(argv)
    if arguments.seed is None:
        arguments.seed = random.SystemRandom().randrange(1 << 32)
    return arguments


def main(argv: list[str] | None = None) -> int:
    """Run. Returns: the exit code."""
    arguments = parse(argv)
    directory = Path(arguments.directory or tempfile.mkdtemp(prefix="crash_loop."))
    directory.mkdir(parents=True, exist_ok=True)
    daemon = Daemon(arguments.nsqd, directory, arguments.flag)
    harness = Harness(arguments, daemon)
    started_s = time.monotonic()
    try:
        asyncio.run(asyncio.wait_for(harness.run(), arguments.seconds_max))
    except (RuntimeError, OSError, asyncio.TimeoutError, Cut) as error:
        harness.world.note("daemon_failures", f"{type(error).__name__}: {error}")
    finally:
        daemon.stop()
    figures = report_of(harness, arguments, time.monotonic() - started_s)
    print(json.dumps(figures, indent=2)) if arguments.json else print_table(figures)
    if figures["ok"] and not arguments.directory:
        shutil.rmtree(directory)
    elif not figures["ok"]:
        print(f"data and log are kept in {directory}", file=sys.stderr)
    return 0 if figures["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
