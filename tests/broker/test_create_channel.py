"""Creation of a channel at a place of the log that fails half way."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyqd.api.topics import TopicRoutes
from pyqd.broker import replay
from pyqd.broker.channel import Channel
from pyqd.http.messages import Response
from pyqd.http.reader import RequestReader
from pyqd.http.router import Router
from pyqd.primitives.errors import StorageError
from tests.support.storage import broker_on, consumer_on, publish

TARGET = b"POST /channel/create?topic=t&channel=late&start=earliest HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"


@pytest.fixture
def topic(tmp_path: Path) -> Any:
    """A topic with retained messages, which no channel of it needs any more."""
    topic = broker_on(tmp_path, retention_bytes=1 << 30).topic("t")
    topic.channel("early")
    publish(topic, 3)
    topic.channel("early").empty()
    return topic


def create(topic: Any) -> Response:
    routes = TopicRoutes(topic.broker)
    reader = RequestReader(Router(routes.routes()))
    reader.feed(memoryview(TARGET))
    (request,) = reader.ready
    assert request.match.route is not None
    return request.match.route.handler(request)


def fail_once(monkeypatch: pytest.MonkeyPatch, before: Callable[[Channel], object]) -> None:
    """Let the next seek find a failing disk. before: called with the channel when the seek begins."""
    prepared_reset = Channel.prepared_reset

    def fail(channel: Channel, *_args: Any) -> Any:
        monkeypatch.setattr(Channel, "prepared_reset", prepared_reset)
        before(channel)
        raise StorageError("write", "ledger", errno.EIO, "Input/output error")

    monkeypatch.setattr(Channel, "prepared_reset", fail)


def test_a_channel_whose_place_cannot_be_reached_is_not_left_at_the_end(
    topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_once(monkeypatch, before=repr)
    with pytest.raises(StorageError, match="Input/output error"):
        create(topic)
    assert list(topic.channels_by_name) == ["early"]
    assert b'"created":true' in create(topic).body
    assert topic.channels_by_name["late"].depth == 3


def test_a_place_that_is_trimmed_after_the_channel_was_made_leaves_no_channel(
    topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    find, calls = replay.find, []

    def trimmed(*args: Any) -> int:
        calls.append(args)
        if len(calls) == 2:
            raise replay.PositionGone(3)
        return find(*args)

    monkeypatch.setattr(replay, "find", trimmed)
    assert create(topic).status == 410
    assert list(topic.channels_by_name) == ["early"]


def test_a_channel_that_has_a_consumer_stays_although_its_place_cannot_be_reached(
    topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_once(monkeypatch, before=consumer_on)
    with pytest.raises(StorageError):
        create(topic)
    assert "late" in topic.channels_by_name


def test_the_only_channel_keeps_the_messages_of_its_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = broker_on(tmp_path).topic("t")
    publish(topic, 3)
    fail_once(monkeypatch, before=repr)
    with pytest.raises(StorageError):
        create(topic)
    assert topic.channels_by_name["late"].depth == 3
