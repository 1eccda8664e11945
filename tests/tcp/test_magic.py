"""The first four bytes of a connection name the protocol."""

from __future__ import annotations

import pytest

from tests.support.nsq import pub
from tests.support.server import Daemon
from tests.support.two_servers import Connect


def test_two_spaces_and_v2_open_the_connection(connect: Connect) -> None:
    connect().expect_alive()


@pytest.mark.parametrize(
    "magic",
    [b"  V1", b"  V3", b"V2  ", b"  v2", b" V2\n", b"\x00\x00\x00\x00", b"GET ", b"\xff\xff\xff\xff", b"\n\n\n\n"],
    ids=repr,
)
def test_any_other_magic_is_refused_with_one_error_frame(connect: Connect, magic: bytes) -> None:
    connect(magic=magic).expect_fatal("E_BAD_PROTOCOL")


def test_commands_after_a_bad_magic_are_not_executed(connect: Connect, server: Daemon, topic: str) -> None:
    client = connect(magic=b"  V1" + pub(topic, b"x"))
    client.expect_fatal("E_BAD_PROTOCOL")
    assert server.topic(topic) is None


@pytest.mark.parametrize("magic", [b"", b" ", b"  ", b"  V"], ids=repr)
def test_end_of_file_before_the_fourth_byte_closes_silently(connect: Connect, magic: bytes) -> None:
    client = connect(magic=magic)
    client.close_sending()
    client.expect_closed()


def test_the_magic_may_come_byte_by_byte(connect: Connect) -> None:
    client = connect(magic=b"")
    client.send_in_bytes(b"  V2")
    client.expect_alive()


def test_the_first_command_may_come_with_the_magic(connect: Connect, topic: str) -> None:
    connect(magic=b"  V2" + pub(topic, b"x")).expect_ok()


def test_a_connection_that_sends_nothing_hurts_no_other(connect: Connect) -> None:
    silent = [connect(magic=b"") for _ in range(20)]
    connect().expect_alive()
    for client in silent:
        client.send(b"  V2")
    for client in silent:
        client.expect_alive()
