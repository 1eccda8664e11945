"""Topics and channels are deleted, emptied and paused while publishers publish and consumers consume.

Every body names a publish; of each publish it is known when its OK came. So of each delivery it can be said afterwards
whether it may be: not to a client that subscribed after a topic was deleted, of a message that was acknowledged before.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import defaultdict

import pytest

from tests.support.nsq import MESSAGE, Client, Closed, mpub, parse_message
from tests.support.server import Daemon, wait_until

TOPICS = ("a", "b")
CHANNELS = ("c", "d")
STEADY = "steady"
OPERATIONS = 180
BATCH = 20
# A publisher this far ahead of the consumers waits for them.
AHEAD_MAX = 3000

pytestmark = pytest.mark.slow


class Load:
    """Publishers and consumers in threads, and the messages they saw."""

    def __init__(self, server: Daemon) -> None:
        self.server = server
        self.over = threading.Event()
        self.acked_s: dict[int, float] = {}
        self.topics: dict[int, str] = {}
        # (subscribed, topic, channel, number)
        self.delivered: list[tuple[float, str, str, int]] = []
        self.seen: dict[tuple[str, str], set[int]] = defaultdict(set)
        self.failures: list[BaseException] = []
        self.numbers = iter(range(1 << 40))
        self.lock = threading.Lock()
        jobs = [(self.publish, topic) for topic in (*TOPICS, STEADY)]
        self.threads = [threading.Thread(target=self.guard, args=job) for job in jobs]
        for topic in (*TOPICS, STEADY):
            self.threads += [
                threading.Thread(target=self.guard, args=(self.consume, topic, channel)) for channel in CHANNELS
            ]

    def guard(self, job: object, *arguments: str) -> None:
        try:
            assert callable(job)
            job(*arguments)
        except BaseException as error:
            self.failures.append(error)

    def publish(self, topic: str) -> None:
        with Client(self.server.tcp_address) as client:
            while not self.over.is_set():
                with self.lock:
                    numbers = [next(self.numbers) for _ in range(BATCH)]
                for number in numbers:
                    self.topics[number] = topic
                client.send(mpub(topic, [b"%d" % number for number in numbers]))
                client.expect_ok()
                now_s = time.monotonic()
                for number in numbers:
                    self.acked_s[number] = now_s
                if len(self.acked_s) - len(self.delivered) > AHEAD_MAX:
                    self.over.wait(0.002)

    def consume(self, topic: str, channel: str) -> None:
        while not self.over.is_set():
            with Client(self.server.tcp_address) as client, contextlib.suppress(Closed, ConnectionError):
                client.identify(msg_timeout=1000)
                client.sub(topic, channel)
                subscribed_s = time.monotonic()
                client.rdy(50)
                while not self.over.is_set():
                    number = self.finish_one(client)
                    if number is not None:
                        self.delivered.append((subscribed_s, topic, channel, number))
                        self.seen[topic, channel].add(number)

    def finish_one(self, client: Client) -> int | None:
        """Return the number of the next message, finished; None if none comes soon. Raises: Closed."""
        try:
            frame = client.read_frame(wait_s=0.2)
        except TimeoutError:
            return None
        except AssertionError:
            # The connection was closed in the middle of a frame.
            raise Closed from None
        if frame.type != MESSAGE:
            # It was in flight when the channel was emptied, or its time was over.
            assert frame.data.startswith(b"E_FIN_FAILED"), frame
            return None
        message = parse_message(frame.data)
        client.fin(message)
        return int(message.body)

    def start(self) -> None:
        for topic in (*TOPICS, STEADY):
            for channel in CHANNELS:
                self.server.http("POST", f"/topic/create?topic={topic}")
                self.server.http("POST", f"/channel/create?topic={topic}&channel={channel}")
        for thread in self.threads:
            thread.start()

    def stop(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join(20)
            assert not thread.is_alive()


def operate(server: Daemon, rng: random.Random) -> list[tuple[float, float, str, str]]:
    """Do one operation after another. Returns: (asked, answered, topic, channel or nothing) of the deleted objects."""
    deleted = []
    paused = dict.fromkeys((*TOPICS, STEADY), False)
    for _ in range(OPERATIONS):
        topic, channel = rng.choice(TOPICS), rng.choice(CHANNELS)
        action = rng.choice(("delete", "empty", "pause", "unpause", "unpause"))
        if rng.random() < 0.25:
            topic, action = STEADY, rng.choice(("pause", "unpause"))
        of_channel = rng.random() < 0.6
        path = f"/channel/{action}?topic={topic}&channel={channel}" if of_channel else f"/topic/{action}?topic={topic}"
        asked_s = time.monotonic()
        reply = server.http("POST", path)
        if reply.status == 404:
            assert reply.json()["message"] in ("TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND")
            continue
        assert (reply.status, reply.body) == (200, b""), (path, reply)
        if not of_channel:
            paused[topic] = action == "pause" or (action == "empty" and paused[topic])
        # Messages held by a paused topic belong to no channel yet, and the next channel of that name gets them.
        if action == "delete" and not (of_channel and paused[topic]):
            deleted.append((asked_s, time.monotonic(), topic, channel if of_channel else ""))
    return deleted


def resume(server: Daemon) -> None:
    for topic in (*TOPICS, STEADY):
        server.http("POST", f"/topic/unpause?topic={topic}")
        for channel in CHANNELS:
            server.http("POST", f"/channel/unpause?topic={topic}&channel={channel}")


@pytest.mark.pyqd_only("nsqd refuses what comes while it deletes")
@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_is_lost_and_nothing_comes_back(own_server: Daemon, seed: int) -> None:
    server = own_server
    load = Load(server)
    load.start()
    try:
        deleted = operate(server, random.Random(seed))
        server.assert_healthy()
        resume(server)
    finally:
        load.over.wait(0.2)
        load.stop()
    assert load.failures == []
    assert len(deleted) > OPERATIONS / 20
    for subscribed_s, topic, channel, number in load.delivered:
        assert load.topics[number] == topic
        acked_s = load.acked_s.get(number)
        for asked_s, answered_s, deleted_topic, deleted_channel in deleted:
            if topic == deleted_topic and deleted_channel in ("", channel) and acked_s is not None:
                assert not (acked_s < asked_s and answered_s < subscribed_s), f"{number} came back"
    drain(load)
    published = {number for number, topic in load.topics.items() if topic == STEADY and number in load.acked_s}
    for channel in CHANNELS:
        assert published <= load.seen[STEADY, channel]
    server.restart()
    for topic in (*TOPICS, STEADY):
        for channel in CHANNELS:
            server.wait_for_channel(topic, channel, depth=0, in_flight_count=0, deferred_count=0)


def drain(load: Load) -> None:
    """Take the remaining messages, and check that the counters reach zero with them."""
    server = load.server
    load.over.clear()
    consumers = [
        threading.Thread(target=load.guard, args=(load.consume, topic, channel))
        for topic in (*TOPICS, STEADY)
        for channel in CHANNELS
    ]
    for thread in consumers:
        thread.start()

    def drained() -> bool:
        topics = server.topics()
        return all(
            topics[topic]["depth"] == 0
            and [(entry["depth"], entry["in_flight_count"]) for entry in topics[topic]["channels"]] == [(0, 0), (0, 0)]
            for topic in (*TOPICS, STEADY)
        )

    try:
        # The messages in flight to the last consumers time out first.
        wait_until(drained, "everything is consumed", 30)
    finally:
        load.over.set()
        for thread in consumers:
            thread.join(20)
    assert load.failures == []
