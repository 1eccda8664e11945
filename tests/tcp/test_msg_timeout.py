"""A message that is neither finished nor requeued in time is delivered again.

No test asserts that it happens soon: nsqd may take seconds to check a channel for the first time.
"""

from __future__ import annotations

import time

import pytest

from tests.support.nsq import ERROR, MESSAGE, Client, Message, parse_message
from tests.support.server import Daemon
from tests.support.two_servers import Connect

TIMEOUT_MS = 1000


def consumer(client: Client, topic: str, *, rdy_count: int = 1, msg_timeout_ms: int = TIMEOUT_MS) -> Client:
    client.identify(msg_timeout=msg_timeout_ms)
    client.sub(topic, rdy_count=rdy_count)
    return client


@pytest.mark.slow
def test_an_unsettled_message_comes_again_as_the_same(client: Client, server: Daemon, timed_topic: str) -> None:
    client.pub(timed_topic, b"x")
    consumer(client, timed_topic)
    message = client.read_message()
    # Each time the message is requeued shortly before, so that the test knows a time before which it was not sent.
    for attempts in (2, 4):
        before_ns = time.time_ns()
        client.req(message, 0)
        assert client.read_message() == message._replace(attempts=attempts)
        assert client.read_message() == message._replace(attempts=attempts + 1)
        # Clocks may differ a little: the server need not measure delays by the time of day.
        assert time.time_ns() >= before_ns + (TIMEOUT_MS - 20) * 1_000_000
    client.fin(message)
    client.expect_alive()
    server.wait_for_channel(timed_topic, "c", timeout_count=2, requeue_count=2, in_flight_count=0, depth=0)


@pytest.mark.slow
def test_a_message_timed_out_is_not_in_flight(client: Client, server: Daemon, timed_topic: str) -> None:
    client.pub(timed_topic, b"x")
    consumer(client, timed_topic)
    message_id = client.read_message().id.decode()
    client.rdy(0)
    server.wait_for_channel(timed_topic, "c", timeout_count=1, in_flight_count=0, depth=1)
    for command in ("FIN", "REQ", "TOUCH"):
        client.send(f"{command} {message_id} 0\n".encode())
        client.expect_error(f"E_{command}_FAILED", f"{command} {message_id} failed ID not in flight")
    channel = server.channel(timed_topic, "c")
    assert channel is not None
    assert [each["in_flight_count"] for each in channel["clients"]] == [0]


@pytest.mark.slow
def test_a_timed_out_message_may_go_to_another_consumer_which_then_owns_it(connect: Connect, timed_topic: str) -> None:
    first, second = connect(), connect()
    first.pub(timed_topic, b"x")
    consumer(first, timed_topic)
    message = first.read_message()
    first.rdy(0)
    consumer(second, timed_topic, msg_timeout_ms=60_000)
    assert second.read_message() == message._replace(attempts=2)
    for command in ("FIN", "REQ", "TOUCH"):
        first.send(f"{command} {message.id.decode()} 0\n".encode())
        text = f"{command} {message.id.decode()} failed client does not own message"
        first.expect_error(f"E_{command}_FAILED", text)
    second.fin(message)
    second.expect_alive()


@pytest.mark.slow
def test_messages_of_a_departed_client_wait_for_their_timeout(
    connect: Connect, server: Daemon, timed_topic: str
) -> None:
    first, second = connect(), connect()
    first.mpub(timed_topic, [b"1", b"2"])
    consumer(first, timed_topic, rdy_count=2)
    messages = first.read_messages(2)
    first.close()
    server.wait_for_channel(timed_topic, "c", client_count=0)
    consumer(second, timed_topic, rdy_count=2, msg_timeout_ms=60_000)
    again = second.read_messages(2)
    assert sorted(again) == sorted(message._replace(attempts=2) for message in messages)
    server.wait_for_channel(timed_topic, "c", timeout_count=2, in_flight_count=2, depth=0)


def test_messages_of_a_departed_client_stay_in_flight(connect: Connect, server: Daemon, topic: str) -> None:
    first = connect()
    first.pub(topic, b"x")
    consumer(first, topic, msg_timeout_ms=60_000)
    first.read_message()
    first.close()
    server.wait_for_channel(topic, "c", client_count=0, in_flight_count=1, depth=0)


@pytest.mark.slow
def test_a_touched_message_does_not_time_out_while_another_does(client: Client, timed_topic: str) -> None:
    client.mpub(timed_topic, [b"kept", b"left"])
    consumer(client, timed_topic, rdy_count=2, msg_timeout_ms=1500)
    kept, left = sorted(client.read_messages(2), key=lambda message: message.body)
    assert _touch_until_a_message_comes(client, kept) == left._replace(attempts=2)


@pytest.mark.slow
def test_touching_helps_no_longer_than_the_greatest_timeout(
    connect: Connect, narrow_server: Daemon, narrow_timed_topic: str
) -> None:
    client = connect(narrow_server)
    client.pub(narrow_timed_topic, b"x")
    client.sub(narrow_timed_topic, rdy_count=1)
    message = client.read_message()
    assert _touch_until_a_message_comes(client, message) == message._replace(attempts=2)


@pytest.mark.slow
def test_the_timeout_of_the_server_is_the_default(
    connect: Connect, narrow_server: Daemon, narrow_timed_topic: str
) -> None:
    client = connect(narrow_server)
    client.pub(narrow_timed_topic, b"x")
    client.sub(narrow_timed_topic, rdy_count=1)
    message = client.read_message()
    assert client.read_message() == message._replace(attempts=2)


@pytest.mark.slow
def test_a_timed_out_message_frees_a_place_for_the_next(client: Client, server: Daemon, timed_topic: str) -> None:
    client.mpub(timed_topic, [b"1", b"2"])
    consumer(client, timed_topic)
    first = client.read_message()
    second = client.read_message()
    if second.body == first.body:
        assert second == first._replace(attempts=2)
    server.wait_for_channel(timed_topic, "c", in_flight_count=1, depth=1)


def _touch_until_a_message_comes(client: Client, touched: Message) -> Message:
    deadline_s = time.monotonic() + 15
    while time.monotonic() < deadline_s:
        client.touch(touched)
        try:
            frame = client.read_frame(wait_s=0.2)
        except TimeoutError:
            continue
        if frame.type == MESSAGE:
            return parse_message(frame.data)
        # Between its time-out and its next delivery the message belongs to no client.
        assert frame == (ERROR, b"E_TOUCH_FAILED TOUCH " + touched.id + b" failed ID not in flight")
    raise AssertionError("no message came")
