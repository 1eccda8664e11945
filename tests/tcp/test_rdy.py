"""RDY: the most messages a client will have in flight; no reply, no countdown."""

from __future__ import annotations

import pytest

from tests.support.nsq import Client, rdy
from tests.support.server import Daemon
from tests.support.two_servers import Connect

BODIES = [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_no_more_than_rdy_are_in_flight(client: Client, server: Daemon, topic: str, count: int) -> None:
    client.mpub(topic, BODIES)
    client.sub(topic, rdy_count=count)
    client.read_messages(count)
    server.wait_for_channel(topic, "c", in_flight_count=count, depth=len(BODIES) - count)
    client.expect_alive()


def test_rdy_is_a_ceiling_and_not_used_up(client: Client, server: Daemon, topic: str) -> None:
    client.mpub(topic, BODIES)
    client.sub(topic, rdy_count=1)
    bodies = []
    for _ in BODIES:
        message = client.read_message()
        bodies.append(message.body)
        client.fin(message)
    assert sorted(bodies) == BODIES
    server.wait_for_channel(topic, "c", in_flight_count=0, depth=0)


def test_each_fin_permits_one_more_delivery(client: Client, server: Daemon, topic: str) -> None:
    client.mpub(topic, BODIES)
    client.sub(topic, rdy_count=2)
    client.fin(client.read_messages(2)[0])
    client.read_message()
    server.wait_for_channel(topic, "c", in_flight_count=2, depth=2)
    client.expect_alive()


def test_a_greater_rdy_brings_more(client: Client, server: Daemon, topic: str) -> None:
    client.mpub(topic, BODIES)
    client.sub(topic, rdy_count=1)
    client.read_message()
    client.rdy(3)
    client.read_messages(2)
    server.wait_for_channel(topic, "c", in_flight_count=3, depth=2)


def test_a_smaller_rdy_recalls_nothing_and_brings_nothing(client: Client, server: Daemon, topic: str) -> None:
    client.mpub(topic, BODIES)
    client.sub(topic, rdy_count=3)
    messages = client.read_messages(3)
    client.rdy(1)
    client.fin(messages[0])
    client.fin(messages[1])
    server.wait_for_channel(topic, "c", in_flight_count=1, depth=2)
    client.expect_alive()
    client.fin(messages[2])
    client.read_message()
    server.wait_for_channel(topic, "c", in_flight_count=1, depth=1)


@pytest.mark.parametrize("command", [b"RDY 0\n", b"RDY \n", b"RDY  5\n"], ids=repr)
def test_rdy_zero_stops_delivery(client: Client, server: Daemon, topic: str, command: bytes) -> None:
    client.sub(topic, rdy_count=1)
    client.send(command)
    client.expect_alive()
    client.pub(topic, b"x")
    server.wait_for_channel(topic, "c", depth=1, in_flight_count=0)
    client.expect_alive()
    client.rdy(1)
    assert client.read_message().body == b"x"


def test_rdy_without_a_count_is_one(client: Client, server: Daemon, topic: str) -> None:
    client.mpub(topic, BODIES)
    client.sub(topic)
    client.send(b"RDY\n")
    client.read_message()
    server.wait_for_channel(topic, "c", in_flight_count=1, depth=4)
    client.expect_alive()


def test_messages_published_later_come_without_another_rdy(client: Client, connect: Connect, topic: str) -> None:
    client.sub(topic, rdy_count=5)
    producer = connect()
    for body in BODIES:
        producer.pub(topic, body)
        assert client.read_message().body == body


def test_the_greatest_count_is_accepted_and_one_more_is_not(client: Client, topic: str) -> None:
    client.sub(topic, rdy_count=2500)
    client.expect_alive()
    client.rdy(2501)
    client.expect_fatal("E_INVALID", "RDY count 2501 out of range 0-2500")


def test_the_greatest_count_follows_the_flag(connect: Connect, narrow_server: Daemon, topic: str) -> None:
    client = connect(narrow_server)
    client.sub(topic, rdy_count=5)
    client.expect_alive()
    client.rdy(6)
    client.expect_fatal("E_INVALID", "RDY count 6 out of range 0-5")


def test_the_last_of_pipelined_rdys_counts(client: Client, server: Daemon, topic: str) -> None:
    client.sub(topic)
    client.send(rdy(5) + rdy(0) + rdy(2))
    client.expect_alive()
    assert server.http("POST", "/mpub", b"\n".join(BODIES), topic=topic).status == 200
    client.read_messages(2)
    server.wait_for_channel(topic, "c", in_flight_count=2, depth=3)
    client.expect_alive()
