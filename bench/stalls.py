"""Longest time that the daemon does not answer while a command or background job has much to do. `make stalls`.

Each situation is set up in a fresh daemon; while it runs, a prober requests /ping every two milliseconds. The first row
is an idle daemon, for comparison. The sizes are those of the table in docs/performance.md.
"""

import json
import os
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from bench.prober import probing
from bench.server import Figures, RunError, Server, Target, post, running, wait_until_listening
from bench.setting import Setting
from bench.study import Study
from pyqd.client.core.commands import MAGIC
from pyqd.tools.bench.connections import Connections, Handshake, expect_ok

TOPIC = "stalls"
DELAY_MS = 3_000_000
BATCH_MAX = 1_000_000
BATCH_BYTES_MAX = 5_000_000
RDY = 2500
# Of a read by position.
RECORDS_PER_READ = 4000
READ_BYTES_MAX = 8 << 20
TIMEOUT_S = 300.0
START_WITHIN_S = 120.0
RECEIVED_BYTES = 1 << 20
QUIET_S = 0.5
POLL_S = 0.05


@dataclass
class Bench:
    """A server and the operations on it. scale: factor on all counts."""

    server: Server
    scale: float
    stack: ExitStack

    def count(self, full: int) -> int:
        """Return a number of messages, channels or clients at this run's scale."""
        return max(1, int(full * self.scale))

    def rest(self, seconds: float = 1.0) -> None:
        """Wait for work that the server does afterwards."""
        time.sleep(seconds * self.scale)

    def ask(self, path: str, method: str = "GET") -> bytes:
        """Send a request over a connection of its own. Raises: RunError for any other status than 200."""
        with self.server.http() as client:
            reply = client.request(method, path, retry=False)
        if reply.status != 200:
            raise RunError(f"{method} {path}: {reply.status}")
        return reply.body

    def act(self, *paths: str) -> None:
        """POST to the topic, or to its first channel."""
        for path in paths:
            route, _, query = path.partition("?")
            channel = "" if route.startswith("/topic") else "&channel=c0"
            self.ask(f"{route}?topic={TOPIC}{'' if 'channel=' in query else channel}&{query}", "POST")

    def channel_stats(self) -> list[dict[str, Any]]:
        """Return the topic's channels from /stats."""
        topics = json.loads(self.ask(f"/stats?format=json&include_clients=false&topic={TOPIC}"))["topics"]
        found: list[dict[str, Any]] = topics[0]["channels"] if topics else []
        return found

    def until(self, figure: str) -> None:
        """Wait until a figure of all channels is 0. Raises: RunError."""
        end_s = time.monotonic() + TIMEOUT_S
        while not (found := self.channel_stats()) or any(each[figure] for each in found):
            if time.monotonic() > end_s:
                raise RunError(f"{figure} was not 0 within {TIMEOUT_S} s")
            time.sleep(POLL_S)

    def make_channels(self, count: int, topic: str = TOPIC) -> None:
        with self.server.http() as client:
            post(client, "/topic/create", topic=topic)
            for index in range(count):
                post(client, "/channel/create", topic=topic, channel=f"c{index}")

    def connect(self) -> socket.socket:
        """Return a connection that has said the magic; closed at the end of the run."""
        connection = socket.create_connection(self.server.tcp_address, timeout=TIMEOUT_S)
        self.stack.callback(connection.close)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(MAGIC)
        return connection

    def send(self, commands: bytes, count: int) -> None:
        """Send commands at once and read so many OKs."""
        connection = self.connect()
        connection.sendall(commands)
        for _ in range(count):
            expect_ok(connection)

    def publish(self, count: int, *, body: bytes = b"x", command: str = "MPUB {topic}") -> None:
        """Publish in as few commands as the limits allow."""
        with self.connect() as connection:
            message = struct.pack(">i", len(body)) + body
            batch_max = min(BATCH_MAX, BATCH_BYTES_MAX // len(message))
            while count:
                batch = min(count, batch_max)
                frame = struct.pack(">i", batch) + message * batch
                line = command.format(topic=TOPIC, delay=DELAY_MS).encode() + b"\n"
                connection.sendall(line + struct.pack(">i", len(frame)) + frame)
                expect_ok(connection)
                count -= batch

    def defer(self, count: int) -> None:
        self.publish(count, command="DMPUB {topic} {delay}")

    def consumers(self, count: int, **identify: int) -> Connections:
        """Subscribe clients that receive nothing yet."""
        handshake = Handshake(topic=TOPIC, channel="c0", identify=identify)
        made = Connections.open(self.server.tcp_address, count, handshake, timeout_s=TIMEOUT_S)
        self.stack.callback(made.close)
        return made

    def restart(self) -> None:
        """Stop the server, drop its data from memory, and start it again."""
        self.server.stop()
        for path in self.server.data_path.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self.server.start()
        wait_until_listening(self.server, START_WITHIN_S)


def take(consumers: Connections, count: int) -> None:
    """Send RDY of subscribed clients, and read until nothing has come for QUIET_S."""
    with selectors.DefaultSelector() as selector:
        for each in consumers.sockets:
            each.send(b"RDY %d\n" % count)
            selector.register(each, selectors.EVENT_READ)
        while ready := selector.select(QUIET_S):
            for key, _ in ready:
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                if not connection.recv(RECEIVED_BYTES):
                    selector.unregister(connection)


SetUp = Callable[[Bench], Any]


def steps(*set_ups: SetUp) -> SetUp:
    """Return a set-up of several parts. It returns what its last one does."""

    def set_up(bench: Bench) -> Any:
        return [each(bench) for each in set_ups][-1]

    return set_up


def channels(count: int) -> SetUp:
    return lambda bench: bench.make_channels(bench.count(count) if count > 10 else count)


def ready(count: int, body_bytes: int = 1, paths: Sequence[str] = (), channel_count: int = 1) -> SetUp:
    """Return a set-up with messages that wait in channels. paths: of POSTs before them."""

    def set_up(bench: Bench) -> None:
        channels(channel_count)(bench)
        bench.act(*paths)
        bench.publish(bench.count(count), body=b"x" * body_bytes)

    return set_up


def deferred(count: int) -> SetUp:
    def set_up(bench: Bench) -> None:
        bench.make_channels(1)
        bench.defer(bench.count(count))
        bench.until("depth")

    return set_up


def in_flight(bench: Bench) -> Connections:
    """Set up 1,000,000 messages in flight, RDY at each consumer, which time out after 10 s and more at full scale."""
    count = bench.count(1_000_000)
    ready(1_000_000)(bench)
    consumers = bench.consumers(max(1, count // RDY), msg_timeout=int(10_000 * bench.scale) + 1000)
    take(consumers, RDY)
    take(consumers, 0)
    return consumers


def acts(*paths: str, until: str = "") -> Callable[[Bench, Any], None]:
    """Return an act: POSTs, and the wait until a figure of the channels is 0."""

    def act(bench: Bench, _found: Any) -> None:
        bench.act(*paths)
        if until:
            bench.until(until)
        bench.rest()

    return act


def publishes(count: int, body_bytes: int) -> Callable[[Bench, Any], None]:
    return lambda bench, _found: bench.publish(bench.count(count), body=b"x" * body_bytes)


def dpubs_at_once(bench: Bench, _found: Any) -> None:
    count = bench.count(10_000)
    bench.send(b"DPUB %s %d\n\0\0\0\1x" % (TOPIC.encode(), DELAY_MS) * count, count)


def pubs_to_new_topics(bench: Bench, _found: Any) -> None:
    count = bench.count(5000)
    bench.send(b"".join(b"PUB t%d\n\0\0\0\1x" % number for number in range(count)), count)


def first_sub(bench: Bench, _found: Any) -> None:
    bench.consumers(1)
    bench.until("depth")
    bench.rest()


def positions(bench: Bench, _found: Any) -> None:
    earliest = json.loads(bench.ask(f"/topic/positions?topic={TOPIC}"))["earliest"]
    for start in range(earliest, earliest + bench.count(1_000_000), RECORDS_PER_READ):
        end = start + RECORDS_PER_READ
        bench.ask(f"/topic/log?topic={TOPIC}&from={start}&to={end}&max_bytes={READ_BYTES_MAX}")


def by_id(bench: Bench, _found: Any) -> None:
    page = json.loads(bench.ask(f"/channel/messages?topic={TOPIC}&channel=c0&state=deferred&limit=100"))
    for index, each in enumerate(page["messages"]):
        path = "/message/cancel?" if index % 2 else f"/message/reschedule?defer={DELAY_MS}&"
        bench.act(f"{path}id={each['id']}")


def full_house(bench: Bench) -> None:
    for index in range(bench.count(1000)):
        bench.make_channels(10, f"t{index}")
    bench.make_channels(1)
    take(bench.consumers(bench.count(400)), RDY)
    bench.publish(bench.count(500_000))


def stop(bench: Bench, _found: Any) -> None:
    time.sleep(POLL_S)
    bench.server.process.terminate()
    bench.server.process.wait(TIMEOUT_S)


def nothing(_bench: Bench) -> None:
    pass


@dataclass(frozen=True)
class Situation:
    """One row. act: the measured part. ends: the daemon ends during it."""

    what: str
    set_up: SetUp
    act: Callable[[Bench, Any], None]
    ends: bool = False


SITUATIONS = {
    "idle": Situation("nothing", nothing, lambda bench, _found: bench.rest(3)),
    "dpubs": Situation("10,000 DPUBs at once to a topic with 1,000 channels", channels(1000), dpubs_at_once),
    "new-topics": Situation("5,000 PUBs at once, each to a new topic", nothing, pubs_to_new_topics),
    "first-sub": Situation(
        "first SUB on a topic that holds 3,000,000 deferred messages",
        lambda bench: bench.defer(bench.count(3_000_000)),
        first_sub,
    ),
    "unpause": Situation(
        "a paused topic with 500,000 deferred messages and 10 channels goes on",
        steps(channels(10), lambda bench: bench.act("/topic/pause"), lambda bench: bench.defer(bench.count(500_000))),
        acts("/topic/unpause", until="depth"),
    ),
    "positions": Situation(
        "1 GB of messages is read by position from the disk", steps(ready(1_000_000, 1000), Bench.restart), positions
    ),
    "timeouts": Situation(
        "1,000,000 messages of 400 consumers time out",
        in_flight,
        lambda bench, _found: bench.until("in_flight_count"),
    ),
    "seek": Situation(
        "seek over 2,000,000 deferred messages",
        deferred(2_000_000),
        acts("/channel/seek?to=earliest", until="depth"),
    ),
    "delete-deferred": Situation(
        "a channel with 3,000,000 deferred messages is deleted", deferred(3_000_000), acts("/channel/delete")
    ),
    "empty-paused": Situation(
        "a paused topic with 3,000,000 messages and 10 channels is emptied",
        ready(3_000_000, paths=["/topic/pause"], channel_count=10),
        acts("/topic/empty"),
    ),
    "by-id": Situation(
        "100 messages of 3,000,000 deferred ones are cancelled or rescheduled by id", deferred(3_000_000), by_id
    ),
    "rolls": Situation("2 GB of large messages fill segment after segment", channels(1), publishes(2_000, 1_000_000)),
    "stop": Situation(
        "stop with 1,000 topics with 10 channels and 400 consumers, until it listens no more",
        full_house,
        stop,
        ends=True,
    ),
}


def run(situation: Situation, setting: Setting, scale: float) -> Figures:
    """Run one situation once on a fresh daemon."""
    found: Figures = {}
    target = Target.parse("pyqd")
    with (
        running(target, cores=setting.cores.of(target), data_root=setting.data_root, flags=setting.flags) as server,
        ExitStack() as stack,
    ):
        bench = Bench(server, scale, stack)
        set_up = situation.set_up(bench)
        with probing(server, setting.cores.generator, found, ends=situation.ends):
            situation.act(bench, set_up)
        if not situation.ends:
            server.require_alive()
    return found


def study(setting: Setting, scale: float) -> Study:
    return Study(
        rows={name: situation.what for name, situation in SITUATIONS.items()},
        contenders=["pyqd"],
        run=lambda row, _contender: run(SITUATIONS[row], setting, scale),
    )


if __name__ == "__main__":
    from bench.cli import main

    sys.exit(main(["stalls", *sys.argv[1:]]))
