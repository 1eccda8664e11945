"""Heartbeats: sent to every client at its interval; a client that is silent for two of them is closed."""

from __future__ import annotations

import contextlib

import pytest

from tests.support.nsq import HEARTBEAT, RESPONSE, Client, Closed, pub
from tests.support.server import Daemon
from tests.support.two_servers import Connect

INTERVAL_MS = 1000
BEAT = (RESPONSE, HEARTBEAT)


@pytest.mark.slow
def test_clients_in_every_state_get_heartbeats_and_live_by_any_command(connect: Connect, topic: str) -> None:
    producer, consumer, closing = clients = [connect() for _ in range(3)]
    for client in clients:
        client.identify(heartbeat_interval=INTERVAL_MS)
    consumer.sub(topic)
    closing.sub(topic)
    closing.send(b"CLS\n")
    closing.expect_response(b"CLOSE_WAIT")
    # Three intervals: a server that did not count these commands would have closed by then.
    for _ in range(3):
        for client, command in ((producer, pub("fence", b"x")), (consumer, b"RDY 0\n"), (closing, b"NOP\n")):
            assert client.read_frame(heartbeats=True) == BEAT
            client.send(command)
        producer.expect_ok()
    for client in clients:
        client.expect_alive()


@pytest.mark.slow
def test_a_silent_client_is_closed_without_an_error(connect: Connect, server: Daemon, topic: str) -> None:
    silent, mid_line, mid_body = clients = [connect() for _ in range(3)]
    for client in clients:
        client.identify(heartbeat_interval=INTERVAL_MS)
    silent.sub(topic)
    mid_line.send(b"PUB " + topic.encode())
    mid_body.send(b"PUB " + topic.encode() + b"\n\x00\x00\x00\x05four")
    assert silent.read_frame(heartbeats=True) == BEAT
    _expect_silent_end(silent)
    _expect_silent_end(mid_line)
    server.wait_for_channel(topic, "c", client_count=0)
    # Here a server may also say that it could not read the body, as nsqd does.
    with contextlib.suppress(Closed):
        mid_body.expect_error("E_BAD_MESSAGE", "PUB failed to read message body")
        mid_body.expect_closed()
    server.wait_for_topic(topic, message_count=0)


def _expect_silent_end(client: Client) -> None:
    heartbeat_count = 0
    with pytest.raises(Closed):  # noqa: PT012 (how many frames come before the end is the server's affair)
        while client.read_frame(heartbeats=True) == BEAT:
            heartbeat_count += 1
            assert heartbeat_count < 5, "the server goes on sending heartbeats to a silent client"


def test_without_heartbeats_publishing_works(client: Client, topic: str) -> None:
    client.identify(heartbeat_interval=-1)
    client.pub(topic, b"x")
    client.expect_alive()


@pytest.mark.slow
def test_messages_are_delivered_between_heartbeats(client: Client, connect: Connect, topic: str) -> None:
    client.identify(heartbeat_interval=INTERVAL_MS)
    client.sub(topic, rdy_count=1)
    assert client.read_frame(heartbeats=True) == BEAT
    client.send(b"NOP\n")
    connect().pub(topic, b"x")
    message = client.read_message()
    client.fin(message)
    client.expect_alive()
