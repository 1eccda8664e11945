"""NOP: nothing happens, whenever it is said."""

from __future__ import annotations

from tests.support.nsq import Client


def test_nop_has_no_reply(client: Client) -> None:
    client.send(b"NOP\n" * 1000)
    client.expect_alive()


def test_nop_ignores_its_parameters(client: Client) -> None:
    client.send(b"NOP a b\nNOP \nNOP  \xff\x00\n")
    client.expect_alive()


def test_nop_is_allowed_at_any_time(client: Client, topic: str) -> None:
    client.send(b"NOP\n")
    client.identify()
    client.send(b"NOP\n")
    client.sub(topic, rdy_count=1)
    client.send(b"NOP\nCLS\nNOP\n")
    client.expect_response(b"CLOSE_WAIT")
    client.expect_alive()


def test_nop_settles_nothing(client: Client, topic: str) -> None:
    client.pub(topic, b"x")
    client.sub(topic, rdy_count=1)
    message = client.read_message()
    client.send(b"NOP\n" * 3)
    client.fin(message)
    client.expect_alive()
