"""Traced messages of a running daemon: their events over the wire, through kills, and the routes that show them."""

from __future__ import annotations

import http.client
import threading
import time
from typing import Any

import pytest

from pyqd.hot.wire import trace_events
from tests.support.nsq import Client
from tests.support.server import Daemon
from tests.support.tracing import rows_of

TRACED = pytest.mark.flags("--trace-topic=t*", "--trace-body-bytes=4", "--msg-timeout=1s")
WAIT_S = 10.0
KILLS = 4


def page_of(daemon: Daemon, position: int, **query: str) -> tuple[bytes, int]:
    reply = daemon.http("GET", "/trace/log", None, position=str(position), **query)
    assert (reply.status, reply.headers["x-pyqd-format"]) == (200, "2")
    return reply.body, int(reply.headers["x-pyqd-next"])


def events_of(daemon: Daemon, position: int = 0) -> list[Any]:
    """Return all events from a position on, up to now."""
    rows: list[Any] = []
    expected = position
    while True:
        data, position = page_of(daemon, position)
        if not data:
            return rows
        decoded = trace_events.decode(data, expected)
        rows += rows_of(decoded)
        expected = decoded.following


def kinds_until(daemon: Daemon, kind: str) -> list[str]:
    """Return the kinds of all events, once there is one of that kind."""
    deadline_s = time.monotonic() + WAIT_S
    position = 0
    rows: list[Any] = []
    while not any(row.kind == kind for row in rows):
        assert time.monotonic() < deadline_s, [row.kind for row in rows]
        data, position = page_of(daemon, position, wait_ms="1000")
        rows += rows_of(trace_events.decode(data, 0))
    return [row.kind for row in rows]


@TRACED
def test_the_life_of_messages_over_the_wire(daemon):
    daemon.http("POST", "/topic/create", topic="t")
    daemon.http("POST", "/channel/create", topic="t", channel="c")
    with Client(daemon.tcp_address) as client:
        client.identify(user_agent="here/1.0")
        client.pub("t", b"hello")
        client.pub("untraced", b"hello")
        client.sub("t", "c", rdy_count=1)
        message = client.read_message()
        client.touch(message)
        client.req(message, 0)
        client.fin(client.read_message())
        address = client.local_address
    rows = events_of(daemon)
    assert [(row.kind, row.attempt) for row in rows] == [
        ("published", None),
        ("stored", None),
        ("sent", 1),
        ("touched", 1),
        ("requeued", 1),
        ("sent", 2),
        ("finished", 2),
    ]
    assert {row.message_id for row in rows} == {message.id.decode()}
    assert {(row.client, row.user_agent) for row in rows if row.kind != "stored"} == {(address, "here/1.0")}
    assert (rows[0].body, rows[0].size_bytes) == (b"hell", 5)
    times = [row.timestamp_ns for row in rows]
    assert max(times) - min(times) < 60 * 10**9


@TRACED
def test_batches_deferred_messages_and_publishes_over_http(daemon):
    daemon.http("POST", "/topic/create", topic="t")
    with Client(daemon.tcp_address) as client:
        client.mpub("t", [b"a", b"b"])
        client.dpub("t", 60_000, b"c")
        address = client.local_address
    reply = daemon.http("POST", "/pub", b"d", topic="t")
    many = daemon.http("POST", "/mpub", b"e\nf", topic="t")
    later = daemon.http("POST", "/pub", b"g", topic="t", defer="60000")
    rows = events_of(daemon)
    assert [(row.kind, row.body) for row in rows] == [("published", bytes([97 + number])) for number in range(7)]
    assert [row.due_ns is not None for row in rows] == [False, False, True, False, False, False, True]
    assert {row.client for row in rows[:3]} == {address}
    assert all(row.client.startswith("127.0.0.1:") for row in rows[3:])
    assert [rows[index].message_id for index in (3, 4, 6)] == [
        each.headers["x-nsq-message-id"] for each in (reply, many, later)
    ]


@TRACED
def test_a_publisher_over_http_is_named_whatever_the_form_of_its_request(daemon):
    daemon.http("POST", "/topic/create", topic="t")
    connection = http.client.HTTPConnection("127.0.0.1", daemon.http_port, timeout=WAIT_S)
    plain = {"User-Agent": "first/1.0"}
    for target, headers in (
        ("/pub?topic=t", plain),
        ("/pub?topic=t", plain),
        ("/pub?topic=t", {"user-agent": "second/1.0"}),
        ("/pub?topic=t", {"Accept-Encoding": "identity"}),
        ("/mpub?topic=t", plain),
        # These are parsed by the routes.
        ("/pub?topic=t", {**plain, "X-Other": "1"}),
        ("/pub?topic=t&defer=60000", plain),
    ):
        connection.request("POST", target, b"x", headers)
        assert connection.getresponse().read() == b"OK"
    address = f"127.0.0.1:{connection.sock.getsockname()[1]}"
    connection.close()
    rows = events_of(daemon)
    agents = ["first/1.0", "first/1.0", "second/1.0", None, "first/1.0", "first/1.0", "first/1.0"]
    assert [(row.kind, row.client, row.user_agent) for row in rows] == [
        ("published", address, agent) for agent in agents
    ]


@TRACED
def test_a_large_batch_names_its_publisher(daemon):
    with Client(daemon.tcp_address) as client:
        client.identify(user_agent="large/1.0")
        client.mpub("t", [b"x" * 1000] * 2000)
    rows = events_of(daemon)
    assert [row.kind for row in rows] == ["published"] * 2000
    assert {row.user_agent for row in rows} == {"large/1.0"}


@TRACED
def test_a_client_that_is_gone_and_the_timeout(daemon):
    with Client(daemon.tcp_address) as client:
        client.pub("t", b"x")
        client.sub("t", "c", rdy_count=1)
        client.read_message()
    kinds = kinds_until(daemon, "timed_out")
    assert kinds == ["published", "stored", "sent", "client_gone", "timed_out"]


@TRACED
def test_acts_of_an_operator(daemon):
    daemon.http("POST", "/topic/create", topic="t")
    daemon.http("POST", "/channel/create", topic="t", channel="c")
    ids = [daemon.http("POST", "/pub", b"x", topic="t", defer="60000").headers["x-nsq-message-id"] for _ in range(4)]
    for route, message_id, query in (
        ("cancel", ids[0], {}),
        ("reschedule", ids[1], {"defer": "30000"}),
        ("deliver_now", ids[2], {}),
    ):
        assert daemon.http("POST", f"/message/{route}", topic="t", channel="c", id=message_id, **query).status == 200
    daemon.http("POST", "/channel/empty", topic="t", channel="c")
    daemon.http("POST", "/pub", b"y", topic="t")
    daemon.http("POST", "/channel/delete", topic="t", channel="c")
    daemon.http("POST", "/pub", b"z", topic="t")
    daemon.http("POST", "/topic/delete", topic="t")
    rows = events_of(daemon)[8:]
    assert [(row.kind, row.reason, row.count) for row in rows] == [
        ("cancelled", None, None),
        ("rescheduled", None, None),
        ("delivered_now", None, None),
        ("dropped", "emptied", 3),
        ("published", None, None),
        ("stored", None, None),
        ("dropped", "channel_deleted", 1),
        ("published", None, None),
        ("dropped", "topic_deleted", 1),
    ]
    assert [row.message_id for row in rows[:3]] == ids[:3]


@TRACED
def test_a_dead_letter_is_traced_in_its_own_topic_before_it_leaves_the_channel(daemon):
    daemon.http("POST", "/topic/create", topic="t")
    daemon.http("POST", "/channel/create", topic="t", channel="c")
    daemon.http("POST", "/channel/limits", topic="t", channel="c", max_attempts="1", dead_letter_topic="t_dead")
    with Client(daemon.tcp_address) as client:
        client.pub("t", b"x")
        client.sub("t", "c", rdy_count=1)
        client.req(client.read_message(), 0)
        kinds = kinds_until(daemon, "dead_lettered")
    assert kinds == ["published", "stored", "sent", "requeued", "published", "dead_lettered"]


@TRACED
def test_a_waiting_reader_gets_events_as_they_come(daemon):
    found: list[Any] = []

    def read() -> None:
        data, _ = page_of(daemon, 0, wait_ms="60000")
        found.extend(rows_of(trace_events.decode(data, 0)))

    reader = threading.Thread(target=read)
    reader.start()
    with Client(daemon.tcp_address) as client:
        client.mpub("t", [b"a", b"b", b"c"])
    reader.join(WAIT_S)
    assert [row.kind for row in found] == ["published"] * 3


@TRACED
def test_a_reader_that_waits_in_vain_gets_nothing(daemon):
    data, position = page_of(daemon, 0, wait_ms="1")
    assert (data, position) == (b"", int(daemon.http("GET", "/trace/log").headers["x-pyqd-end"]))


def test_a_daemon_that_traces_nothing_has_no_events(daemon):
    assert page_of(daemon, 17) == (b"", 17)
    assert "trace" not in daemon.http("GET", "/stats", format="json").json()
    assert b"pyqd_trace_events_total 0.0" in daemon.http("GET", "/metrics").body


@TRACED
def test_counters_are_in_stats_and_metrics(daemon):
    daemon.http("POST", "/pub", b"x", topic="t")
    stats = daemon.http("GET", "/stats", format="json").json()["trace"]
    assert (stats["events"], stats["lost"], stats["overwritten"]) == (1, 0, 0)
    assert stats["next"] - stats["oldest"] == 1
    metrics = daemon.http("GET", "/metrics").body.decode().splitlines()
    assert {"pyqd_trace_events_total 1.0", "pyqd_trace_kept_events 1.0"} <= set(metrics)


def test_a_topic_is_traced_by_request_and_after_restarts(daemon):
    daemon.http("POST", "/topic/create", topic="orders")
    off = {"topic": "orders", "traced": False, "rate": 0, "body_bytes": 0, "own": False}
    on = {"topic": "orders", "traced": True, "rate": 0.5, "body_bytes": 7, "own": True}
    assert daemon.http("GET", "/topic/trace", topic="orders").json() == off
    assert daemon.http("POST", "/topic/trace", topic="orders", rate="0.5", body_bytes="7").json() == on
    daemon.kill_and_start()
    assert daemon.http("GET", "/topic/trace", topic="orders").json() == on
    daemon.restart()
    assert daemon.http("GET", "/topic/trace", topic="orders").json() == on
    assert daemon.http("POST", "/topic/trace", topic="orders", rate="default").json() == off


def test_flags_change_while_the_daemon_runs(daemon):
    daemon.http("POST", "/topic/create", topic="orders")
    assert daemon.http("PUT", "/config/trace_topics", b'["ord*"]').json() == ["ord*"]
    assert daemon.http("PUT", "/config/trace_rate", b"0.25").json() == 0.25
    assert daemon.http("GET", "/topic/trace", topic="orders").json()["rate"] == 0.25
    assert daemon.http("PUT", "/config/trace_rate", b"2").status == 400
    assert daemon.http("PUT", "/config/trace_body_bytes", b"100000").status == 400
    assert daemon.http("PUT", "/config/trace_topics", b"null").status == 200
    assert not daemon.http("GET", "/topic/trace", topic="orders").json()["traced"]


@pytest.mark.parametrize(
    ("method", "path", "query", "answer"),
    [
        ("GET", "/trace/log", {"position": "x"}, (400, "INVALID_POSITION")),
        ("GET", "/trace/log", {"position": str(2**63)}, (400, "INVALID_POSITION")),
        ("GET", "/trace/log", {"max_bytes": "0"}, (400, "INVALID_MAX_BYTES")),
        ("GET", "/trace/log", {"wait_ms": "-1"}, (400, "INVALID_WAIT_MS")),
        ("GET", "/topic/trace", {}, (400, "MISSING_ARG_TOPIC")),
        ("GET", "/topic/trace", {"topic": "none"}, (404, "TOPIC_NOT_FOUND")),
        ("POST", "/topic/trace", {"topic": "t"}, (400, "MISSING_ARG_RATE")),
        ("POST", "/topic/trace", {"topic": "t", "rate": "1.5"}, (400, "INVALID_RATE")),
        ("POST", "/topic/trace", {"topic": "t", "rate": "nan"}, (400, "INVALID_RATE")),
        ("POST", "/topic/trace", {"topic": "t", "rate": "0_1"}, (400, "INVALID_RATE")),
        ("POST", "/topic/trace", {"topic": "t", "rate": " .5"}, (400, "INVALID_RATE")),
        ("POST", "/topic/trace", {"topic": "t", "rate": "\u0660"}, (400, "INVALID_RATE")),
        ("POST", "/topic/trace", {"topic": "t", "rate": "1e-10"}, (400, "INVALID_RATE")),
        ("POST", "/topic/trace", {"topic": "t", "rate": "1", "body_bytes": "9000"}, (400, "INVALID_BODY_BYTES")),
    ],
)
def test_bad_requests_are_refused(daemon, method, path, query, answer):
    daemon.http("POST", "/topic/create", topic="t")
    reply = daemon.http(method, path, **query)
    assert (reply.status, reply.json()["message"]) == answer


@TRACED
def test_a_clean_stop_disconnects_clients_with_messages_in_flight(daemon):
    daemon.http("POST", "/topic/create", topic="t1")
    daemon.http("POST", "/channel/create", topic="t1", channel="email")
    daemon.http("POST", "/pub", b"hello", topic="t1")
    with Client(daemon.tcp_address) as client:
        client.sub("t1", "email", rdy_count=1)
        client.read_message()
        daemon.stop()
    daemon.start()
    rows = events_of(daemon)
    assert [row.kind for row in rows] == ["published", "stored", "sent", "client_gone"]
    assert (rows[3].client, rows[3].attempt) == (rows[2].client, 1)


@TRACED
def test_kills_under_load_lose_no_event(daemon):
    """Each message with an OK is published once in the trace, and each delivery that a client saw is there."""
    accepted = 0
    delivered: set[tuple[str, int]] = set()
    daemon.http("POST", "/topic/create", topic="t")
    daemon.http("POST", "/channel/create", topic="t", channel="c")
    for _ in range(KILLS):
        killer = threading.Timer(0.3, daemon.kill)
        killer.start()
        accepted += publish_and_consume(daemon, delivered)
        killer.join()
        daemon.start()
    rows = events_of(daemon)
    assert [row.position for row in rows] == list(range(rows[0].position, rows[0].position + len(rows)))
    published = [row.message_id for row in rows if row.kind == "published"]
    assert len(published) == len(set(published)) >= accepted > 0
    assert {(row.message_id, row.attempt) for row in rows if row.kind == "sent"} >= delivered
    assert {row.message_id for row in rows if row.kind == "sent"} <= set(published)
    assert daemon.topics()["t"]["message_count"] == len(published)


def publish_and_consume(daemon: Daemon, delivered: set[tuple[str, int]]) -> int:
    """Publish and finish until the daemon is killed. Returns: the number of messages with an OK."""
    accepted = 0
    try:
        with Client(daemon.tcp_address) as producer, Client(daemon.tcp_address) as consumer:
            consumer.sub("t", "c", rdy_count=50)
            while True:
                producer.mpub("t", [b"x" * 50] * 10)
                accepted += 10
                for message in consumer.read_messages(10):
                    delivered.add((message.id.decode(), message.attempts))
                    consumer.fin(message)
    except Exception:
        return accepted
