"""GET /channel/messages; POST /message/cancel, /message/reschedule, /message/deliver_now."""

import base64
import time
from typing import Any

import pytest

from tests.api.conftest import HttpApp

MS_NS = 1_000_000
NOWHERE = "0f00000000000000"
DEFERRED = "/channel/messages?topic=errors&channel=c&state=deferred"


def make(app: HttpApp, topic: str, *channels: str) -> None:
    assert app.post(f"/topic/create?topic={topic}").status == 200
    for channel in channels:
        assert app.post(f"/channel/create?topic={topic}&channel={channel}").status == 200


def publish(app: HttpApp, topic: str, *bodies: bytes, query: str = "") -> None:
    for body in bodies:
        assert app.post(f"/pub?topic={topic}{query}", body).status == 200


def page(app: HttpApp, topic: str, query: str = "&channel=c") -> Any:
    reply = app.get(f"/channel/messages?topic={topic}{query}")
    assert reply.status == 200, reply
    return reply.json()


def pages(app: HttpApp, topic: str, query: str, limit: int) -> list[list[Any]]:
    found, after = [], ""
    while True:
        shown = page(app, topic, f"{query}&limit={limit}{after}")
        found.append(shown["messages"])
        if shown["next"] is None:
            return found
        after = f"&after={shown['next']}"


def bodies(app: HttpApp, topic: str, query: str = "&channel=c", limit: int = 100) -> list[str]:
    return [message["body"] for messages in pages(app, topic, query, limit) for message in messages]


def ids(app: HttpApp, topic: str, query: str = "&channel=c") -> dict[str, str]:
    messages = [message for each in pages(app, topic, query, 100) for message in each]
    return {message["body"]: message["id"] for message in messages}


def amend(app: HttpApp, what: str, topic: str, message_id: str, query: str = "") -> Any:
    reply = app.post(f"/message/{what}?topic={topic}&id={message_id}{query}")
    assert reply.status == 200, reply
    return reply.json()


def counts(app: HttpApp, topic: str, channel: str = "c") -> tuple[int, int]:
    (stats,) = app.get(f"/stats?format=json&topic={topic}&channel={channel}").json()["topics"]
    return stats["channels"][0]["depth"], stats["channels"][0]["deferred_count"]


def test_ready_messages_are_shown_in_the_order_of_the_queue_and_stay_there(app: HttpApp) -> None:
    make(app, "ready", "c")
    before_ns = time.time_ns()
    publish(app, "ready", *[b"%d" % number for number in range(7)])
    for _ in range(2):
        first = page(app, "ready", "&channel=c&limit=3")
        assert (first["topic"], first["channel"], first["state"]) == ("ready", "c", "ready")
        assert [message["body"] for message in first["messages"]] == ["0", "1", "2"]
        message = first["messages"][2]
        assert before_ns <= message.pop("timestamp") <= time.time_ns()
        assert len(message.pop("id")) == 16
        assert message == {
            "state": "ready",
            "attempts": 0,
            "size": 1,
            "position": 2,
            "due": None,
            "body": "2",
            "truncated": False,
        }
    assert [len(messages) for messages in pages(app, "ready", "&channel=c", 3)] == [3, 3, 1]
    assert bodies(app, "ready", limit=2) == list("0123456")
    assert counts(app, "ready") == (7, 0)
    assert page(app, "ready", "&channel=c&state=deferred") == {
        "topic": "ready",
        "channel": "c",
        "state": "deferred",
        "messages": [],
        "next": None,
    }
    for state in ("in_flight", "dead_letter"):
        assert page(app, "ready", f"&channel=c&state={state}")["messages"] == []


def test_a_cursor_resumes_at_its_position_while_messages_are_added_and_finished(app: HttpApp) -> None:
    make(app, "moving", "c")
    publish(app, "moving", *[b"%d" % number for number in range(6)])
    first = page(app, "moving", "&channel=c&limit=3")
    for message in first["messages"][:2]:
        amend(app, "cancel", "moving", message["id"])
    amend(app, "cancel", "moving", ids(app, "moving")["4"])
    publish(app, "moving", b"6")
    for _ in range(2):
        assert bodies(app, "moving", f"&channel=c&after={first['next']}") == ["3", "5", "6"]
    assert bodies(app, "moving") == ["2", "3", "5", "6"]


@pytest.mark.parametrize(("count", "limit"), [(5, 2), (40, 40)])
def test_deferred_messages_are_shown_in_the_order_of_their_due_times(app: HttpApp, count: int, limit: int) -> None:
    topic = f"deferred{count}"
    make(app, topic, "c")
    publish(app, topic, b"now")
    order = [(number * 7919) % count for number in range(count)]
    for number in order:
        publish(app, topic, b"%d" % number, query=f"&defer={20000 + 900 * number}")
    shown = [message for each in pages(app, topic, "&channel=c&state=deferred", limit) for message in each]
    assert [message["body"] for message in shown] == [str(number) for number in range(count)]
    assert all(message["due"] > time.time_ns() for message in shown)
    assert [message["position"] for message in shown] == [1 + order.index(number) for number in range(count)]
    assert bodies(app, topic) == ["now"]


def test_bodies_come_as_text_or_base64_and_no_longer_than_4096_bytes(app: HttpApp) -> None:
    make(app, "bodies", "c")
    publish(app, "bodies", b"\xff\x00\xc3\xbc")
    (message,) = page(app, "bodies")["messages"]
    assert message["body"] == "\ufffd\x00ü"
    (message,) = page(app, "bodies", "&channel=c&body=base64")["messages"]
    assert base64.b64decode(message["body"]) == b"\xff\x00\xc3\xbc"
    (message,) = page(app, "bodies", "&channel=c&body=none")["messages"]
    assert "body" not in message
    assert "truncated" not in message
    assert message["size"] == 4


def test_messages_of_a_topic_without_a_channel_are_listed(app: HttpApp) -> None:
    make(app, "held")
    publish(app, "held", b"a", b"b")
    publish(app, "held", b"later", query="&defer=30000")
    assert bodies(app, "held", "", 1) == ["a", "b"]
    assert bodies(app, "held", "&state=deferred") == ["later"]
    assert bodies(app, "held", "&state=in_flight") == []
    found = amend(app, "cancel", "held", ids(app, "held", "")["a"])
    assert found["results"] == [{"channel": None, "status": "held"}]
    make(app, "held", "c")
    assert bodies(app, "held", "") == []
    assert bodies(app, "held") == ["a", "b"]
    assert app.post("/topic/pause?topic=held").status == 200
    publish(app, "held", b"c")
    (held,) = ids(app, "held", "").values()
    for what in ("cancel", "deliver_now"):
        assert amend(app, what, "held", held)["results"] == [{"channel": "c", "status": "held"}]


def test_a_ready_message_is_cancelled_on_one_channel_or_on_all(app: HttpApp) -> None:
    make(app, "cancelled", "c", "d")
    publish(app, "cancelled", b"a", b"b", b"x")
    of = ids(app, "cancelled")
    assert amend(app, "cancel", "cancelled", of["a"], "&channel=c") == {
        "topic": "cancelled",
        "id": of["a"],
        "results": [{"channel": "c", "status": "done", "was": "ready"}],
    }
    assert (bodies(app, "cancelled"), bodies(app, "cancelled", "&channel=d")) == (["b", "x"], ["a", "b", "x"])
    assert amend(app, "cancel", "cancelled", of["a"])["results"] == [
        {"channel": "c", "status": "finished"},
        {"channel": "d", "status": "done", "was": "ready"},
    ]
    assert amend(app, "cancel", "cancelled", of["a"])["results"] == [
        {"channel": "c", "status": "finished"},
        {"channel": "d", "status": "finished"},
    ]
    assert (counts(app, "cancelled"), counts(app, "cancelled", "d")) == ((2, 0), (2, 0))


def test_a_message_gets_another_due_time(app: HttpApp) -> None:
    make(app, "moved", "c", "d")
    publish(app, "moved", b"ready")
    publish(app, "moved", b"deferred", query="&defer=30000")
    of = ids(app, "moved") | ids(app, "moved", "&channel=c&state=deferred")
    now_ns = time.time_ns()
    due = amend(app, "reschedule", "moved", of["ready"], "&channel=c&defer=20000")["due"]
    assert now_ns + 20_000 * MS_NS <= due <= time.time_ns() + 20_000 * MS_NS
    due_ms = now_ns // MS_NS + 10_000
    assert amend(app, "reschedule", "moved", of["deferred"], f"&due={due_ms}") == {
        "topic": "moved",
        "id": of["deferred"],
        "due": due_ms * MS_NS,
        "results": [
            {"channel": "c", "status": "done", "was": "deferred"},
            {"channel": "d", "status": "done", "was": "deferred"},
        ],
    }
    shown = page(app, "moved", "&channel=c&state=deferred")["messages"]
    assert [(message["body"], message["due"]) for message in shown] == [("deferred", due_ms * MS_NS), ("ready", due)]
    assert [message["id"] for message in shown] == [of["deferred"], of["ready"]]
    assert (counts(app, "moved"), counts(app, "moved", "d")) == ((0, 2), (1, 1))


@pytest.mark.parametrize(
    ("what", "query"), [("deliver_now", ""), ("reschedule", "&defer=0"), ("reschedule", "&due=1795177302s")]
)
def test_a_deferred_message_is_made_due(app: HttpApp, what: str, query: str) -> None:
    topic = f"at_once{len(query)}"
    make(app, topic, "c")
    publish(app, topic, b"late", b"later", query="&defer=30000")
    of = ids(app, topic, "&channel=c&state=deferred")
    assert amend(app, what, topic, of["late"], query)["results"] == [
        {"channel": "c", "status": "done", "was": "deferred"}
    ]
    first, second = page(app, topic, "&channel=c&state=deferred")["messages"]
    assert (first["body"], second["body"]) == ("late", "later")
    assert first["due"] <= time.time_ns() < second["due"]


def test_an_id_that_no_message_has_is_not_found(app: HttpApp) -> None:
    make(app, "unknown", "c")
    publish(app, "unknown", b"a")
    for query in ("", "&channel=c"):
        reply = app.post(f"/message/cancel?topic=unknown&id={NOWHERE}{query}")
        assert (reply.status, reply.json()) == (404, {"message": "MESSAGE_NOT_FOUND"})
    assert counts(app, "unknown") == (1, 0)


@pytest.mark.parametrize(
    ("method", "target", "status", "code"),
    [
        ("GET", "/channel/messages?%z", 400, "INVALID_REQUEST"),
        ("GET", "/channel/messages", 400, "MISSING_ARG_TOPIC"),
        ("GET", "/channel/messages?topic=!", 400, "INVALID_ARG_TOPIC"),
        ("GET", "/channel/messages?topic=none", 404, "TOPIC_NOT_FOUND"),
        ("GET", "/channel/messages?topic=errors&channel=!", 400, "INVALID_ARG_CHANNEL"),
        ("GET", "/channel/messages?topic=errors&channel=d", 404, "CHANNEL_NOT_FOUND"),
        ("GET", "/channel/messages?topic=errors&channel=c&state=finished", 400, "INVALID_STATE"),
        ("GET", "/channel/messages?topic=errors&channel=c&body=hex", 400, "INVALID_BODY"),
        ("GET", "/channel/messages?topic=errors&channel=c&limit=0", 400, "INVALID_LIMIT"),
        ("GET", "/channel/messages?topic=errors&channel=c&limit=1001", 400, "INVALID_LIMIT"),
        ("GET", "/channel/messages?topic=errors&channel=c&limit=-1", 400, "INVALID_LIMIT"),
        ("GET", "/channel/messages?topic=errors&channel=c&after=x", 400, "INVALID_AFTER"),
        ("GET", "/channel/messages?topic=errors&channel=c&after=f1.1", 400, "INVALID_AFTER"),
        ("GET", "/channel/messages?topic=errors&channel=c&after=l1", 400, "INVALID_AFTER"),
        ("GET", "/channel/messages?topic=errors&channel=c&after=q99999999999999999999", 400, "INVALID_AFTER"),
        ("GET", "/channel/messages?topic=errors&channel=c&state=deferred&after=q1", 400, "INVALID_AFTER"),
        ("GET", "/channel/messages?topic=errors&state=ready&after=d1.1.1", 400, "INVALID_AFTER"),
        ("GET", f"{DEFERRED}&after=d9999999999999999999.0.0", 400, "INVALID_AFTER"),
        ("GET", f"{DEFERRED}&after=d-9999999999999999999.0.0", 400, "INVALID_AFTER"),
        ("GET", f"{DEFERRED}&after=d-9223372036854775808.0.0", 400, "INVALID_AFTER"),
        ("GET", f"{DEFERRED}&after=d0.9223372036854775808.0", 400, "INVALID_AFTER"),
        ("POST", "/message/cancel", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/message/cancel?topic=!", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/message/cancel?topic=none&id=1", 404, "TOPIC_NOT_FOUND"),
        ("POST", "/message/cancel?topic=errors", 400, "MISSING_ARG_ID"),
        ("POST", "/message/cancel?topic=errors&id=1", 400, "INVALID_ARG_ID"),
        ("POST", "/message/cancel?topic=errors&id=0F00000000000000", 400, "INVALID_ARG_ID"),
        ("POST", "/message/cancel?topic=errors&id=0000000000000000", 404, "MESSAGE_NOT_FOUND"),
        ("POST", "/message/cancel?topic=errors&id=ffffffffffffffff", 404, "MESSAGE_NOT_FOUND"),
        ("POST", f"/message/cancel?topic=errors&channel=d&id={NOWHERE}", 404, "CHANNEL_NOT_FOUND"),
        ("POST", f"/message/reschedule?topic=errors&id={NOWHERE}", 400, "MISSING_ARG_DUE"),
        ("POST", f"/message/reschedule?topic=errors&id={NOWHERE}&defer=60001", 400, "INVALID_DEFER"),
        ("POST", f"/message/reschedule?topic=errors&id={NOWHERE}&defer=-1", 400, "INVALID_DEFER"),
        ("POST", f"/message/reschedule?topic=errors&id={NOWHERE}&due=soon", 400, "INVALID_DUE"),
        ("POST", f"/message/reschedule?topic=errors&id={NOWHERE}&due=2200-01-01T00:00:00Z", 400, "INVALID_DUE"),
        ("POST", f"/message/reschedule?topic=errors&id={NOWHERE}&due=1s&defer=1", 400, "INVALID_DUE"),
        ("POST", f"/message/deliver_now?topic=errors&id={NOWHERE}", 404, "MESSAGE_NOT_FOUND"),
        ("GET", "/message/cancel", 405, "METHOD_NOT_ALLOWED"),
        ("POST", "/channel/messages", 405, "METHOD_NOT_ALLOWED"),
    ],
)
def test_requests_are_refused_with_a_code(app: HttpApp, method: str, target: str, status: int, code: str) -> None:
    make(app, "errors", "c")
    reply = app.request(method, target)
    assert (reply.status, reply.json()) == (status, {"message": code})
