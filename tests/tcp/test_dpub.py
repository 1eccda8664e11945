"""DPUB: a message that is not delivered before its time."""

from __future__ import annotations

import time

import pytest

from tests.support.nsq import Client, dpub, int32
from tests.support.server import Daemon
from tests.support.two_servers import Connect


@pytest.mark.slow
def test_a_deferred_message_comes_when_it_is_due_and_not_before(
    client: Client, connect: Connect, server: Daemon, timed_topic: str
) -> None:
    producer = connect()
    client.sub(timed_topic, rdy_count=1)
    # Once one has come the server's timers are known to watch this channel: from then on, too early would be seen.
    for defer_ms in (1, 600):
        producer.dpub(timed_topic, defer_ms, str(defer_ms).encode())
        message = client.read_message()
        assert (message.body, message.attempts) == (str(defer_ms).encode(), 1)
        # Clocks may differ a little: the server need not measure delays by the time of day.
        assert time.time_ns() >= message.timestamp_ns + (defer_ms - 20) * 1_000_000
        client.fin(message)
    server.wait_for_channel(timed_topic, "c", deferred_count=0, in_flight_count=0, message_count=2)


@pytest.mark.slow
def test_messages_come_in_the_order_they_are_due(client: Client, timed_topic: str) -> None:
    for defer_ms in (500, 100, 300):
        client.dpub(timed_topic, defer_ms, str(defer_ms).encode())
    client.sub(timed_topic, rdy_count=1)
    bodies = []
    for _ in range(3):
        message = client.read_message()
        bodies.append(message.body)
        client.fin(message)
    assert bodies == [b"100", b"300", b"500"]


def test_a_message_not_yet_due_is_counted_as_deferred(client: Client, server: Daemon, topic: str) -> None:
    client.sub(topic, rdy_count=1)
    client.dpub(topic, 3_600_000, b"in an hour")
    server.wait_for_topic(topic, message_count=1, message_bytes=10, depth=0)
    server.wait_for_channel(topic, "c", deferred_count=1, depth=0, in_flight_count=0, message_count=1)
    client.expect_alive()


def test_a_deferred_message_does_not_hold_up_others(client: Client, topic: str) -> None:
    client.dpub(topic, 60_000, b"later")
    client.pub(topic, b"now")
    client.sub(topic, rdy_count=2)
    assert client.read_message().body == b"now"
    client.expect_alive()


def test_many_at_once_are_each_answered_and_delivered_once(client: Client, topic: str) -> None:
    bodies = [b"%d." % number * (1 + number % 50) for number in range(300)]
    client.send(b"".join(dpub(topic, 1 + number // 100, body) for number, body in enumerate(bodies)))
    assert [client.read_frame().data for _ in bodies] == [b"OK"] * 300
    client.sub(topic, rdy_count=300)
    messages = [client.read_message() for _ in bodies]
    assert sorted(message.body for message in messages) == sorted(bodies)
    assert len({message.id for message in messages}) == 300


def test_zero_milliseconds_is_a_plain_publish(client: Client, topic: str) -> None:
    client.dpub(topic, 0, b"now")
    client.sub(topic, rdy_count=1)
    assert client.read_message().body == b"now"


def test_each_channel_defers_for_itself(connect: Connect, server: Daemon, topic: str) -> None:
    for channel in ("a", "b"):
        connect().sub(topic, channel, rdy_count=1)
    connect().dpub(topic, 60_000, b"later")
    for channel in ("a", "b"):
        server.wait_for_channel(topic, channel, deferred_count=1, message_count=1)


@pytest.mark.parametrize("defer_ms", [3_600_001, 2**31, 9_223_372_036_855])
def test_a_time_out_of_range_is_fatal_and_not_clamped(
    client: Client, server: Daemon, topic: str, defer_ms: int
) -> None:
    client.send(dpub(topic, defer_ms, b"x"))
    client.expect_fatal("E_INVALID", f"DPUB timeout {defer_ms} out of range 0-3600000")
    assert server.topic(topic) is None


def test_the_greatest_time_follows_the_flag(connect: Connect, narrow_server: Daemon, topic: str) -> None:
    client = connect(narrow_server)
    client.dpub(topic, 1000, b"x")
    client.send(dpub(topic, 1001, b"x"))
    client.expect_fatal("E_INVALID", "DPUB timeout 1001 out of range 0-1000")


def test_the_size_limit_is_that_of_pub(connect: Connect, narrow_server: Daemon, topic: str) -> None:
    client = connect(narrow_server)
    client.dpub(topic, 0, b"x" * 100)
    client.send(dpub(topic, 0, b"x" * 101))
    client.expect_fatal("E_BAD_MESSAGE", "DPUB message too big 101 > 100")


def test_a_bad_time_is_refused_before_the_size_comes(client: Client, topic: str) -> None:
    client.send(f"DPUB {topic} soon\n".encode())
    client.expect_fatal("E_INVALID", "DPUB could not parse timeout soon")


@pytest.mark.parametrize(
    ("rest", "text"),
    [
        (int32(0), "DPUB invalid message body size 0"),
        (int32(-7), "DPUB invalid message body size -7"),
        (b"\x00", "DPUB failed to read message body size"),
        (int32(5) + b"four", "DPUB failed to read message body"),
    ],
    ids=["empty", "negative", "short_size", "short_body"],
)
def test_a_failed_publish_makes_no_topic(client: Client, server: Daemon, topic: str, rest: bytes, text: str) -> None:
    client.send(f"DPUB {topic} 0\n".encode() + rest)
    client.close_sending()
    client.expect_fatal("E_BAD_MESSAGE", text)
    assert server.topic(topic) is None
