"""Pages about the life of messages, on a database of traces."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from pyqd.admin.access.roles import UserRole
from pyqd.admin.access.users import add_user
from pyqd.admin.pages.stories import LIMIT
from pyqd.trace.database import Database
from tests.admin.conftest import Admin, Answer, World
from tests.admin.test_access import basic
from tests.admin.test_service import refused
from tests.support.databases import Mariadb, Postgresql, program_of_mariadb, programs_of_postgresql, running
from tests.support.needs import skip_outside_ci
from tests.support.server import WAIT_S, wait_until
from tests.support.trace_log import AT_US, TraceLog

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

ADA = basic("ada", "correct horse")
OTTO = basic("otto", "battery staple")


@dataclass
class Viewer:
    """A user of a web admin. headers: with the password."""

    admin: Admin
    headers: dict[str, str]

    def ask(self, method: str, target: str) -> Answer:
        return self.admin.ask(method, target, headers=self.headers)


ID = "0000000000000001"
KINDS = ("sqlite", "postgresql", "mariadb")


@pytest.fixture(scope="module", params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of an empty database of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('trace')}/trace.db"
        return
    kind, program = {
        "postgresql": (Postgresql, programs_of_postgresql()),
        "mariadb": (Mariadb, program_of_mariadb()),
    }[request.param]
    if program is None:
        skip_outside_ci(f"no server of {request.param} here: `make env` installs it for root")
    with running(kind) as server:
        yield server.new_database("traces")


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stories") / "users"
    add_user(path, "ada", "correct horse", UserRole.VIEW, ("*",))
    add_user(path, "otto", "battery staple", UserRole.VIEW, ("held*",))
    return path


def fill(url: str) -> None:
    """Write the lives of two messages, and of many of another topic that are newer."""
    log = TraceLog()
    log.add("published", 1, client="10.0.0.1:9", size=7, body=b"<hello>", due_ns=1000 * (AT_US + 90))
    log.add("stored", 1, channel="email")
    log.add("sent", 1, channel="email", client="10.0.0.2:5", attempt=1)
    log.add("requeued", 1, channel="email", client="10.0.0.2:5", attempt=1, delay_ms=500)
    log.add("sent", 1, channel="email", client="10.0.0.3:5", attempt=2)
    log.add("finished", 1, channel="email", client="10.0.0.3:5", attempt=2)
    log.add("published", 2, topic="held", size=7, at_us=time.time_ns() // 1000)
    for guid in range(10, 10 + LIMIT):
        log.add("published", guid, topic="noise", size=7, at_us=time.time_ns() // 1000)
    database = Database(url)
    database.upgrade()
    node = database.node("log", "broker:4151")
    database.write(node, log.decoded(node.position))
    database.close()


@pytest.fixture(scope="module")
def closed(url: str, users: Path, world: World, start_admin: Callable[..., Admin]) -> Admin:
    """A web admin over a database, which needs a login."""
    fill(url)
    world.publish("held", {0: 0})
    flags = (f"--lookupd-http-address={world.lookupd}", f"--trace-database={url}", f"--users-file={users}")
    started = start_admin("pyqadmin", *flags)
    wait_until(lambda: b">held<" in started.ask("GET", "/topics?q=held", headers=ADA).body, "the first poll", 40)
    return started


@pytest.fixture(scope="module")
def traced(closed: Admin) -> Viewer:
    return Viewer(closed, ADA)


def test_the_story_of_a_message_is_a_timeline(traced: Viewer) -> None:
    answer = traced.ask("GET", f"/messages/{ID}")
    page = answer.body.decode()
    assert answer.status == 200
    order = [
        page.index(f"<strong>{event}</strong>") for event in ("published", "stored", "sent", "requeued", "finished")
    ]
    assert order == sorted(order)
    for text in ("10.0.0.3:5", "2 attempts", "for 500 ms", "&lt;hello&gt;"):
        assert text in page


def test_an_id_leads_to_its_story_and_other_text_is_told(traced: Viewer) -> None:
    answer = traced.ask("GET", f"/messages?id={ID}")
    assert (answer.status, answer.headers["location"]) == (303, f"/messages/{ID}")
    assert b"is no id of a message" in traced.ask("GET", "/messages?id=12").body
    assert b"is no id of a message" not in traced.ask("GET", "/messages").body


def test_an_unknown_message_is_said_to_be_unknown(traced: Viewer) -> None:
    answer = traced.ask("GET", f"/messages/{'f' * 16}")
    assert (answer.status, b"does not know this message" in answer.body) == (404, True)


def test_a_search_finds_messages_by_topic_channel_state_and_time(traced: Viewer) -> None:
    end = (datetime.fromtimestamp(AT_US / 1e6, timezone.utc) + timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%M:%S")
    target = f"/messages?topic=orders&channel=email&within=10%20min&until={end}"
    for state, is_found in (("finished", True), ("requeued", False)):
        answer = traced.ask("GET", f"{target}&state={state}")
        assert (answer.status, ID.encode() in answer.body) == (200, is_found)
    earlier = target.replace(end, "2020-01-01T00:00:00")
    assert ID.encode() not in traced.ask("GET", earlier).body
    assert b"Traceback" not in traced.admin.log.read_bytes()


@pytest.mark.parametrize("until", ["0001-01-01T00:00", "0001-01-01T00:00%2B23:00", "9999-12-31T23:59-23:00"])
def test_a_time_at_the_ends_of_the_calendar_is_no_error(traced: Viewer, until: str) -> None:
    assert traced.ask("GET", f"/messages?topic=orders&within=7%20d&until={until}").status == 200


@pytest.mark.parametrize("target", ["/messages?topic=%00", "/messages/%00", "/messages?channel=%ff%F0%9F%98%80"])
def test_text_that_no_name_has_finds_nothing(traced: Viewer, target: str) -> None:
    assert traced.ask("GET", target).status in (200, 404)


def test_a_user_of_some_topics_finds_their_messages_among_newer_ones(closed: Admin) -> None:
    page = closed.ask("GET", "/messages", headers=OTTO).body.decode()
    assert ("0000000000000002" in page, "noise" in page) == (True, False)
    assert closed.ask("GET", f"/messages/{ID}", headers=OTTO).status == 404


def test_a_read_that_takes_long_keeps_no_other_request_waiting(
    world: World, start_admin: Callable[..., Admin], tmp_path: Path
) -> None:
    path = tmp_path / "trace.db"
    fill(f"sqlite:///{path}")
    admin = start_admin("pyqadmin", f"--lookupd-http-address={world.lookupd}", f"--trace-database=sqlite:///{path}")
    before = threads_of(admin)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as holder:
        # Readers wait in C until this connection is closed.
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")
        answers: list[Answer] = []
        reader = threading.Thread(target=lambda: answers.append(admin.ask("GET", f"/messages/{'e' * 16}")))
        reader.start()
        wait_until(lambda: threads_of(admin) > before, "the read has begun")
        assert admin.ask("GET", "/ping").body == b"OK"
        assert answers == []
    reader.join(WAIT_S)
    assert [answer.status for answer in answers] == [404]


def threads_of(admin: Admin) -> int:
    assert admin.process is not None
    return len(list(Path(f"/proc/{admin.process.pid}/task").iterdir()))


def test_a_message_without_a_channel_is_found(traced: Viewer) -> None:
    page = traced.ask("GET", "/messages?topic=held").body.decode()
    assert ("0000000000000002" in page, '<span class="tag">waiting</span>' in page) == (True, True)
    assert "0000000000000002" not in traced.ask("GET", "/messages?topic=held&state=finished").body.decode()


def test_a_wrong_database_is_named_at_the_start(world: World, tmp_path: Path) -> None:
    said = refused("--nsqd-http-address=127.0.0.1:4151", "--trace-database=oracle://x")
    assert "failed to open --trace-database" in said
