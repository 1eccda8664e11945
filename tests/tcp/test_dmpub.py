"""DMPUB: many messages or none, each with a due time. An extension of pyqd's."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence

import pytest

from tests.support.nsq import Client, int32, mpub_body, pub
from tests.support.server import Daemon
from tests.support.two_servers import Connect

pytestmark = pytest.mark.pyqd_only

INT64 = struct.Struct(">q")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def dmpub(topic: str, when: int | str, bodies: Sequence[bytes]) -> bytes:
    return f"DMPUB {topic} {when}\n".encode() + mpub_body(bodies)


def dmpub_each(topic: str, timed: Sequence[tuple[int, bytes]], word: str = "each") -> bytes:
    parts = [INT64.pack(when) + int32(len(body)) + body for when, body in timed]
    inner = int32(len(timed)) + b"".join(parts)
    return f"DMPUB {topic} {word}\n".encode() + int32(len(inner)) + inner


@pytest.mark.slow
def test_all_come_after_the_one_delay(client: Client, connect: Connect, server: Daemon, topic: str) -> None:
    client.sub(topic, rdy_count=10)
    sent_ms = now_ms()
    client.send(dmpub(topic, 300, [b"a", b"b" * 1000, b"c"]))
    client.expect_ok()
    assert sorted(message.body for message in client.read_messages(3)) == [b"a", b"b" * 1000, b"c"]
    assert now_ms() >= sent_ms + 300


@pytest.mark.slow
def test_each_comes_after_its_own_delay(client: Client, topic: str) -> None:
    client.sub(topic, rdy_count=10)
    client.send(dmpub_each(topic, [(600, b"last"), (0, b"now"), (300, b"then")]))
    client.expect_ok()
    assert [message.body for message in client.read_messages(3)] == [b"now", b"then", b"last"]


@pytest.mark.slow
@pytest.mark.parametrize("word", ["@each", "@all"])
def test_moments_are_unix_milliseconds(client: Client, topic: str, word: str) -> None:
    client.sub(topic, rdy_count=10)
    due_ms = now_ms() + 300
    if word == "@each":
        client.send(dmpub_each(topic, [(due_ms + 100, b"b"), (due_ms, b"a"), (1, b"past")], word))
    else:
        client.send(dmpub(topic, f"@{due_ms}", [b"a", b"b"]))
    client.expect_ok()
    if word == "@each":
        assert client.read_message().body == b"past"
    assert {message.body for message in client.read_messages(2)} == {b"a", b"b"}
    assert now_ms() >= due_ms


@pytest.mark.slow
def test_every_channel_gets_them(client: Client, connect: Connect, server: Daemon, topic: str) -> None:
    consumers = [connect() for _ in range(3)]
    for number, consumer in enumerate(consumers):
        consumer.sub(topic, f"c{number}", rdy_count=10)
    client.send(dmpub_each(topic, [(100, b"a"), (50, b"b"), (0, b"c")]))
    client.expect_ok()
    for consumer in consumers:
        assert [message.body for message in consumer.read_messages(3)] == [b"c", b"b", b"a"]


def test_messages_without_a_channel_keep_their_due_times(client: Client, server: Daemon, topic: str) -> None:
    client.send(dmpub_each(topic, [(3_000_000, b"a"), (0, b"b")]))
    client.expect_ok()
    client.sub(topic, rdy_count=10)
    assert client.read_message().body == b"b"
    server.wait_for_channel(topic, "c", deferred_count=1, depth=0)


def test_they_outlive_a_kill(own_server: Daemon) -> None:
    client = Client(own_server.tcp_address)
    with client:
        client.sub("t")
        client.send(dmpub_each("t", [(3_000_000, b"a"), (0, b"b"), (3_000_000, b"c")]))
        client.expect_ok()
    own_server.kill()
    own_server.start()
    own_server.wait_for_channel("t", "c", deferred_count=2, depth=1)


def test_a_command_cut_at_every_byte_is_put_together(connect: Connect, server: Daemon, topic: str) -> None:
    talk = dmpub_each(topic, [(1, b"one"), (0, b"twotwo")])
    clients = [connect() for _ in range(1, len(talk))]
    for cut, client in enumerate(clients, 1):
        client.send(talk[:cut])
    connect().expect_alive()
    for cut, client in enumerate(clients, 1):
        client.send(talk[cut:])
    for client in clients:
        client.expect_ok()
    server.wait_for_topic(topic, message_count=2 * len(clients), message_bytes=9 * len(clients))


def test_the_next_command_is_found_behind_it(client: Client, server: Daemon, topic: str) -> None:
    client.send(dmpub_each(topic, [(0, b"a"), (0, b"b")]) + pub(topic, b"c") + dmpub(topic, 0, [b"d"]))
    client.expect_ok(3)
    server.wait_for_topic(topic, message_count=4)


def test_a_publisher_that_requests_ids_gets_them(client: Client, topic: str) -> None:
    client.identify(message_ids=True)
    client.send(dmpub(topic, 0, [b"a", b"b"]))
    first, count = client.read_frame().data.split(b" ")[1:]
    assert count == b"2"
    client.sub(topic, rdy_count=10)
    assert first in {message.id for message in client.read_messages(2)}


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        ("DMPUB", "E_INVALID", "DMPUB insufficient number of parameters"),
        ("DMPUB t", "E_INVALID", "DMPUB insufficient number of parameters"),
        ("DMPUB ! 1", "E_BAD_TOPIC", 'DMPUB topic name "!" is not valid'),
        ("DMPUB t x", "E_INVALID", "DMPUB could not parse timeout x"),
        ("DMPUB t -1", "E_INVALID", "DMPUB could not parse timeout -1"),
        ("DMPUB t @x", "E_INVALID", "DMPUB could not parse due time @x"),
        ("DMPUB t Each", "E_INVALID", "DMPUB could not parse timeout Each"),
        ("DMPUB t 3600001", "E_INVALID", "DMPUB timeout 3600001 out of range 0-3600000"),
    ],
)
def test_a_line_that_is_wrong_is_refused_before_the_body_comes(
    client: Client, command: str, code: str, text: str
) -> None:
    client.send(command.encode() + b"\n")
    client.expect_fatal(code, text)


def test_a_due_time_beyond_the_longest_delay_is_refused(client: Client, server: Daemon, topic: str) -> None:
    due_ms = now_ms() + 3_700_000
    client.send(dmpub(topic, f"@{due_ms}", [b"x"]))
    text = client.read_frame().data.decode()
    assert text.startswith(f"E_INVALID DMPUB due time {due_ms} out of range 0-")
    client.expect_closed()
    assert server.topic(topic) is None


@pytest.mark.parametrize(
    ("word", "value", "text"),
    [
        ("each", 3_600_001, "DMPUB message(1) timeout 3600001 out of range 0-3600000"),
        ("each", -1, "DMPUB message(1) timeout -1 out of range 0-3600000"),
        ("each", 2**63 - 1, f"DMPUB message(1) timeout {2**63 - 1} out of range 0-3600000"),
        ("@each", -1, "DMPUB message(1) due time -1 out of range 0-"),
        ("@each", 2**63 - 1, f"DMPUB message(1) due time {2**63 - 1} out of range 0-"),
    ],
)
def test_one_time_out_of_range_refuses_all(
    client: Client, server: Daemon, topic: str, word: str, value: int, text: str
) -> None:
    client.send(dmpub_each(topic, [(0, b"a"), (value, b"b")], word))
    frame = client.read_frame()
    assert frame.data.decode().startswith(f"E_INVALID {text}")
    client.expect_closed()
    assert server.topic(topic) is None


@pytest.mark.parametrize("when", ["10", "each"])
def test_sizes_and_counts_are_checked_as_in_mpub(connect: Connect, topic: str, when: str) -> None:
    lead = INT64.pack(0) if when == "each" else b""
    cases: list[tuple[bytes, str, str]] = [
        (int32(0), "E_BAD_BODY", "DMPUB invalid body size 0"),
        (int32(5242881), "E_BAD_BODY", "DMPUB body too big 5242881 > 5242880"),
        (int32(4) + int32(0), "E_BAD_BODY", "DMPUB invalid message count 0"),
        (int32(9) + int32(2**20), "E_BAD_BODY", f"DMPUB invalid message count {2**20}"),
        (int32(9) + int32(1) + lead + int32(0), "E_BAD_MESSAGE", "DMPUB invalid message(0) body size 0"),
        (int32(9) + int32(1) + lead + int32(1048577), "E_BAD_MESSAGE", "DMPUB message too big 1048577 > 1048576"),
    ]
    for body, code, text in cases:
        client = connect()
        client.send(f"DMPUB {topic} {when}\n".encode() + body)
        client.expect_fatal(code, text)


@pytest.mark.parametrize(
    ("kept_bytes", "code", "text"),
    [
        (3, "E_BAD_BODY", "DMPUB failed to read body size"),
        (7, "E_BAD_BODY", "DMPUB failed to read message count"),
        (8, "E_BAD_MESSAGE", "DMPUB failed to read message(0) body size"),
        (19, "E_BAD_MESSAGE", "DMPUB failed to read message(0) body size"),
        (20, "E_BAD_MESSAGE", "DMPUB failed to read message body"),
        (23, "E_BAD_MESSAGE", "DMPUB failed to read message(1) body size"),
    ],
)
def test_an_end_of_file_within_the_body_has_an_exact_error(
    client: Client, server: Daemon, topic: str, kept_bytes: int, code: str, text: str
) -> None:
    line, body = dmpub_each(topic, [(0, b"one"), (0, b"two")]).split(b"\n", 1)
    client.send(line + b"\n" + body[:kept_bytes])
    client.close_sending()
    client.expect_fatal(code, text)
    assert server.topic(topic) is None


def test_the_greatest_count_follows_from_the_greatest_body(connect: Connect, narrow_server: Daemon, topic: str) -> None:
    # --max-body-size=200: (200 - 4) / 13 messages of one byte and a time of their own.
    client = connect(narrow_server)
    client.send(dmpub_each(topic, [(0, b"x")] * 15))
    client.expect_ok()
    client.send(f"DMPUB {topic} each\n".encode() + int32(200) + int32(16))
    client.expect_fatal("E_BAD_BODY", "DMPUB invalid message count 16")
    narrow_server.wait_for_topic(topic, message_count=15)
