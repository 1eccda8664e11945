"""SUB: makes topic and channel, binds the connection to them, delivers nothing before RDY."""

from __future__ import annotations

import pytest

from tests.support.nsq import MESSAGE, RESPONSE, Client, pub, rdy, sub
from tests.support.server import Daemon, wait_until
from tests.support.two_servers import Connect


def test_sub_makes_the_topic_and_the_channel(client: Client, server: Daemon, topic: str) -> None:
    client.sub(topic, "new")
    server.wait_for_channel(topic, "new", client_count=1, depth=0, message_count=0)


def test_nothing_is_delivered_before_rdy(client: Client, server: Daemon, topic: str) -> None:
    client.pub(topic, b"x")
    client.sub(topic)
    server.wait_for_channel(topic, "c", depth=1, in_flight_count=0)
    client.expect_alive()
    client.rdy(1)
    assert client.read_message().body == b"x"


def test_sub_and_rdy_may_be_pipelined(client: Client, topic: str) -> None:
    client.pub(topic, b"x")
    client.send(sub(topic, "c") + rdy(1))
    client.expect_ok()
    assert client.read_message().body == b"x"


def test_a_second_sub_is_fatal(client: Client, topic: str) -> None:
    client.sub(topic)
    client.send(sub(topic, "other"))
    client.expect_fatal("E_INVALID", "cannot SUB in current state")


def test_sub_without_heartbeats_is_fatal(client: Client, topic: str) -> None:
    client.identify(heartbeat_interval=-1)
    client.send(sub(topic, "c"))
    client.expect_fatal("E_INVALID", "cannot SUB with heartbeats disabled")


def test_a_failed_sub_makes_nothing(connect: Connect, server: Daemon, topic: str) -> None:
    client = connect()
    client.send(sub(topic, "bad$name"))
    client.expect_fatal("E_BAD_CHANNEL", 'SUB channel name "bad$name" is not valid')
    assert server.topic(topic) is None


@pytest.mark.slow
def test_a_client_that_leaves_is_taken_from_the_channel(connect: Connect, server: Daemon, topic: str) -> None:
    first, second = connect(), connect()
    first.sub(topic)
    second.sub(topic)
    server.wait_for_channel(topic, "c", client_count=2)
    first.close()
    server.wait_for_channel(topic, "c", client_count=1)
    second.close()
    server.wait_for_channel(topic, "c", client_count=0)


def test_a_client_thrown_out_is_taken_from_the_channel(client: Client, server: Daemon, topic: str) -> None:
    client.sub(topic)
    client.send(b"WRONG\n")
    client.expect_fatal("E_INVALID", "invalid command WRONG")
    server.wait_for_channel(topic, "c", client_count=0)


def test_one_connection_may_publish_and_consume(client: Client, topic: str) -> None:
    client.sub(topic, rdy_count=1)
    client.send(pub(topic, b"x"))
    # The answer and the message come in either order.
    assert sorted(frame.type for frame in (client.read_frame(), client.read_frame())) == [RESPONSE, MESSAGE]


def test_a_channel_takes_no_more_consumers_than_the_limit(connect: Connect, narrow_server: Daemon, topic: str) -> None:
    consumers = [connect(narrow_server) for _ in range(3)]
    consumers[0].sub(topic)
    consumers[1].sub(topic)
    consumers[2].send(sub(topic, "c"))
    consumers[2].expect_fatal("E_SUB_FAILED", f"SUB failed consumers for {topic}:c exceeds limit of 2")
    connect(narrow_server).sub(topic, "other")
    narrow_server.wait_for_channel(topic, "c", client_count=2)


def test_a_departed_consumer_frees_its_place_for_another(connect: Connect, narrow_server: Daemon, topic: str) -> None:
    first, second = connect(narrow_server), connect(narrow_server)
    first.sub(topic)
    second.sub(topic)
    first.close()
    narrow_server.wait_for_channel(topic, "c", client_count=1)
    connect(narrow_server).sub(topic)


@pytest.mark.parametrize("consumer_count", [50])
def test_many_consumers_share_a_channel(connect: Connect, server: Daemon, topic: str, consumer_count: int) -> None:
    consumers = [connect() for _ in range(consumer_count)]
    for consumer in consumers:
        consumer.sub(topic, rdy_count=1)
    server.wait_for_channel(topic, "c", client_count=consumer_count)
    connect().mpub(topic, [str(number).encode() for number in range(consumer_count)])
    bodies = {consumer.read_message().body for consumer in consumers}
    assert bodies == {str(number).encode() for number in range(consumer_count)}


def test_stats_name_each_consumer(connect: Connect, server: Daemon, topic: str) -> None:
    consumers = [connect() for _ in range(3)]
    for number, consumer in enumerate(consumers):
        consumer.sub(topic, rdy_count=number)

    def ready_counts() -> dict[str, int]:
        channel = server.channel(topic, "c")
        assert channel is not None
        return {each["remote_address"]: each["ready_count"] for each in channel["clients"]}

    wanted = {consumer.local_address: number for number, consumer in enumerate(consumers)}
    wait_until(lambda: ready_counts() == wanted, "each consumer with its RDY count in /stats")
