"""Single messages of both faces' producers: cancel() and reschedule(), over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import pyqd.client
from pyqd.client import NotConnectedError, NotFoundError, SettingError, aio
from tests.support.server import Daemon, daemons_running, free_port
from tests.support.server import pyqd as pyqd_program
from tests.support.workers import url_of

HOUR = timedelta(hours=1)
Face = Callable[..., Any]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[Daemon]]:
    with daemons_running() as start:
        yield [start(Daemon(pyqd_program(), tmp_path / str(number))) for number in range(2)]


def blocking(url: str, name: str, *args: object, **options: object) -> Any:
    """Call a method of a blocking producer."""
    with pyqd.client.Producer(url) as producer:
        return getattr(producer, name)(*args, **options)


def in_loop(url: str, name: str, *args: object, **options: object) -> Any:
    """Call a method of an asyncio producer."""

    async def call() -> Any:
        async with aio.Producer(url) as producer:
            return await getattr(producer, name)(*args, **options)

    return asyncio.run(call())


faces = pytest.mark.parametrize("face", [blocking, in_loop], ids=["blocking", "asyncio"])


def due_times(daemon: Daemon, topic: str) -> list[datetime]:
    """Return the due times of the deferred messages that a topic or its channel holds."""
    shown = daemon.http("GET", "/channel/messages", topic=topic, channel="all", state="deferred").json()
    return [datetime.fromtimestamp(message["due"] / 1e9, timezone.utc) for message in shown["messages"]]


@pytest.mark.slow
@faces
def test_a_message_is_cancelled_at_the_broker_that_has_it(face: Face, pair: list[Daemon]) -> None:
    for daemon in pair:
        daemon.http("POST", "/topic/create", topic="reminders")
        daemon.http("POST", "/channel/create", topic="reminders", channel="all")
    for daemon in pair:
        message_id = face(url_of(daemon), "publish", "reminders", b"pay", delay=HOUR)
        (result,) = face(url_of(*pair), "cancel", "reminders", message_id)
        assert (result.channel, result.status, result.was) == ("all", "done", "deferred")
        assert due_times(daemon, "reminders") == []


@pytest.mark.slow
@faces
def test_a_message_is_rescheduled_by_a_delay_or_to_a_due_time(face: Face, pair: list[Daemon]) -> None:
    daemon = pair[0]
    daemon.http("POST", "/topic/create", topic="reminders")
    daemon.http("POST", "/channel/create", topic="reminders", channel="all")
    url = url_of(daemon)
    message_id = face(url, "publish", "reminders", b"pay", delay=HOUR)
    at = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(minutes=5)
    for given in ({"at": at}, {"at": at.timestamp()}):
        (result,) = face(url, "reschedule", "reminders", message_id, **given)
        assert result.status == "done"
        assert due_times(daemon, "reminders") == [at]
    for delay in (timedelta(minutes=10), 600.0):
        face(url, "reschedule", "reminders", message_id, delay=delay)
        (due,) = due_times(daemon, "reminders")
        assert due > at


@pytest.mark.slow
@faces
def test_a_message_that_no_broker_has_is_an_error(face: Face, pair: list[Daemon]) -> None:
    with pytest.raises(NotFoundError):
        face(url_of(*pair), "cancel", "reminders", "0123456789abcdef")


@pytest.mark.slow
@faces
def test_a_broker_that_does_not_answer_may_have_the_message(face: Face, pair: list[Daemon]) -> None:
    silent = free_port()
    url = f"pyqd://127.0.0.1?http=127.0.0.1:{pair[0].http_port},127.0.0.1:{silent}"
    with pytest.raises(NotConnectedError, match=f"127.0.0.1:{silent}"):
        face(url, "cancel", "reminders", "0123456789abcdef")


@faces
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"delay": 1, "at": 1},
        {"delay": -1},
    ],
    ids=["nothing", "both", "negative"],
)
def test_a_wrong_time_is_refused_before_a_request(face: Face, given: dict[str, object]) -> None:
    with pytest.raises(SettingError):
        face("127.0.0.1:1", "reschedule", "reminders", "0123456789abcdef", **given)


@faces
@pytest.mark.parametrize("name", ["cancel", "reschedule"])
def test_the_missing_id_of_a_message_of_nsqd_is_named(face: Face, name: str) -> None:
    options = {"delay": 1} if name == "reschedule" else {}
    with pytest.raises(SettingError, match=r"message_id=None: .* nsqd gives none"):
        face("127.0.0.1:1", name, "reminders", None, **options)
