"""MPUB: many messages or none; the inner counts and sizes rule, the outer size is only a claim."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.nsq import MESSAGE, RESPONSE, Client, Message, int32, mpub, mpub_body, parse_message, pub, sized
from tests.support.server import Daemon
from tests.support.two_servers import Connect

BODY_BYTES_MAX = 5242880
MESSAGE_BYTES_MAX = 1048576


def consume(client: Client, topic: str, count: int) -> list[bytes]:
    client.sub(topic, rdy_count=2500)
    return [message.body for message in client.read_messages(count)]


def test_all_messages_are_delivered_as_they_were_published(client: Client, server: Daemon, topic: str) -> None:
    bodies = [b"one", b"\n", b"\x00" * 1000, bytes(range(256)), b"x" * 100_000]
    client.mpub(topic, bodies)
    server.wait_for_topic(topic, message_count=len(bodies), message_bytes=sum(map(len, bodies)))
    assert sorted(consume(client, topic, len(bodies))) == sorted(bodies)


def test_one_message_is_many_enough(client: Client, topic: str) -> None:
    client.mpub(topic, [b"alone"])
    assert consume(client, topic, 1) == [b"alone"]


def test_ids_are_unique_within_one_command(client: Client, topic: str) -> None:
    client.mpub(topic, [b"x"] * 2000)
    client.sub(topic, rdy_count=2500)
    assert len({message.id for message in client.read_messages(2000)}) == 2000


@pytest.mark.slow
def test_a_body_of_megabytes_is_taken(client: Client, server: Daemon, topic: str) -> None:
    client.mpub(topic, [b"x" * MESSAGE_BYTES_MAX] * 4)
    server.wait_for_topic(topic, message_count=4, message_bytes=4 * MESSAGE_BYTES_MAX)


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%d " % number + b"x" * 400 for number in range(first, first + count)]


@pytest.mark.slow
def test_batches_received_in_one_segment_are_answered_one_by_one_and_stored_once(
    client: Client, server: Daemon, topic: str
) -> None:
    other = f"{topic}_other"
    client.send(
        b"".join(
            [
                mpub(topic, numbered(0, 50)),
                mpub(topic, numbered(50, 1)),
                pub(topic, b"51"),
                mpub(topic, numbered(52, 100)),
                mpub(other, numbered(0, 50)),
                mpub(topic, numbered(152, 50)),
                b"NOP\n",
                mpub(topic, numbered(202, 300)),
                pub(other, b"50"),
            ]
        )
    )
    client.expect_ok(8)
    for name, count in ((topic, 502), (other, 51)):
        producers = server.http("GET", "/stats", format="json", topic=name).json()["producers"]
        assert [each["pub_counts"] for each in producers] == [[{"topic": name, "count": count}]]
    server.wait_for_topic(topic, message_count=502)
    server.wait_for_topic(other, message_count=51)
    assert sorted(int(body.split()[0]) for body in consume(client, topic, 502)) == list(range(502))


def test_a_client_may_publish_and_consume_on_one_connection(client: Client, server: Daemon, topic: str) -> None:
    client.sub(topic, rdy_count=2500)
    found: list[Message] = []
    for turn in range(20):
        finished = b"".join(b"FIN " + message.id + b"\n" for message in found[-100:])
        batches = [mpub(topic, numbered(100 * turn + 50 * half, 50)) for half in range(2)]
        client.send(batches[0] + finished + batches[1])
        messages: list[Message] = []
        answers = 0
        while answers < 2 or len(messages) < 100:
            frame = client.read_frame()
            if frame.type == MESSAGE:
                messages.append(parse_message(frame.data))
            else:
                assert frame == (RESPONSE, b"OK")
                answers += 1
        found += messages
    assert sorted(int(message.body.split()[0]) for message in found) == list(range(2000))
    server.wait_for_channel(topic, "c", depth=0, in_flight_count=100)


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (lambda topic: mpub(topic, [b"one"], body_size=0), "E_BAD_BODY MPUB invalid body size 0"),
        (lambda topic: mpub(topic, [b"one"], count=0), "E_BAD_BODY MPUB invalid message count 0"),
        (lambda topic: mpub(topic, [b"one", b""]), "E_BAD_MESSAGE MPUB invalid message(1) body size 0"),
        (lambda topic: b"MPUB bad$\n", 'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "bad$" is not valid'),
        (lambda topic: b"WHAT\n", "E_INVALID invalid command WHAT"),
        (lambda topic: b"FIN 0123456789abcdef\n", "E_INVALID cannot FIN in current state"),
    ],
    ids=["size", "count", "message", "topic", "command", "state"],
)
def test_commands_before_a_bad_one_are_accepted(
    client: Client, server: Daemon, topic: str, bad: Callable[[str], bytes], error: str
) -> None:
    batches = [mpub(topic, numbered(50 * number, 50)) for number in range(3)]
    client.send(b"".join(batches) + bad(topic) + mpub(topic, [b"behind"]))
    client.expect_ok(3)
    client.expect_fatal(*error.split(" ", 1))
    server.wait_for_topic(topic, message_count=150)


@pytest.mark.parametrize("body_size", [1, 4, 8, 17, 19, 20, 1000, BODY_BYTES_MAX])
def test_a_lying_body_size_within_the_limit_is_accepted(
    client: Client, server: Daemon, topic: str, body_size: int
) -> None:
    # The true size is 18. The next command follows at once: it must be found behind the inner sizes.
    client.send(mpub(topic, [b"one", b"two"], body_size=body_size) + pub(topic, b"three"))
    client.expect_ok(2)
    server.wait_for_topic(topic, message_count=3, message_bytes=11)


@pytest.mark.parametrize(
    ("body_size", "text"),
    [
        (0, "MPUB invalid body size 0"),
        (-1, "MPUB invalid body size -1"),
        (-(2**31), "MPUB invalid body size -2147483648"),
        (BODY_BYTES_MAX + 1, "MPUB body too big 5242881 > 5242880"),
        (2**31 - 1, "MPUB body too big 2147483647 > 5242880"),
    ],
)
def test_a_body_size_out_of_range_is_fatal(client: Client, topic: str, body_size: int, text: str) -> None:
    client.send(mpub(topic, [b"one"], body_size=body_size))
    client.expect_fatal("E_BAD_BODY", text)


@pytest.mark.parametrize("count", [0, -1, -(2**31), (BODY_BYTES_MAX - 4) // 5 + 1, 2**31 - 1])
def test_a_count_out_of_range_is_fatal(client: Client, server: Daemon, topic: str, count: int) -> None:
    client.send(mpub(topic, [b"one"], count=count))
    client.expect_fatal("E_BAD_BODY", f"MPUB invalid message count {count}")
    server.wait_for_topic(topic, message_count=0)


def test_the_greatest_count_follows_from_the_greatest_body(connect: Connect, narrow_server: Daemon, topic: str) -> None:
    client = connect(narrow_server)
    client.mpub(topic, [b"x"] * 39)
    narrow_server.wait_for_topic(topic, message_count=39)
    client.send(mpub(topic, [b"x"] * 40, body_size=200))
    client.expect_fatal("E_BAD_BODY", "MPUB invalid message count 40")


def test_the_inner_messages_may_be_longer_than_the_greatest_body(
    connect: Connect, narrow_server: Daemon, topic: str
) -> None:
    client = connect(narrow_server)
    client.send(mpub(topic, [b"x" * 100] * 10, body_size=200))
    client.expect_ok()
    narrow_server.wait_for_topic(topic, message_count=10, message_bytes=1000)


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ([0], "MPUB invalid message(0) body size 0"),
        ([3, 0], "MPUB invalid message(1) body size 0"),
        ([3, 3, -1], "MPUB invalid message(2) body size -1"),
        ([-(2**31)], "MPUB invalid message(0) body size -2147483648"),
        ([MESSAGE_BYTES_MAX + 1], "MPUB message too big 1048577 > 1048576"),
        ([3, 2**31 - 1], "MPUB message too big 2147483647 > 1048576"),
    ],
    ids=str,
)
def test_an_inner_size_out_of_range_is_fatal_and_nothing_is_queued(
    client: Client, server: Daemon, topic: str, sizes: list[int], text: str
) -> None:
    messages = b"".join(int32(size) + b"abc" for size in sizes)
    client.send(f"MPUB {topic}\n".encode() + int32(100) + int32(5) + messages)
    client.expect_fatal("E_BAD_MESSAGE", text)
    server.wait_for_topic(topic, message_count=0, depth=0)


def test_a_count_too_great_waits_for_the_messages_it_promised(client: Client, server: Daemon, topic: str) -> None:
    client.send(mpub(topic, [b"one", b"two"], count=3))
    other_topic = f"{topic}_other"
    # Three messages are announced, so the next command is read as the third: its size is "PUB " read as a number.
    client.send(pub(other_topic, b"x"))
    client.expect_fatal("E_BAD_MESSAGE", "MPUB message too big 1347764768 > 1048576")
    server.wait_for_topic(topic, message_count=0)
    assert server.topic(other_topic) is None


def test_a_count_too_small_leaves_the_rest_as_the_next_command(client: Client, server: Daemon, topic: str) -> None:
    client.send(mpub(topic, [b"one", b"two"], count=1) + b"NOP\n")
    client.expect_ok()
    client.expect_fatal("E_INVALID", b"invalid command \x00\x00\x00\x03twoNOP")
    server.wait_for_topic(topic, message_count=1)


@pytest.mark.parametrize(
    ("kept_bytes", "code", "text"),
    [
        (0, "E_BAD_BODY", "MPUB failed to read body size"),
        (3, "E_BAD_BODY", "MPUB failed to read body size"),
        (4, "E_BAD_BODY", "MPUB failed to read message count"),
        (7, "E_BAD_BODY", "MPUB failed to read message count"),
        (8, "E_BAD_MESSAGE", "MPUB failed to read message(0) body size"),
        (11, "E_BAD_MESSAGE", "MPUB failed to read message(0) body size"),
        (12, "E_BAD_MESSAGE", "MPUB failed to read message body"),
        (14, "E_BAD_MESSAGE", "MPUB failed to read message body"),
        (15, "E_BAD_MESSAGE", "MPUB failed to read message(1) body size"),
        (18, "E_BAD_MESSAGE", "MPUB failed to read message(1) body size"),
        (21, "E_BAD_MESSAGE", "MPUB failed to read message body"),
    ],
)
def test_an_end_of_file_within_the_body_has_an_exact_error_and_queues_nothing(
    client: Client, server: Daemon, topic: str, kept_bytes: int, code: str, text: str
) -> None:
    client.send(f"MPUB {topic}\n".encode() + mpub_body([b"one", b"two"])[:kept_bytes])
    client.close_sending()
    client.expect_fatal(code, text)
    server.wait_for_topic(topic, message_count=0, depth=0)


def test_a_client_gone_in_mid_body_has_published_nothing(connect: Connect, server: Daemon, topic: str) -> None:
    client = connect()
    client.send(f"MPUB {topic}\n".encode() + mpub_body([b"one", b"two"])[:-1])
    client.close()
    server.wait_for_topic(topic, message_count=0, depth=0)


def test_a_body_cut_at_every_byte_is_put_together(connect: Connect, server: Daemon, topic: str) -> None:
    talk = mpub(topic, [b"one", b"twotwo", b"\n"])
    clients = [connect() for _ in range(1, len(talk))]
    for cut, client in enumerate(clients, 1):
        client.send(talk[:cut])
    connect().expect_alive()
    for cut, client in enumerate(clients, 1):
        client.send(talk[cut:])
    for client in clients:
        client.expect_ok()
    server.wait_for_topic(topic, message_count=3 * len(clients), message_bytes=10 * len(clients))


def test_the_topic_is_made_even_if_the_body_is_bad(client: Client, server: Daemon, topic: str) -> None:
    client.send(f"MPUB {topic}\n".encode() + sized(b"\x00\x00\x00\x00"))
    client.expect_fatal("E_BAD_BODY", "MPUB invalid message count 0")
    server.wait_for_topic(topic, message_count=0)


def test_a_bad_topic_is_refused_before_the_size_comes(client: Client) -> None:
    client.send(b"MPUB bad$topic\n")
    client.expect_fatal("E_BAD_TOPIC", 'E_BAD_TOPIC MPUB topic name "bad$topic" is not valid')
