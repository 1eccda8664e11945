"""Tests of pyqd.hot.limited: when a channel with a rate looks again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyqd.broker.channel_limits import ChannelLimits
from pyqd.primitives.durations import SECOND_NS
from tests.support.held_clock import HeldClock
from tests.support.storage import body_of, broker_on, consumer_on

RATE = 10
TOKEN_NS = SECOND_NS // RATE


@pytest.fixture
def clock() -> Iterator[HeldClock]:
    with HeldClock() as held:
        yield held


@pytest.fixture
def topic(tmp_path: Path) -> Any:
    topic = broker_on(tmp_path).topic("t")
    topic.channel("c")
    return topic


def publish(topic: Any, count: int, clock: HeldClock) -> None:
    for number in range(count):
        topic.publish_body(body_of(number), clock.wall_ns)


def next_look_ns(topic: Any, clock: HeldClock) -> int | None:
    """Run the turns that are wanted. Returns: when the scheduler wants to be called next; None: never."""
    topic.scheduler.run_wakes()
    look_ns: int | None = topic.scheduler.run_timers(clock.mono_ns)
    return look_ns


@pytest.mark.parametrize("ready_count", [0, 1])
def test_a_channel_whose_consumers_take_no_more_does_not_look_again(
    topic: Any, clock: HeldClock, ready_count: int
) -> None:
    channel = topic.channel("c")
    consumer = consumer_on(channel, msg_timeout_ns=50 * SECOND_NS)
    channel.set_limits(ChannelLimits(rate=RATE, burst=5))
    publish(topic, 10, clock)
    for _ in range(ready_count):
        # What a consumer has in flight fills its RDY; its time-out is the next thing that happens.
        channel.take_message(consumer)
    expected = clock.mono_ns + 50 * SECOND_NS if ready_count else None
    for _ in range(3):
        channel.limit_attempts(0)
        assert next_look_ns(topic, clock) == expected
        clock.advance(1)


def test_a_channel_without_a_token_looks_again_when_one_has_come(topic: Any, clock: HeldClock) -> None:
    channel = topic.channel("c")
    consumer_on(channel)
    channel.set_limits(ChannelLimits(rate=RATE, burst=1))
    channel.bucket.take(1, clock.mono_ns)
    publish(topic, 10, clock)
    assert next_look_ns(topic, clock) == clock.mono_ns + TOKEN_NS
    clock.advance(TOKEN_NS // 4)
    channel.limit_attempts(0)
    assert next_look_ns(topic, clock) == clock.mono_ns + TOKEN_NS * 3 // 4


def test_a_token_that_comes_within_a_turn_is_waited_for_too(
    topic: Any, clock: HeldClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    publish(topic, 10, clock)
    message = channel.take_message(consumer)
    channel.set_limits(ChannelLimits(rate=RATE, burst=1, max_attempts=1, dead_letter_topic="none"))
    channel.requeue_message(consumer, message[0], 0)
    channel.bucket.take(1, clock.mono_ns)

    def looked_up(_channel: Any) -> None:
        # The turn has begun without a token; its dead letter is looked at before it ends.
        clock.advance(TOKEN_NS)

    monkeypatch.setattr(type(channel), "dead_letter_topic", looked_up)
    assert channel.bucket.left(clock.mono_ns) < 1
    look_ns = next_look_ns(topic, clock)
    assert channel.bucket.left(clock.mono_ns) == 1
    assert look_ns is not None
    assert look_ns <= clock.mono_ns + TOKEN_NS
