"""FIN, REQ and TOUCH on a message in flight; no reply on success."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.support.nsq import Client, fin, req, touch
from tests.support.server import Daemon
from tests.support.two_servers import Connect

UNKNOWN_ID = b"0123456789abcdef"


def take(client: Client, topic: str, body: bytes = b"x") -> bytes:
    """Publish a message, subscribe and read it with RDY 1; return its id."""
    client.pub(topic, body)
    client.sub(topic, rdy_count=1)
    return client.read_message().id


def test_a_finished_message_is_gone(client: Client, connect: Connect, server: Daemon, topic: str) -> None:
    client.send(fin(take(client, topic)))
    client.expect_alive()
    server.wait_for_channel(topic, "c", in_flight_count=0, depth=0, deferred_count=0, message_count=1)
    other = connect()
    other.sub(topic, rdy_count=1)
    other.expect_alive()


def test_the_counters_of_a_consumer_match_its_commands(client: Client, server: Daemon, topic: str) -> None:
    client.mpub(topic, [b"1", b"2", b"3", b"4"])
    client.sub(topic, rdy_count=4)
    messages = client.read_messages(4)
    client.rdy(0)
    client.fin(messages[0])
    client.fin(messages[1])
    client.req(messages[2], 60_000)
    client.expect_alive()
    server.wait_for_channel(topic, "c", in_flight_count=1, deferred_count=1, requeue_count=1, depth=0)
    channel = server.channel(topic, "c")
    assert channel is not None
    (stats,) = channel["clients"]
    counters = {"message_count": 4, "finish_count": 2, "requeue_count": 1, "in_flight_count": 1, "ready_count": 0}
    assert {key: stats[key] for key in counters} == counters


def test_messages_may_be_finished_in_any_order(client: Client, server: Daemon, topic: str) -> None:
    client.mpub(topic, [b"%d" % number for number in range(100)])
    client.sub(topic, rdy_count=100)
    messages = client.read_messages(100)
    client.send(b"".join(fin(message.id) for message in messages[::2] + messages[1::2][::-1]))
    client.expect_alive()
    server.wait_for_channel(topic, "c", in_flight_count=0, depth=0)


@pytest.mark.parametrize(
    ("command", "code", "name"),
    [
        (fin(UNKNOWN_ID), "E_FIN_FAILED", "FIN"),
        (req(UNKNOWN_ID, 0), "E_REQ_FAILED", "REQ"),
        (req(UNKNOWN_ID, 1000), "E_REQ_FAILED", "REQ"),
        (touch(UNKNOWN_ID), "E_TOUCH_FAILED", "TOUCH"),
    ],
    ids=["fin", "req_now", "req_later", "touch"],
)
def test_an_id_not_in_flight_is_an_error_that_the_connection_survives(
    client: Client, topic: str, command: bytes, code: str, name: str
) -> None:
    client.pub(topic, b"x")
    client.sub(topic)
    client.send(command)
    client.expect_error(code, f"{name} {UNKNOWN_ID.decode()} failed ID not in flight")
    client.rdy(1)
    assert client.read_message().body == b"x"


@pytest.mark.parametrize(
    "wrong_id", [b"\x00" * 16, b"\xff" * 16, b"zzzzzzzzzzzzzzzz", b"0123456789ABCDEF", b'"\\\t\r\x01\x80aaaaaaaaaa']
)
def test_any_16_bytes_are_an_id_and_come_back_as_they_are(client: Client, topic: str, wrong_id: bytes) -> None:
    client.sub(topic)
    for command, code in (("FIN", "E_FIN_FAILED"), ("REQ", "E_REQ_FAILED"), ("TOUCH", "E_TOUCH_FAILED")):
        client.send(command.encode() + b" " + wrong_id + b" 0\n")
        client.expect_error(code, command.encode() + b" " + wrong_id + b" failed ID not in flight")
    client.expect_alive()


def test_the_id_is_compared_byte_by_byte(client: Client, topic: str) -> None:
    message_id = take(client, topic)
    # The same number in capital letters is another id. There is always a letter, because of the clock's high bits.
    assert message_id.upper() != message_id
    client.send(fin(message_id.upper()))
    client.expect_error("E_FIN_FAILED", b"FIN " + message_id.upper() + b" failed ID not in flight")
    client.send(fin(message_id))
    client.expect_alive()


@pytest.mark.parametrize("size", [0, 1, 15, 17, 32])
@pytest.mark.parametrize("command", ["FIN {}", "REQ {} 0", "TOUCH {}"])
def test_an_id_of_another_length_is_fatal(client: Client, topic: str, size: int, command: str) -> None:
    client.sub(topic)
    client.send((command.format("a" * size) + "\n").encode())
    client.expect_fatal("E_INVALID", "invalid message ID")


def test_a_second_fin_fails(client: Client, topic: str) -> None:
    message_id = take(client, topic)
    client.send(fin(message_id) * 2)
    client.expect_error("E_FIN_FAILED", b"FIN " + message_id + b" failed ID not in flight")
    client.expect_alive()


@pytest.mark.parametrize(("command", "name"), [(fin, "FIN"), (touch, "TOUCH")])
def test_a_requeued_message_is_not_in_flight(
    client: Client, topic: str, command: Callable[[bytes], bytes], name: str
) -> None:
    message_id = take(client, topic)
    client.send(req(message_id, 60_000) + command(message_id))
    client.expect_error(f"E_{name}_FAILED", f"{name} {message_id.decode()} failed ID not in flight")
    client.expect_alive()


def test_a_message_belongs_to_the_client_it_was_sent_to(client: Client, connect: Connect, topic: str) -> None:
    message_id = take(client, topic)
    thief = connect()
    thief.sub(topic)
    for command, name in ((fin(message_id), "FIN"), (req(message_id, 0), "REQ"), (touch(message_id), "TOUCH")):
        thief.send(command)
        thief.expect_error(f"E_{name}_FAILED", f"{name} {message_id.decode()} failed client does not own message")
    client.send(fin(message_id))
    client.expect_alive()


def test_ids_are_known_in_their_own_channel_only(client: Client, connect: Connect, topic: str) -> None:
    other = connect()
    other.sub(topic, "other")
    client.sub(topic, rdy_count=1)
    connect().pub(topic, b"x")
    message_id = client.read_message().id
    other.send(fin(message_id))
    other.expect_error("E_FIN_FAILED", b"FIN " + message_id + b" failed ID not in flight")
    client.send(fin(message_id))
    client.expect_alive()


def test_finishing_in_one_channel_leaves_the_other(connect: Connect, server: Daemon, topic: str) -> None:
    first, second = connect(), connect()
    first.sub(topic, "a", rdy_count=1)
    second.sub(topic, "b", rdy_count=1)
    connect().pub(topic, b"x")
    one, two = first.read_message(), second.read_message()
    assert one == two
    first.fin(one)
    server.wait_for_channel(topic, "a", in_flight_count=0)
    server.wait_for_channel(topic, "b", in_flight_count=1)
    second.fin(two)
    second.expect_alive()


def test_a_message_requeued_at_once_comes_again_as_the_same(client: Client, server: Daemon, topic: str) -> None:
    client.pub(topic, b"again")
    client.sub(topic, rdy_count=1)
    first = client.read_message()
    for attempts in range(2, 6):
        client.send(req(first.id, 0))
        assert client.read_message() == first._replace(attempts=attempts)
    server.wait_for_channel(topic, "c", requeue_count=4, in_flight_count=1, message_count=1)


def test_a_requeued_message_may_go_to_another_consumer(connect: Connect, topic: str) -> None:
    first, second = connect(), connect()
    first.pub(topic, b"x")
    first.sub(topic, rdy_count=1)
    message = first.read_message()
    second.sub(topic, rdy_count=1)
    first.send(b"RDY 0\n" + req(message.id, 0))
    assert second.read_message() == message._replace(attempts=2)


@pytest.mark.slow
def test_a_message_requeued_for_later_comes_when_it_is_due_and_not_before(
    client: Client, server: Daemon, timed_topic: str
) -> None:
    client.pub(timed_topic, b"x")
    client.sub(timed_topic, rdy_count=1)
    message = client.read_message()
    # Once it has come again the server's timers are known to watch this channel: from then on, too early would be seen.
    for attempts, defer_ms in ((2, 1), (3, 600)):
        before_ns = time.time_ns()
        client.req(message, defer_ms)
        assert client.read_message() == message._replace(attempts=attempts)
        # Clocks may differ a little: the server need not measure delays by the time of day.
        assert time.time_ns() >= before_ns + (defer_ms - 20) * 1_000_000
    server.wait_for_channel(timed_topic, "c", requeue_count=2, deferred_count=0, in_flight_count=1)


def test_a_requeue_permits_one_more_delivery(client: Client, server: Daemon, topic: str) -> None:
    client.mpub(topic, [b"1", b"2"])
    client.sub(topic, rdy_count=1)
    first = client.read_message()
    client.req(first, 60_000)
    assert client.read_message().body != first.body
    server.wait_for_channel(topic, "c", deferred_count=1, in_flight_count=1, depth=0)


@pytest.mark.slow
def test_a_requeue_beyond_the_limit_is_clamped(
    connect: Connect, narrow_server: Daemon, narrow_timed_topic: str
) -> None:
    client = connect(narrow_server)
    client.pub(narrow_timed_topic, b"x")
    client.sub(narrow_timed_topic, rdy_count=1)
    message = client.read_message()
    client.req(message, 3_600_000)
    # The REQ names an hour; the flag allows a second.
    assert client.read_message() == message._replace(attempts=2)


def test_touch_has_no_reply_and_keeps_the_message_in_flight(client: Client, server: Daemon, topic: str) -> None:
    message_id = take(client, topic)
    client.send(touch(message_id) * 3)
    client.expect_alive()
    server.wait_for_channel(topic, "c", in_flight_count=1, depth=0)
    client.send(fin(message_id))
    client.expect_alive()


def test_attempts_are_counted_by_channel(connect: Connect, topic: str) -> None:
    first, second = connect(), connect()
    first.sub(topic, "a", rdy_count=1)
    second.sub(topic, "b", rdy_count=1)
    connect().pub(topic, b"x")
    message = first.read_message()
    first.req(message, 0)
    assert first.read_message().attempts == 2
    assert second.read_message().attempts == 1
