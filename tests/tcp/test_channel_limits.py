"""A channel's limits as clients meet them: a rate, and dead letters. Extensions of pyqd's."""

from __future__ import annotations

import pytest

from tests.support.nsq import Client
from tests.support.server import Daemon, wait_until
from tests.support.two_servers import Connect

pytestmark = pytest.mark.pyqd_only


def limit(server: Daemon, topic: str, **query: str) -> None:
    reply = server.http("POST", "/channel/limits", None, topic=topic, channel="c", **query)
    assert reply.status == 200, reply


def make_channel(server: Daemon, topic: str, channel: str = "c") -> None:
    assert server.http("POST", "/topic/create", None, topic=topic).status == 200
    assert server.http("POST", "/channel/create", None, topic=topic, channel=channel).status == 200


def test_no_more_than_the_burst_comes_at_once(client: Client, connect: Connect, server: Daemon, topic: str) -> None:
    make_channel(server, topic)
    limit(server, topic, rate="0.001", burst="5")
    client.mpub(topic, [b"x"] * 20)
    consumers = [connect() for _ in range(3)]
    for consumer in consumers:
        consumer.sub(topic, rdy_count=50)
    server.wait_for_channel(topic, "c", depth=15, in_flight_count=5)
    for consumer in consumers:
        consumer.expect_alive_after_messages()
    server.wait_for_channel(topic, "c", depth=15, in_flight_count=5)
    limit(server, topic, rate="0")
    server.wait_for_channel(topic, "c", depth=0, in_flight_count=20)


@pytest.mark.slow
def test_a_limited_channel_resumes_without_a_command(client: Client, server: Daemon, topic: str) -> None:
    make_channel(server, topic)
    limit(server, topic, rate="400", burst="1")
    client.mpub(topic, [b"%d" % number for number in range(200)])
    client.sub(topic, rdy_count=1000)
    assert [message.body for message in client.read_messages(200)] == [b"%d" % number for number in range(200)]


@pytest.mark.slow
def test_every_consumer_gets_its_share(client: Client, connect: Connect, server: Daemon, topic: str) -> None:
    make_channel(server, topic)
    limit(server, topic, rate="300", burst="3")
    consumers = [connect() for _ in range(3)]
    for consumer in consumers:
        consumer.sub(topic, rdy_count=1000)
    client.mpub(topic, [b"x"] * 150)
    for consumer in consumers:
        assert len(consumer.read_messages(20)) == 20


def test_other_channels_are_not_held_up(client: Client, server: Daemon, topic: str) -> None:
    make_channel(server, topic)
    limit(server, topic, rate="0.001")
    client.sub(topic, "other", rdy_count=100)
    client.mpub(topic, [b"x"] * 50)
    assert len(client.read_messages(50)) == 50


@pytest.mark.slow
def test_a_message_delivered_often_enough_is_found_in_the_other_topic(
    client: Client, connect: Connect, server: Daemon, topic: str
) -> None:
    make_channel(server, topic)
    limit(server, topic, max_attempts="3", dead_letter_topic=f"{topic}_dead")
    client.pub(topic, b"poison")
    client.pub(topic, b"good")
    client.sub(topic, rdy_count=1)
    attempts: list[int] = []
    finished = False
    while len(attempts) < 3 or not finished:
        message = client.read_message()
        if message.body == b"good":
            client.fin(message)
            finished = True
        else:
            attempts.append(message.attempts)
            client.req(message, 0 if len(attempts) < 2 else 20)
    assert attempts == [1, 2, 3]
    dead = connect()
    dead.sub(f"{topic}_dead", "c", rdy_count=1)
    letter = dead.read_message()
    assert (letter.body, letter.attempts) == (b"poison", 1)
    assert letter.id != message.id
    server.wait_for_channel(topic, "c", depth=0, in_flight_count=0, deferred_count=0)
    client.expect_alive()
    wait_until(
        lambda: server.channel(topic, "c")["limits"]["dead_letter_count"] == 1,  # type: ignore[index]
        "the dead letter is counted",
    )


@pytest.mark.slow
def test_a_message_that_times_out_too_often_is_a_dead_letter_without_any_consumer(
    connect: Connect, server: Daemon, topic: str
) -> None:
    make_channel(server, topic)
    limit(server, topic, max_attempts="1", dead_letter_topic=f"{topic}_dead")
    with connect() as client:
        client.identify(msg_timeout=1000)
        client.pub(topic, b"x")
        client.sub(topic, rdy_count=1)
        client.read_message()
    server.wait_for_topic(f"{topic}_dead", message_count=1)
    server.wait_for_channel(topic, "c", depth=0, in_flight_count=0)


@pytest.mark.slow
def test_a_dead_letter_without_its_topic_waits_until_there_is_one(client: Client, server: Daemon, topic: str) -> None:
    make_channel(server, topic)
    dead = f"{topic}_dead"
    limit(server, topic, max_attempts="1", dead_letter_topic=dead)
    assert server.http("POST", "/topic/delete", None, topic=dead).status == 200
    client.pub(topic, b"x")
    client.sub(topic, rdy_count=1)
    client.req(client.read_message(), 0)
    server.wait_for_channel(topic, "c", depth=1, in_flight_count=0)
    reply = server.http("GET", "/channel/limits", None, topic=topic, channel="c").json()
    assert (reply["dead_letters_waiting"], reply["waiting_for"]) == (1, f"topic {dead} does not exist")
    client.expect_alive()
    assert server.http("POST", "/topic/create", None, topic=dead).status == 200
    server.wait_for_topic(dead, message_count=1)
    server.wait_for_channel(topic, "c", depth=0)


def test_limits_and_messages_waiting_for_them_outlive_a_kill(own_server: Daemon) -> None:
    make_channel(own_server, "t")
    limit(own_server, "t", rate="0.001", burst="2", max_attempts="2", dead_letter_topic="dead")
    own_server.kill()
    own_server.start()
    shown = own_server.http("GET", "/channel/limits", None, topic="t", channel="c").json()
    assert (shown["rate"], shown["burst"]) == (0.001, 2)
    assert (shown["max_attempts"], shown["dead_letter_topic"]) == (2, "dead")
    with Client(own_server.tcp_address) as client:
        client.mpub("t", [b"a", b"b", b"c"])
        client.sub("t", rdy_count=10)
        assert len(client.read_messages(2)) == 2
        own_server.wait_for_channel("t", "c", depth=1, in_flight_count=2)
