"""Clients that promise too much, stop half-way or never read: they harm no other client."""

from __future__ import annotations

import pytest

from tests.support.nsq import Client, int32, mpub, pub
from tests.support.server import Daemon
from tests.support.two_servers import Connect

BODY_COMMANDS = ["IDENTIFY", "AUTH", "PUB limits", "DPUB limits 0", "MPUB limits"]


@pytest.mark.parametrize("command", BODY_COMMANDS)
@pytest.mark.parametrize("size", [2**31 - 1, -1, -(2**31), 0, 0x7F000000])
def test_an_impossible_size_is_refused_at_once(client: Client, command: str, size: int) -> None:
    # No end of file follows: the answer must come for the size alone.
    client.send(command.encode() + b"\n" + int32(size))
    frame = client.read_frame()
    assert frame.data.startswith((b"E_BAD_BODY ", b"E_BAD_MESSAGE ")), frame
    assert str(size).encode() in frame.data
    client.expect_closed()


def test_clients_that_stop_in_the_middle_of_a_body_hurt_no_other(connect: Connect, server: Daemon, topic: str) -> None:
    stopped = [connect() for _ in range(50)]
    for client in stopped:
        client.send(f"PUB {topic}\n".encode() + int32(1_000_000) + b"x" * 1000)
    other = connect()
    other.pub(f"{topic}_other", b"x")
    other.sub(f"{topic}_other", rdy_count=1)
    assert other.read_message().body == b"x"
    for client in stopped[:25]:
        client.close()
    stopped[-1].send(b"x" * 999_000)
    stopped[-1].expect_ok()
    server.wait_for_topic(topic, message_count=1, message_bytes=1_000_000)


@pytest.mark.parametrize(
    "part", [b"P", b"PUB", b"PUB t", b"PUB t\n", b"PUB t\n\x00\x00", b"IDENTIFY\n\x00\x00\x00\x05{"]
)
def test_a_client_that_stops_anywhere_hurts_no_other(connect: Connect, part: bytes) -> None:
    connect().send(part)
    connect().expect_alive()


def test_a_line_without_an_end_is_cut_off(client: Client, connect: Connect) -> None:
    client.send_what_is_taken(b"A" * 1_000_000)
    client.expect_closed()
    connect().expect_alive()


def test_a_line_without_an_end_is_cut_off_as_soon_as_it_is_too_long(client: Client) -> None:
    client.send_what_is_taken(b"A" * 16384)
    client.expect_closed()


@pytest.mark.slow
def test_a_client_that_never_reads_hurts_no_other(connect: Connect, server: Daemon, topic: str) -> None:
    deaf = connect(receive_buffer_bytes=4096)
    deaf.sub(topic, "deaf", rdy_count=2500)
    reader = connect()
    reader.sub(topic, "reader", rdy_count=2500)
    producer = connect()
    bodies = [b"%03d" % number + b"x" * 100_000 for number in range(150)]
    for start in range(0, len(bodies), 10):
        producer.mpub(topic, bodies[start : start + 10])
    assert sorted(message.body for message in reader.read_messages(len(bodies))) == bodies
    producer.expect_alive()
    server.wait_for_topic(topic, message_count=150, depth=0)
    channel = server.channel(topic, "deaf")
    assert channel is not None
    # All there: on the way to the deaf client, or still to be sent.
    assert channel["depth"] + channel["in_flight_count"] == 150
    deaf.close()
    server.wait_for_channel(topic, "deaf", client_count=0)


@pytest.mark.slow
def test_a_client_that_never_reads_its_answers_hurts_no_other(connect: Connect, server: Daemon, topic: str) -> None:
    deaf = connect(receive_buffer_bytes=4096)
    for _ in range(20):
        deaf.send(pub(topic, b"x") * 500)
    connect().expect_alive()
    server.wait_for_topic(topic, message_count=10_000)
    deaf.expect_ok(10_000)


@pytest.mark.slow
def test_a_consumer_that_reads_late_gets_everything(connect: Connect, topic: str) -> None:
    late = connect(receive_buffer_bytes=4096)
    late.sub(topic, rdy_count=2500)
    producer = connect()
    for _ in range(10):
        producer.mpub(topic, [b"x" * 100_000] * 10)
    producer.expect_alive()
    assert all(message.body == b"x" * 100_000 for message in late.read_messages(100))
    late.expect_alive()


@pytest.mark.slow
def test_hundreds_of_connections_at_once_work(connect: Connect, server: Daemon, topic: str) -> None:
    clients = [connect() for _ in range(300)]
    for client in clients:
        client.send(pub(topic, b"x"))
    for client in clients:
        client.expect_ok()
    server.wait_for_topic(topic, message_count=300)


@pytest.mark.slow
def test_connections_that_come_and_go_leave_nothing_behind(connect: Connect, server: Daemon, topic: str) -> None:
    for number in range(100):
        client = connect()
        client.send([b"", b"NOP\n", pub(topic, b"x"), b"SUB " + topic.encode() + b" c\n", b"PUB"][number % 5])
        client.close()
    connect().expect_alive()
    keeper = connect()
    keeper.sub(topic)
    server.wait_for_channel(topic, "c", client_count=1)


@pytest.mark.slow
def test_the_greatest_command_of_all_is_taken(client: Client, server: Daemon, topic: str) -> None:
    # Five messages of the greatest size do not fit the greatest body; the inner sizes may exceed it.
    client.send(mpub(topic, [b"x" * 1048576] * 6, body_size=5242880))
    client.expect_ok()
    server.wait_for_topic(topic, message_count=6, message_bytes=6 * 1048576)


def test_a_client_that_is_thrown_out_hurts_no_other_on_its_channel(
    connect: Connect, server: Daemon, topic: str
) -> None:
    bad, good = connect(), connect()
    bad.sub(topic)
    good.sub(topic, rdy_count=10)
    bad.send(b"RDY 99999\n")
    bad.expect_fatal("E_INVALID", "RDY count 99999 out of range 0-2500")
    connect().mpub(topic, [b"1", b"2", b"3"])
    assert sorted(message.body for message in good.read_messages(3)) == [b"1", b"2", b"3"]
    server.wait_for_channel(topic, "c", client_count=1)
