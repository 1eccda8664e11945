"""Integers in command lines: ASCII digits in an unsigned 64-bit number that wraps around, then taken as signed.

RDY counts; DPUB and REQ milliseconds, which wrap once more when they become nanoseconds.
"""

from __future__ import annotations

import pytest

from tests.support.nsq import Client, dpub, pub
from tests.support.server import Daemon

WRAP = 2**64

NO_NUMBERS = ["-1", "+1", "1.0", "1e3", "0x10", "1_000", "a", "1a", "a1", "\t1", "1\t", "-", "\xb2", "\u0661", "\uff11"]


@pytest.mark.parametrize("text", NO_NUMBERS, ids=ascii)
def test_anything_but_digits_is_fatal(client: Client, topic: str, text: str) -> None:
    client.sub(topic)
    client.send(f"RDY {text}\n".encode())
    client.expect_fatal("E_INVALID", f"RDY could not parse count {text}")


@pytest.mark.parametrize("text", NO_NUMBERS, ids=ascii)
def test_anything_but_digits_is_no_defer_time(client: Client, topic: str, text: str) -> None:
    client.send(dpub(topic, text, b"x"))
    client.expect_fatal("E_INVALID", f"DPUB could not parse timeout {text}")


@pytest.mark.parametrize("text", NO_NUMBERS, ids=ascii)
def test_anything_but_digits_is_no_requeue_time(client: Client, topic: str, text: str) -> None:
    client.sub(topic)
    client.send(f"REQ 0123456789abcdef {text}\n".encode())
    client.expect_fatal("E_INVALID", f"REQ could not parse timeout {text}")


def test_bytes_that_are_no_text_come_back_as_they_are(client: Client, topic: str) -> None:
    client.sub(topic)
    client.send(b"RDY \xff\x00\n")
    client.expect_fatal("E_INVALID", b"RDY could not parse count \xff\x00")


@pytest.mark.parametrize(
    "text",
    ["1", "0001", "0" * 1000 + "1", str(WRAP + 1), str(10 * WRAP + 1), str(10**30 * WRAP + 1)],
    ids=lambda t: t[:30],
)
def test_a_count_wraps_around_and_leading_zeros_do_not_matter(
    client: Client, server: Daemon, topic: str, text: str
) -> None:
    client.mpub(topic, [b"1", b"2"])
    client.sub(topic)
    client.send(f"RDY {text}\n".encode())
    client.read_message()
    server.wait_for_channel(topic, "c", in_flight_count=1, depth=1)
    client.expect_alive()


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (str(2**63 - 1), 2**63 - 1),
        (str(2**63), -(2**63)),
        (str(WRAP - 1), -1),
        (str(2 * WRAP - 1), -1),
        (str(WRAP + 2501), 2501),
        ("9" * 20, 99999999999999999999 - 5 * WRAP),
    ],
)
def test_an_error_shows_a_count_out_of_range_after_its_wrap(client: Client, topic: str, text: str, count: int) -> None:
    client.sub(topic)
    client.send(f"RDY {text}\n".encode())
    client.expect_fatal("E_INVALID", f"RDY count {count} out of range 0-2500")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "000",
        str(WRAP),
        str(3 * WRAP),
        # In nanoseconds these wrap around to less than a millisecond.
        "18446744073710",
        "36893488147420",
        str(2**63 + 2**58),
    ],
)
def test_a_defer_time_that_wraps_around_to_nothing_is_a_plain_publish(client: Client, topic: str, text: str) -> None:
    client.send(f"DPUB {topic} {text}\n".encode() + pub("", b"x")[5:])
    client.expect_ok()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("3600001", 3600001),
        ("9223372036854", 9223372036854),
        ("9223372036855", 9223372036855),
        (str(2**63 - 1), 2**63 - 1),
        (str(WRAP - 1), WRAP - 1),
        (str(WRAP + 3600001), 3600001),
    ],
)
def test_an_error_shows_a_defer_time_out_of_range_in_milliseconds(
    client: Client, topic: str, text: str, told: int
) -> None:
    client.send(dpub(topic, text, b"x"))
    client.expect_fatal("E_INVALID", f"DPUB timeout {told} out of range 0-3600000")


@pytest.mark.parametrize("text", ["", "0", str(WRAP), str(WRAP - 1), str(2**63 - 1), "9223372036855"])
def test_a_requeue_time_that_wraps_around_to_nothing_or_less_is_now(client: Client, topic: str, text: str) -> None:
    client.pub(topic, b"x")
    client.sub(topic, rdy_count=1)
    message = client.read_message()
    client.send(b"REQ " + message.id + f" {text}\n".encode())
    assert client.read_message() == message._replace(attempts=2)


@pytest.mark.parametrize("text", ["3600001", "9223372036854", str(WRAP + 60000), str(2**63 + 60000)])
def test_a_requeue_time_beyond_the_limit_is_clamped_after_its_wrap(
    client: Client, server: Daemon, topic: str, text: str
) -> None:
    client.pub(topic, b"x")
    client.sub(topic, rdy_count=1)
    message = client.read_message()
    client.send(b"REQ " + message.id + f" {text}\n".encode())
    client.expect_alive()
    server.wait_for_channel(topic, "c", deferred_count=1, in_flight_count=0, depth=0)
