"""Topics and channels: names, fan-out, the backlog, sharing among consumers, and ephemeral ones."""

from __future__ import annotations

import pytest

from tests.support.nsq import Client
from tests.support.server import Daemon, wait_until
from tests.support.two_servers import Connect

ODD_NAMES = [".", "..", "...", "-", "_", "0", ".a", "a.", "-tcp-address", "a" * 64, "CON", "a..b"]
BAD_NAMES = [
    "",
    "a" * 65,
    "a" * 55 + "#ephemeral",
    "#ephemeral",
    "a#ephemera",
    "a#Ephemeral",
    "a#ephemeral#ephemeral",
    "a#ephemeralx",
    "a/b",
    "../a",
    "a:b",
    "a;b",
    "a*",
    "a#",
    "ä",
    "a,b",
    "a%20b",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ODD_NAMES, "a" * 54 + "#ephemeral"])
def test_odd_names_are_names_of_topics_and_channels(client: Client, server: Daemon, name: str) -> None:
    client.pub(name, b"x")
    client.sub(name, name, rdy_count=1)
    message = client.read_message()
    client.fin(message)
    client.expect_alive()
    server.wait_for_channel(name, name, in_flight_count=0, depth=0)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_other_names_are_refused(connect: Connect, name: str) -> None:
    for command, code, text in [
        (f"PUB {name}", "E_BAD_TOPIC", f'PUB topic name "{name}" is not valid'),
        (f"MPUB {name}", "E_BAD_TOPIC", f'E_BAD_TOPIC MPUB topic name "{name}" is not valid'),
        (f"DPUB {name} 0", "E_BAD_TOPIC", f'DPUB topic name "{name}" is not valid'),
        (f"SUB {name} c", "E_BAD_TOPIC", f'SUB topic name "{name}" is not valid'),
        (f"SUB t {name}", "E_BAD_CHANNEL", f'SUB channel name "{name}" is not valid'),
    ]:
        client = connect()
        client.send(command.encode() + b"\n")
        client.expect_fatal(code, text)


def test_names_differ_by_case(client: Client, server: Daemon, topic: str) -> None:
    client.pub(topic + "a", b"x")
    client.pub_each(topic + "A", [b"x", b"y"])
    server.wait_for_topic(topic + "a", message_count=1)
    server.wait_for_topic(topic + "A", message_count=2)


def test_odd_names_outlive_a_restart_and_stay_in_the_data_directory(own_server: Daemon) -> None:
    outside = sorted(own_server.data_path.parent.iterdir())
    with Client(own_server.tcp_address) as client:
        for name in ODD_NAMES:
            client.pub(name, name.encode())
    own_server.restart()
    assert sorted(own_server.data_path.parent.iterdir()) == outside
    assert set(own_server.topics()) == set(ODD_NAMES)
    for name in ODD_NAMES:
        with Client(own_server.tcp_address) as client:
            client.sub(name, "..", rdy_count=1)
            message = client.read_message()
            assert message.body == name.encode()
            client.fin(message)
            client.expect_alive()


def test_every_channel_gets_every_message(connect: Connect, topic: str) -> None:
    consumers = [connect() for _ in range(5)]
    for number, consumer in enumerate(consumers):
        consumer.sub(topic, f"channel{number}", rdy_count=100)
    bodies = [b"%02d" % number for number in range(50)]
    connect().mpub(topic, bodies)
    received = [sorted(consumer.read_messages(50)) for consumer in consumers]
    assert sorted(message.body for message in received[0]) == bodies
    # The same id, time and body everywhere.
    assert all(messages == received[0] for messages in received)


@pytest.mark.slow
def test_the_first_channel_gets_earlier_messages_and_later_channels_do_not(
    connect: Connect, server: Daemon, topic: str
) -> None:
    producer, first, second = connect(), connect(), connect()
    producer.mpub(topic, [b"1", b"2", b"3"])
    server.wait_for_topic(topic, depth=3, channels=[])
    first.sub(topic, "first", rdy_count=10)
    assert sorted(message.body for message in first.read_messages(3)) == [b"1", b"2", b"3"]
    server.wait_for_topic(topic, depth=0)
    second.sub(topic, "second", rdy_count=10)
    second.expect_alive()
    producer.pub(topic, b"4")
    assert first.read_message().body == b"4"
    assert second.read_message().body == b"4"
    server.wait_for_channel(topic, "first", message_count=4)
    server.wait_for_channel(topic, "second", message_count=1)


@pytest.mark.slow
def test_a_channel_keeps_messages_without_consumers(connect: Connect, server: Daemon, topic: str) -> None:
    consumer = connect()
    consumer.sub(topic)
    consumer.close()
    server.wait_for_channel(topic, "c", client_count=0)
    producer = connect()
    producer.mpub(topic, [b"1", b"2"])
    server.wait_for_channel(topic, "c", depth=2, message_count=2)
    other = connect()
    other.sub(topic, rdy_count=2)
    assert sorted(message.body for message in other.read_messages(2)) == [b"1", b"2"]


@pytest.mark.slow
def test_each_message_goes_to_one_consumer_of_a_channel(connect: Connect, server: Daemon, topic: str) -> None:
    consumers = [connect() for _ in range(4)]
    for consumer in consumers:
        consumer.sub(topic, rdy_count=100)
    bodies = [b"%03d" % number for number in range(200)]
    connect().mpub(topic, bodies)
    server.wait_for_channel(topic, "c", in_flight_count=200, depth=0)
    channel = server.channel(topic, "c")
    assert channel is not None
    counts = {each["remote_address"]: each["in_flight_count"] for each in channel["clients"]}
    received = [
        message.body for consumer in consumers for message in consumer.read_messages(counts[consumer.local_address])
    ]
    assert sorted(received) == bodies


def test_a_consumer_without_ready_count_leaves_messages_to_the_others(connect: Connect, topic: str) -> None:
    idle, full, ready = connect(), connect(), connect()
    idle.sub(topic, rdy_count=0)
    full.sub(topic, rdy_count=1)
    producer = connect()
    producer.pub(topic, b"first")
    full.read_message()
    ready.sub(topic, rdy_count=50)
    producer.mpub(topic, [b"x"] * 50)
    ready.read_messages(50)
    idle.expect_alive()
    full.expect_alive()


@pytest.mark.slow
def test_one_client_may_publish_to_many_topics(client: Client, server: Daemon, topic: str) -> None:
    for number in range(20):
        client.pub(f"{topic}_{number}", b"x" * (number + 1))
    topics = server.topics()
    assert [topics[f"{topic}_{number}"]["message_bytes"] for number in range(20)] == list(range(1, 21))


@pytest.mark.slow
def test_an_ephemeral_channel_goes_with_its_last_consumer(connect: Connect, server: Daemon, topic: str) -> None:
    channel = "c#ephemeral"
    first, second = connect(), connect()
    first.sub(topic, channel, rdy_count=1)
    second.sub(topic, channel, rdy_count=1)
    server.wait_for_channel(topic, channel, client_count=2)
    first.close()
    server.wait_for_channel(topic, channel, client_count=1)
    second.close()
    wait_until(lambda: server.channel(topic, channel) is None, "the ephemeral channel is gone")
    assert server.topic(topic) is not None


@pytest.mark.slow
def test_an_ephemeral_channel_that_comes_again_is_a_new_one(connect: Connect, server: Daemon, topic: str) -> None:
    channel = "c#ephemeral"
    producer, consumer = connect(), connect()
    consumer.sub(topic, channel)
    producer.pub(topic, b"lost")
    server.wait_for_channel(topic, channel, depth=1, message_count=1)
    consumer.close()
    wait_until(lambda: server.channel(topic, channel) is None, "the ephemeral channel is gone")
    again = connect()
    again.sub(topic, channel, rdy_count=1)
    server.wait_for_channel(topic, channel, depth=0, message_count=0)
    producer.pub(topic, b"kept")
    assert again.read_message().body == b"kept"


def test_an_ephemeral_topic_goes_with_its_last_channel(connect: Connect, server: Daemon, topic: str) -> None:
    name = f"{topic}#ephemeral"
    consumer = connect()
    consumer.sub(name, "c#ephemeral", rdy_count=1)
    connect().pub(name, b"x")
    assert consumer.read_message().body == b"x"
    consumer.close()
    wait_until(lambda: server.topic(name) is None, "the ephemeral topic is gone")


def test_an_ephemeral_topic_stays_while_it_never_had_a_channel(client: Client, server: Daemon, topic: str) -> None:
    name = f"{topic}#ephemeral"
    client.pub(name, b"x")
    client.expect_alive()
    server.wait_for_topic(name, depth=1, message_count=1)
    client.sub(name, rdy_count=1)
    assert client.read_message().body == b"x"


def test_an_ephemeral_topic_with_a_lasting_channel_stays(connect: Connect, server: Daemon, topic: str) -> None:
    name = f"{topic}#ephemeral"
    consumer = connect()
    consumer.sub(name, "c")
    consumer.close()
    server.wait_for_channel(name, "c", client_count=0)
    connect().pub(name, b"x")
    server.wait_for_channel(name, "c", depth=1)


def test_an_ephemeral_topic_discards_messages_beyond_its_memory_queue(
    connect: Connect, narrow_server: Daemon, topic: str
) -> None:
    name = f"{topic}#ephemeral"
    connect(narrow_server).pub_each(name, [b"%d" % number for number in range(10)])
    narrow_server.wait_for_topic(name, depth=3, message_count=10, backend_depth=0)


def test_a_durable_topic_keeps_messages_beyond_its_memory_queue(
    connect: Connect, narrow_server: Daemon, topic: str
) -> None:
    client = connect(narrow_server)
    bodies = [b"%02d" % number for number in range(30)]
    client.pub_each(topic, bodies)
    narrow_server.wait_for_topic(topic, depth=30, message_count=30)
    client.sub(topic, rdy_count=5)
    received = []
    for _ in bodies:
        message = client.read_message()
        received.append(message.body)
        client.fin(message)
    assert sorted(received) == bodies


def test_nothing_ephemeral_outlives_a_restart(own_server: Daemon) -> None:
    with Client(own_server.tcp_address) as producer, Client(own_server.tcp_address) as consumer:
        producer.pub("gone#ephemeral", b"x")
        consumer.sub("kept", "gone#ephemeral")
        producer.pub("kept", b"x")
        own_server.wait_for_channel("kept", "gone#ephemeral", depth=1)
        own_server.restart()
    assert set(own_server.topics()) == {"kept"}
    assert own_server.channel("kept", "gone#ephemeral") is None
