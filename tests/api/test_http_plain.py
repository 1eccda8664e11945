"""Plain publishes, which the server answers without parser and router: the answers equal those of the router."""

from __future__ import annotations

import re
import socket
import struct
from pathlib import Path

import pytest

from pyqd.fallback.records import decode
from pyqd.hot.primitives.guid import from_hex, id_after
from tests.api.conftest import FLAGS, HttpApp, read_to_end

DATE = re.compile(rb"Date: [^\r]+\r\n")


def publish(topic: str, body: bytes, *headers: str) -> bytes:
    return post(f"/pub?topic={topic}", body, *headers)


def post(target: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {target} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def batch(*bodies: bytes) -> bytes:
    return struct.pack(">i", len(bodies)) + b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def counts(app: HttpApp, topic: str) -> tuple[int, int]:
    (stats,) = app.get(f"/stats?format=json&topic={topic}").json()["topics"]
    return stats["message_count"], stats["message_bytes"]


def test_both_ways_give_the_same_answer(app: HttpApp) -> None:
    plain = publish("same", b"one")
    odd = publish("same", b"two", "X-Odd: header")
    app.exchange(publish("same", b"zero", "Connection: close"))
    answers = [
        DATE.sub(b"", app.exchange(data + publish("same", b"end", "Connection: close"))) for data in (plain, odd)
    ]
    # The answers differ in the id of the message.
    first, second = (re.sub(rb"[0-9a-f]{16}", b"ID", answer) for answer in answers)
    assert first == second
    assert counts(app, "same") == (5, 16)


ODD = "X-Odd: header"
MPUBS = {
    "lines": ("/mpub?topic={}", b"one\n\ntwo\nthree"),
    "binary": ("/mpub?topic={}&binary=true", batch(b"one", b"two", b"three")),
    "bytes behind the last message": ("/mpub?topic={}&binary=true", batch(b"one", b"two", b"three") + b"rest"),
    "many": ("/mpub?topic={}&binary=true", batch(*[b"%d" % number for number in range(123)])),
    "no line": ("/mpub?topic={}", b"\n\n"),
    "a line too long": ("/mpub?topic={}", b"a\n" + b"x" * 1001),
    "a message too big": ("/mpub?topic={}&binary=true", batch(b"a", b"x" * 1001)),
    "an empty message": ("/mpub?topic={}&binary=true", batch(b"a", b"")),
    "a count too large": ("/mpub?topic={}&binary=true", struct.pack(">i", 3) + batch(b"a", b"b")[4:]),
    "a body too large": ("/mpub?topic={}", b"x\n" * 1501),
}


@pytest.mark.parametrize("name", MPUBS)
def test_both_ways_give_the_same_answer_to_many_messages_and_keep_the_same(app: HttpApp, name: str) -> None:
    target, body = MPUBS[name]
    answers, kept = [], []
    for number, headers in enumerate(((), (ODD,))):
        topic = f"both-{list(MPUBS).index(name)}-{number}"
        app.post(f"/topic/create?topic={topic}")
        stream = post(target.format(topic), body, *headers) + publish(topic, b"end", "Connection: close")
        answers.append(re.sub(rb"[0-9a-f]{16}", b"ID", DATE.sub(b"", app.exchange(stream))))
        kept.append([record.body for record in decode(app.get(f"/topic/log?topic={topic}").body)])
    assert answers[0] == answers[1]
    assert kept[0] == kept[1]
    assert kept[0][-1] == b"end"


def test_the_answer_to_many_messages_names_the_first(app: HttpApp) -> None:
    app.post("/topic/create?topic=first")
    answer = app.exchange(post("/mpub?topic=first", b"a\nb\nc") + publish("first", b"end", "Connection: close"))
    first, last = (from_hex(found) for found in re.findall(rb"X-NSQ-Message-Id: ([0-9a-f]{16})", answer))
    assert re.findall(rb"X-NSQ-Message-Count: (\d+)", answer) == [b"3"]
    assert last > id_after(first, 2)


def test_plain_and_other_requests_of_one_connection_are_answered_in_order(app: HttpApp) -> None:
    app.post("/topic/create?topic=mixed")
    stream = (
        publish("mixed", b"a")
        + publish("mixed", b"b")
        + b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"
        + publish("mixed", b"c")
        + publish("mixed", b"")
        + publish("mixed", b"d", "Connection: close")
    )
    statuses = re.findall(rb"HTTP/1.1 (\d+)", app.exchange(stream))
    assert statuses == [b"200", b"200", b"200", b"200", b"400", b"200"]
    assert counts(app, "mixed") == (4, 4)


@pytest.mark.slow
def test_a_plain_publish_may_come_in_any_pieces(app: HttpApp) -> None:
    app.post("/topic/create?topic=pieces")
    data = publish("pieces", b"hello")
    with app.connect() as connection:
        for cut in range(1, len(data)):
            connection.sendall(data[:cut])
            # The server has seen the first piece by the time it has answered another connection.
            app.get("/ping")
            connection.sendall(data[cut:])
            assert read_answer(connection).endswith(b"\r\n\r\nOK")
    assert counts(app, "pieces") == (len(data) - 1, 5 * (len(data) - 1))


def read_answer(connection: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\r\n\r\nOK"):
        part = connection.recv(4096)
        assert part
        data += part
    return data


@pytest.mark.slow
def test_a_client_that_reads_nothing_gets_all_answers_later(app: HttpApp) -> None:
    app.post("/topic/create?topic=deaf")
    count = 20_000
    stream = publish("deaf", b"x") * (count - 1) + publish("deaf", b"x", "Connection: close")
    with app.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        connection.settimeout(0.5)
        sent = 0
        try:
            while sent < len(stream):
                sent += connection.send(stream[sent : sent + 65536])
        except TimeoutError:
            pass  # The server has stopped reading.
        answers = bytearray()
        connection.settimeout(10)
        while sent < len(stream):
            answers += connection.recv(1 << 20)
            try:
                sent += connection.send(stream[sent : sent + 65536], socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
        answers += read_to_end(connection)
    assert answers.count(b"HTTP/1.1 200 OK") == count
    assert counts(app, "deaf") == (count, count)


def test_a_deleted_topic_is_re_created(app: HttpApp) -> None:
    app.post("/topic/create?topic=gone")
    with app.connect() as connection:
        for _ in range(2):
            connection.sendall(publish("gone", b"x"))
            assert read_answer(connection).startswith(b"HTTP/1.1 200")
            app.post("/topic/delete?topic=gone")
        connection.sendall(publish("gone", b"x", "Connection: close"))
        assert read_to_end(connection).startswith(b"HTTP/1.1 200")
    assert counts(app, "gone")[0] >= 1


@pytest.mark.slow
def test_a_full_disk_has_the_same_answer_as_from_the_router(tmp_path: Path) -> None:
    app = HttpApp(tmp_path, flags=(*FLAGS, "--max-msg-size=40000"))
    try:
        statuses = [app.post("/pub?topic=full", bytes(30_000)).status for _ in range(4)]
        assert statuses[0] == 200
        assert statuses[-1] == 503
        assert app.get("/ping").status == 500
    finally:
        app.kill()
