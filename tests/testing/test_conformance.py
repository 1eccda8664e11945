"""Consuming from pyqd.testing.MemoryBroker and from a real daemon: one cannot drift from the other.

test_publishing_conformance.py has the scenarios of publishing.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pyqd.client import (
    AnsweredError,
    ClosedError,
    Message,
    Requeue,
    RetryPolicy,
    SettingError,
)
from tests.testing.world import LONG_S, SHORT_S, TIMEOUT_S, World, bodies, finish


def test_each_channel_gets_each_message(world: World, topic: str) -> None:
    email, audit = world.consumer(topic, "email"), world.consumer(topic, "audit")
    world.producer().publish(topic, b"one")
    for consumer in (email, audit):
        (message,) = world.receive(consumer, 1)
        assert (message.body, message.attempts, message.topic) == (b"one", 1, topic)
        message.finish()
    world.settle(topic, "audit", depth=0, in_flight_count=0, deferred_count=0)


def test_consumers_of_one_channel_share_its_messages(world: World, topic: str) -> None:
    first, second = world.consumer(topic, "email"), world.consumer(topic, "email")
    world.producer().publish_many(topic, [b"one", b"two"])
    taken = world.receive(first, 1) + world.receive(second, 1)
    assert sorted(bodies(taken)) == [b"one", b"two"]


def test_messages_wait_for_the_first_channel(world: World, topic: str) -> None:
    world.producer().publish_many(topic, [b"one", b"two"])
    world.settle(topic, depth=2)
    consumer = world.consumer(topic, "email", max_in_flight=5)
    assert bodies(world.receive(consumer, 2)) == [b"one", b"two"]
    world.settle(topic, depth=0)
    late = world.consumer(topic, "late")
    world.producer().publish(topic, b"three")
    assert bodies(world.receive(late, 1)) == [b"three"]


def test_a_requeued_message_comes_again(world: World, topic: str) -> None:
    consumer = world.consumer(topic, "email")
    message_id = world.producer().publish(topic, b"one")
    (first,) = world.receive(consumer, 1)
    first.requeue(0)
    (second,) = world.receive(consumer, 1)
    assert (second.id, second.attempts, second.timestamp_ns) == (message_id, 2, first.timestamp_ns)
    second.requeue(LONG_S)
    world.settle(topic, "email", deferred_count=1, in_flight_count=0, requeue_count=2)


def test_a_delay_that_is_none_leaves_the_message_unanswered(world: World, topic: str) -> None:
    consumer = world.consumer(topic, "email")
    world.producer().publish(topic, b"one")
    (message,) = world.receive(consumer, 1)
    wrong: Any
    for wrong in ("5", float("nan"), float("inf"), [1]):
        with pytest.raises(SettingError, match="delay="):
            message.requeue(wrong)
        with pytest.raises(SettingError, match="delay="):
            Requeue(wrong)
    assert not message.is_answered
    # A computed delay may be a little late.
    message.requeue(-0.5)
    assert world.receive(consumer, 1)[0].attempts == 2


def test_messages_requeued_with_a_delay_come_when_it_is_over(world: World, topic: str) -> None:
    consumer = world.consumer(topic, "email")
    world.producer().publish(topic, b"one")
    world.receive(consumer, 1)[0].requeue(timedelta(seconds=SHORT_S))
    world.advance(SHORT_S)
    assert world.receive(consumer, 1)[0].attempts == 2


def test_new_and_requeued_messages_alternate(world: World, topic: str) -> None:
    consumer = world.consumer(topic, "email")
    world.producer().publish_many(topic, [b"a", b"b", b"c", b"d"])
    seen = []
    for _ in range(7):
        (message,) = world.receive(consumer, 1)
        seen.append(message.body)
        if message.body in (b"a", b"b") and message.attempts < 3:
            message.requeue(0)
        else:
            message.finish()
    assert seen == [b"a", b"a", b"b", b"a", b"c", b"b", b"d"]


def test_a_block_finishes_or_requeues_its_message(world: World, topic: str) -> None:
    consumer = world.consumer(topic, "email", retry=RetryPolicy(delay=LONG_S))
    world.producer().publish_many(topic, [b"good", b"bad", b"asks"])
    with world.receive(consumer, 1)[0]:
        pass
    (message,) = world.receive(consumer, 1)
    with pytest.raises(RuntimeError, match="no luck"), message:
        raise RuntimeError("no luck")
    (message,) = world.receive(consumer, 1)
    with message:
        raise Requeue(LONG_S)
    world.settle(topic, "email", depth=0, in_flight_count=0, deferred_count=2)
    assert message.is_answered


def test_a_message_is_answered_once(world: World, topic: str) -> None:
    consumer = world.consumer(topic, "email")
    world.producer().publish(topic, b"one")
    (message,) = world.receive(consumer, 1)
    before = message.is_answered
    message.touch()
    message.finish()
    assert (before, message.is_answered) == (False, True)
    for answer in (message.finish, message.requeue, message.touch):
        with pytest.raises(AnsweredError):
            answer()


def test_a_batch_is_finished_together(world: World, topic: str) -> None:
    consumer = world.consumer(topic, "email", max_in_flight=3)
    world.producer().publish_many(topic, [b"one", b"two", b"three"])
    messages = world.receive(consumer, 3)
    messages[1].finish()
    with pytest.raises(AnsweredError, match="1 of the messages"):
        consumer.finish_many(messages)
    world.settle(topic, "email", depth=0, in_flight_count=0)
    assert consumer.stats()["finished"] == 3


def test_max_in_flight_limits_unanswered_messages(world: World, topic: str) -> None:
    consumer = world.consumer(topic, "email", max_in_flight=2)
    world.producer().publish_many(topic, [b"1", b"2", b"3", b"4", b"5"])
    first, second = world.receive(consumer, 2)
    world.settle(topic, "email", in_flight_count=2, depth=3)
    first.finish()
    (third,) = world.receive(consumer, 1)
    assert third.body == b"3"
    world.settle(topic, "email", in_flight_count=2, depth=2)
    consumer.max_in_flight = 4
    assert consumer.max_in_flight == 4
    finish([second, third, *world.receive(consumer, 2)])


def test_a_failed_message_goes_to_the_dead_letter_topic(world: World, topic: str) -> None:
    dead = f"{topic}.dead"[-60:]
    retry = RetryPolicy(max_attempts=3, delay=0, dead_letter_topic=dead)
    consumer = world.consumer(topic, "email", retry=retry)
    attempts = []

    def handle(message: Message) -> None:
        attempts.append(message.attempts)
        if message.body == b"poison":
            raise RuntimeError("no luck")

    consumer.handler()(handle)
    world.producer().publish_many(topic, [b"poison", b"food"])
    world.run(consumer)
    world.eventually(lambda: consumer.stats()["dead_letters"] == 1, "the message has gone to the dead-letter topic")
    world.settle(topic, "email", depth=0, in_flight_count=0, deferred_count=0)
    assert world.published(dead) == [b"poison"]
    assert sorted(attempts) == [1, 1, 2, 3]
    assert consumer.stats()["finished"] == 2
    assert consumer.stats()["requeued"] == 2


def test_a_message_with_too_many_attempts_is_a_dead_letter_unseen(world: World, topic: str) -> None:
    dead = f"{topic}.dead"[-60:]
    careless = world.consumer(topic, "email")
    world.producer().publish(topic, b"poison")
    for _ in range(2):
        world.receive(careless, 1)[0].requeue(0)
    world.receive(careless, 1)[0].requeue(SHORT_S)
    careless.close()
    careful = world.consumer(topic, "email", retry=RetryPolicy(max_attempts=2, dead_letter_topic=dead))
    careful.handler()(lambda message: None)
    world.advance(SHORT_S)
    world.run(careful)
    world.eventually(lambda: careful.stats()["dead_letters"] == 1, "the message has gone to the dead-letter topic")
    assert world.published(dead) == [b"poison"]


def test_an_unanswered_message_times_out(world: World, topic: str) -> None:
    consumer = world.consumer(topic, "email", auto_touch=False, msg_timeout=TIMEOUT_S)
    message_id = world.producer().publish(topic, b"one")
    (first,) = world.receive(consumer, 1)
    world.advance(TIMEOUT_S)
    (second,) = world.receive(consumer, 1)
    assert (first.id, second.id, second.attempts) == (message_id, message_id, 2)
    second.finish()


def test_both_answers_of_a_message_that_came_twice_are_taken(world: World, topic: str) -> None:
    consumer = world.consumer(topic, "email", auto_touch=False, msg_timeout=TIMEOUT_S)
    world.producer().publish(topic, b"one")
    (first,) = world.receive(consumer, 1)
    world.advance(TIMEOUT_S)
    (second,) = world.receive(consumer, 1)
    first.finish()
    second.finish()
    world.settle(topic, "email", depth=0, in_flight_count=0)
    world.eventually(lambda: consumer.stats()["answered_late"] == 1, "the second answer is late")


def test_the_messages_of_a_closed_consumer_come_again(world: World, topic: str) -> None:
    closed = world.consumer(topic, "email", msg_timeout=TIMEOUT_S)
    world.producer().publish(topic, b"one")
    (message,) = world.receive(closed, 1)
    closed.close()
    message.finish()
    with pytest.raises(AnsweredError):
        message.finish()
    assert closed.stats()["answered_late"] == 1
    with pytest.raises(ClosedError):
        closed.fetch()
    with pytest.raises(ClosedError):
        list(closed)
    other = world.consumer(topic, "email")
    world.advance(TIMEOUT_S)
    assert world.receive(other, 1)[0].attempts == 2


def test_a_drained_consumer_has_answered_everything(world: World, topic: str) -> None:
    consumer = world.consumer(topic, "email")
    world.producer().publish(topic, b"one")
    (message,) = world.receive(consumer, 1)
    message.finish()
    assert consumer.drain() is True
    world.settle(topic, "email", depth=0, in_flight_count=0)


def test_a_consumer_can_pause(world: World, topic: str) -> None:
    consumer = world.consumer(topic, "email")
    consumer.pause()
    world.settle_ready(topic, "email", 0)
    world.producer().publish(topic, b"one")
    world.settle(topic, "email", depth=1, in_flight_count=0)
    consumer.resume()
    assert bodies(world.receive(consumer, 1)) == [b"one"]


def test_a_paused_topic_holds_its_messages(world: World, topic: str) -> None:
    consumer = world.consumer(topic, "email")
    world.pause(topic)
    world.producer().publish(topic, b"one")
    world.settle(topic, depth=1)
    world.settle(topic, "email", depth=0, in_flight_count=0)
    world.unpause(topic)
    assert bodies(world.receive(consumer, 1)) == [b"one"]


def test_a_paused_channel_delivers_nothing(world: World, topic: str) -> None:
    consumer, other = world.consumer(topic, "email"), world.consumer(topic, "audit")
    world.pause(topic, "email")
    world.producer().publish(topic, b"one")
    assert bodies(world.receive(other, 1)) == [b"one"]
    world.settle(topic, "email", depth=1, in_flight_count=0)
    world.unpause(topic, "email")
    assert bodies(world.receive(consumer, 1)) == [b"one"]


def test_an_ephemeral_channel_ends_with_its_last_consumer(world: World, topic: str) -> None:
    world.create_channel(topic, "kept")
    first, second = world.consumer(topic, "email#ephemeral"), world.consumer(topic, "email#ephemeral")
    first.close()
    assert world.exists(topic, "email#ephemeral")
    second.close()
    world.eventually(lambda: not world.exists(topic, "email#ephemeral"), "the channel is gone")
    assert world.exists(topic, "kept")


def test_an_ephemeral_topic_ends_with_its_last_channel(world: World, topic: str) -> None:
    topic += "#ephemeral"
    consumer = world.consumer(topic, "email#ephemeral")
    world.producer().publish(topic, b"one")
    finish(world.receive(consumer, 1))
    consumer.close()
    world.eventually(lambda: not world.exists(topic), "the topic is gone")


@pytest.mark.parametrize("options", [{"max_in_flight": 0}, {"channel": "no channel!"}, {"topic": "no topic!"}])
def test_a_wrong_consumer_raises_the_same_error(world: World, options: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        world.consumer(**{"topic": "wrong", "channel": "email", **options})


def test_handlers_are_registered_in_the_same_way(world: World, topic: str) -> None:
    consumer = world.consumer(topic, "email")
    with pytest.raises(SettingError, match="no handler"):
        consumer.start()
    with pytest.raises(SettingError, match="expected a number from 1"):
        consumer.handler(concurrency=0)
    with pytest.raises(SettingError, match="expected a number from 1"):
        consumer.fetch(0)
    consumer.handler(concurrency=3)(lambda message: None)
    assert consumer.max_in_flight == 3
    with pytest.raises(SettingError, match="has a handler already"):
        consumer.handler()(lambda message: None)


def test_statistics_have_the_same_keys(world: World, topic: str) -> None:
    assert set(world.consumer(topic, "email").stats()) == {
        *("received", "finished", "requeued", "dead_letters", "answered_late"),
        *("in_flight", "ready", "backoff_level", "brokers"),
    }
    keys = {"published", "failed", "retried", "pending", "pending_bytes", "brokers"}
    assert set(world.producer().stats()) == keys
