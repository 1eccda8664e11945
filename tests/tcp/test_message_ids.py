"""The ids of published messages in the OK: an extension of pyqd's, for clients that enable it in IDENTIFY."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyqd.hot.primitives.guid import from_hex, id_after, to_hex
from tests.support.nsq import RESPONSE, Client, dpub, mpub, pub
from tests.support.server import Daemon, pyqd
from tests.support.two_servers import Connect

pytestmark = pytest.mark.pyqd_only

ONE = re.compile(rb"OK ([0-9a-f]{16})")
MANY = re.compile(rb"OK ([0-9a-f]{16}) ([1-9][0-9]*)")


@pytest.fixture
def asking(client: Client) -> Client:
    """A client that has enabled ids."""
    assert client.identify(message_ids=True)["message_ids"] is True
    return client


def answer(client: Client, pattern: re.Pattern[bytes]) -> tuple[bytes, ...]:
    frame = client.read_frame()
    matched = pattern.fullmatch(frame.data)
    assert frame.type == RESPONSE
    assert matched, frame
    return matched.groups()


def test_the_ok_of_a_pub_names_the_message(asking: Client, connect: Connect, topic: str) -> None:
    asking.send(pub(topic, b"x"))
    (message_id,) = answer(asking, ONE)
    consumer = connect()
    consumer.sub(topic, rdy_count=1)
    assert consumer.read_message().id == message_id


def test_the_ok_of_a_dpub_names_the_message_that_comes_later(asking: Client, connect: Connect, topic: str) -> None:
    consumer = connect()
    consumer.sub(topic, rdy_count=1)
    asking.send(dpub(topic, 50, b"x"))
    (message_id,) = answer(asking, ONE)
    assert consumer.read_message().id == message_id


@pytest.mark.parametrize("count", [1, 2, 10_000])
def test_the_ok_of_an_mpub_names_the_first_and_how_many(
    asking: Client, connect: Connect, topic: str, count: int
) -> None:
    asking.send(mpub(topic, [b"x"] * count))
    first, told = answer(asking, MANY)
    assert int(told) == count
    expected = {to_hex(id_after(from_hex(first), step)) for step in range(count)}
    consumer = connect()
    consumer.sub(topic, rdy_count=2500)
    seen: set[bytes] = set()
    while len(seen) < count:
        message = consumer.read_message()
        seen.add(message.id)
        consumer.fin(message)
    assert seen == expected


def test_answers_of_one_pass_name_their_own_messages(asking: Client, connect: Connect, topic: str) -> None:
    asking.send(b"".join(pub(topic, b"%d" % number) for number in range(100)))
    ids = [answer(asking, ONE)[0] for _ in range(100)]
    consumer = connect()
    consumer.sub(topic, rdy_count=200)
    assert {message.id: message.body for message in consumer.read_messages(100)} == {
        message_id: b"%d" % number for number, message_id in enumerate(ids)
    }


def test_a_message_that_an_ephemeral_topic_drops_has_an_id_too(narrow_server: Daemon, connect: Connect) -> None:
    client = connect(narrow_server)
    client.identify(message_ids=True)
    # --mem-queue-size=3 there.
    client.send(b"".join(pub("drops#ephemeral", b"x") for _ in range(5)) + mpub("drops#ephemeral", [b"x"] * 2))
    ids = {answer(client, ONE)[0] for _ in range(5)}
    assert len(ids) == 5
    assert answer(client, MANY)[1] == b"2"


@pytest.mark.slow
def test_an_ok_that_waits_for_a_sync_names_its_own_messages(tmp_path: Path) -> None:
    daemon = Daemon(pyqd(), tmp_path, ("-sync-every=1",))
    daemon.start()
    try:
        with (
            Client(daemon.tcp_address) as one,
            Client(daemon.tcp_address) as other,
            Client(daemon.tcp_address) as plain,
        ):
            for client in (one, other):
                client.identify(message_ids=True)
            for number in range(50):
                one.send(pub("t", b"one %d" % number))
                other.send(mpub("t", [b"other %d" % number, b"and"]))
                plain.send(pub("t", b"plain"))
            named = {answer(one, ONE)[0]: b"one %d" % number for number in range(50)}
            named |= {answer(other, MANY)[0]: b"other %d" % number for number in range(50)}
            plain.expect_ok(50)
            plain.sub("t", rdy_count=500)
            found = {message.id: message.body for message in plain.read_messages(200)}
        assert named.items() <= found.items()
        daemon.stop()
    finally:
        daemon.kill()


def test_without_negotiation_nothing_is_granted(client: Client, topic: str) -> None:
    client.send(b'IDENTIFY\n\x00\x00\x00\x14{"message_ids":true}')
    client.expect_ok()
    client.pub(topic, b"x")


def test_without_the_option_answers_are_those_of_nsqd(client: Client, topic: str) -> None:
    assert "message_ids" not in client.identify()
    client.pub(topic, b"x")
    client.mpub(topic, [b"x", b"y"])
    client.dpub(topic, 0, b"x")


def test_another_value_for_the_option_is_refused(client: Client) -> None:
    client.send(b'IDENTIFY\n\x00\x00\x00\x11{"message_ids":1}')
    client.expect_fatal("E_BAD_BODY", "IDENTIFY failed to decode JSON body")
