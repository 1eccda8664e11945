"""Commands are the same however their bytes arrive: lines, sizes and bodies cut at any place."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.nsq import ERROR, RESPONSE, Client, Frame, dpub, fin, identify, mpub, pub, req, sub, touch
from tests.support.server import Daemon
from tests.support.two_servers import Connect

LINE_BYTES_MAX = 16384
OK = Frame(RESPONSE, b"OK")
# Every command with a body, two without; the last one ends the connection, so that nothing can follow unseen.
ANSWERS = [OK, OK, OK, OK, OK, Frame(ERROR, b"E_INVALID invalid command STOP")]
MESSAGE_COUNT = 4


def conversation(topic: str) -> bytes:
    """Return commands that publish MESSAGE_COUNT messages and are answered with ANSWERS."""
    return (
        identify(b"{}")
        + pub(topic, b"one")
        + b"NOP\n"
        + mpub(topic, [b"two", b"thr\nee"])
        + dpub(topic, 0, b"\nfour\n")
        + sub(topic + "_other", "c")
        + b"STOP\n"
    )


def expect_answers(client: Client) -> None:
    assert [client.read_frame() for _ in ANSWERS] == ANSWERS
    client.expect_closed()


def line_of(size_bytes: int, end: bytes = b"\n") -> bytes:
    """Return a NOP line of this many bytes in all; NOP ignores everything after the first space."""
    return b"NOP ".ljust(size_bytes - len(end), b"x") + end


def test_a_whole_conversation_in_one_piece(client: Client, server: Daemon, topic: str) -> None:
    client.send(conversation(topic))
    expect_answers(client)
    server.wait_for_topic(topic, message_count=MESSAGE_COUNT)


def test_a_conversation_byte_by_byte(connect: Connect, server: Daemon, topic: str) -> None:
    client = connect(magic=b"")
    client.send_in_bytes(b"  V2" + conversation(topic))
    expect_answers(client)
    server.wait_for_topic(topic, message_count=MESSAGE_COUNT)


@pytest.mark.slow
def test_a_conversation_cut_in_two_at_every_byte(connect: Connect, server: Daemon, topic: str) -> None:
    talk = b"  V2" + conversation(topic)
    fence = connect()
    clients = [connect(magic=talk[:cut]) for cut in range(1, len(talk))]
    # By the time this is answered the server has seen the first parts, each as an end of its input.
    fence.expect_alive()
    for cut, client in enumerate(clients, 1):
        client.send(talk[cut:])
    for client in clients:
        expect_answers(client)
    server.wait_for_topic(topic, message_count=MESSAGE_COUNT * len(clients))


def test_many_conversations_of_publishes_in_one_write(client: Client, server: Daemon, topic: str) -> None:
    count = 300
    client.send((pub(topic, b"x" * 200) + mpub(topic, [b"a", b"b"]) + b"NOP\n") * count)
    client.expect_ok(2 * count)
    server.wait_for_topic(topic, message_count=3 * count)


def test_a_command_may_be_followed_by_the_beginning_of_the_next(client: Client, topic: str) -> None:
    client.send(pub(topic, b"one") + b"PU")
    client.expect_ok()
    client.send(b"B " + topic.encode() + b"\n\x00\x00")
    client.send(b"\x00\x03two")
    client.expect_ok()


def test_replies_come_in_the_order_of_the_commands(client: Client, topic: str) -> None:
    client.send(identify({"feature_negotiation": True}) + pub(topic, b"x") + b"WRONG\n" + pub(topic, b"never"))
    assert client.read_frame().data.startswith(b"{")
    client.expect_ok()
    client.expect_fatal("E_INVALID", "invalid command WRONG")


def test_nothing_behind_a_fatal_error_is_executed(client: Client, server: Daemon, topic: str) -> None:
    client.send(pub(topic, b"x") + b"WRONG\n" + pub(topic, b"never"))
    client.expect_ok()
    client.expect_fatal("E_INVALID", "invalid command WRONG")
    server.wait_for_topic(topic, message_count=1)


@pytest.mark.parametrize("send", [Client.send, Client.send_in_bytes], ids=["pipelined", "byte_by_byte"])
def test_commands_of_a_consumer_may_be_split_at_any_byte(
    client: Client, server: Daemon, topic: str, send: Callable[[Client, bytes], None]
) -> None:
    client.mpub(topic, [b"one", b"two", b"three"])
    client.sub(topic, rdy_count=3)
    first, second, third = client.read_messages(3)
    send(client, b"RDY 0\n" + fin(first.id) + req(second.id, 60000) + touch(third.id) + b"CLS\n")
    client.expect_response(b"CLOSE_WAIT")
    server.wait_for_channel(topic, "c", in_flight_count=1, deferred_count=1, depth=0)


def test_one_carriage_return_before_the_line_feed_is_dropped(client: Client, server: Daemon, topic: str) -> None:
    client.send(pub(topic, b"x").replace(b"\n", b"\r\n", 1) + b"NOP\r\n")
    client.expect_ok()
    server.wait_for_topic(topic, message_count=1)


def test_a_second_carriage_return_belongs_to_the_line(client: Client) -> None:
    client.send(b"NOP\r\r\n")
    client.expect_fatal("E_INVALID", b"invalid command NOP\r")


def test_a_carriage_return_inside_the_line_belongs_to_it(client: Client) -> None:
    client.send(b"N\rOP\n")
    client.expect_fatal("E_INVALID", b"invalid command N\rOP")


def test_a_carriage_return_and_its_line_feed_may_be_cut_apart(client: Client, topic: str) -> None:
    client.send(f"PUB {topic}\r".encode())
    client.send(b"\n\x00\x00\x00\x01x")
    client.expect_ok()


@pytest.mark.parametrize("line", [b"\n", b"\r\n"], ids=["line_feed", "with_carriage_return"])
def test_an_empty_line_is_an_invalid_command(client: Client, line: bytes) -> None:
    client.send(line)
    assert client.read_frame() == (ERROR, b"E_INVALID invalid command ")
    client.expect_closed()


@pytest.mark.parametrize(
    ("line", "token"),
    [
        (b" NOP", b""),
        (b"  V2NOP", b""),
        (b"nop", b"nop"),
        (b"Pub t", b"Pub"),
        (b"NOP\tx", b"NOP\tx"),
        (b"PUB\tt", b"PUB\tt"),
        (b"\x00\xff\x80", b"\x00\xff\x80"),
        (b"NOPE", b"NOPE"),
        (b"FINISH 1", b"FINISH"),
        ("PÜB t".encode(), "PÜB".encode()),
    ],
    ids=repr,
)
def test_an_unknown_command_is_named_in_the_error_as_it_came(client: Client, line: bytes, token: bytes) -> None:
    client.send(line + b"\n")
    assert client.read_frame() == (ERROR, b"E_INVALID invalid command " + token)
    client.expect_closed()


@pytest.mark.parametrize(
    ("line", "code", "text"),
    [
        ("PUB  t", "E_BAD_TOPIC", 'PUB topic name "" is not valid'),
        ("MPUB  t", "E_BAD_TOPIC", 'E_BAD_TOPIC MPUB topic name "" is not valid'),
        ("DPUB  t 0", "E_BAD_TOPIC", 'DPUB topic name "" is not valid'),
        ("SUB  t c", "E_BAD_TOPIC", 'SUB topic name "" is not valid'),
        ("SUB t  c", "E_BAD_CHANNEL", 'SUB channel name "" is not valid'),
        ("SUB t ", "E_BAD_CHANNEL", 'SUB channel name "" is not valid'),
        ("PUB ", "E_BAD_TOPIC", 'PUB topic name "" is not valid'),
    ],
)
def test_consecutive_spaces_make_an_empty_parameter(client: Client, line: str, code: str, text: str) -> None:
    client.send(line.encode() + b"\n")
    client.expect_fatal(code, text)


def test_an_empty_defer_time_between_two_spaces_is_zero(client: Client, topic: str) -> None:
    client.send(f"DPUB {topic}  7\n".encode() + b"\x00\x00\x00\x01x")
    client.expect_ok()


@pytest.mark.parametrize(
    "command",
    ["PUB {topic} a b  c", "DPUB {topic} 0 more", "DPUB {topic} 0 ", "PUB {topic} "],
)
def test_further_parameters_are_ignored(client: Client, server: Daemon, topic: str, command: str) -> None:
    client.send(command.format(topic=topic).encode() + b"\n\x00\x00\x00\x01x")
    client.expect_ok()
    server.wait_for_topic(topic, message_count=1)


def test_further_parameters_of_a_consumer_are_ignored(client: Client, server: Daemon, topic: str) -> None:
    client.pub_each(topic, [b"one", b"two"])
    client.send(f"SUB {topic} c d e\n".encode())
    client.expect_ok()
    client.send(b"RDY 2 x\n")
    first, second = client.read_messages(2)
    client.send(b"FIN " + first.id + b" x\nTOUCH " + second.id + b" 5\nREQ " + second.id + b" 60000 x\nCLS x y\n")
    client.expect_response(b"CLOSE_WAIT")
    server.wait_for_channel(topic, "c", in_flight_count=0, deferred_count=1, depth=0)


def test_the_longest_line_is_16384_bytes_with_its_line_feed(client: Client) -> None:
    client.send(line_of(LINE_BYTES_MAX))
    client.expect_alive()
    client.send(line_of(LINE_BYTES_MAX, b"\r\n"))
    client.expect_alive()


def test_a_line_of_the_greatest_length_may_come_in_pieces(client: Client) -> None:
    line = line_of(LINE_BYTES_MAX)
    for start in range(0, len(line), 1000):
        client.send(line[start : start + 1000])
    client.expect_alive()


def test_lines_of_the_greatest_length_may_be_pipelined(client: Client) -> None:
    client.send(line_of(LINE_BYTES_MAX) * 20)
    client.expect_alive()


@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=repr)
def test_a_longer_line_closes_the_connection_without_a_word(client: Client, end: bytes) -> None:
    client.send_what_is_taken(line_of(LINE_BYTES_MAX + 1, end))
    client.expect_closed()


def test_a_longer_line_behind_other_commands_closes_after_their_answers(client: Client, topic: str) -> None:
    client.send(pub(topic, b"x"))
    client.expect_ok()
    client.send_what_is_taken(line_of(LINE_BYTES_MAX + 1))
    client.expect_closed()


def test_a_body_may_be_far_longer_than_a_line(client: Client, server: Daemon, topic: str) -> None:
    client.pub(topic, b"\n" * (4 * LINE_BYTES_MAX))
    server.wait_for_topic(topic, message_count=1, message_bytes=4 * LINE_BYTES_MAX)


@pytest.mark.parametrize("part", [b"N", b"NOP", b"PUB t", b"WRONG", b"NOP\r", b"FIN 0123456789abcdef"], ids=repr)
def test_a_partial_line_at_end_of_file_is_ignored(client: Client, part: bytes) -> None:
    client.send(part)
    client.close_sending()
    client.expect_closed()


def test_commands_before_end_of_file_are_still_answered(client: Client, server: Daemon, topic: str) -> None:
    client.send(pub(topic, b"one") + pub(topic, b"two") + b"PUB")
    client.close_sending()
    client.expect_ok(2)
    client.expect_closed()
    server.wait_for_topic(topic, message_count=2)


def test_a_client_that_leaves_at_once_has_still_published(connect: Connect, server: Daemon, topic: str) -> None:
    client = connect()
    client.send(pub(topic, b"one"))
    client.close_sending()
    client.close()
    server.wait_for_topic(topic, message_count=1)
