"""Messages may wait in an output buffer for further ones, but not for longer than the client allows."""

from __future__ import annotations

import pytest

from tests.support.nsq import Client, pub
from tests.support.server import Daemon
from tests.support.two_servers import Connect


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"output_buffer_timeout": 25},
        {"output_buffer_timeout": 1000},
        {"output_buffer_size": 64},
        {"output_buffer_size": 65536, "output_buffer_timeout": 1000},
        {"output_buffer_size": -1},
        {"output_buffer_size": -1, "output_buffer_timeout": -1},
    ],
    ids=lambda settings: ",".join(f"{key}={value}" for key, value in settings.items()) or "defaults",
)
def test_a_message_is_not_held_back_for_lack_of_others(
    client: Client, connect: Connect, topic: str, settings: dict[str, object]
) -> None:
    client.identify(**settings)
    client.sub(topic, rdy_count=100)
    producer = connect()
    for number in range(3):
        producer.pub(topic, b"%d" % number)
        assert client.read_message().body == b"%d" % number


def test_with_rdy_one_every_message_comes_at_once(client: Client, connect: Connect, topic: str) -> None:
    client.identify(output_buffer_timeout=30_000)
    client.sub(topic, rdy_count=1)
    producer = connect()
    for number in range(5):
        producer.pub(topic, b"%d" % number)
        message = client.read_message()
        assert message.body == b"%d" % number
        client.fin(message)


def test_a_response_flushes_buffered_messages(client: Client, server: Daemon, topic: str) -> None:
    client.identify(output_buffer_timeout=-1)
    client.sub(topic, rdy_count=100)
    assert server.http("POST", "/mpub", b"1\n2\n3\n", topic=topic).status == 200
    server.wait_for_channel(topic, "c", in_flight_count=3)
    client.send(pub("fence", b"x"))
    frames = [client.read_frame() for _ in range(4)]
    assert sorted(frame.type for frame in frames) == [0, 2, 2, 2]


def test_a_heartbeat_flushes_buffered_messages(client: Client, connect: Connect, topic: str) -> None:
    client.identify(output_buffer_timeout=-1, heartbeat_interval=1000)
    client.sub(topic, rdy_count=100)
    connect().pub(topic, b"x")
    assert client.read_message().body == b"x"


@pytest.mark.pyqd_only("nsqd lets messages sit in the buffer when there is no timer; pyqd sends what it has")
def test_a_client_without_a_timer_is_not_left_waiting(client: Client, connect: Connect, topic: str) -> None:
    client.identify(output_buffer_timeout=-1)
    client.sub(topic, rdy_count=100)
    connect().pub(topic, b"x")
    assert client.read_message().body == b"x"


@pytest.mark.parametrize("size_bytes", [-1, 64, 1000, 16384, 65536])
def test_messages_longer_than_the_buffer_come_whole(client: Client, topic: str, size_bytes: int) -> None:
    bodies = [bytes([number]) * length for number, length in enumerate([1, 63, 64, 65, 16384, 70_000, 300_000, 2])]
    client.identify(output_buffer_size=size_bytes)
    client.mpub(topic, bodies)
    client.sub(topic, rdy_count=100)
    assert sorted(message.body for message in client.read_messages(len(bodies))) == bodies


def test_thousands_of_messages_fill_the_buffer_many_times(client: Client, topic: str) -> None:
    bodies = [b"%05d" % number + b"x" * 95 for number in range(2400)]
    client.mpub(topic, bodies)
    client.sub(topic, rdy_count=2500)
    assert sorted(message.body for message in client.read_messages(len(bodies))) == bodies
