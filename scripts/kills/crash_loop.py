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
"""

import argparse
import asyncio
import random
import sys
import time
from pathlib import Path
from typing import Any

from crash_changes import Changes, Cut, limits_shown
from crash_checks import (
    COUNTS,
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
    World,
)
from crash_clients import DELAY_MS_MAX, Consumer, Publisher
from harness import HOST, WAIT_S, Daemon, Loop, asked, main, messages_in

from pyqd.primitives.progress import Progress

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
BURST_S = 0.002
CHANGES_MAX = 6
CUT_S = 0.004
START_KILL_S = 0.06
# Seeks go back that far in one topic of three; in the others, as far as a channel lags behind.
RETENTION_BYTES = 1 << 20
NO_LIMIT = 1 << 62


class CrashLoop(Loop):
    """The rounds: connections, the time of the kill, the checks after the start."""

    COUNT = ("--kills", 30)
    SECONDS = 0.3
    OPTIONS = (
        ("--messages", {"type": int, "default": 1500, "help": "most messages to publish in a round (%(default)s)"}),
        ("--topics", {"type": int, "default": 6, "help": "how many topics (%(default)s)"}),
        ("--publishers", {"type": int, "default": 3, "help": "how many connections publish (%(default)s)"}),
        ("--start-kills", {"type": float, "default": 0.15, "help": "share of starts that are killed (%(default)s)"}),
        ("--nsqd", {"metavar": "PATH", "help": "run this nsqd instead of this checkout's daemon"}),
        (
            "--flag",
            {"action": "append", "default": [], "help": "another flag of the daemon, as in --flag=-sync-every=1"},
        ),
    )

    def __init__(self, given: argparse.Namespace, directory: Path) -> None:
        super().__init__(given, directory)
        self.world = World(given.topics, random.Random(self.rng.random()))
        self.daemon = Daemon(given.nsqd, directory, (*FLAGS, *given.flag))
        self.changes = Changes(self.world, self.daemon, random.Random(self.rng.random()), self.consume)
        self.starts_s: list[float] = []
        self.extended = False
        self.events = asyncio.new_event_loop()
        self.do = self.events.run_until_complete

    def run(self, progress: Progress) -> dict[str, Any]:
        try:
            return super().run(progress)
        except (RuntimeError, OSError, asyncio.TimeoutError, Cut) as error:
            self.world.note("daemon_failures", f"{type(error).__name__}: {error}")
            return self.check()

    def start(self) -> None:
        self.stack.callback(self.daemon.close)
        self.daemon.start()
        self.do(self.set_up())

    def fault(self, number: int) -> None:
        self.world.round = number
        self.do(self.load(self.rng.uniform(0.02, 2 * self.given.interval)))
        self.start_again()
        self.look()

    def note(self) -> str:
        return f"{self.world.totals['delivered']:,} delivered, {len(self.world.notes)} failures"

    def finish(self) -> None:
        self.do(self.drain())
        self.settle()

    def check(self) -> dict[str, Any]:
        world = self.world
        late = sorted(world.late_ns) or [0]
        text = self.daemon.log_text()
        for sign in SIGNS_OF_A_CRASH:
            if sign in text:
                world.note("daemon_failures", f"its log says {sign!r}")
        return {
            "seed": self.given.seed,
            **{name: world.totals[name] for name in (*COUNTS, *FAILURES)},
            "late_ms": [round(late[int((len(late) - 1) * part)] / MS_NS, 2) for part in (0.5, 0.99, 1.0)],
            "start_s_max": round(max(self.starts_s, default=0.0), 3),
            "ok": not any(world.totals[name] for name in FAILURES),
            "notes": world.notes,
        }

    async def connect(self, connection: Any) -> Any:
        loop = asyncio.get_running_loop()
        await asyncio.wait_for(loop.create_connection(lambda: connection, HOST, self.daemon.tcp_port), WAIT_S)
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
            if self.daemon.is_running:
                self.world.note("daemon_failures", f"SUB to {self.world.where(channel)} failed")
            raise Cut
        return consumer

    async def close(self, connections: list[Any]) -> None:
        """Read the rest of connections whose daemon is gone, or close them."""
        for connection in connections:
            await asyncio.wait_for(connection.gone.wait(), WAIT_S)

    def start_again(self) -> None:
        if self.rng.random() < self.given.start_kills:
            self.daemon.kill_while_starting(self.rng.random() * START_KILL_S)
            self.world.totals["kills_while_starting"] += 1
        started_s, started_ns = time.monotonic(), time.time_ns()
        self.daemon.start()
        self.starts_s.append(time.monotonic() - started_s)
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
        path = f"/topic/positions?topic={self.world.topics[0].name}"
        self.extended = asked(self.daemon.http_port, "GET", path) is not None
        if self.extended:
            self.changes.extend()
            for topic in self.world.topics[::3]:
                await self.changes.call("POST", f"/topic/retention?topic={topic.name}&bytes={RETENTION_BYTES}")

    async def connect_all(self) -> tuple[list[Consumer], list[Publisher]]:
        """Connect consumers and publishers; some channels have no consumer in some rounds."""
        consumers: list[Consumer] = []
        for channel in self.world.all_channels():
            if channel.kind not in ("late", "letters") or self.rng.random() < 0.3:
                for _ in range(2 if channel.kind == "rough" else 1):
                    consumers.append(await self.consume(channel))
        publishers = []
        for number in range(self.given.publishers):
            publisher = await self.connect(Publisher(self.world, number, 16))
            publisher.write(b"  V2")
            publishers.append(publisher)
        return consumers, publishers

    async def load(self, seconds: float) -> None:
        """Work for a time, kill, and read the bytes that the daemon had sent."""
        world, changes = self.world, self.changes
        consumers, publishers = await self.connect_all()
        left = self.given.messages
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
        if not self.daemon.is_running:
            world.note("daemon_failures", "the daemon ended by itself")
        self.daemon.kill()
        world.totals["kills"] += 1
        for consumer in consumers:
            letters = consumer.channel.letters
            if letters is not None and consumer.channel.attempts_least() == 1:
                # Messages given to a consumer of the source channel may not have been sent or read.
                letters.unread_max += consumer.rdy
        await asyncio.gather(*tasks)
        await self.close(consumers + publishers + changes.connections)
        changes.connections.clear()
        for channel in world.all_channels():
            channel.note_kill()

    def stats(self) -> dict[str, Any]:
        """Return /stats by topic, with the channels by name too."""
        stats = asked(self.daemon.http_port, "GET", "/stats?format=json&include_clients=false")
        if stats is None:
            raise RuntimeError("/stats was refused")
        topics = {topic["topic_name"]: topic for topic in stats["topics"] or ()}
        for topic in topics.values():
            topic["channels"] = {channel["channel_name"]: channel for channel in topic["channels"] or ()}
        return topics

    def look(self) -> None:
        """Compare /stats after a start with the operations done."""
        world, stats = self.world, self.stats()
        self.changes.settle(stats)
        for topic in world.topics if self.extended else ():
            positions = asked(self.daemon.http_port, "GET", f"/topic/positions?topic={topic.name}")
            self.changes.note_positions(topic, positions, Split(world.next_event(), topic.sent))
        world.end_rounds(stats)
        for name, letters in world.letters.items():
            if letters.name not in stats.get(name, {"channels": ()})["channels"]:
                world.note("counter_errors", f"{name} is gone")
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
        if limits_shown(seen) != channel.limits:
            self.world.note("counter_errors", f"{name} has {limits_shown(seen)}, should have {channel.limits}")
        elif channel.limits != Limits():
            letters = seen["limits"]["dead_letter_count"]
            self.within(name, "dead_letter_count", channel.dead_letters_seen, letters, NO_LIMIT)
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
            for each in (topic, *topic.channels):
                if each.paused:
                    await self.changes.pause(topic, each, False)
            for channel in topic.channels:
                if channel.limits.rate:
                    await self.changes.limit(topic, channel, Limits(), "rate=0")
        consumers = [await self.consume(channel, rough=False) for channel in world.all_channels()]
        moved_s, delivered, left = time.monotonic(), -1, 0
        while time.monotonic() - moved_s < max(4.0, 2.5 * DELAY_MS_MAX / 1000):
            if world.totals["delivered"] != delivered:
                moved_s, delivered = time.monotonic(), world.totals["delivered"]
            await asyncio.sleep(DRAIN_POLL_S)
            left = left_in(await asyncio.to_thread(self.stats), world)
            if not left:
                break
        world.end_rounds(self.stats())
        world.totals["not_drained"] = left
        for consumer in consumers:
            consumer.transport.abort()
        await self.close(consumers)

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
                    totals["expected"] += state in (PENDING, FIN_SENT, FIN_CONFIRMED)
                    if state != PENDING or (channel.letters is not None and index in channel.letters.dead):
                        continue
                    world.note("lost" if acknowledged else "torn_batches", f"{world.where(channel)}, message {index}")
        for name, letters in world.letters.items():
            for index in letters.unearned():
                world.note("unearned_dead_letters", f"{name}, message {index}")


def left_in(stats: dict[str, Any], world: World) -> int:
    """Count the messages that are anywhere with a consumer."""
    with_channels = {topic.name for topic in world.topics if topic.channels} | set(world.letters)
    return sum(messages_in(topic) for name, topic in stats.items() if name in with_channels)


if __name__ == "__main__":
    sys.exit(main(CrashLoop))
