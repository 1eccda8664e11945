"""POST /pub and /mpub: accepted requests, and the fault for which others are refused."""

import re
import struct
import time
from pathlib import Path

import pytest

from pyqd.broker.broker import Broker
from pyqd.config.options import parse_args
from pyqd.hot.primitives.guid import from_hex, id_after
from tests.api.conftest import HttpApp

COUNT = struct.Struct(">i")


def refusal(app: HttpApp, target: str, body: bytes = b"x") -> tuple[int, str]:
    reply = app.post(target, body)
    return reply.status, reply.json()["message"]


def stats_of(app: HttpApp, topic: str) -> tuple[int, int, int]:
    (stats,) = app.get(f"/stats?format=json&topic={topic}").json()["topics"]
    return stats["depth"], stats["message_count"], stats["message_bytes"]


def has_topic(app: HttpApp, topic: str) -> bool:
    return app.get(f"/stats?format=json&topic={topic}").json()["topics"] is not None


def binary(*bodies: bytes, count: int | None = None) -> bytes:
    return COUNT.pack(len(bodies) if count is None else count) + b"".join(COUNT.pack(len(x)) + x for x in bodies)


def chunked(target: str, body: bytes) -> bytes:
    head = f"POST {target} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n".encode()
    parts = [body[start : start + 700] for start in range(0, len(body), 700)]
    return head + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def test_a_published_body_is_in_the_topic(app: HttpApp) -> None:
    assert app.post("/pub?topic=one", b"hello").body == b"OK"
    assert stats_of(app, "one") == (1, 1, 5)


@pytest.mark.slow
def test_the_answer_names_the_published_messages(tmp_path: Path) -> None:
    app = HttpApp(tmp_path)
    named = [
        app.post("/pub?topic=t", b"a"),
        app.post("/pub?topic=t&defer=1000", b"b"),
        app.post("/mpub?topic=t", b"c\nd"),
    ]
    assert [reply.headers.get("X-NSQ-Message-Count") for reply in named] == [None, None, "2"]
    assert "X-NSQ-Message-Id" not in app.post("/mpub?topic=t", b"").headers
    ids = [from_hex(reply.headers["X-NSQ-Message-Id"].encode()) for reply in named]
    assert app.stop() == 0
    broker = Broker(parse_args([f"--data-path={app.data_path}"]))
    broker.load()
    records = [(guid, body) for _, guid, *_, body in broker.topic("t").log.records()]
    broker.close()
    assert records == [*zip(ids, (b"a", b"b", b"c"), strict=True), (id_after(ids[2], 1), b"d")]


def test_a_name_is_unescaped_and_the_first_value_wins(app: HttpApp) -> None:
    assert app.post("/pub?topic=esc%2Dape%23ephemeral&topic=!", b"hello").body == b"OK"
    assert has_topic(app, "esc-ape%23ephemeral")


@pytest.mark.parametrize(
    ("target", "body", "status", "code"),
    [
        ("/pub?topic=!&x=%z", 1001 * b"x", 413, "MSG_TOO_BIG"),
        ("/pub?topic=!&x=%z", b"", 400, "MSG_EMPTY"),
        ("/pub?topic=!&x=%z", b"x", 400, "INVALID_REQUEST"),
        ("/pub?Topic=a", b"x", 400, "MISSING_ARG_TOPIC"),
        ("/pub?topic", b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=", b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=%C3%A9", b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=%FF", b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=" + 65 * "a", b"x", 400, "INVALID_TOPIC"),
        ("/mpub?topic=!&x=%z", 3001 * b"x", 413, "BODY_TOO_BIG"),
        ("/mpub?topic=!&x=%z", b"x", 400, "INVALID_REQUEST"),
        ("/mpub", b"x", 400, "MISSING_ARG_TOPIC"),
        ("/mpub?topic=!&binary=true", b"x", 400, "INVALID_TOPIC"),
    ],
)
def test_faults_are_refused_in_order(app: HttpApp, target: str, body: bytes, status: int, code: str) -> None:
    assert refusal(app, target, body) == (status, code)


@pytest.mark.parametrize("defer", ["", "x", "-1", "60001", "1.5", "0x10", "1_0", "%201", "9" * 30, "9" * 300])
def test_a_bad_delay_is_refused_once_the_topic_is_there(app: HttpApp, defer: str) -> None:
    topic = f"defer{len(defer)}-{defer.strip('%x').replace('_', '-')[:20]}"
    assert refusal(app, f"/pub?topic={topic}&defer={defer}") == (400, "INVALID_DEFER")
    assert stats_of(app, topic) == (0, 0, 0)


@pytest.mark.parametrize("defer", ["0", "60000", "%2B5", "-0", "007"])
def test_a_delay_is_in_milliseconds_up_to_the_longest(app: HttpApp, defer: str) -> None:
    assert app.post(f"/pub?topic=deferred&defer={defer}", b"x").body == b"OK"


@pytest.mark.slow
def test_a_deferred_message_waits(tmp_path: Path) -> None:
    app = HttpApp(tmp_path)
    app.post("/pub?topic=t&defer=50000", b"later")
    app.post("/pub?topic=t&defer=0", b"now")
    assert app.stop() == 0
    broker = Broker(parse_args([f"--data-path={app.data_path}"]))
    broker.load()
    channel = broker.topic("t").channel("c")
    assert (channel.depth + channel.deferred_count, channel.deferred_count) == (2, 1)
    broker.close()


def test_a_chunked_body_is_one_message(app: HttpApp) -> None:
    assert app.exchange(chunked("/pub?topic=chunks", 1000 * b"x")).endswith(b"\r\n\r\nOK")
    assert stats_of(app, "chunks") == (1, 1, 1000)


def test_a_chunked_body_is_limited_too(app: HttpApp) -> None:
    assert app.exchange(chunked("/pub?topic=!", 1001 * b"x")).endswith(b'{"message":"MSG_TOO_BIG"}')
    assert app.exchange(chunked("/mpub?topic=!", 3001 * b"x")).endswith(b'{"message":"INVALID_TOPIC"}')
    many = b"\n".join([700 * b"x"] * 5)
    assert app.exchange(chunked("/mpub?topic=chunks2", many)).endswith(b'{"message":"BODY_TOO_BIG"}')
    long_line_first = 1001 * b"x" + b"\n" + many
    assert app.exchange(chunked("/mpub?topic=chunks2", long_line_first)).endswith(b'{"message":"MSG_TOO_BIG"}')
    assert app.exchange(chunked("/mpub?topic=chunks2&binary=1", binary(*[700 * b"x"] * 5))).endswith(
        b'{"message":"BODY_TOO_BIG"}'
    )
    assert stats_of(app, "chunks2") == (0, 0, 0)


def test_lines_are_messages_without_empty_ones(app: HttpApp) -> None:
    assert app.post("/mpub?topic=lines", b"\none\r\n\n\ntwo\nlast").body == b"OK"
    assert stats_of(app, "lines") == (3, 3, 11)


def test_a_body_without_lines_is_fine(app: HttpApp) -> None:
    assert app.post("/mpub?topic=nolines", b"").body == b"OK"
    assert app.post("/mpub?topic=nolines", b"\n\n").body == b"OK"
    assert stats_of(app, "nolines") == (0, 0, 0)


def test_a_long_line_refuses_all(app: HttpApp) -> None:
    assert refusal(app, "/mpub?topic=longline", b"one\n" + 1001 * b"x" + b"\ntwo") == (413, "MSG_TOO_BIG")
    assert stats_of(app, "longline") == (0, 0, 0)


@pytest.mark.parametrize("value", ["true", "1", "", "yes", "TRUE"])
def test_a_binary_body_has_count_and_sizes(app: HttpApp, value: str) -> None:
    topic = f"binary{value}"
    assert app.post(f"/mpub?topic={topic}&binary={value}", binary(b"a", b"b\n\n", 1000 * b"c")).body == b"OK"
    assert stats_of(app, topic) == (3, 3, 1004)
    warned = f"WARNING: deprecated value used for /mpub binary param: {value}\n" in app.log_text()
    assert warned == (value not in ("true", "1"))


@pytest.mark.parametrize("value", ["false", "0"])
def test_binary_turned_off_is_text(app: HttpApp, value: str) -> None:
    topic = f"text{value}"
    assert app.post(f"/mpub?topic={topic}&binary={value}", b"a\nb").body == b"OK"
    assert stats_of(app, topic) == (2, 2, 2)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "BAD_BODY"),
        (b"\x00\x00\x00", "BAD_BODY"),
        (binary(b"a", count=0), "BAD_BODY"),
        (binary(b"a", count=-1), "BAD_BODY"),
        (binary(b"a", count=600), "BAD_BODY"),
        (binary(b"a", count=599), "BAD_MESSAGE"),
        (binary(b"a", b""), "BAD_MESSAGE"),
        (binary(b"a") + b"\x00\x00", "BAD_MESSAGE"),
        (binary(b"a", 1001 * b"x"), "BAD_MESSAGE"),
        (binary(b"a", b"abc")[:-1], "BAD_MESSAGE"),
        (COUNT.pack(1) + COUNT.pack(-5) + b"abcde", "BAD_MESSAGE"),
    ],
)
def test_a_bad_binary_body_refuses_all(app: HttpApp, body: bytes, code: str) -> None:
    if body == binary(b"a") + b"\x00\x00":
        body = COUNT.pack(2) + body[4:]
    assert refusal(app, "/mpub?topic=badbinary&binary=true", body) == (413, code)
    assert stats_of(app, "badbinary") == (0, 0, 0)


def test_bytes_after_a_binary_body_are_ignored(app: HttpApp) -> None:
    assert app.post("/mpub?topic=trailing&binary=true", binary(b"a") + b"whatever").body == b"OK"
    assert stats_of(app, "trailing") == (1, 1, 1)


@pytest.mark.slow
def test_many_messages_are_deferred_as_one_is(tmp_path: Path) -> None:
    app = HttpApp(tmp_path)
    due_ms = int(time.time() * 1000) + 50_000
    assert app.post("/mpub?topic=t&defer=50000", b"a\nb").body == b"OK"
    assert app.post("/mpub?topic=t&binary=true&defer=50000", binary(b"c", b"d")).body == b"OK"
    assert app.post(f"/mpub?topic=t&due={due_ms}", b"e\nf").body == b"OK"
    assert app.post("/mpub?topic=t&due=1", b"g").body == b"OK"
    assert app.post("/mpub?topic=t&defer=0", b"h").body == b"OK"
    assert stats_of(app, "t") == (8, 8, 8)
    assert app.stop() == 0
    broker = Broker(parse_args([f"--data-path={app.data_path}"]))
    broker.load()
    channel = broker.topic("t").channel("c")
    assert (channel.depth, channel.deferred_count) == (2, 6)
    broker.close()


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("defer=", "INVALID_DEFER"),
        ("defer=60001", "INVALID_DEFER"),
        ("defer=x&binary=true", "INVALID_DEFER"),
        ("due=x", "INVALID_DUE"),
        ("due=99999999999999", "INVALID_DUE"),
        ("due=1&defer=1", "INVALID_DUE"),
    ],
)
def test_a_bad_delay_of_many_is_refused_whatever_the_body(app: HttpApp, query: str, code: str) -> None:
    for body in (b"a\nb", b"", 1001 * b"x"):
        assert refusal(app, f"/mpub?topic=undeferred&{query}", body) == (400, code)
    assert stats_of(app, "undeferred") == (0, 0, 0)


@pytest.mark.slow
def test_a_full_disk_is_an_error_and_shows_until_a_write_succeeds(tmp_path: Path) -> None:
    app = HttpApp(tmp_path, flags=())
    reason = re.compile(r"STORAGE_FAILED: failed to reserve \S+/full\.topic/log\S* - No space left on device")
    status, code = refusal(app, "/pub?topic=full", 100_000 * b"x")
    assert (status, bool(reason.fullmatch(code))) == (503, True), code
    ping = app.get("/ping")
    assert ping.status == 500
    assert ping.body.startswith(b"NOK - failed to reserve ")
    assert app.get("/stats?format=json").json()["health"].startswith("NOK - ")
    lines = b"\n".join([50_000 * b"x"] * 3)
    status, code = refusal(app, "/mpub?topic=full", lines)
    assert (status, bool(reason.fullmatch(code))) == (503, True), code
    assert stats_of(app, "full") == (0, 0, 0)
    assert app.post("/pub?topic=full", b"small").body == b"OK"
    assert app.get("/ping").body == b"OK"
    assert app.stop() == 0


@pytest.mark.parametrize("due", ["x", "-5", "99999999999999", "9" * 30, "2200-01-01T00:00:00Z", "2026-13-01T00:00:00Z"])
def test_a_bad_due_time_is_refused(app: HttpApp, due: str) -> None:
    assert refusal(app, f"/pub?topic=due&due={due}") == (400, "INVALID_DUE")


def test_a_delay_and_a_due_time_together_are_refused(app: HttpApp) -> None:
    assert refusal(app, "/pub?topic=due&due=0&defer=0") == (400, "INVALID_DUE")


@pytest.mark.slow
def test_a_message_waits_for_its_due_time_unless_it_has_passed(tmp_path: Path) -> None:
    app = HttpApp(tmp_path)
    soon = int(time.time()) + 50
    app.post(f"/pub?topic=t&due={1000 * soon}", b"later")
    text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(soon))
    app.post(f"/pub?topic=t&due={text}", b"later")
    app.post("/pub?topic=t&due=2001-01-01T00:00:00Z", b"now")
    app.post("/pub?topic=t&due=0", b"now")
    assert app.stop() == 0
    broker = Broker(parse_args([f"--data-path={app.data_path}"]))
    broker.load()
    channel = broker.topic("t").channel("c")
    assert (channel.depth, channel.deferred_count) == (2, 2)
    broker.close()
