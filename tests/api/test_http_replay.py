"""GET /topic/positions and /topic/log, POST /channel/seek, /topic/create and /channel/create."""

import time
from typing import Any

import pytest

from pyqd.fallback import records
from tests.api.conftest import HttpApp


def publish(app: HttpApp, topic: str, *bodies: bytes) -> None:
    assert app.post(f"/mpub?topic={topic}", b"\n".join(bodies)).status == 200


def channel_of(app: HttpApp, topic: str, channel: str = "c") -> Any:
    (stats,) = app.get(f"/stats?format=json&topic={topic}&channel={channel}").json()["topics"]
    return stats["channels"][0]


def read_all(app: HttpApp, topic: str, query: str = "") -> list[bytes]:
    bodies: list[bytes] = []
    at = "earliest"
    while True:
        reply = app.get(f"/topic/log?topic={topic}&from={at}{query}")
        assert reply.status == 200, reply
        page = [record.body for record in records.decode(reply.body)]
        assert int(reply.headers["X-Pyqd-Count"]) == len(page)
        if not page:
            assert reply.headers["X-Pyqd-Next"] == reply.headers["X-Pyqd-End"]
            return bodies
        bodies += page
        at = reply.headers["X-Pyqd-Next"]


def test_a_topic_and_a_channel_are_made_and_making_them_again_is_fine(app: HttpApp) -> None:
    for _ in range(2):
        reply = app.post("/topic/create?topic=made")
        assert (reply.status, reply.body) == (200, b"")
    for _ in range(2):
        reply = app.post("/channel/create?topic=made&channel=c")
        assert (reply.status, reply.body) == (200, b"")
    assert channel_of(app, "made")["depth"] == 0


@pytest.mark.parametrize(
    ("method", "target", "status", "code"),
    [
        ("POST", "/topic/create?%z", 400, "INVALID_REQUEST"),
        ("POST", "/topic/create", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/create?topic=!", 400, "INVALID_TOPIC"),
        ("POST", "/channel/create?channel=!", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/channel/create?topic=!", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/channel/create?topic=none", 400, "MISSING_ARG_CHANNEL"),
        ("POST", "/channel/create?topic=none&channel=!", 400, "INVALID_ARG_CHANNEL"),
        ("POST", "/channel/create?topic=none&channel=c&start=!", 404, "TOPIC_NOT_FOUND"),
        ("POST", "/channel/create?topic=refused&channel=d&start=!", 400, "INVALID_START"),
        ("POST", "/channel/create?topic=refused&channel=d&start=", 400, "INVALID_START"),
        ("POST", "/channel/create?topic=refused&channel=d&start=4", 400, "POSITION_BEYOND_END"),
        ("POST", "/channel/seek?to=!", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/channel/seek?topic=!", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/channel/seek?topic=refused", 400, "MISSING_ARG_CHANNEL"),
        ("POST", "/channel/seek?topic=refused&channel=!", 400, "INVALID_ARG_CHANNEL"),
        ("POST", "/channel/seek?topic=none&channel=c", 404, "TOPIC_NOT_FOUND"),
        ("POST", "/channel/seek?topic=refused&channel=d", 404, "CHANNEL_NOT_FOUND"),
        ("POST", "/channel/seek?topic=refused&channel=c", 400, "MISSING_ARG_TO"),
        ("POST", "/channel/seek?topic=refused&channel=c&to=now", 400, "INVALID_TO"),
        ("POST", "/channel/seek?topic=refused&channel=c&to=18446744073709551616", 400, "INVALID_TO"),
        ("POST", "/channel/seek?topic=refused&channel=c&to=0&dry_run=yes", 400, "INVALID_DRY_RUN"),
        ("POST", "/channel/seek?topic=refused&channel=c&to=18446744073709551615", 400, "POSITION_BEYOND_END"),
        ("GET", "/topic/positions", 400, "MISSING_ARG_TOPIC"),
        ("GET", "/topic/positions?topic=!", 400, "INVALID_TOPIC"),
        ("GET", "/topic/positions?topic=none", 404, "TOPIC_NOT_FOUND"),
        ("GET", "/topic/positions?topic=refused&time=1", 400, "INVALID_TIME"),
        ("GET", "/topic/log?topic=none&from=!", 404, "TOPIC_NOT_FOUND"),
        ("GET", "/topic/log?topic=refused&from=-1", 400, "INVALID_FROM"),
        ("GET", "/topic/log?topic=refused&to=latest", 400, "INVALID_TO"),
        ("GET", "/topic/log?topic=refused&max_bytes=0", 400, "INVALID_MAX_BYTES"),
        ("GET", "/topic/log?topic=refused&max_bytes=-1", 400, "INVALID_MAX_BYTES"),
        ("GET", "/topic/log?topic=refused&from=4", 400, "POSITION_BEYOND_END"),
    ],
)
def test_what_cannot_be_is_refused(app: HttpApp, method: str, target: str, status: int, code: str) -> None:
    if app.get("/topic/positions?topic=refused").status == 404:
        publish(app, "refused", b"1", b"2", b"3")
        assert app.post("/channel/create?topic=refused&channel=c").status == 200
    reply = app.request(method, target)
    assert (reply.status, reply.json()["message"]) == (status, code)
    assert len(app.get("/stats?format=json&topic=refused").json()["topics"][0]["channels"]) == 1


def test_a_topic_s_log_is_read_in_pages_as_often_as_one_likes(app: HttpApp) -> None:
    bodies = [b"%d" % number for number in range(300)]
    for start in range(0, 300, 100):
        publish(app, "pages", *bodies[start : start + 100])
    for query in ("", "&max_bytes=1000", "&max_bytes=99999999999"):
        assert read_all(app, "pages", query) == bodies
    reply = app.get("/topic/log?topic=pages&from=10&to=20")
    assert [record.position for record in records.decode(reply.body)] == list(range(10, 20))
    shown = app.get("/topic/positions?topic=pages").json()
    assert reply.headers["Content-Type"] == "application/octet-stream"
    assert {name: value for name, value in reply.headers.items() if name.startswith("X-Pyqd-")} == {
        "X-Pyqd-Format": "2",
        "X-Pyqd-Node": shown["node"],
        "X-Pyqd-Created": str(shown["created"]),
        "X-Pyqd-From": "10",
        "X-Pyqd-Next": "20",
        "X-Pyqd-End": "300",
        "X-Pyqd-Count": "10",
    }
    assert (shown["earliest"], shown["next"], shown["records"]) == (0, 300, 300)
    reply = app.get("/topic/log?topic=pages&from=latest")
    assert (reply.status, reply.body, reply.headers["X-Pyqd-Next"]) == (200, b"", "300")


def test_a_position_is_found_by_time(app: HttpApp) -> None:
    publish(app, "times", b"1", b"2")
    between_ns = time.time_ns()
    publish(app, "times", b"3")
    assert app.get(f"/topic/positions?topic=times&time={between_ns}ns").json()["at"] == 2
    assert app.get("/topic/positions?topic=times&time=-1h").json()["at"] == 0
    assert app.get("/topic/positions?topic=times&time=2200-01-01T00:00:00Z").json()["at"] == 3
    (record,) = records.decode(app.get(f"/topic/log?topic=times&from={between_ns}ns").body)
    assert record.body == b"3"


def test_a_seek_reports_its_effect_in_a_dry_run_and_moves_the_channel(app: HttpApp) -> None:
    publish(app, "moved", *[b"%d" % number for number in range(20)])
    app.post("/channel/create?topic=moved&channel=c")
    answer = {
        "topic": "moved", "channel": "c", "from": 0, "to": 15, "redeliver": 0, "finished": 0, "skip": 15,
        "in_flight": 0, "deferred": 0, "depth": 5,
    }  # fmt: skip
    seek = "/channel/seek?topic=moved&channel=c&to=15"
    assert app.post(seek + "&dry_run=true").json() == {**answer, "dry_run": True}
    assert channel_of(app, "moved")["depth"] == 20
    assert app.post(seek).json() == {**answer, "dry_run": False}
    assert channel_of(app, "moved")["depth"] == 5
    assert app.post("/channel/seek?topic=moved&channel=c&to=earliest").json()["redeliver"] == 15
    assert channel_of(app, "moved")["depth"] == 20
    assert app.post("/channel/seek?topic=moved&channel=c&to=latest").json()["depth"] == 0
    assert channel_of(app, "moved")["depth"] == 0


@pytest.mark.parametrize(("start", "to"), [("earliest", 0), ("latest", 20), ("7", 7), ("-1h", 0), ("0s", 0)])
def test_a_channel_begins_at_the_given_start(app: HttpApp, start: str, to: int) -> None:
    topic = "begin" + start
    publish(app, topic, *[b"%d" % number for number in range(20)])
    for channel in ("first", "second"):
        target = f"/channel/create?topic={topic}&channel={channel}&start={start}"
        made = {"topic": topic, "channel": channel, "to": to, "depth": 20 - to, "created": True}
        assert app.post(target).json() == made
        stats = channel_of(app, topic, channel)
        assert stats["depth"] == 20 - to
        assert app.post(target).json() == {"topic": topic, "channel": channel, "created": False}
    assert app.post(f"/channel/create?topic={topic}&channel=third").status == 200
    assert channel_of(app, topic, "third")["depth"] == 0
