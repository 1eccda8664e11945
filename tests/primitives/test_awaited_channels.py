"""A topic that awaits channels holds its messages; then each channel gets all of them."""

from pathlib import Path
from typing import Any

import pytest

from pyqd.hot.primitives.clock import wall
from pyqd.primitives.durations import HOUR_NS
from tests.support.invariants import check_topic
from tests.support.storage import body_of, broker_on, finish_all, frames_of, publish, run_all_wakes


@pytest.fixture
def topic(tmp_path: Path) -> Any:
    topic = broker_on(tmp_path).topic("t")
    topic.await_channels(True)
    return topic


def numbers(channel: Any) -> list[int]:
    check_topic(channel.topic)
    found = finish_all(channel)
    check_topic(channel.topic)
    return found


def test_all_channels_that_are_created_meanwhile_get_all_messages(topic: Any) -> None:
    publish(topic, 3)
    first = topic.channel("first")
    publish(topic, 3, start=3)
    second = topic.channel("second")
    topic.publish_frames(frames_of([body_of(number) for number in range(6, 9)]), wall())
    assert (topic.depth, first.depth, second.depth) == (9, 0, 0)
    topic.await_channels(False)
    assert (topic.depth, first.depth, second.depth) == (0, 9, 9)
    publish(topic, 1, start=9)
    assert numbers(first) == numbers(second) == list(range(10))


def test_without_channels_the_topic_goes_on_to_hold(topic: Any) -> None:
    publish(topic, 3)
    topic.await_channels(False)
    assert topic.depth == 3
    assert numbers(topic.channel("c")) == [0, 1, 2]


def test_a_channel_that_is_deleted_meanwhile_takes_nothing_away(topic: Any) -> None:
    topic.channel("gone")
    publish(topic, 3)
    topic.delete_channel("gone")
    publish(topic, 3, start=3)
    topic.await_channels(False)
    assert topic.depth == 6
    assert numbers(topic.channel("c")) == list(range(6))


@pytest.mark.parametrize("unpaused_first", [True, False])
def test_a_topic_that_is_paused_meanwhile_waits_for_both(topic: Any, unpaused_first: bool) -> None:
    channel = topic.channel("c")
    publish(topic, 3)
    topic.pause(True)
    publish(topic, 3, start=3)
    steps = [lambda: topic.pause(False), lambda: topic.await_channels(False)]
    for step in steps if unpaused_first else reversed(steps):
        assert channel.depth == 0
        step()
    assert numbers(channel) == list(range(6))


def test_deferred_messages_are_deferred_in_every_channel(topic: Any) -> None:
    first = topic.channel("first")
    publish(topic, 2, due_ns=wall() + HOUR_NS)
    second = topic.channel("second")
    publish(topic, 1, start=2)
    topic.await_channels(False)
    run_all_wakes(topic.broker)
    for channel in (first, second):
        assert channel.deferred_count == 2
        assert numbers(channel) == [2]


def test_an_emptied_topic_hands_on_what_comes_later(topic: Any) -> None:
    channel = topic.channel("c")
    publish(topic, 3)
    topic.empty()
    publish(topic, 2, start=3)
    topic.await_channels(False)
    assert numbers(channel) == [3, 4]


@pytest.mark.parametrize("closed", [True, False])
def test_after_a_restart_the_channels_that_exist_get_the_messages(topic: Any, tmp_path: Path, closed: bool) -> None:
    topic.channel("c")
    publish(topic, 3)
    if closed:
        topic.broker.close()
    found = broker_on(tmp_path).topic("t")
    assert not found.awaits_channels
    assert numbers(found.channel("c")) == [0, 1, 2]


def test_an_ephemeral_topic_keeps_as_many_messages_as_without_a_channel(tmp_path: Path) -> None:
    topic = broker_on(tmp_path, mem_queue_size=3).topic("t#ephemeral")
    topic.await_channels(True)
    channel = topic.channel("c")
    publish(topic, 5)
    topic.await_channels(False)
    assert numbers(channel) == [0, 1, 2]
