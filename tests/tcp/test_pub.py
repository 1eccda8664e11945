"""PUB: one message, stored before OK, delivered with the bytes it came with."""

from __future__ import annotations

import re
import time

import pytest

from tests.support.nsq import Client, int32, pub
from tests.support.server import Daemon
from tests.support.two_servers import Connect

MESSAGE_BYTES_MAX = 1048576


def test_a_message_is_delivered_as_it_was_published(client: Client, topic: str) -> None:
    before_ns = time.time_ns()
    client.pub(topic, b"some body")
    after_ns = time.time_ns()
    client.sub(topic, rdy_count=1)
    message = client.read_message()
    assert message.body == b"some body"
    assert message.attempts == 1
    assert re.fullmatch(rb"[0-9a-f]{16}", message.id)
    # Both clocks are the same machine's; the server may read its clock once for many commands.
    assert before_ns - 1_000_000_000 <= message.timestamp_ns <= after_ns + 1_000_000_000


@pytest.mark.parametrize(
    "body",
    [
        b"\x00",
        b"\n",
        b"\r\n",
        b" ",
        bytes(range(256)),
        b"PUB other\n\x00\x00\x00\x01x",
        b"\xff" * 16384,
        b"a" * 16385,
        b"b" * 65537,
        b"c" * MESSAGE_BYTES_MAX,
    ],
    ids=lambda body: f"{body[:4]!r}x{len(body)}",
)
def test_any_bytes_may_be_a_body(client: Client, topic: str, body: bytes) -> None:
    client.pub(topic, body)
    client.sub(topic, rdy_count=1)
    message = client.read_message()
    assert message.body == body
    client.fin(message)
    client.expect_alive()


def test_a_body_of_the_greatest_size_is_accepted_and_one_more_byte_is_not(
    connect: Connect, narrow_server: Daemon, topic: str
) -> None:
    client = connect(narrow_server)
    client.pub(topic, b"x" * 100)
    client.send(pub(topic, b"x" * 101))
    client.expect_fatal("E_BAD_MESSAGE", "PUB message too big 101 > 100")
    narrow_server.wait_for_topic(topic, message_count=1, message_bytes=100)


def test_ids_of_a_topic_are_unique_and_grow(client: Client, topic: str) -> None:
    bodies = [b"%04d" % number for number in range(2000)]
    client.send(b"".join(pub(topic, body) for body in bodies))
    client.expect_ok(len(bodies))
    client.sub(topic, rdy_count=2500)
    by_id = {message.id: message.body for message in client.read_messages(len(bodies))}
    # Messages may be delivered in any order; the ids tell the one they were published in.
    assert [by_id[message_id] for message_id in sorted(by_id)] == bodies


def test_publishing_makes_the_topic_and_counts(client: Client, server: Daemon, topic: str) -> None:
    client.pub_each(topic, [b"a", b"bc", b"def"])
    server.wait_for_topic(topic, message_count=3, message_bytes=6, depth=3, channels=[])


@pytest.mark.parametrize(
    ("rest", "text"),
    [
        (int32(0), "PUB invalid message body size 0"),
        (int32(-1), "PUB invalid message body size -1"),
        (int32(MESSAGE_BYTES_MAX + 1), "PUB message too big 1048577 > 1048576"),
        (b"\x00\x00", "PUB failed to read message body size"),
        (int32(5) + b"four", "PUB failed to read message body"),
    ],
    ids=["empty", "negative", "too_big", "short_size", "short_body"],
)
def test_a_failed_publish_makes_no_topic(client: Client, server: Daemon, topic: str, rest: bytes, text: str) -> None:
    client.send(f"PUB {topic}\n".encode() + rest)
    client.close_sending()
    client.expect_fatal("E_BAD_MESSAGE", text)
    assert server.topic(topic) is None


def test_a_size_too_big_is_refused_before_the_body_comes(client: Client, topic: str) -> None:
    client.send(f"PUB {topic}\n".encode() + int32(MESSAGE_BYTES_MAX + 1))
    client.expect_fatal("E_BAD_MESSAGE", "PUB message too big 1048577 > 1048576")


def test_a_bad_topic_is_refused_before_the_size_comes(client: Client) -> None:
    client.send(b"PUB bad$topic\n")
    client.expect_fatal("E_BAD_TOPIC", 'PUB topic name "bad$topic" is not valid')


def test_publishers_do_not_get_in_each_others_way(connect: Connect, server: Daemon, topic: str) -> None:
    clients = [connect() for _ in range(10)]
    for _ in range(20):
        for client in clients:
            client.send(pub(topic, b"x"))
    for client in clients:
        client.expect_ok(20)
    server.wait_for_topic(topic, message_count=200, message_bytes=200)


def test_http_and_tcp_publish_into_the_same_topic(client: Client, server: Daemon, topic: str) -> None:
    client.pub(topic, b"tcp")
    assert server.http("POST", "/pub", b"http", topic=topic).body == b"OK"
    assert server.http("POST", "/mpub", b"line 1\nline 2\n", topic=topic).body == b"OK"
    client.sub(topic, rdy_count=10)
    assert {each.body for each in client.read_messages(4)} == {b"tcp", b"http", b"line 1", b"line 2"}
