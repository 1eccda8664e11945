"""CLS: no more messages; those in flight may still be settled."""

from __future__ import annotations

import pytest

from tests.support.nsq import Client
from tests.support.server import Daemon
from tests.support.two_servers import Connect


def closing(client: Client, topic: str, in_flight_count: int = 1) -> list[bytes]:
    """Take messages, send CLS and read CLOSE_WAIT; return the ids of the messages in flight."""
    client.mpub(topic, [b"x"] * (in_flight_count + 1))
    client.sub(topic, rdy_count=in_flight_count)
    ids = [message.id for message in client.read_messages(in_flight_count)]
    client.send(b"CLS\n")
    client.expect_response(b"CLOSE_WAIT")
    return ids


def test_cls_is_answered_and_the_connection_stays_open(client: Client, server: Daemon, topic: str) -> None:
    closing(client, topic)
    client.expect_alive()
    server.wait_for_channel(topic, "c", client_count=1, in_flight_count=1, depth=1)
    channel = server.channel(topic, "c")
    assert channel is not None
    assert [(each["state"], each["ready_count"]) for each in channel["clients"]] == [(4, 0)]


def test_nothing_is_delivered_after_cls(client: Client, server: Daemon, topic: str) -> None:
    (message_id,) = closing(client, topic)
    client.send(b"FIN " + message_id + b"\n")
    client.expect_alive()
    server.wait_for_channel(topic, "c", in_flight_count=0, depth=1)
    client.expect_alive()


def test_messages_in_flight_may_be_settled_after_cls(client: Client, server: Daemon, topic: str) -> None:
    first, second, third = closing(client, topic, 3)
    client.send(b"FIN " + first + b"\nREQ " + second + b" 60000\nTOUCH " + third + b"\n")
    client.expect_alive()
    server.wait_for_channel(topic, "c", in_flight_count=1, deferred_count=1, depth=1)


def test_errors_of_fin_are_still_not_fatal_after_cls(client: Client, topic: str) -> None:
    closing(client, topic)
    client.send(b"FIN 0123456789abcdef\n")
    client.expect_error("E_FIN_FAILED", "FIN 0123456789abcdef failed ID not in flight")
    client.expect_alive()


@pytest.mark.parametrize("command", [b"RDY 1\n", b"RDY\n", b"RDY 99999\n", b"RDY -1\n", b"RDY some\n"], ids=repr)
def test_rdy_after_cls_is_ignored_unread(client: Client, server: Daemon, topic: str, command: bytes) -> None:
    closing(client, topic)
    client.send(command)
    client.expect_alive()
    server.wait_for_channel(topic, "c", in_flight_count=1, depth=1)
    client.expect_alive()


def test_another_consumer_gets_the_remaining_messages(client: Client, connect: Connect, topic: str) -> None:
    closing(client, topic)
    other = connect()
    other.sub(topic, rdy_count=5)
    assert other.read_message().attempts == 1
    other.expect_alive()


def test_a_message_requeued_after_cls_goes_to_another_consumer(client: Client, connect: Connect, topic: str) -> None:
    (message_id,) = closing(client, topic)
    other = connect()
    other.sub(topic, rdy_count=5)
    other.read_message()
    client.send(b"REQ " + message_id + b" 0\n")
    message = other.read_message()
    assert (message.id, message.attempts) == (message_id, 2)


def test_publishing_after_cls_works(client: Client, server: Daemon, topic: str) -> None:
    closing(client, topic)
    client.pub(topic, b"more")
    server.wait_for_channel(topic, "c", depth=2)


def test_cls_may_follow_sub_at_once(client: Client, server: Daemon, topic: str) -> None:
    client.send(f"SUB {topic} c\nCLS\n".encode())
    client.expect_ok()
    client.expect_response(b"CLOSE_WAIT")
    client.close()
    server.wait_for_channel(topic, "c", client_count=0)
