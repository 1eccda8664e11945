"""Replay on a running daemon: channels moved and ranges read while messages come in, and over kills."""

import contextlib
import http.client
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pyqd.fallback import records
from tests.support.nsq import MESSAGE, Client, fin, parse_message
from tests.support.server import WAIT_S, Daemon, pyqd, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.flags("-max-bytes-per-file=4194304")]

TOPIC = "replayed"
BATCH = 100
BODY_BYTES = 200
RUN_S = 40.0


@pytest.fixture
def daemon(daemon: Daemon) -> Daemon:
    # It takes nothing, so all of the log is kept.
    post(daemon, "/topic/create", topic=TOPIC)
    post(daemon, "/channel/create", topic=TOPIC, channel="holder")
    return daemon


def post(daemon: Daemon, path: str, **query: str) -> Any:
    reply = daemon.http("POST", path, None, **query)
    assert reply.status == 200, reply
    return reply.json() if reply.body else None


def body_of(number: int) -> bytes:
    return b"%d" % number + bytes(BODY_BYTES - len(str(number)))


def number_of(body: bytes) -> int:
    return int(body.rstrip(b"\0"))


def publish(client: Client, start: int, count: int) -> int:
    """Publish numbered messages in batches. Returns: the number after the last."""
    for first in range(start, start + count, BATCH):
        client.mpub(TOPIC, [body_of(number) for number in range(first, min(first + BATCH, start + count))])
    return start + count


class Reader:
    """Pages through the log over one HTTP connection, like any other program."""

    def __init__(self, daemon: Daemon, bytes_max: int, at: str = "earliest") -> None:
        self.connection = http.client.HTTPConnection(*daemon.http_address, timeout=WAIT_S)
        self.bytes_max = bytes_max
        self.at = at
        self.nodes: set[str] = set()

    def page(self) -> list[records.Record]:
        self.connection.request("GET", f"/topic/log?topic={TOPIC}&from={self.at}&max_bytes={self.bytes_max}")
        response = self.connection.getresponse()
        data = response.read()
        assert response.status == 200, data
        self.at = response.headers["X-Pyqd-Next"]
        self.nodes.add(response.headers["X-Pyqd-Node"])
        return list(records.decode(data))

    def read(self, count: int) -> list[records.Record]:
        """Read so many records from here on, waiting for those to come."""
        found: list[records.Record] = []
        deadline_s = time.monotonic() + RUN_S
        while len(found) < count:
            assert time.monotonic() < deadline_s, f"{len(found)} of {count} records"
            found += self.page()
        return found

    def close(self) -> None:
        self.connection.close()


def assert_each_once_in_order(found: list[records.Record], start: int = 0) -> None:
    assert [record.position for record in found] == list(range(start, start + len(found)))
    assert all(record.body == body_of(record.position) for record in found)
    ids = [record.id for record in found]
    assert sorted(set(ids)) == ids


class Consumer(threading.Thread):
    """Finishes all it gets and notes the numbers in order."""

    def __init__(self, daemon: Daemon, channel: str) -> None:
        super().__init__(daemon=True)
        self.client = Client(daemon.tcp_address)
        self.client.sub(TOPIC, channel, rdy_count=50)
        self.numbers: list[int] = []
        self.attempts: set[int] = set()
        self.stopping = False
        self.start()

    def run(self) -> None:
        while not self.stopping:
            try:
                frame = self.client.read_frame(wait_s=0.2)
            except TimeoutError:
                continue
            # An error: the seek took away the message that the FIN names.
            if frame.type == MESSAGE:
                message = parse_message(frame.data)
                self.numbers.append(number_of(message.body))
                self.attempts.add(message.attempts)
                self.client.send(fin(message.id))

    def stop(self) -> None:
        self.stopping = True
        self.join(WAIT_S)
        assert not self.is_alive()
        self.client.close()


class Publisher(threading.Thread):
    """Publishes numbers one by one until it is told to stop."""

    def __init__(self, daemon: Daemon, start: int) -> None:
        super().__init__(daemon=True)
        self.client = Client(daemon.tcp_address)
        self.next = start
        self.stopping = False
        self.start()

    def run(self) -> None:
        while not self.stopping:
            self.client.pub(TOPIC, body_of(self.next))
            self.next += 1

    def stop(self) -> int:
        self.stopping = True
        self.join(WAIT_S)
        assert not self.is_alive()
        self.client.close()
        return self.next


def test_a_channel_moved_to_a_time_gets_exactly_the_messages_published_since_under_traffic(daemon: Daemon) -> None:
    consumer = Consumer(daemon, "c")
    with Client(daemon.tcp_address) as client:
        since = publish(client, 0, 1500)
        time_ns = time.time_ns()
        following = publish(client, since, 1500)
    daemon.wait_for_channel(TOPIC, "c", depth=0, in_flight_count=0)
    publisher = Publisher(daemon, following)
    wait_until(lambda: publisher.next > following + 200, "traffic")
    foreseen = daemon.http("POST", "/channel/seek", topic=TOPIC, channel="c", to=f"{time_ns}ns", dry_run="true").json()
    moved = post(daemon, "/channel/seek", topic=TOPIC, channel="c", to=f"{time_ns}ns")
    live = publisher.next
    assert moved["to"] == foreseen["to"] == since
    assert moved["redeliver"] >= foreseen["redeliver"] >= following - since
    wait_until(lambda: publisher.next > live + 200, "traffic")
    end = publisher.stop()
    daemon.wait_for_channel(TOPIC, "c", depth=0, in_flight_count=0)
    wait_until(lambda: bool(consumer.numbers) and consumer.numbers[-1] == end - 1, "the last message")
    consumer.stop()
    again = consumer.numbers.index(since, following)
    assert consumer.numbers[:again] == list(range(again))
    assert consumer.numbers[again:] == list(range(since, end))
    assert consumer.attempts == {1}


def test_a_range_read_at_full_rate_returns_each_record_once_and_in_order(daemon: Daemon) -> None:
    count = 60_000
    with ThreadPoolExecutor(1) as pool, Client(daemon.tcp_address) as client:
        published = pool.submit(publish, client, 0, count)
        reader = Reader(daemon, 1 << 18)
        found = reader.read(count)
        assert published.result(WAIT_S) == count
    assert reader.page() == []
    reader.close()
    assert_each_once_in_order(found)
    stats = daemon.channel(TOPIC, "holder")
    assert stats is not None
    assert (stats["depth"], stats["in_flight_count"], stats["client_count"]) == (count, 0, 0)


def test_many_readers_at_once_disturb_neither_each_other_nor_a_consumer(daemon: Daemon) -> None:
    count = 10_000
    consumer = Consumer(daemon, "c")

    def read(bytes_max: int) -> list[records.Record]:
        reader = Reader(daemon, bytes_max)
        try:
            return reader.read(count)
        finally:
            reader.close()

    with ThreadPoolExecutor(9) as pool, Client(daemon.tcp_address) as client:
        reads: list[Future[list[records.Record]]] = [pool.submit(read, 20_000 * size) for size in range(1, 9)]
        publish(client, 0, count)
        for each in reads:
            assert_each_once_in_order(each.result(RUN_S))
    wait_until(lambda: len(consumer.numbers) == count, "all messages")
    consumer.stop()
    assert consumer.numbers == list(range(count))


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_reader_resumes_at_its_position_after_a_restart(daemon: Daemon, end: str) -> None:
    with Client(daemon.tcp_address) as client:
        following = publish(client, 0, 5000)
    reader = Reader(daemon, 10_000)
    found = reader.read(1000)
    reader.close()
    shown = daemon.http("GET", "/topic/positions", topic=TOPIC).json()
    ended: dict[str, Callable[[], None]] = {"kill": daemon.kill, "stop": daemon.stop}
    ended[end]()
    daemon.start()
    again = daemon.http("GET", "/topic/positions", topic=TOPIC).json()
    assert {key: again[key] for key in ("node", "earliest", "next", "records", "newest_timestamp")} == {
        key: shown[key] for key in ("node", "earliest", "next", "records", "newest_timestamp")
    }
    with Client(daemon.tcp_address) as client:
        following = publish(client, following, 1000)
    rest = Reader(daemon, 1 << 20, reader.at)
    found += rest.read(following - len(found))
    rest.close()
    assert_each_once_in_order(found)
    assert reader.nodes == rest.nodes == {shown["node"]}


def test_with_a_sync_for_every_message_one_that_was_accepted_can_be_read(tmp_path: Path) -> None:
    daemon = Daemon(pyqd(), tmp_path, ["-sync-every=1"])
    daemon.start()
    try:
        post(daemon, "/topic/create", topic=TOPIC)
        with Client(daemon.tcp_address) as client, contextlib.closing(Reader(daemon, 1 << 20)) as reader:
            for count in range(1, 31):
                client.pub(TOPIC, body_of(count - 1))
                assert [record.position for record in reader.page()] == [count - 1]
                assert daemon.http("GET", "/topic/positions", topic=TOPIC).json()["next"] == count
        daemon.stop()
    finally:
        daemon.kill()


def test_a_seek_that_was_answered_outlives_a_kill(daemon: Daemon) -> None:
    post(daemon, "/channel/create", topic=TOPIC, channel="c")
    with Client(daemon.tcp_address) as client:
        publish(client, 0, 1000)
    for target in (700, 300):
        post(daemon, "/channel/seek", topic=TOPIC, channel="c", to=str(target))
        daemon.kill()
        daemon.start()
        daemon.wait_for_channel(TOPIC, "c", depth=1000 - target)
    consumer = Consumer(daemon, "c")
    wait_until(lambda: len(consumer.numbers) >= 700, "all messages")
    consumer.stop()
    assert consumer.numbers == list(range(300, 1000))


@pytest.mark.parametrize(
    "sync_fin", [False, pytest.param(True, marks=pytest.mark.flags("-max-bytes-per-file=4194304", "--sync-fin"))]
)
def test_channels_are_moved_about_under_load_and_end_with_everything_since(daemon: Daemon, sync_fin: bool) -> None:
    consumers = [Consumer(daemon, "c") for _ in range(3)]
    publisher = Publisher(daemon, 0)
    targets = itertools.cycle(["latest", "-50ms", "earliest", "-20ms"])
    for _ in range(40):
        wanted = publisher.next + 50
        wait_until(lambda wanted=wanted: publisher.next > wanted, "traffic")  # type: ignore[misc]
        post(daemon, "/channel/seek", topic=TOPIC, channel="c", to=next(targets))
    end = publisher.stop()
    daemon.wait_for_channel(TOPIC, "c", depth=0, in_flight_count=0)
    for consumer in consumers:
        consumer.stop()
    daemon.wait_for_channel(TOPIC, "c", client_count=0)
    moved = post(daemon, "/channel/seek", topic=TOPIC, channel="c", to="earliest")
    assert moved["redeliver"] == moved["finished"] == end
    last = Consumer(daemon, "c")
    wait_until(lambda: len(last.numbers) >= end, "all messages")
    daemon.wait_for_channel(TOPIC, "c", depth=0, in_flight_count=0)
    last.stop()
    assert last.numbers == list(range(end))


@pytest.mark.flags("-max-bytes-per-file=4194304", "--sync-fin")
def test_a_channel_with_synced_fins_that_is_emptied_under_load_has_what_comes_later(daemon: Daemon) -> None:
    consumer = Consumer(daemon, "c")
    publisher = Publisher(daemon, 0)
    for _ in range(40):
        wanted = publisher.next + 50
        wait_until(lambda wanted=wanted: publisher.next > wanted, "traffic")  # type: ignore[misc]
        post(daemon, "/channel/empty", topic=TOPIC, channel="c")
    end = publisher.stop()
    post(daemon, "/channel/empty", topic=TOPIC, channel="c")
    daemon.wait_for_channel(TOPIC, "c", depth=0, in_flight_count=0)
    consumer.stop()
    assert sorted(set(consumer.numbers)) == consumer.numbers
    daemon.kill()
    daemon.start()
    daemon.wait_for_channel(TOPIC, "c", depth=0, in_flight_count=0)
    with Client(daemon.tcp_address) as client:
        publish(client, end, BATCH)
    last = Consumer(daemon, "c")
    wait_until(lambda: len(last.numbers) >= BATCH, "all messages")
    last.stop()
    assert last.numbers == list(range(end, end + BATCH))


def test_a_channel_created_at_the_earliest_position_gets_messages_that_others_have_finished(daemon: Daemon) -> None:
    consumer = Consumer(daemon, "c")
    with Client(daemon.tcp_address) as client:
        publish(client, 0, 1000)
    daemon.wait_for_channel(TOPIC, "c", depth=0, in_flight_count=0)
    consumer.stop()
    made = post(daemon, "/channel/create", topic=TOPIC, channel="late", start="earliest")
    assert (made["to"], made["depth"]) == (0, 1000)
    late = Consumer(daemon, "late")
    wait_until(lambda: len(late.numbers) >= 1000, "all messages")
    late.stop()
    assert late.numbers == list(range(1000))
