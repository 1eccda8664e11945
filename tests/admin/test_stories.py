"""Pages about the life of messages, on a database of traces."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pyqd.trace.database import Database
from tests.admin.conftest import Admin, World
from tests.admin.test_service import refused
from tests.support.trace_log import AT_US, TraceLog

ID = "0000000000000001"


@pytest.fixture(scope="module")
def traced(world: World, start_admin: Callable[..., Admin], tmp_path_factory: pytest.TempPathFactory) -> Admin:
    """A web admin over a database with the life of one message."""
    url = f"sqlite:///{tmp_path_factory.mktemp('trace')}/trace.db"
    log = TraceLog()
    log.add("published", 1, client="10.0.0.1:9", size=7, body=b"<hello>", due_ns=1000 * (AT_US + 90))
    log.add("stored", 1, channel="email")
    log.add("sent", 1, channel="email", client="10.0.0.2:5", attempt=1)
    log.add("requeued", 1, channel="email", client="10.0.0.2:5", attempt=1, delay_ms=500)
    log.add("sent", 1, channel="email", client="10.0.0.3:5", attempt=2)
    log.add("finished", 1, channel="email", client="10.0.0.3:5", attempt=2)
    log.add("published", 2, topic="held", size=7, at_us=time.time_ns() // 1000)
    database = Database(url)
    database.upgrade()
    node = database.node("log", "broker:4151")
    database.write(node, log.decoded(node.position))
    database.close()
    return start_admin("pyqadmin", f"--lookupd-http-address={world.lookupd}", f"--trace-database={url}")


def test_the_story_of_a_message_is_a_timeline(traced: Admin) -> None:
    answer = traced.ask("GET", f"/messages/{ID}")
    page = answer.body.decode()
    assert answer.status == 200
    order = [
        page.index(f"<strong>{event}</strong>") for event in ("published", "stored", "sent", "requeued", "finished")
    ]
    assert order == sorted(order)
    for text in ("10.0.0.3:5", "2 attempts", "for 500 ms", "&lt;hello&gt;"):
        assert text in page


def test_an_id_leads_to_its_story(traced: Admin) -> None:
    answer = traced.ask("GET", f"/messages?id={ID}")
    assert (answer.status, answer.headers["location"]) == (303, f"/messages/{ID}")


def test_an_unknown_message_is_said_to_be_unknown(traced: Admin) -> None:
    answer = traced.ask("GET", f"/messages/{'f' * 16}")
    assert (answer.status, b"does not know this message" in answer.body) == (404, True)


def test_messages_are_searched(traced: Admin) -> None:
    answer = traced.ask("GET", "/messages?topic=orders&channel=email&state=finished&within=1%20h")
    assert answer.status == 200
    assert b"Traceback" not in traced.log.read_bytes()


def test_a_message_without_a_channel_is_found(traced: Admin) -> None:
    page = traced.ask("GET", "/messages?topic=held").body.decode()
    assert ("0000000000000002" in page, '<span class="tag">waiting</span>' in page) == (True, True)
    assert "0000000000000002" not in traced.ask("GET", "/messages?topic=held&state=finished").body.decode()


def test_a_wrong_database_is_named_at_the_start(world: World, tmp_path: Path) -> None:
    said = refused("--nsqd-http-address=127.0.0.1:4151", "--trace-database=oracle://x")
    assert "failed to open --trace-database" in said
