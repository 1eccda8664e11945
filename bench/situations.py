"""Situations in which one command, or one background job, has much to do; `bench.stalls` measures each.

Each is a generator: the part before its `yield` sets the situation up, the part after it is measured. The sizes are
those of the table in docs/performance.md; a smoke run divides them.
"""

import contextlib
import json
import os
import selectors
import socket
import ssl
import struct
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from typing import Any

from bench.server import Server, wait_until_listening
from bench.upgraded import certificate, server_flags
from pyqd.tools.bench.connections import MAGIC, Connections, Handshake, expect_ok

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

Step = Iterator[None]


@dataclass
class Bench:
    """A server and the operations on it. scale: factor on all counts."""

    server: Server
    scale: float
    stack: ExitStack

    def count(self, full: int) -> int:
        """Return a number of messages, channels or clients at this run's scale."""
        return max(1, int(full * self.scale))

    def post(self, path: str, body: bytes = b"") -> bytes:
        """POST over a connection of its own. Raises: OSError, HTTPError among them."""
        return self.ask(urllib.request.Request(self.url(path), data=body, method="POST"))

    def get(self, path: str) -> bytes:
        """GET over a connection of its own."""
        return self.ask(urllib.request.Request(self.url(path)))

    def ask(self, request: urllib.request.Request) -> bytes:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
            data: bytes = reply.read()
            return data

    def url(self, path: str) -> str:
        host, port = self.server.http_address
        return f"http://{host}:{port}{path}"

    def channel_stats(self) -> list[dict[str, Any]]:
        """Return the topic's channels from /stats."""
        topics = json.loads(self.get(f"/stats?format=json&include_clients=false&topic={TOPIC}"))["topics"]
        found: list[dict[str, Any]] = topics[0]["channels"] if topics else []
        return found

    def wait_for(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds. Raises: TimeoutError."""
        end_s = time.monotonic() + TIMEOUT_S
        while not holds():
            if time.monotonic() > end_s:
                raise TimeoutError(f"it did not come to this within {TIMEOUT_S} s: {what}")
            time.sleep(POLL_S)

    def make_channels(self, count: int, topic: str = TOPIC) -> None:
        connection = HTTPConnection(*self.server.http_address, timeout=TIMEOUT_S)
        with contextlib.closing(connection):
            paths = [f"/channel/create?topic={topic}&channel=c{index}" for index in range(count)]
            for path in (f"/topic/create?topic={topic}", *paths):
                connection.request("POST", path)
                reply = connection.getresponse()
                reply.read()
                if reply.status != HTTPStatus.OK:
                    raise HTTPException(f"{path}: {reply.status}")

    def connect(self) -> socket.socket:
        """Return a connection that has said the magic; closed at the end of the run."""
        connection = socket.create_connection(self.server.tcp_address, timeout=TIMEOUT_S)
        self.stack.callback(connection.close)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(MAGIC)
        return connection

    def publish(self, count: int, *, body: bytes = b"x", command: str = "MPUB {topic}", topic: str = TOPIC) -> None:
        """Publish in as few commands as the limits allow."""
        with self.connect() as connection:
            message = struct.pack(">i", len(body)) + body
            batch_max = min(BATCH_MAX, BATCH_BYTES_MAX // len(message))
            while count:
                batch = min(count, batch_max)
                frame = struct.pack(">i", batch) + message * batch
                line = command.format(topic=topic, delay=DELAY_MS).encode() + b"\n"
                connection.sendall(line + struct.pack(">i", len(frame)) + frame)
                expect_ok(connection)
                count -= batch

    def defer(self, count: int, topic: str = TOPIC) -> None:
        self.publish(count, command="DMPUB {topic} {delay}", topic=topic)

    def consumers(self, count: int, **identify: int) -> "Consumers":
        """Subscribe clients that receive nothing yet."""
        handshake = Handshake(topic=TOPIC, channel="c0", identify=identify)
        made = Connections.open(self.server.tcp_address, count, handshake, timeout_s=TIMEOUT_S)
        self.stack.callback(made.close)
        return Consumers(made.sockets)

    def fill_in_flight(self, count: int, **identify: int) -> "Consumers":
        """Put messages in flight, RDY at each consumer."""
        self.make_channels(1)
        self.publish(count)
        consumers = self.consumers(max(1, count // RDY), **identify)
        consumers.take(RDY)
        consumers.read_until_quiet()
        consumers.send(b"RDY 0\n")
        return consumers

    def restart(self, *, kill: bool, drop_cache: bool = False) -> None:
        """End the server and start it on the same data. drop_cache: the data is not in memory then."""
        if kill:
            self.server.process.kill()
            self.server.process.wait()
        else:
            self.server.stop()
        if drop_cache:
            for path in self.server.data_path.rglob("*"):
                if path.is_file():
                    with path.open("rb") as file:
                        os.fsync(file.fileno())
                        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self.server.start()
        wait_until_listening(self.server, START_WITHIN_S)


@dataclass
class Consumers:
    """Subscribed clients that read and forget."""

    sockets: Sequence[socket.socket]

    def send(self, data: bytes) -> None:
        for each in self.sockets:
            each.setblocking(True)
            each.sendall(data)
            each.setblocking(False)

    def take(self, count: int) -> None:
        self.send(b"RDY %d\n" % count)

    def read_until_quiet(self) -> None:
        """Read until nothing has come for QUIET_S."""
        self.read(lambda: False)

    def read(self, is_over: Callable[[], bool]) -> None:
        with selectors.DefaultSelector() as selector:
            for each in self.sockets:
                selector.register(each, selectors.EVENT_READ)
            while not is_over():
                ready = selector.select(QUIET_S)
                if not ready:
                    return
                for key, _ in ready:
                    connection = key.fileobj
                    assert isinstance(connection, socket.socket)
                    if not connection.recv(RECEIVED_BYTES):
                        selector.unregister(connection)

    def close(self) -> None:
        """End the connections. The prober's process has copies of the sockets, so closing them would not do it."""
        for each in self.sockets:
            each.shutdown(socket.SHUT_RDWR)
            each.close()


def idle(bench: Bench) -> Step:
    yield
    time.sleep(3 * bench.scale)


def mpub(bench: Bench) -> Step:
    bench.make_channels(1)
    yield
    bench.publish(bench.count(1_000_000))


def mpub_http(bench: Bench) -> Step:
    bench.make_channels(1)
    lines = b"x\n" * bench.count(2_600_000)
    yield
    bench.post(f"/mpub?topic={TOPIC}", lines)


def dmpub(bench: Bench) -> Step:
    bench.make_channels(10)
    yield
    bench.defer(bench.count(1_000_000))
    bench.wait_for("all is deferred", lambda: all(each["depth"] == 0 for each in bench.channel_stats()))
    time.sleep(bench.scale)


def dpub_fanout(bench: Bench) -> Step:
    bench.make_channels(bench.count(1000))
    yield
    bench.defer(1)
    bench.wait_for("it is deferred", lambda: all(each["depth"] == 0 for each in bench.channel_stats()))


def dpubs_at_once(bench: Bench) -> Step:
    bench.make_channels(bench.count(1000))
    count = bench.count(10_000)
    connection = bench.connect()
    yield
    connection.sendall(b"DPUB %s %d\n\0\0\0\1x" % (TOPIC.encode(), DELAY_MS) * count)
    for _ in range(count):
        expect_ok(connection)


def pubs_to_new_topics(bench: Bench) -> Step:
    count = bench.count(5000)
    connection = bench.connect()
    yield
    connection.sendall(b"".join(b"PUB t%d\n\0\0\0\1x" % number for number in range(count)))
    for _ in range(count):
        expect_ok(connection)


def refused_fins(bench: Bench) -> Step:
    bench.make_channels(1)
    [consumer] = bench.consumers(1).sockets
    consumer.setblocking(True)
    consumer.settimeout(QUIET_S)
    count = bench.count(10_000)
    yield
    consumer.sendall(b"".join(b"FIN %016x\n" % number for number in range(count)))
    received = b""
    while received.count(b"E_FIN_FAILED") < count:
        received += consumer.recv(RECEIVED_BYTES)


def delete_topic_channels(bench: Bench) -> Step:
    bench.make_channels(bench.count(1000))
    bench.publish(bench.count(100_000))
    yield
    bench.post(f"/topic/delete?topic={TOPIC}")


def delete_topic_large(bench: Bench) -> Step:
    bench.make_channels(1)
    bench.publish(bench.count(1_000_000), body=b"x" * 1000)
    yield
    bench.post(f"/topic/delete?topic={TOPIC}")
    time.sleep(bench.scale)


def first_sub_deferred(bench: Bench) -> Step:
    bench.defer(bench.count(3_000_000))
    yield
    bench.consumers(1)
    bench.wait_for("all is deferred", lambda: bench.channel_stats()[0]["depth"] == 0)
    time.sleep(bench.scale)


def unpause_deferred(bench: Bench) -> Step:
    bench.make_channels(10)
    bench.post(f"/topic/pause?topic={TOPIC}")
    bench.defer(bench.count(500_000))
    yield
    bench.post(f"/topic/unpause?topic={TOPIC}")
    bench.wait_for("all is deferred", lambda: all(each["depth"] == 0 for each in bench.channel_stats()))
    time.sleep(bench.scale)


def many_consumers(bench: Bench) -> Step:
    bench.make_channels(1)
    bench.publish(bench.count(1_000_000), body=b"x" * 1000)
    consumers = bench.consumers(bench.count(400))
    yield
    consumers.take(RDY)
    consumers.read_until_quiet()


def read_from_disk(bench: Bench) -> Step:
    bench.make_channels(1)
    bench.publish(bench.count(1_000_000), body=b"x" * 1000)
    bench.restart(kill=False, drop_cache=True)
    consumers = bench.consumers(10)
    yield
    consumers.take(bench.count(100_000))
    consumers.read_until_quiet()


def positions_from_disk(bench: Bench) -> Step:
    count = bench.count(1_000_000)
    bench.publish(count, body=b"x" * 1000)
    bench.restart(kill=False, drop_cache=True)
    earliest = json.loads(bench.get(f"/topic/positions?topic={TOPIC}"))["earliest"]
    yield
    for start in range(earliest, earliest + count, RECORDS_PER_READ):
        bench.get(f"/topic/log?topic={TOPIC}&from={start}&to={start + RECORDS_PER_READ}&max_bytes={READ_BYTES_MAX}")


def consumers_leave(bench: Bench) -> Step:
    consumers = bench.fill_in_flight(bench.count(1_000_000))
    yield
    consumers.close()
    bench.wait_for("all have left", lambda: bench.channel_stats()[0]["client_count"] == 0)
    time.sleep(bench.scale)


def timeouts(bench: Bench) -> Step:
    bench.fill_in_flight(bench.count(1_000_000), msg_timeout=int(10_000 * bench.scale) + 1000)
    yield
    bench.wait_for("all has timed out", lambda: bench.channel_stats()[0]["in_flight_count"] == 0)


def touches(bench: Bench) -> Step:
    bench.make_channels(1)
    bench.publish(RDY)
    [consumer] = bench.consumers(1).sockets
    consumer.setblocking(True)
    consumer.settimeout(QUIET_S)
    consumer.sendall(b"RDY %d\n" % RDY)
    received = b""
    while len(received) < RDY * 35:
        received += consumer.recv(RECEIVED_BYTES)
    # size, type, timestamp, attempts, then the id; a body of one byte behind it.
    ids = [received[at + 18 : at + 34] for at in range(0, RDY * 35, 35)]
    flood = b"".join(b"TOUCH %s\n" % each for each in ids)
    yield
    for _ in range(bench.count(200)):
        consumer.sendall(flood)


def seek_deferred(bench: Bench) -> Step:
    bench.make_channels(1)
    bench.defer(bench.count(2_000_000))
    bench.wait_for("all is deferred", lambda: bench.channel_stats()[0]["depth"] == 0)
    yield
    bench.post(f"/channel/seek?topic={TOPIC}&channel=c0&to=earliest")
    bench.wait_for("all is deferred", lambda: bench.channel_stats()[0]["depth"] == 0)


def seek_position(bench: Bench) -> Step:
    bench.make_channels(1)
    bench.publish(bench.count(3_000_000))
    yield
    for part in (4, 3, 2):
        bench.post(f"/channel/seek?topic={TOPIC}&channel=c0&to={bench.count(3_000_000) // part}")


def create_at_position(bench: Bench) -> Step:
    bench.make_channels(1)
    bench.defer(bench.count(2_000_000))
    yield
    bench.post(f"/channel/create?topic={TOPIC}&channel=late&start=earliest")
    bench.wait_for("all is deferred", lambda: all(each["depth"] == 0 for each in bench.channel_stats()))


def empty_ready(bench: Bench) -> Step:
    bench.make_channels(1)
    bench.publish(bench.count(1_000_000), body=b"x" * 1000)
    yield
    bench.post(f"/channel/empty?topic={TOPIC}&channel=c0")
    time.sleep(bench.scale)


def empty_deferred(bench: Bench) -> Step:
    bench.make_channels(1)
    bench.defer(bench.count(3_000_000))
    bench.wait_for("all is deferred", lambda: bench.channel_stats()[0]["depth"] == 0)
    yield
    bench.post(f"/channel/empty?topic={TOPIC}&channel=c0")
    time.sleep(bench.scale)


def empty_in_flight(bench: Bench) -> Step:
    bench.fill_in_flight(bench.count(1_000_000))
    yield
    bench.post(f"/channel/empty?topic={TOPIC}&channel=c0")
    time.sleep(bench.scale)


def delete_deferred(bench: Bench) -> Step:
    bench.make_channels(1)
    bench.defer(bench.count(3_000_000))
    bench.wait_for("all is deferred", lambda: bench.channel_stats()[0]["depth"] == 0)
    yield
    bench.post(f"/channel/delete?topic={TOPIC}&channel=c0")
    time.sleep(bench.scale)


def delete_in_flight(bench: Bench) -> Step:
    bench.fill_in_flight(bench.count(1_000_000))
    yield
    bench.post(f"/channel/delete?topic={TOPIC}&channel=c0")
    time.sleep(bench.scale)


def empty_held(bench: Bench) -> Step:
    bench.make_channels(10)
    bench.post(f"/topic/pause?topic={TOPIC}")
    bench.publish(bench.count(3_000_000))
    yield
    bench.post(f"/topic/empty?topic={TOPIC}")
    time.sleep(bench.scale)


def by_id(bench: Bench) -> Step:
    bench.make_channels(1)
    bench.defer(bench.count(3_000_000))
    bench.wait_for("all is deferred", lambda: bench.channel_stats()[0]["depth"] == 0)
    page = json.loads(bench.get(f"/channel/messages?topic={TOPIC}&channel=c0&state=deferred&limit=100"))
    ids = [each["id"] for each in page["messages"]]
    yield
    for index, each in enumerate(ids):
        action = "cancel?" if index % 2 else f"reschedule?defer={DELAY_MS}&"
        bench.post(f"/message/{action}topic={TOPIC}&channel=c0&id={each}")


def messages_listed(bench: Bench) -> Step:
    bench.make_channels(1)
    bench.defer(bench.count(2_000_000))
    bench.publish(bench.count(1_000_000))
    bench.wait_for("all is parked", lambda: bench.channel_stats()[0]["depth"] == bench.count(1_000_000))
    yield
    for state in ("ready", "deferred", "in_flight"):
        bench.get(f"/channel/messages?topic={TOPIC}&channel=c0&state={state}&limit=1000")


def stats_of_many(bench: Bench) -> Step:
    for index in range(bench.count(1000)):
        bench.make_channels(10, f"t{index}")
    yield
    bench.get("/stats?format=json")
    bench.get("/stats")


def stats_of_consumers(bench: Bench) -> Step:
    bench.make_channels(1)
    bench.consumers(bench.count(5000))
    yield
    bench.get("/stats?format=json")
    bench.get("/stats")


def metrics_of_many(bench: Bench) -> Step:
    for index in range(bench.count(1000)):
        bench.make_channels(10, f"t{index}")
    yield
    bench.get("/metrics")


def channels_of_one(bench: Bench) -> Step:
    bench.make_channels(bench.count(2000))
    bench.publish(10)
    yield
    bench.get("/stats?format=json")
    bench.get("/metrics")
    bench.publish(100)
    time.sleep(3 * bench.scale)


def sub_after_kill(bench: Bench) -> Step:
    bench.make_channels(1)
    bench.publish(bench.count(1_000_000), body=b"x" * 200)
    bench.consumers(1).close()
    bench.restart(kill=True)
    yield
    consumers = bench.consumers(10)
    consumers.take(RDY)
    consumers.read_until_quiet()


def trim(bench: Bench) -> Step:
    bench.make_channels(1)
    for _ in range(bench.count(200)):
        bench.publish(100, body=b"x" * 10_000)
    yield
    bench.post(f"/channel/empty?topic={TOPIC}&channel=c0")
    time.sleep(bench.scale)


def identify_large(bench: Bench) -> Step:
    body = b'{"a":[' + b"0," * bench.count(2_600_000) + b"0]}"
    yield
    connection = bench.connect()
    connection.sendall(b"IDENTIFY\n" + struct.pack(">i", len(body)) + body)
    connection.recv(RECEIVED_BYTES)


def connects(bench: Bench) -> Step:
    yield
    Connections.open(
        bench.server.tcp_address,
        bench.count(500),
        Handshake(identify={"heartbeat_interval": 30_000}),
        timeout_s=TIMEOUT_S,
    ).close()
    time.sleep(bench.scale)


def limits_changed(bench: Bench) -> Step:
    bench.fill_in_flight(bench.count(1_000_000), msg_timeout=int(5_000 * bench.scale) + 1000)
    bench.wait_for("all has timed out", lambda: bench.channel_stats()[0]["in_flight_count"] == 0)
    yield
    bench.post(f"/channel/limits?topic={TOPIC}&channel=c0&max_attempts=100&dead_letter_topic=dead")
    time.sleep(bench.scale)


def retention_sweep(bench: Bench) -> Step:
    bench.make_channels(1)
    bench.post(f"/topic/retention?topic={TOPIC}&bytes=10000000000")
    for _ in range(bench.count(200)):
        bench.publish(100, body=b"x" * 10_000)
    bench.post(f"/channel/empty?topic={TOPIC}&channel=c0")
    time.sleep(bench.scale)
    yield
    bench.post(f"/topic/retention?topic={TOPIC}&bytes=1000")
    bench.publish(1)
    time.sleep(6 * bench.scale)


def rolls(bench: Bench) -> Step:
    bench.make_channels(1)
    yield
    bench.publish(bench.count(2_000), body=b"x" * 1_000_000, command="MPUB {topic}")


def delete_topic_wide(bench: Bench) -> Step:
    bench.make_channels(bench.count(10_000))
    bench.publish(10)
    time.sleep(bench.scale)
    yield
    bench.post(f"/topic/delete?topic={TOPIC}")
    time.sleep(bench.scale)


def make_topics(bench: Bench) -> Step:
    yield
    for index in range(bench.count(1000)):
        bench.make_channels(10, f"t{index}")


def config_changed(bench: Bench) -> Step:
    for index in range(bench.count(1000)):
        bench.make_channels(10, f"t{index}")
    yield
    options = (
        *(("retention_bytes", b"1000000"), ("max_topic_bytes", b"1000000000"), ("max_topics", b"0")),
        *(("trace_topics", b'["*"]'), ("trace_topics", b"[]")),
    )
    for option, value in options:
        bench.ask(urllib.request.Request(bench.url(f"/config/{option}"), data=value, method="PUT"))
    time.sleep(3 * bench.scale)


def handshake(bench: Bench, barrier: threading.Barrier) -> None:
    """Upgrade one connection to TLS, at the same time as all others."""
    context = ssl.create_default_context(cafile=str(certificate()[0]))
    with socket.create_connection(bench.server.tcp_address, timeout=TIMEOUT_S) as connection:
        barrier.wait()
        body = json.dumps({"feature_negotiation": True, "tls_v1": True}).encode()
        connection.sendall(MAGIC + b"IDENTIFY\n" + struct.pack(">i", len(body)) + body)
        connection.recv(RECEIVED_BYTES)
        with context.wrap_socket(connection, server_hostname="127.0.0.1") as upgraded:
            upgraded.recv(RECEIVED_BYTES)


def handshakes(bench: Bench) -> Step:
    count = bench.count(200)
    barrier = threading.Barrier(count + 1)
    clients = [threading.Thread(target=handshake, args=(bench, barrier)) for _ in range(count)]
    for client in clients:
        client.start()
    yield
    barrier.wait()
    for client in clients:
        client.join()


def stop(bench: Bench) -> Step:
    for index in range(bench.count(1000)):
        bench.make_channels(10, f"t{index}")
    bench.make_channels(1)
    consumers = bench.consumers(bench.count(400))
    consumers.take(RDY)
    bench.publish(bench.count(500_000))
    yield
    time.sleep(POLL_S)
    bench.server.process.terminate()
    bench.server.process.wait(TIMEOUT_S)


@dataclass(frozen=True)
class Situation:
    """One row. flags: of the daemon. upgrade: one that the daemon must grant. ends: the daemon ends during it."""

    what: str
    steps: Callable[[Bench], Step]
    flags: tuple[str, ...] = ()
    upgrade: str = ""
    ends: bool = False

    def all_flags(self) -> tuple[str, ...]:
        """Return the flags that the daemon is started with."""
        return self.flags + server_flags(self.upgrade)


SEGMENTS_SMALL = ("--max-bytes-per-file=131072",)
ALL_SERIES = ("--metrics-max-series=10000000",)
TRACED = ("--trace-topic=*",)

SITUATIONS = (
    Situation("nothing: what the machine does to an idle daemon", idle),
    Situation("MPUB of 1,000,000 messages of a byte", mpub),
    Situation("`/mpub` of 2,600,000 lines of a byte", mpub_http),
    Situation("DMPUB of 1,000,000 messages of a byte, 10 channels", dmpub),
    Situation("the first deferred message of a topic with 1,000 channels", dpub_fanout),
    Situation("10,000 DPUBs at once to a topic with 1,000 channels", dpubs_at_once),
    Situation("5,000 PUBs at once, each to a new topic", pubs_to_new_topics),
    Situation("10,000 FINs at once of messages that are not in flight", refused_fins),
    Situation("a topic with 1,000 channels is deleted", delete_topic_channels),
    Situation("a topic with 1 GB is deleted", delete_topic_large),
    Situation("first SUB on a topic that holds 3,000,000 deferred messages", first_sub_deferred),
    Situation("a paused topic with 500,000 deferred messages and 10 channels goes on", unpause_deferred),
    Situation("400 consumers with RDY 2500 on 1 GB of messages", many_consumers),
    Situation("1 GB of messages is read from the disk", read_from_disk, ("-max-rdy-count=100000",)),
    Situation("1 GB of messages is read by position from the disk", positions_from_disk),
    Situation("400 consumers with 2500 messages in flight each leave", consumers_leave),
    Situation("the same, with traced messages", consumers_leave, TRACED),
    Situation("1,000,000 messages of 400 consumers time out", timeouts),
    Situation("500,000 TOUCHes", touches),
    Situation("seek over 2,000,000 deferred messages", seek_deferred),
    Situation("seek into a log of 3,000,000 messages", seek_position),
    Situation("channel made at a position before 2,000,000 deferred messages", create_at_position),
    Situation("a channel with 1 GB of messages is emptied", empty_ready),
    Situation("a channel with 3,000,000 deferred messages is emptied", empty_deferred),
    Situation("a channel with 1,000,000 messages in flight is emptied", empty_in_flight),
    Situation("a channel with 3,000,000 deferred messages is deleted", delete_deferred),
    Situation("a channel with 1,000,000 messages in flight is deleted", delete_in_flight),
    Situation("a paused topic with 3,000,000 messages and 10 channels is emptied", empty_held),
    Situation("100 messages of 3,000,000 deferred ones are cancelled or rescheduled by id", by_id),
    Situation("`/channel/messages` of 3,000,000 messages", messages_listed),
    Situation("`/stats` of 1,000 topics with 10 channels", stats_of_many),
    Situation("`/stats` with 5,000 consumers of one channel", stats_of_consumers),
    Situation("`/metrics` of 1,000 topics with 10 channels", metrics_of_many, ALL_SERIES),
    Situation("`/stats`, `/metrics`, publishing and syncs of a topic with 2,000 channels", channels_of_one, ALL_SERIES),
    Situation("first consumers after a kill with 1,000,000 messages", sub_after_kill),
    Situation("a channel with 1,600 segments is emptied", trim, SEGMENTS_SMALL),
    Situation("IDENTIFY with 5 MB of JSON", identify_large),
    Situation("500 connections with IDENTIFY", connects),
    Situation("limits of a channel with 1,000,000 messages that wait for redelivery", limits_changed),
    Situation("retention lets go of 1,600 segments", retention_sweep, SEGMENTS_SMALL),
    Situation("2 GB of large messages fill segment after segment", rolls),
    Situation("a topic with 10,000 channels is deleted", delete_topic_wide),
    Situation("1,000 topics with 10 channels are made", make_topics),
    Situation("options change that count for 1,000 topics with 10 channels", config_changed),
    Situation("200 TLS handshakes at once", handshakes, upgrade="tls_v1"),
    Situation("stop with 1,000 topics with 10 channels and 400 consumers, until it listens no more", stop, ends=True),
)
