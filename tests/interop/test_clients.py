"""Client libraries, as their authors publish them, produce to the daemon and consume from it."""

import queue
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.interop.conftest import CLIENTS, Clients
from tests.interop.process import WAIT_S, ClientProcess, Event
from tests.support.server import Daemon

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

HEARTBEAT_MS = 1000
MSG_TIMEOUT_MS = 2000
TOUCH_EVERY_S = 0.25
DELAY_MS = 1000

BODIES = {
    "every byte value": bytes(range(256)),
    "one zero byte": b"\0",
    "one newline": b"\n",
    "looks like a command": b"PUB topic\n\0\0\0\1x",
    "one byte short of 1 MiB": random.Random(4150).randbytes(2**20 - 1),
}


def bodies_of(count: int) -> list[bytes]:
    return [f"message {number}".encode() for number in range(count)]


def settled(daemon: Daemon, topic: str, channel: str, *, finished_count: int) -> None:
    """Wait until the channel has nothing left of the messages it was given."""
    nothing = {"depth": 0, "in_flight_count": 0, "deferred_count": 0}
    daemon.wait_for_channel(topic, channel, message_count=finished_count, **nothing)


def stats_of(daemon: Daemon, topic: str, channel: str) -> dict[str, Any]:
    stats = daemon.channel(topic, channel)
    assert stats is not None
    return stats


def test_a_published_message_arrives_once_and_is_finished(
    library: str, clients: Clients, daemon: Daemon, topic: str
) -> None:
    consumer = clients.consumer(library, topic, "ch")
    producer = clients.producer(library)
    producer.publish("pub", topic, b"hello")
    message = consumer.expect("message")
    assert (message["body"], message["attempts"], len(message["id"])) == (b"hello", 1, 16)
    consumer.finish(message)
    settled(daemon, topic, "ch", finished_count=1)
    assert (consumer.close(), producer.close()) == (0, 0)


def test_every_body_of_a_multi_publish_arrives(library: str, clients: Clients, daemon: Daemon, topic: str) -> None:
    bodies = bodies_of(20)
    clients.producer(library).publish("mpub", topic, *bodies)
    consumer = clients.consumer(library, topic, "ch", max_in_flight=5)
    received = []
    for _ in bodies:
        message = consumer.expect("message")
        received.append(message["body"])
        consumer.finish(message)
    assert sorted(received) == sorted(bodies)
    settled(daemon, topic, "ch", finished_count=20)


def test_a_deferred_publish_arrives_after_a_later_plain_one(library: str, clients: Clients, topic: str) -> None:
    consumer = clients.consumer(library, topic, "ch")
    producer = clients.producer(library)
    producer.publish("dpub", topic, b"deferred", delay_ms=DELAY_MS)
    producer.publish("pub", topic, b"plain")
    for body in (b"plain", b"deferred"):
        message = consumer.expect("message")
        assert (message["body"], message["attempts"]) == (body, 1)
        consumer.finish(message)


def test_a_requeued_message_comes_back_after_its_delay_with_one_attempt_more(
    library: str, clients: Clients, daemon: Daemon, topic: str
) -> None:
    consumer = clients.consumer(library, topic, "ch")
    producer = clients.producer(library)
    producer.publish("pub", topic, b"requeued")
    first = consumer.expect("message")
    consumer.send("req", id=first["id"], delay_ms=DELAY_MS)
    producer.publish("pub", topic, b"later")
    later = consumer.expect("message")
    assert (later["body"], later["attempts"]) == (b"later", 1)
    consumer.finish(later)
    second = consumer.expect("message")
    assert (second["id"], second["body"], second["attempts"]) == (first["id"], b"requeued", 2)
    consumer.send("req", id=second["id"], delay_ms=0)
    third = consumer.expect("message")
    assert (third["id"], third["attempts"]) == (first["id"], 3)
    consumer.finish(third)
    settled(daemon, topic, "ch", finished_count=2)
    assert stats_of(daemon, topic, "ch")["requeue_count"] == 2


@pytest.mark.parametrize("daemon_flags", [(f"-msg-timeout={MSG_TIMEOUT_MS}ms",)], ids=["short msg-timeout"])
def test_a_touched_message_outlives_its_timeout_and_an_untouched_one_does_not(
    library: str, clients: Clients, daemon: Daemon, topic: str
) -> None:
    events: queue.Queue[Event] = queue.Queue()
    for _ in range(2):
        clients.consumer(library, topic, "ch", events=events, msg_timeout_ms=MSG_TIMEOUT_MS)
    producer = clients.producer(library)
    holders = []
    for body in (b"touched", b"left alone"):
        producer.publish("pub", topic, body)
        message = events.get(timeout=WAIT_S)
        assert (message["event"], message["body"], message["attempts"]) == ("message", body, 1)
        holders.append(message)
    touched, left_alone = holders
    assert touched["source"] is not left_alone["source"]
    returned = touch_until_something_arrives(touched, events)
    assert (returned["id"], returned["attempts"]) == (left_alone["id"], 2)
    for message in (touched, returned):
        message["source"].finish(message)
    settled(daemon, topic, "ch", finished_count=2)
    assert stats_of(daemon, topic, "ch")["timeout_count"] == 1


def touch_until_something_arrives(message: Event, events: "queue.Queue[Event]") -> Event:
    for _ in range(int(WAIT_S / TOUCH_EVERY_S)):
        message["source"].send("touch", id=message["id"])
        try:
            return events.get(timeout=TOUCH_EVERY_S)
        except queue.Empty:
            continue
    raise TimeoutError("the untouched message did not come back")


def test_consumers_of_one_channel_share_its_messages(
    library: str, clients: Clients, daemon: Daemon, topic: str
) -> None:
    events: queue.Queue[Event] = queue.Queue()
    consumers = [clients.consumer(library, topic, "ch", events=events) for _ in range(3)]
    bodies = bodies_of(30)
    clients.producer(library).publish("mpub", topic, *bodies)
    held = [events.get(timeout=WAIT_S) for _ in consumers]
    assert {message["source"] for message in held} == set(consumers)
    received = []
    for message in arrivals(held, events, len(bodies)):
        assert (message["event"], message["attempts"]) == ("message", 1)
        received.append(message["body"])
        message["source"].finish(message)
    assert sorted(received) == sorted(bodies)
    settled(daemon, topic, "ch", finished_count=len(bodies))


def arrivals(held: list[Event], events: "queue.Queue[Event]", count: int) -> Iterator[Event]:
    yield from held
    for _ in range(count - len(held)):
        yield events.get(timeout=WAIT_S)


def test_each_of_two_channels_gets_every_message(library: str, clients: Clients, daemon: Daemon, topic: str) -> None:
    consumers = {channel: clients.consumer(library, topic, channel) for channel in ("one", "two")}
    bodies = bodies_of(10)
    clients.producer(library).publish("mpub", topic, *bodies)
    for channel, consumer in consumers.items():
        received = []
        for _ in bodies:
            message = consumer.expect("message")
            received.append(message["body"])
            consumer.finish(message)
        assert sorted(received) == sorted(bodies)
        settled(daemon, topic, channel, finished_count=len(bodies))


@pytest.mark.slow
def test_heartbeats_keep_an_idle_connection_open(library: str, clients: Clients, daemon: Daemon, topic: str) -> None:
    consumer = clients.consumer(library, topic, "ch", heartbeat_ms=HEARTBEAT_MS)
    (before,) = stats_of(daemon, topic, "ch")["clients"]
    # A client that leaves heartbeats unanswered is dropped after two of them.
    for _ in range(4):
        consumer.expect("heartbeat")
    (after,) = stats_of(daemon, topic, "ch")["clients"]
    assert after["remote_address"] == before["remote_address"]
    clients.producer(library).publish("pub", topic, b"still there")
    message = consumer.expect("message")
    assert message["body"] == b"still there"
    consumer.finish(message)
    settled(daemon, topic, "ch", finished_count=1)


def test_after_cls_nothing_more_is_delivered_and_messages_in_flight_can_be_finished(
    library: str, clients: Clients, daemon: Daemon, topic: str
) -> None:
    leaving = clients.consumer(library, topic, "ch", max_in_flight=5)
    producer = clients.producer(library)
    producer.publish("pub", topic, b"in flight")
    held = leaving.expect("message")
    leaving.send("cls")
    leaving.expect("close_wait")
    producer.publish("pub", topic, b"for another")
    staying = clients.consumer(library, topic, "ch")
    message = staying.expect("message")
    assert (message["body"], message["attempts"]) == (b"for another", 1)
    staying.finish(message)
    leaving.finish(held)
    settled(daemon, topic, "ch", finished_count=2)
    assert leaving.close() == 0
    daemon.wait_for_channel(topic, "ch", client_count=1)
    stats = stats_of(daemon, topic, "ch")
    assert (stats["requeue_count"], stats["timeout_count"]) == (0, 0)


def refusal(producer: ClientProcess, op: str, topic: str, *bodies: bytes, delay_ms: int = 0) -> str:
    producer.send(op, topic=topic, bodies=bodies, delay_ms=delay_ms)
    return str(producer.expect("failed")["error"])


def test_a_bad_topic_name_is_an_error_of_the_publisher(library: str, clients: Clients) -> None:
    # Longer than 64 characters only with its suffix, which ansq does not count: only gnsq refuses before the daemon.
    error = refusal(clients.producer(library), "pub", "a" * 60 + "#ephemeral", b"body")
    assert ("invalid topic name" if library == "gnsq" else "E_BAD_TOPIC") in error


def test_a_delay_out_of_range_is_an_error_of_the_publisher(library: str, clients: Clients, topic: str) -> None:
    error = refusal(clients.producer(library), "dpub", topic, b"body", delay_ms=10**9)
    assert ("NSQInvalid" if library == "gnsq" else "E_INVALID") in error


@pytest.mark.parametrize("consuming_library", CLIENTS)
def test_bodies_arrive_byte_for_byte(
    library: str, consuming_library: str, clients: Clients, daemon: Daemon, topic: str
) -> None:
    consumer = clients.consumer(consuming_library, topic, "ch")
    producer = clients.producer(library)
    for name, body in BODIES.items():
        producer.publish("pub", topic, body)
        message = consumer.expect("message")
        assert message["body"] == body, name
        consumer.finish(message)
    small = [body for body in BODIES.values() if len(body) <= 256]
    producer.publish("mpub", topic, *small)
    received = []
    for _ in small:
        message = consumer.expect("message")
        received.append(message["body"])
        consumer.finish(message)
    assert sorted(received) == sorted(small)
    settled(daemon, topic, "ch", finished_count=len(BODIES) + len(small))
