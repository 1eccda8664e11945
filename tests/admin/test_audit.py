"""Lines of changes in the log: each tells place, arguments and failures."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from flask.testing import FlaskClient

from pyqd.admin.app import new_app
from pyqd.admin.cluster import Cluster
from pyqd.admin.notifications import audit_logger
from pyqd.admin.options import AdminOptions
from pyqd.admin.site import Site
from pyqd.admin.upstream import Upstream, UpstreamError
from pyqd.client.http import Reply

TOKEN = "t" * 32
NODES = ("a:4151", "b:4151")
PRODUCERS = [{"hostname": node[0], "broadcast_address": node[0], "http_port": 4151, "tcp_port": 1} for node in NODES]


@dataclass
class Fleet:
    """Two brokers with one lookup daemon, all in memory. refusals: calls that fail, as `address path`."""

    client: FlaskClient
    refusals: set[str] = field(default_factory=set)
    answer_of: Callable[[str], bytes] = lambda _path: b"{}"
    posts: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def get(self, address: str, path: str, _query: Any = None) -> Any:
        self.refuse(address, path)
        return {"producers": PRODUCERS} if path in ("/nodes", "/lookup") else {}

    def post(self, address: str, path: str, _query: Any = None, _body: bytes | None = None) -> bytes:
        self.posts.append(f"{address} {path}")
        self.refuse(address, path)
        return self.answer_of(path)

    def refuse(self, address: str, path: str) -> None:
        if self.refusals & {f"{address} {path}", f"* {path}"}:
            raise UpstreamError(f"{address}: {path}: Connection refused")

    def form(self, path: str, **fields: Any) -> list[str]:
        """Send a confirmed form. Returns: the lines about it in the log."""
        self.lines.clear()
        answer = self.client.post(path, data={"csrf": TOKEN, "confirmed": "yes", **fields})
        assert answer.status_code in (302, 303, 502), answer.get_data(as_text=True)
        return list(self.lines)

    def api(self, method: str, path: str, value: Any = None) -> list[str]:
        """Send a request of the API. Returns: the lines about it in the log."""
        self.lines.clear()
        self.client.open(path, method=method, json=value)
        return list(self.lines)

    def flashed(self) -> list[str]:
        """Return the texts that the next page shows."""
        with self.client.session_transaction() as session:
            return [text for _kind, text in session.pop("_flashes", [])]


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    site = Site(AdminOptions(lookupd_http_address=("l:1",)))
    client = new_app(site).test_client()
    with client.session_transaction() as session:
        session["csrf"] = TOKEN
    found = Fleet(client)
    monkeypatch.setattr(Upstream, "get", lambda _self, *args: found.get(*args))
    monkeypatch.setattr(Upstream, "post", lambda _self, *args: found.post(*args))
    handler = logging.Handler()
    handler.emit = lambda record: found.lines.append(record.getMessage().partition(" by ")[0])  # type: ignore[method-assign]
    audit_logger.addHandler(handler)
    yield found
    audit_logger.removeHandler(handler)
    site.close()


Change = Callable[[Fleet], list[str]]


@pytest.mark.parametrize(
    "send",
    [
        lambda fleet: fleet.api("DELETE", "/api/nodes/a:4151", {"topic": "t"}),
        lambda fleet: fleet.form("/do/tombstone", topic="t", node="a:4151"),
    ],
)
def test_a_tombstone_is_logged_if_its_broker_does_not_answer(fleet: Fleet, send: Change) -> None:
    fleet.refusals = {"a:4151 /info"}
    assert send(fleet) == ["tombstone_topic_producer topic=t node=a:4151 failed"]
    assert fleet.posts == ["l:1 /topic/tombstone"]


@pytest.mark.parametrize(
    "send",
    [
        lambda fleet: fleet.api("POST", "/api/topics", {"topic": "t", "channel": "c"}),
        lambda fleet: fleet.form("/do/create", topic="t", channel="c"),
    ],
)
def test_a_channel_is_logged_if_no_lookup_daemon_names_its_brokers(fleet: Fleet, send: Change) -> None:
    fleet.refusals = {"l:1 /lookup"}
    assert send(fleet) == ["create_channel topic=t channel=c failed"]
    assert fleet.posts == ["l:1 /topic/create", "l:1 /channel/create"]


@pytest.mark.parametrize(
    ("path", "send", "line"),
    [
        ("/topic/pause", lambda fleet: fleet.api("POST", "/api/topics/t", {"action": "pause"}), "pause_topic topic=t"),
        ("/topic/delete", lambda fleet: fleet.api("DELETE", "/api/topics/t"), "delete_topic topic=t"),
        ("/channel/delete", lambda fleet: fleet.api("DELETE", "/api/topics/t/c"), "delete_channel topic=t channel=c"),
        ("/topic/pause", lambda fleet: fleet.form("/do/pause", topic="t"), "pause_topic topic=t"),
        ("/topic/delete", lambda fleet: fleet.form("/do/delete", topic="t"), "delete_topic topic=t"),
        (
            "/channel/limits",
            lambda fleet: fleet.form("/topics/t/c/limits", rate="5"),
            "limit_channel topic=t channel=c rate=5",
        ),
        (
            "/topic/quota",
            lambda fleet: fleet.form("/topics/t/-/settings", change="quota", bytes="1 KiB"),
            "set_quota topic=t bytes=1024",
        ),
    ],
)
def test_a_change_that_every_broker_refuses_is_logged_as_failed(
    fleet: Fleet, path: str, send: Change, line: str
) -> None:
    assert send(fleet) == [line]
    fleet.refusals = {f"{node} {path}" for node in NODES}
    assert send(fleet) == [f"{line} failed=2"]


def test_a_seek_is_logged_with_its_target_for_each_broker(fleet: Fleet) -> None:
    fleet.refusals = {"b:4151 /channel/seek"}
    place = "seek_channel topic=t channel=c"
    assert fleet.form("/topics/t/c/seek", to="@5 x", node=list(NODES)) == [
        f"{place} node=a:4151 to=%405+x",
        f"{place} node=b:4151 to=%405+x failed=1",
    ]
    assert fleet.flashed() == ["b:4151: /channel/seek: Connection refused", "Done."]
    assert fleet.form("/topics/t/c/seek", to="5", node="c:4151") == []


def test_a_change_of_messages_is_logged_with_its_arguments(fleet: Fleet) -> None:
    fleet.answer_of = lambda _path: b'{"results": [{"status": "done"}]}'
    fields = {"node": NODES[0], "state": "ready", "change": "reschedule", "seconds": "3600", "id": "a" * 16}
    place = "reschedule_messages topic=t channel=c node=a:4151"
    assert fleet.form("/topics/t/c/messages", **fields) == [f"{place} state=ready&defer=3600000&done=1"]


def test_messages_that_changed_before_an_error_are_counted(fleet: Fleet) -> None:
    answers = iter([b'{"results": [{"status": "done"}]}', b"{}"])
    fleet.answer_of = lambda _path: next(answers)
    fields = {"node": NODES[0], "state": "ready", "change": "cancel", "id": ["a" * 16, "b" * 16]}
    place = "cancel_messages topic=t channel=c node=a:4151"
    assert fleet.form("/topics/t/c/messages", **fields) == [f"{place} state=ready&done=1 failed=1"]
    error, counts = fleet.flashed()
    assert error.startswith("a:4151: /message/cancel: not the answer of a pyqd")
    assert counts == "done: 1"


def test_a_published_message_is_logged_with_its_size_and_delay(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Upstream, "send", lambda *_: Reply(200, {}, b"OK"))
    place = "publish topic=t node=a:4151"
    assert fleet.form("/topics/t/-/publish", node=NODES[0], body="ab", delay="2") == [f"{place} defer=2000&bytes=2"]
    assert fleet.form("/topics/t/-/publish", node=NODES[0], body="a\nb", lines="1") == [f"{place} bytes=3&lines=2"]


def test_many_long_errors_fit_into_the_cookie_and_are_all_in_the_log(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    errors = [f"{number}: {random.randbytes(400).hex()}" for number in range(100)]
    monkeypatch.setattr(Cluster, "post_to", lambda *_: errors)
    fleet.form("/do/pause", topic="t")
    cookie = fleet.client.get_cookie("pyqadmin")
    assert cookie is not None
    assert len(cookie.value) < 4000
    shown = fleet.flashed()
    assert (len(shown), {len(text) for text in shown[:-1]}) == (11, {300})
    assert shown[-1] == "and 90 more; the log has all"
    assert [record.getMessage() for record in caplog.records if record.name == "pyqd.admin.pages.forms"] == errors
