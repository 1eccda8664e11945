"""Odd answers of a broker: they are a failure of that broker, and no internal error of any page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from pyqd.admin.app import new_app
from pyqd.admin.options import AdminOptions
from pyqd.admin.shapes import parse_answer
from pyqd.admin.site import Site
from tests.support.http_stub import Answer, HttpStub, http_stub, json_answer

CHANNEL = {
    "channel_name": "c",
    "depth": 1,
    "backend_depth": 0,
    "in_flight_count": 0,
    "deferred_count": 0,
    "message_count": 1,
    "requeue_count": 0,
    "timeout_count": 0,
    "client_count": 0,
    "clients": [],
    "paused": False,
}
STATS = {
    "version": "1.3.0",
    "topics": [
        {"topic_name": "t", "depth": 0, "backend_depth": 0, "message_count": 1, "paused": False, "channels": [CHANNEL]}
    ],
    "producers": [{"remote_address": "127.0.0.1:1", "pub_counts": [{"topic": "t", "count": 1}]}],
}
# Answers by path; a broker's are these, all but one of them.
GOOD: dict[str, Any] = {
    "/info": {"version": "1.3.0"},
    "/stats": STATS,
    "/durability": {"health": "OK", "damage": {"count": 0, "records_lost": 0}, "last_sync": 1, "unsynced_bytes": 0},
    "/channel/limits": {
        "rate": None,
        "burst": None,
        "max_attempts": None,
        "dead_letter_count": 0,
        "dead_letters_waiting": 0,
        "waiting_for": None,
        "dead_letter_topic": "d",
    },
    "/topic/retention": {"bytes": 0, "time": "0s", "own_bytes": None, "own_time": None},
    "/topic/quota": {"bytes": 0, "used": 0, "own_bytes": None, "refused": ""},
    "/topic/trace": {"traced": False, "rate": 0, "body_bytes": 0, "own": False},
    "/channel/messages": {"messages": [], "next": None},
    "/channel/seek": dict.fromkeys(("from", "to", "redeliver", "finished", "skip", "in_flight", "depth"), 1),
}
ROW = {"id": "0" * 16, "state": "ready", "timestamp": 1, "attempts": 0, "size": 1, "body": "eA=="}
ODD_VALUES: tuple[Any, ...] = (None, "x", -1, 1 << 70, 1e400, [], [1], {}, {"a": 1}, [{"topic": 1}], [{}], True)
PAGES = (
    "/",
    "/topics",
    "/connections",
    "/durability",
    "/health",
    "/topics/t",
    "/topics/t/c",
    "/nodes",
    "/counter",
    "/topics/t/-/settings",
    "/topics/t/c/limits",
    "/topics/t/c/messages",
    "/topics/t/c/messages?state=in_flight",
    "/topics/t/c/dead-letters",
    "/topics/t/c/seek?to=earliest",
    "/topics/t/c/consumers",
)


class OddBroker:
    """A broker whose answers a test changes."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}

    def answer(self, path: str, _query: dict[str, str]) -> Answer:
        found = {**GOOD, **self.answers}.get(path)
        return (404, {}, b'{"message":"NOT_FOUND"}') if path not in GOOD else json_answer(found)


@pytest.fixture
def odd() -> Iterator[tuple[OddBroker, HttpStub]]:
    broker = OddBroker()
    with http_stub(broker.answer) as stub:
        yield broker, stub


def changed(path: str) -> Iterator[Any]:
    """Yield answers of a path that are odd in one place."""
    yield from ODD_VALUES
    for name in GOOD[path]:
        for value in ODD_VALUES:
            yield {**GOOD[path], name: value}
        yield {other: value for other, value in GOOD[path].items() if other != name}
    if path == "/channel/messages":
        for name in (*ROW, "client", "due", "deadline"):
            for value in ODD_VALUES:
                yield {"messages": [{**ROW, name: value}], "next": None}
    if path == "/durability":
        for name in ("damaged_topics", "refusing_topics", "disk_free_bytes", "sync_every", "last_stop"):
            for value in ODD_VALUES:
                yield {**GOOD[path], name: value}
        for name in ("topic", "count", "records_lost", "bytes"):
            for value in ODD_VALUES:
                row = {"topic": "t", "count": 1, "records_lost": 1, "bytes": 1, name: value}
                yield {**GOOD[path], "damaged_topics": [row]}


PATHS_OF = {
    "/durability": ("/", "/durability", "/health"),
    "/channel/limits": ("/topics/t/c/limits", "/topics/t/c/dead-letters"),
    "/topic/retention": ("/topics/t/-/settings",),
    "/topic/quota": ("/topics/t/-/settings",),
    "/topic/trace": ("/topics/t/-/settings",),
    "/channel/messages": ("/topics/t/c/messages", "/topics/t/c/dead-letters"),
    "/channel/seek": ("/topics/t/c/seek?to=earliest",),
    "/stats": PAGES,
    "/info": ("/nodes", "/topics/t"),
}


@pytest.mark.parametrize("path", PATHS_OF)
def test_no_page_fails_for_an_odd_answer(odd: tuple[OddBroker, HttpStub], path: str) -> None:
    broker, stub = odd
    with http_stub(OddBroker().answer) as good:
        site = Site(AdminOptions(nsqd_http_address=(good.address, stub.address)))
        client = new_app(site).test_client()
        for page in PATHS_OF[path]:
            assert client.get(page).status_code == 200, page
        for answer in changed(path):
            broker.answers = {path: answer}
            if path in ("/durability", "/stats"):
                site.poller.poll()
            for page in PATHS_OF[path]:
                found = client.get(page)
                assert found.status_code in (200, 404, 502), (page, answer)
                # The other broker's part of the page stands.
                if page in ("/durability", "/topics/t/-/settings"):
                    assert (found.status_code, good.address in found.text) == (200, True), (page, answer)
        site.close()


@pytest.mark.parametrize("text", ["1" * 30, "-" + "1" * 30, "NaN", "Infinity", "1e400", "18446744073709551616"])
def test_numbers_that_cannot_be_counted_with_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="number"):
        parse_answer(text.encode())
    assert parse_answer(b"[18446744073709551615, -9223372036854775808]") == [2**64 - 1, -(2**63)]
    assert json.loads("1e3") == parse_answer(b"1e3")
