"""Commands of one kind that arrive together and are executed as a run: they act and are answered as if alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nsq import Client, fin, int32, mpub, pub
from tests.support.server import Daemon, pyqd
from tests.support.two_servers import Connect

# More than one run has, and more than a send of small bodies through the mapping.
COUNT = 1000


def bodies_of(count: int) -> list[bytes]:
    """Return different bodies of many sizes, some of which look like a command."""
    return [b"PUB t\n%d" % index + b"x" * (index * 7 % 400) for index in range(count)]


def running(directory: Path, flag: str) -> Iterator[Daemon]:
    """Yield a daemon of the tests' own with a flag."""
    daemon = Daemon(pyqd(), directory, [flag]).start()
    try:
        yield daemon
    finally:
        daemon.kill()


@pytest.fixture
def narrow_queue(tmp_path: Path) -> Iterator[Daemon]:
    """Return a daemon that keeps few messages in memory."""
    yield from running(tmp_path / "narrow", "--mem-queue-size=10")


@pytest.fixture
def quota(tmp_path: Path) -> Iterator[Daemon]:
    """Return a daemon whose topics may take a few segments."""
    yield from running(tmp_path / "quota", "--max-topic-bytes=400000")


def test_pubs_that_come_together_are_stored_in_order_and_each_is_answered(client: Client, topic: str) -> None:
    bodies = bodies_of(COUNT)
    client.send(b"".join(pub(topic, body) for body in bodies))
    client.expect_ok(COUNT)
    client.sub(topic, rdy_count=COUNT)
    assert [message.body for message in client.read_messages(COUNT)] == bodies


def test_pubs_to_topics_in_turn_keep_the_order_of_each_topic(connect: Connect, topic: str) -> None:
    publisher, bodies = connect(), bodies_of(COUNT)
    topics = [topic, f"{topic}-other"]
    publisher.send(b"".join(pub(topics[index // 3 % 2], body) for index, body in enumerate(bodies)))
    publisher.expect_ok(COUNT)
    for number, name in enumerate(topics):
        expected = [body for index, body in enumerate(bodies) if index // 3 % 2 == number]
        consumer = connect()
        consumer.sub(name, rdy_count=COUNT)
        assert [message.body for message in consumer.read_messages(len(expected))] == expected


def test_lines_that_end_in_carriage_return_and_those_that_do_not_are_the_same(client: Client, topic: str) -> None:
    both = pub(topic, b"x"), pub(topic, b"y").replace(b"\n", b"\r\n", 1)
    client.send(b"".join(both[index % 3 == 0] for index in range(90)))
    client.expect_ok(90)
    client.sub(topic, rdy_count=90)
    assert [message.body for message in client.read_messages(90)] == [
        b"xy"[index % 3 == 0 :][:1] for index in range(90)
    ]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (int32(0), "PUB invalid message body size 0"),
        (int32(-1), "PUB invalid message body size -1"),
        (int32(1 << 30), "PUB message too big 1073741824 > 1048576"),
    ],
    ids=["empty", "negative", "too big"],
)
def test_pubs_before_a_wrong_one_are_stored_and_answered_and_none_behind_it(
    client: Client, connect: Connect, topic: str, wrong: bytes, text: str
) -> None:
    good = [b"%d" % index * 50 for index in range(200)]
    client.send(b"".join(pub(topic, body) for body in good) + f"PUB {topic}\n".encode() + wrong + pub(topic, b"behind"))
    client.expect_ok(len(good))
    client.expect_fatal("E_BAD_MESSAGE", text)
    consumer = connect()
    consumer.sub(topic, rdy_count=COUNT)
    assert [message.body for message in consumer.read_messages(len(good))] == good
    consumer.expect_alive_after_messages()


def test_pubs_and_mpubs_in_turn_keep_their_order(client: Client, topic: str) -> None:
    client.send((pub(topic, b"a" * 3000) * 5 + mpub(topic, [b"b" * 3000, b"c" * 3000]) * 3) * 20)
    client.expect_ok(8 * 20)
    client.sub(topic, rdy_count=COUNT)
    letters = "".join(message.body[:1].decode() for message in client.read_messages(11 * 20))
    assert letters == ("aaaaa" + "bcbcbc") * 20


@pytest.mark.pyqd_only
def test_each_of_many_pubs_is_answered_with_its_own_id(client: Client, topic: str) -> None:
    client.identify(message_ids=True)
    client.send(pub(topic, b"x" * 200) * COUNT)
    answers = [client.read_frame().data for _ in range(COUNT)]
    client.sub(topic, rdy_count=COUNT)
    assert answers == [b"OK " + message.id for message in client.read_messages(COUNT)]


@pytest.mark.pyqd_only
def test_an_ephemeral_topic_without_channels_keeps_its_limit_in_a_run(connect: Connect, narrow_queue: Daemon) -> None:
    publisher = connect(narrow_queue)
    publisher.send(pub("t#ephemeral", b"x") * COUNT)
    publisher.expect_ok(COUNT)
    narrow_queue.wait_for_topic("t#ephemeral", message_count=COUNT, depth=10)


@pytest.mark.pyqd_only
def test_of_pubs_beyond_the_quota_those_before_it_are_stored_and_answered(connect: Connect, quota: Daemon) -> None:
    publisher, count = connect(quota), 0
    publisher.send(pub("t", b"x" * 2000) * 300)
    frame = publisher.read_frame()
    while frame.data == b"OK":
        count += 1
        frame = publisher.read_frame()
    assert frame.data.startswith(b"E_PUB_FAILED PUB failed ")
    publisher.expect_closed()
    assert 0 < count < 300
    quota.wait_for_topic("t", message_count=count, depth=count)


def test_fins_behind_one_that_is_refused_are_executed(client: Client, server: Daemon, topic: str) -> None:
    client.pub_each(topic, [b"x"] * 100)
    client.sub(topic, "c", rdy_count=100)
    ids = [message.id for message in client.read_messages(100)]
    lines = [fin(message_id) for message_id in ids]
    client.send(b"".join(lines[:50]) + fin(b"0" * 15 + b"1") + lines[0] + b"".join(lines[50:]))
    client.expect_error("E_FIN_FAILED", "FIN 0000000000000001 failed ID not in flight")
    client.expect_error("E_FIN_FAILED", b"FIN %s failed ID not in flight" % ids[0])
    client.expect_alive()
    server.wait_for_channel(topic, "c", depth=0, in_flight_count=0)
