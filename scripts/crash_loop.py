#!/usr/bin/env python3
"""Kill the daemon at random moments under load, start it again, and check every message against every channel.

    scripts/crash_loop.py --kills=300                     this checkout's daemon
    scripts/crash_loop.py --kills=3 --nsqd=PATH           the same load and the same checks on an nsqd

A round: connect publishers and consumers, let them work for a random time, SIGKILL, start again, look at /stats. Some
rounds kill once more while the daemon starts. At the end everything is drained and each message is looked up.

What is known of a message, and therefore checked:

- Its OK was read (also from a socket whose daemon is dead already): every channel that was there when it was sent must
  deliver it. Without an OK it may be there or not; an MPUB is there whole or not at all.
- A consumer's commands are confirmed by a *fence*: FIN of an id that cannot exist, answered with an error, in order. A
  confirmed FIN is never undone, a confirmed REQ with a delay never comes before its time, over any number of kills.
- A deferred message never comes before its due time. A message that this program has seen before never tells 1 attempt.
- A message comes again only for a reason: requeued, timed out, or a kill since it came last.
- After each start counters, depths and pauses are what was done, give or take what was not confirmed.

Everything is decided by --seed but the timing. Exit code: 0 when all held, 1 when something did not, 2 for bad usage.
"""

import argparse
import asyncio
import collections
import contextlib
import http.client
import itertools
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from crash_checks import FAILURES, FIN_CONFIRMED, FIN_SENT, MS_NS, MSG_TIMEOUT_MS, Channel, Topic, Totals, World

REPOSITORY = Path(__file__).resolve().parents[1]
HOST = "127.0.0.1"
WAIT_S = 20.0
POLL_S = 0.003
TICK_S = 0.004
READ_BYTES = 256 << 10  # asyncio reads at most so much at once
FENCE = b"FIN ffffffff%08x\n"
RESPONSE, ERROR, MESSAGE = 0, 1, 2
SIGNS_OF_A_CRASH = ("Traceback (most recent call last)", "AssertionError", "panic:", "Segmentation fault")
FLAGS = (
    "-max-bytes-per-file=262144",
    f"-msg-timeout={MSG_TIMEOUT_MS}ms",
    "-max-msg-timeout=2s",
    "-broadcast-address=127.0.0.1",
)

# What a consumer does with a message, in percent; the rest is FIN. "hold": let it time out.
ACTIONS = {
    "plain": (("requeue", 2), ("delay", 2), ("touch", 2)),
    "rough": (("requeue", 12), ("delay", 15), ("touch", 12), ("hold", 4)),
    "late": (("requeue", 5), ("delay", 10)),
}
ATTEMPTS_MAX = 6
DELAY_MS_MAX = 1500
# Small ones are stored through the mapping, large ones written.
BATCHES_MAX = (16, 16, 16, 150)
BURST_COMMANDS = 60
BURST_S = 0.002
NEW_CHANNEL_EVERY_ROUNDS = 12
EXTRA_CHANNELS_MAX = 6


class Connection(asyncio.Protocol):
    """One connection: frames in order. The subclass fills in `on_frame`."""

    count = 0

    def __init__(self, world: World) -> None:
        Connection.count += 1
        self.world = world
        self.number = Connection.count
        self.transport: Any = None
        self.gone = asyncio.Event()
        self.received = bytearray()
        self.closing = False
        self.read_ns = 0
        self.sent_after_ns = 0
        self.drained = True

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        if self.drained and not self.received:
            # The socket was empty when it was read, or looked at, before.
            self.sent_after_ns = max(self.read_ns, self.world.polled_ns[0])
        self.read_ns = time.time_ns()
        self.drained = len(data) < READ_BYTES
        self.received += data
        at = 0
        received = self.received
        while len(received) - at >= 8:
            size, kind = struct.unpack_from(">ii", received, at)
            if len(received) - at < 4 + size:
                break
            self.on_frame(kind, bytes(received[at + 8 : at + 4 + size]))
            at += 4 + size
        del received[:at]
        self.after_frames()

    def connection_lost(self, _error: Exception | None) -> None:
        self.closing = True
        self.on_end()
        self.gone.set()

    def write(self, data: bytes) -> None:
        if not self.closing:
            self.transport.write(data)

    def on_frame(self, kind: int, data: bytes) -> None:
        raise NotImplementedError

    def after_frames(self) -> None:
        """Act on the frames of one read."""

    def on_end(self) -> None:
        """Note that nothing more comes."""


class Publisher(Connection):
    """Publishes to all topics in turn, with some commands underway."""

    def __init__(self, world: World, publisher: int, window: int) -> None:
        super().__init__(world)
        self.publisher = publisher
        self.window = window
        self.underway: collections.deque[range] = collections.deque()

    def tick(self, left: int) -> int:
        """Send a few commands. Returns: how many messages of `left` remain."""
        parts: list[bytes] = []
        while left > 0 and len(self.underway) < self.window and len(parts) < 3:
            before = len(self.underway)
            parts += self.commands()
            left -= sum(len(numbers) for numbers in itertools.islice(self.underway, before, None))
        if parts:
            self.write(b"".join(parts))
        return left

    def commands(self) -> list[bytes]:
        """Make a PUB or DPUB, or some MPUBs to one topic, which the broker may store together."""
        world, rng = self.world, self.world.rng
        topic = rng.randrange(len(world.topics))
        name = world.topics[topic].name.encode()
        lot = rng.random()
        if lot < 0.2:
            return [self.batch(topic, name) for _ in range(rng.choice((1, 1, 2, 4)))]
        defer_ms = rng.randint(1, DELAY_MS_MAX) if lot < 0.5 else 0
        number, body = world.new_message(topic, self.publisher, defer_ms)
        self.underway.append(range(number, number + 1))
        head = b"DPUB %s %d\n" % (name, defer_ms) if defer_ms else b"PUB %s\n" % name
        return [head + struct.pack(">i", len(body)) + body]

    def batch(self, topic: int, name: bytes) -> bytes:
        world, rng = self.world, self.world.rng
        first, count = len(world.messages), rng.randint(1, rng.choice(BATCHES_MAX))
        bodies = [world.new_message(topic, self.publisher, batch=(first, count))[1] for _ in range(count)]
        self.underway.append(range(first, first + count))
        inner = struct.pack(">i", count) + b"".join(struct.pack(">i", len(body)) + body for body in bodies)
        return b"MPUB " + name + b"\n" + struct.pack(">i", len(inner)) + inner

    def on_frame(self, kind: int, data: bytes) -> None:
        if data == b"_heartbeat_":
            self.write(b"NOP\n")
        elif kind == RESPONSE and data == b"OK":
            self.world.acknowledge(self.underway.popleft())
        else:
            self.world.note("daemon_failures", f"a publish was answered with {data!r}")


class Consumer(Connection):
    """Takes the messages of one channel and does with them what its kind does."""

    def __init__(self, world: World, channel: Channel, rdy: int, rough: bool = True) -> None:
        super().__init__(world)
        self.channel = channel
        self.rdy = rdy
        self.rough = rough
        self.subscribed = asyncio.Event()
        self.out: list[bytes] = []
        self.acts: list[tuple[str, bytes, int]] = []
        self.fenced: collections.deque[tuple[bytes, list[tuple[str, bytes, int]]]] = collections.deque()
        self.failed: set[bytes] = set()
        self.fence_count = 0
        self.answers = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        settings = json.dumps({"output_buffer_timeout": 25})
        names = (self.world.topics[self.channel.topic].name.encode(), self.channel.name.encode())
        self.write(b"  V2IDENTIFY\n" + struct.pack(">i", len(settings)) + settings.encode() + b"SUB %s %s\n" % names)

    def on_frame(self, kind: int, data: bytes) -> None:
        if kind == MESSAGE:
            self.on_message(data)
        elif kind == ERROR:
            self.on_error(data)
        elif data == b"_heartbeat_":
            self.out.append(b"NOP\n")
        else:
            self.answers += 1
            if self.answers == 2:
                self.subscribed.set()
                self.out.append(b"RDY %d\n" % self.rdy)

    def on_message(self, data: bytes) -> None:
        attempts = int.from_bytes(data[8:10], "big")
        guid = data[10:26]
        number = self.world.identify_body(self.channel, data[26:])
        if number is None:
            self.out.append(b"FIN %s\n" % guid)
            return
        self.world.see(self.channel, number, attempts, self.number, self.sent_after_ns)
        self.act(self.choose(attempts), guid, number)

    def choose(self, attempts: int) -> str:
        if not self.rough or attempts > ATTEMPTS_MAX:
            return "fin"
        lot = self.world.rng.randrange(100)
        for action, percent in ACTIONS[self.channel.kind]:
            if lot < percent:
                return action
            lot -= percent
        return "fin"

    def act(self, action: str, guid: bytes, number: int) -> None:
        """Say what becomes of a message."""
        channel = self.channel
        if self.closing or action == "hold":
            return
        copy = channel.copies[number]
        if action == "fin":
            self.out.append(b"FIN %s\n" % guid)
            channel.finished[number] = FIN_SENT
        elif action == "touch":
            self.out.append(b"TOUCH %s\nFIN %s\n" % (guid, guid))
            channel.finished[number] = FIN_SENT
            action = "fin"
        else:
            delay_ms = self.world.rng.randint(1, DELAY_MS_MAX) if action == "delay" else 0
            self.out.append(b"REQ %s %d\n" % (guid, delay_ms))
            copy.not_before_ns = time.time_ns() + delay_ms * MS_NS if delay_ms else 0
            copy.requeued = True
            channel.requeues_sent += 1
        self.acts.append((action, guid, number))

    def on_error(self, data: bytes) -> None:
        words = data.split()
        if self.fenced and words[0] == b"E_FIN_FAILED" and words[2] == self.fenced[0][0]:
            self.confirm(self.fenced.popleft()[1])
            self.failed.clear()
        elif words[0] in (b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED"):
            # Its time was over when the command came.
            if words[0] != b"E_TOUCH_FAILED":
                self.failed.add(words[2])
        else:
            self.world.note("daemon_failures", f"a consumer was answered with {data!r}")

    def confirm(self, acts: list[tuple[str, bytes, int]]) -> None:
        """Note that the daemon has processed these commands."""
        channel, totals = self.channel, self.world.totals
        for action, guid, number in acts:
            if guid in self.failed:
                self.take_back(action, number)
            elif action == "fin":
                if channel.finished.get(number) == FIN_SENT:
                    channel.finished[number] = FIN_CONFIRMED
                    del channel.copies[number]
                    totals.finished_confirmed += 1
            else:
                channel.requeues_confirmed += 1
                totals.requeued += 1

    def take_back(self, action: str, number: int) -> None:
        if action == "fin":
            if self.channel.finished.get(number) == FIN_SENT:
                del self.channel.finished[number]
        else:
            self.channel.requeues_sent -= 1
        copy = self.channel.copies.get(number)
        if copy is not None:
            copy.not_before_ns = 0

    def after_frames(self) -> None:
        if self.acts:
            self.fence_count += 1
            fence = FENCE % self.fence_count
            self.fenced.append((fence.split()[1], self.acts))
            self.acts = []
            self.out.append(fence)
        if self.out:
            self.write(b"".join(self.out))
            self.out.clear()

    def on_end(self) -> None:
        for _, acts in self.fenced:
            for action, _, number in acts:
                copy = self.channel.copies.get(number)
                if action != "fin" and copy is not None:
                    # It may have been processed or not: it may come at once, at its time, or be in flight still.
                    copy.not_before_ns = 0
        self.fenced.clear()


class Daemon:
    """The process, one after another over one data directory."""

    def __init__(self, command: list[str], directory: Path) -> None:
        self.command = command
        self.directory = directory
        self.data_path = directory / "data"
        self.data_path.mkdir(exist_ok=True)
        self.log_path = directory / "log"
        self.tcp_port = free_port()
        self.http_port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def spawn(self) -> None:
        paths = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *self.command,
                    f"-tcp-address={HOST}:{self.tcp_port}",
                    f"-http-address={HOST}:{self.http_port}",
                    f"-data-path={self.data_path}",
                    *FLAGS,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env=os.environ | {"PYTHONPATH": os.pathsep.join([*paths, str(REPOSITORY)])},
            )

    def wait_ready(self) -> None:
        """Wait until the HTTP listener, which comes last, takes connections. Raises: RuntimeError."""
        assert self.process is not None
        deadline_s = time.monotonic() + WAIT_S
        while True:
            if self.process.poll() is not None:
                raise RuntimeError(f"the daemon ended with {self.process.returncode}; see {self.log_path}")
            with contextlib.suppress(OSError):
                socket.create_connection((HOST, self.http_port), WAIT_S).close()
                return
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"the daemon was not ready within {WAIT_S} s; see {self.log_path}")
            time.sleep(POLL_S)

    def kill(self) -> bool:
        """Send SIGKILL and reap. Returns: whether the process was still running until then."""
        assert self.process is not None
        alive = self.process.poll() is None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(WAIT_S)
        return alive

    def request(self, method: str, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(HOST, self.http_port, timeout=WAIT_S)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def stats(self) -> dict[str, Any]:
        """Return what /stats says of each topic, its channels by name too."""
        status, body = self.request("GET", "/stats?format=json&include_clients=false")
        if status != 200:
            raise RuntimeError(f"/stats was answered with {status}")
        topics = json.loads(body)["topics"] or []
        for topic in topics:
            topic["channels"] = {channel["channel_name"]: channel for channel in topic["channels"] or []}
        return {topic["topic_name"]: topic for topic in topics}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class Harness:
    """The rounds: who connects, when the kill comes, what is looked at after the start."""

    def __init__(self, arguments: argparse.Namespace, daemon: Daemon) -> None:
        self.arguments = arguments
        self.daemon = daemon
        self.rng = random.Random(arguments.seed)
        self.world = World(arguments.topics, random.Random(self.rng.random()))
        self.extra_count = 0
        self.can_pause = True
        self.recovery_s: list[float] = []

    async def connect(self, connection: Any) -> Any:
        await asyncio.wait_for(
            asyncio.get_running_loop().create_connection(lambda: connection, HOST, self.daemon.tcp_port), WAIT_S
        )
        return connection

    async def consume(self, channel: Channel, rough: bool = True) -> Consumer:
        """Subscribe to a channel; from now on it must get what is sent."""
        rdy = 5 if channel.kind == "rough" and rough else 200
        consumer: Consumer = await self.connect(Consumer(self.world, channel, rdy, rough))
        await asyncio.wait_for(consumer.subscribed.wait(), WAIT_S)
        return consumer

    async def close(self, connections: list[Any]) -> None:
        """Read what is left of connections whose daemon is gone, or close them."""
        for connection in connections:
            await asyncio.wait_for(connection.gone.wait(), WAIT_S)

    def start(self) -> None:
        started_s = time.monotonic()
        if self.rng.random() < self.arguments.start_kills:
            self.daemon.spawn()
            time.sleep(self.rng.random() * 0.16)
            self.daemon.kill()
            self.world.totals.kills_while_starting += 1
            started_s = time.monotonic()
        self.daemon.spawn()
        self.daemon.wait_ready()
        self.recovery_s.append(time.monotonic() - started_s)
        self.world.ready_ns = time.time_ns()

    async def set_up(self) -> None:
        """Make the first channels before anything is published."""
        for channel in self.world.channels():
            consumer = await self.consume(channel)
            consumer.transport.abort()
            await self.close([consumer])

    async def load(self, seconds: float) -> None:
        """Work for a time, kill, and read what the daemon had sent."""
        world = self.world
        connections: list[Any] = []
        for channel in world.channels():
            if channel.kind != "late" or self.rng.random() < 0.3:
                for _ in range(2 if channel.kind == "rough" else 1):
                    connections.append(await self.consume(channel))
        publishers = []
        for number in range(self.arguments.publishers):
            publisher = await self.connect(Publisher(world, number, 16))
            publisher.write(b"  V2")
            publishers.append(publisher)
        connections += publishers
        left = self.arguments.messages
        end_s = time.monotonic() + seconds
        change_s = time.monotonic() + self.rng.random() * seconds
        while (now_s := time.monotonic()) < end_s:
            world.polled_ns = (world.polled_ns[1], time.time_ns())
            for publisher in publishers:
                left = publisher.tick(left)
            if now_s >= change_s:
                change_s = end_s
                connections += await self.change()
            await asyncio.sleep(min(TICK_S, max(end_s - now_s, 0)))
        # Most kills come while the daemon works off a burst, and this program does not look.
        if self.rng.random() < 0.8:
            bursts = [b"".join(part for _ in range(BURST_COMMANDS) for part in each.commands()) for each in publishers]
            for publisher, burst in zip(publishers, bursts, strict=True):
                publisher.write(burst)
            time.sleep(self.rng.random() * BURST_S)
        if not self.daemon.kill():
            world.note("daemon_failures", "the daemon ended by itself")
        world.totals.kills += 1
        await self.close(connections)

    async def change(self) -> list[Connection]:
        """Make a channel, or pause or resume something."""
        world = self.world
        if self.extra_count < EXTRA_CHANNELS_MAX and world.round >= (self.extra_count + 1) * NEW_CHANNEL_EVERY_ROUNDS:
            self.extra_count += 1
            topic = self.rng.randrange(len(world.topics))
            channel = Channel(topic, f"extra{self.extra_count}", self.rng.choice(["plain", "late"]), since=1 << 62)
            consumer = await self.consume(channel)
            channel.since = world.moment + 1
            world.topics[topic].channels.append(channel)
            return [consumer]
        if self.can_pause:
            topic_of = self.rng.choice(world.topics)
            if self.rng.random() < 0.3:
                await self.pause(topic_of, f"/topic/%s?topic={topic_of.name}")
            else:
                channel = self.rng.choice(topic_of.channels)
                await self.pause(channel, f"/channel/%s?topic={topic_of.name}&channel={channel.name}")
        return []

    async def pause(self, what: Any, path: str, paused: bool | None = None) -> None:
        """Turn a pause on or off."""
        paused = not what.paused if paused is None else paused
        what.paused = False
        path = path % ("pause" if paused else "unpause")
        status, _ = await asyncio.get_running_loop().run_in_executor(None, self.daemon.request, "POST", path)
        if status != 200:
            self.can_pause = False
            return
        self.world.totals.pauses += paused
        what.paused = paused
        what.paused_round = self.world.round

    def look(self) -> None:
        """Compare /stats after a start with what was done."""
        world = self.world
        stats = self.daemon.stats()
        for topic in world.topics:
            found = stats.get(topic.name)
            if found is None:
                world.note("counter_errors", f"{topic.name} is gone")
                continue
            self.within(topic.name, "message_count", topic.acknowledged, found["message_count"], topic.sent)
            self.within(topic.name, "paused", topic.paused, found["paused"], topic.paused)
            for channel in topic.channels:
                seen = found["channels"].get(channel.name)
                if seen is None:
                    world.note("counter_errors", f"{topic.name}:{channel.name} is gone")
                else:
                    self.look_at(topic, channel, seen, found["depth"])

    def look_at(self, topic: Topic, channel: Channel, seen: dict[str, Any], held: int) -> None:
        name = f"{topic.name}:{channel.name}"
        self.within(name, "paused", channel.paused, seen["paused"], channel.paused)
        self.within(name, "requeue_count", channel.requeues_confirmed, seen["requeue_count"], channel.requeues_sent)
        self.within(name, "timeout_count", channel.timeouts_seen, seen["timeout_count"], 1 << 62)
        channel.timeouts_seen = seen["timeout_count"]
        if channel.since == 0:
            count = seen["depth"] + seen["in_flight_count"] + seen["deferred_count"] + held
            confirmed = sum(state == FIN_CONFIRMED for state in channel.finished.values())
            sent = len(channel.finished)
            self.within(name, "depth in all", topic.acknowledged - sent, count, topic.sent - confirmed)

    def within(self, name: str, what: str, least: int, found: int, most: int) -> None:
        if not least <= found <= most:
            self.world.note("counter_errors", f"{name}: {what} is {found}, should be in [{least}, {most}]")

    async def drain(self) -> None:
        """Take everything there is, until the daemon says that nothing is left or nothing moves any more."""
        world = self.world
        world.round += 1
        for topic in world.topics:
            if self.can_pause:
                await self.pause(topic, f"/topic/%s?topic={topic.name}", False)
                for channel in topic.channels:
                    await self.pause(channel, f"/channel/%s?topic={topic.name}&channel={channel.name}", False)
        consumers = [await self.consume(channel, rough=False) for channel in world.channels()]
        moved_s, delivered = time.monotonic(), -1
        while time.monotonic() - moved_s < max(4.0, 2.5 * DELAY_MS_MAX / 1000):
            if world.totals.delivered != delivered:
                moved_s, delivered = time.monotonic(), world.totals.delivered
            await asyncio.sleep(0.1)
            stats = await asyncio.get_running_loop().run_in_executor(None, self.daemon.stats)
            if not left_in(stats):
                break
        world.totals.not_drained = left_in(stats)
        for consumer in consumers:
            consumer.transport.abort()
        await self.close(consumers)

    async def run(self) -> None:
        self.daemon.spawn()
        self.daemon.wait_ready()
        await self.set_up()
        for number in range(self.arguments.kills):
            self.world.round = number
            self.world.totals.rounds += 1
            await self.load(self.rng.uniform(0.02, self.arguments.seconds))
            self.start()
            self.look()
            if self.arguments.verbose and number % 10 == 9:
                totals = self.world.totals
                print(f"{number + 1} kills, {totals.delivered} delivered, {len(self.world.notes)} failures", flush=True)
        await self.drain()
        self.settle()

    def settle(self) -> None:
        """Look every message up in every channel that had to deliver it."""
        world, totals = self.world, self.world.totals
        seen_anywhere = {number for channel in world.channels() for number in (*channel.finished, *channel.copies)}
        for topic_index, topic in enumerate(world.topics):
            numbers = [number for number, message in enumerate(world.messages) if message.topic == topic_index]
            for number in numbers:
                message = world.messages[number]
                first, count = message.batch or (number, 1)
                there = message.acknowledged or any(each in seen_anywhere for each in range(first, first + count))
                for channel in topic.channels if there else ():
                    if channel.since > message.sent_at:
                        continue
                    totals.expected += 1
                    if number in channel.finished or number in channel.copies:
                        continue
                    kind = "lost" if message.acknowledged else "torn_batches"
                    world.note(kind, f"message {number} in {topic.name}:{channel.name}")
        said = self.daemon.log_path.read_text(errors="replace")
        for sign in SIGNS_OF_A_CRASH:
            if sign in said:
                world.note("daemon_failures", f"its log says {sign!r}")


def left_in(stats: dict[str, Any]) -> int:
    """Count the messages that are anywhere."""
    return sum(
        topic["depth"]
        + sum(each["depth"] + each["in_flight_count"] + each["deferred_count"] for each in topic["channels"].values())
        for topic in stats.values()
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
    parser = argparse.ArgumentParser(description="kill the daemon under load, again and again, and check everything")
    parser.add_argument("--kills", type=int, default=30, help="how many kills under load (30)")
    parser.add_argument("--seed", type=int, default=None, help="of all that is random but timing; printed")
    parser.add_argument("--seconds", type=float, default=0.6, help="longest load before a kill (0.6)")
    parser.add_argument("--messages", type=int, default=1500, help="most messages to publish in a round (1500)")
    parser.add_argument("--topics", type=int, default=6, help="how many topics (6)")
    parser.add_argument("--publishers", type=int, default=3, help="how many connections publish (3)")
    parser.add_argument("--start-kills", type=float, default=0.15, help="part of starts that are killed too (0.15)")
    parser.add_argument("--seconds-max", type=float, default=1800, help="give up after so long (1800)")
    parser.add_argument("--nsqd", metavar="PATH", help="run this nsqd instead of this checkout's daemon")
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
    command = [arguments.nsqd] if arguments.nsqd else [sys.executable, "-m", "pyqd.apps.daemon"]
    daemon = Daemon(command, directory)
    harness = Harness(arguments, daemon)
    started_s = time.monotonic()
    try:
        asyncio.run(asyncio.wait_for(harness.run(), arguments.seconds_max))
    except (RuntimeError, OSError, asyncio.TimeoutError) as error:
        harness.world.note("daemon_failures", f"{type(error).__name__}: {error}")
    finally:
        if daemon.process is not None:
            daemon.kill()
    figures = report_of(harness, arguments, time.monotonic() - started_s)
    print(json.dumps(figures, indent=2)) if arguments.json else print_table(figures)
    if figures["ok"] and not arguments.directory:
        shutil.rmtree(directory)
    elif not figures["ok"]:
        print(f"data and log are kept in {directory}", file=sys.stderr)
    return 0 if figures["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
