"""Tests of pyqd.hot.broker.channel with a rate limit: when it wants to be woken next."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyqd.broker import message_lookup, peek
from pyqd.broker.channel_settings import NO_LIMITS, ChannelSettings
from pyqd.primitives.durations import SECOND_NS
from tests.support.held_clock import HeldClock
from tests.support.invariants import check_topic
from tests.support.storage import body_of, broker_on, consumer_on, publish
from tests.support.structures import take_tokens

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
    channel.set_limits(ChannelSettings(rate=RATE, burst=5))
    publish(topic, 10)
    for _ in range(ready_count):
        # The consumer's message in flight fills its RDY; its time-out is the next event.
        channel.take_message(consumer)
    expected = clock.mono_ns + 50 * SECOND_NS if ready_count else None
    for _ in range(3):
        channel.limit_attempts(0)
        assert next_look_ns(topic, clock) == expected
        clock.advance(1)


def test_a_channel_without_a_token_looks_again_when_one_has_come(topic: Any, clock: HeldClock) -> None:
    channel = topic.channel("c")
    consumer_on(channel)
    channel.set_limits(ChannelSettings(rate=RATE, burst=1))
    take_tokens(channel.rate_limit, 1, clock.mono_ns)
    publish(topic, 10)
    assert next_look_ns(topic, clock) == clock.mono_ns + TOKEN_NS
    clock.advance(TOKEN_NS // 4)
    channel.limit_attempts(0)
    assert next_look_ns(topic, clock) == clock.mono_ns + TOKEN_NS * 3 // 4


def test_a_token_that_comes_within_a_turn_is_waited_for_too(
    topic: Any, clock: HeldClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    publish(topic, 10)
    message = channel.take_message(consumer)
    channel.set_limits(ChannelSettings(rate=RATE, burst=1, max_attempts=1, dead_letter_topic="none"))
    channel.requeue_message(consumer, message[0], 0)
    take_tokens(channel.rate_limit, 1, clock.mono_ns)

    def looked_up() -> None:
        # The turn has begun without a token; its dead letter is looked at before it ends.
        clock.advance(TOKEN_NS)

    monkeypatch.setattr(channel.dead_letters.target, "find", looked_up)
    assert channel.rate_limit.remaining(clock.mono_ns) < 1
    look_ns = next_look_ns(topic, clock)
    assert channel.rate_limit.remaining(clock.mono_ns) == 1
    assert look_ns is not None
    assert look_ns <= clock.mono_ns + TOKEN_NS


MANY = 5000


def many_returned(topic: Any, clock: HeldClock) -> Any:
    """Have the messages of the channel delivered once and given back."""
    channel = topic.channel("c")
    publish(topic, MANY)
    consumer = consumer_on(channel)
    for guid in [channel.take_message(consumer)[0] for _ in range(MANY)]:
        channel.requeue_message(consumer, guid, 0)
    return channel


def small_turns(topic: Any) -> None:
    """Run turns until nothing is wanted."""
    while topic.scheduler.run_wakes():
        check_topic(topic)


def test_waiting_messages_are_sorted_by_a_new_limit_over_several_runs(topic: Any, clock: HeldClock) -> None:
    channel = many_returned(topic, clock)
    channel.set_limits(ChannelSettings(max_attempts=1, dead_letter_topic="dead"))
    assert (0 < channel.dead_letters_pending < MANY, channel.depth) == (True, MANY)
    small_turns(topic)
    assert (channel.dead_letters_pending, channel.depth) == (MANY, MANY)


@pytest.mark.parametrize("between", [0, 1])
def test_a_limit_that_changes_before_all_is_sorted_counts_for_all(topic: Any, clock: HeldClock, between: int) -> None:
    channel = many_returned(topic, clock)
    for _ in range(3):
        channel.set_limits(ChannelSettings(max_attempts=1, dead_letter_topic="dead"))
        for _ in range(between):
            topic.scheduler.run_wakes()
        channel.set_limits(NO_LIMITS)
    small_turns(topic)
    assert (channel.dead_letters_pending, channel.depth) == (0, MANY)
    consumer = consumer_on(channel)
    bodies = {channel.take_message(consumer)[3] for _ in range(MANY)}
    assert bodies == {body_of(number) for number in range(MANY)}
    assert channel.take_message(consumer) is None


def test_a_channel_emptied_before_all_is_sorted_has_nothing(topic: Any, clock: HeldClock) -> None:
    channel = many_returned(topic, clock)
    channel.set_limits(ChannelSettings(max_attempts=1, dead_letter_topic="dead"))
    channel.empty()
    publish(topic, 3)
    small_turns(topic)
    assert (channel.dead_letters_pending, channel.depth) == (0, 3)


def test_messages_cancelled_or_returned_during_sorting_are_sorted_too(topic: Any, clock: HeldClock) -> None:
    channel = many_returned(topic, clock)
    publish(topic, 10)
    consumer = consumer_on(channel)
    held = [channel.take_message(consumer)[0] for _ in range(10)]
    channel.set_limits(ChannelSettings(max_attempts=1, dead_letter_topic="dead"))
    for guid in held:
        channel.requeue_message(consumer, guid, 0)
    [outcome] = message_lookup.change_message(topic, [channel], first_id(channel), message_lookup.cancel, lambda: None)
    assert outcome.status == message_lookup.DONE
    small_turns(topic)
    # Every second one that was taken was a fresh one.
    assert (channel.dead_letters_pending, channel.depth) == (MANY + 5 - 1, MANY + 10 - 1)


def first_id(channel: Any) -> int:
    """Return the id of a message that waits for redelivery."""
    page = peek.page_of_channel(channel.topic, channel, peek.READY, peek.Cursor(), 1, 0, lambda: None)
    guid: int = page.rows[0].guid
    return guid


def test_a_topic_deleted_before_all_is_sorted_is_gone(topic: Any, clock: HeldClock) -> None:
    channel = many_returned(topic, clock)
    channel.set_limits(ChannelSettings(max_attempts=1, dead_letter_topic="dead"))
    channel.close_consumers()
    topic.broker.delete_topic("t")
    while topic.scheduler.run_wakes():
        pass
    assert (channel.dead_letters_pending, channel.depth) == (0, 0)
