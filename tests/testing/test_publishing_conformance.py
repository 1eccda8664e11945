"""Publishing to pyqd.testing.MemoryBroker and to a real daemon: one cannot drift from the other."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from pyqd.client import (
    ClosedError,
    InvalidNameError,
    Outgoing,
    RefusedError,
    SettingError,
    TooBigError,
)
from pyqd.client.codecs import JsonCodec
from pyqd.client.errors import NotFoundError
from tests.testing.world import LONG_S, SHORT_S, World, bodies, finish


def test_messages_come_in_the_order_of_publishing(world: World, topic: str) -> None:
    consumer, producer = world.consumer(topic, "email", max_in_flight=100), world.producer()
    for number in range(10):
        producer.publish(topic, b"%d" % number)
    producer.publish_many(topic, [b"%d" % number for number in range(10, 20)])
    assert bodies(world.receive(consumer, 20)) == [b"%d" % number for number in range(20)]


def test_ids_are_those_of_the_producer(world: World, topic: str) -> None:
    consumer, producer = world.consumer(topic, "email", max_in_flight=5), world.producer()
    ids = [producer.publish(topic, b"0"), *producer.publish_many(topic, [b"1", b"2"])]
    ids.append(producer.submit(topic, b"3").result(10))
    assert [message.id for message in world.receive(consumer, 4)] == ids
    assert ids == sorted(set(ids))
    assert all(re.fullmatch("[0-9a-f]{16}", each) for each in ids)
    assert producer.flush() is True


def test_a_deferred_message_waits(world: World, topic: str) -> None:
    consumer, producer = world.consumer(topic, "email"), world.producer()
    producer.publish(topic, b"later", delay=LONG_S)
    producer.publish(topic, b"much later", at=time.time() + 2 * LONG_S)
    producer.publish(topic, b"at once", delay=timedelta(0))
    world.settle(topic, "email", deferred_count=2)
    assert bodies(world.receive(consumer, 1)) == [b"at once"]


def test_a_deferred_message_comes(world: World, topic: str) -> None:
    consumer, producer = world.consumer(topic, "email", max_in_flight=5), world.producer()
    producer.publish_many(
        topic,
        [
            Outgoing(b"fourth", delay=3 * SHORT_S),
            Outgoing(b"third", delay=timedelta(seconds=2 * SHORT_S)),
            Outgoing(b"second", delay=SHORT_S),
            b"first",
        ],
    )
    assert bodies(world.receive(consumer, 1)) == [b"first"]
    received = []
    for _ in range(3):
        world.advance(SHORT_S)
        received += world.receive(consumer, 1)
    assert bodies(received) == [b"second", b"third", b"fourth"]
    assert {message.attempts for message in received} == {1}


def test_a_due_time_that_has_passed_means_now(world: World, topic: str) -> None:
    consumer, producer = world.consumer(topic, "email", max_in_flight=5), world.producer()
    producer.publish(topic, b"one", at=datetime(2020, 1, 1, tzinfo=timezone.utc))
    producer.publish(topic, b"two", at=1_600_000_000)
    assert bodies(world.receive(consumer, 2)) == [b"one", b"two"]


def test_a_deleted_topic_has_no_messages(world: World, topic: str) -> None:
    world.producer().publish(topic, b"one")
    assert world.published(topic) == [b"one"]
    world.delete_topic(topic)
    assert not world.exists(topic)
    assert world.published(topic) == []


def test_published_messages_are_read_without_consuming_them(world: World, topic: str) -> None:
    consumer, producer = world.consumer(topic, "email"), world.producer()
    ids = producer.publish_many(topic, [b"one", b"two"])
    later = producer.publish(topic, b"later", delay=LONG_S)
    finish(world.receive(consumer, 1))
    published = world.published_messages(topic)
    assert [message.id for message in published] == [*ids, later]
    assert world.published(topic) == [b"one", b"two", b"later"]
    assert [message.due is None for message in published] == [True, True, False]
    assert abs(published[2].due - published[2].timestamp - timedelta(seconds=LONG_S)) < timedelta(seconds=5)  # type: ignore[operator]
    assert abs(published[0].timestamp - datetime.now(timezone.utc)) < timedelta(minutes=2)


def test_single_messages_can_be_cancelled(world: World, topic: str) -> None:
    consumer, producer = world.consumer(topic, "email"), world.producer()
    deferred = producer.publish(topic, b"deferred", delay=LONG_S)
    taken = producer.publish(topic, b"taken")
    ready = producer.publish(topic, b"ready")
    (message,) = world.receive(consumer, 1)
    world.settle(topic, "email", depth=1, in_flight_count=1, deferred_count=1)
    assert world.cancel(topic, deferred) == [("email", "done", "deferred")]
    assert world.cancel(topic, taken) == [("email", "in_flight", None)]
    assert world.cancel(topic, ready) == [("email", "done", "ready")]
    message.finish()
    world.settle(topic, "email", depth=0, in_flight_count=0, deferred_count=0)
    assert world.cancel(topic, taken) == [("email", "finished", None)]


def test_a_message_of_a_topic_without_channels_is_held(world: World, topic: str) -> None:
    message_id = world.producer().publish(topic, b"one")
    assert world.cancel(topic, message_id) == [(None, "held", None)]
    with pytest.raises(NotFoundError):
        world.cancel("nothing", message_id)
    with pytest.raises(NotFoundError):
        world.cancel(topic, "0123456789abcdef")


def test_single_messages_can_be_rescheduled(world: World, topic: str) -> None:
    consumer, producer = world.consumer(topic, "email"), world.producer()
    deferred = producer.publish(topic, b"one", delay=LONG_S)
    world.settle(topic, "email", deferred_count=1)
    assert world.reschedule(topic, deferred, delay=0.01) == [("email", "done", "deferred")]
    world.advance(0.01)
    (message,) = world.receive(consumer, 1)
    assert (message.id, message.attempts) == (deferred, 1)


def test_bodies_are_translated_by_a_codec(world: World, topic: str) -> None:
    consumer = world.consumer(topic, "email", codec=JsonCodec())
    world.producer(codec=JsonCodec()).publish(topic, {"order": 7})
    (message,) = world.receive(consumer, 1)
    assert message.value == {"order": 7}


WRONG: dict[str, tuple[type[Exception], Callable[[Any], object]]] = {
    "name": (InvalidNameError, lambda producer: producer.publish("no topic!", b"one")),
    "empty": (SettingError, lambda producer: producer.publish("wrong", b"")),
    "text": (SettingError, lambda producer: producer.publish("wrong", "one")),
    "number": (SettingError, lambda producer: producer.publish("wrong", 7)),
    "negative delay": (SettingError, lambda producer: producer.publish("wrong", b"one", delay=-1)),
    "no zone": (SettingError, lambda producer: producer.publish("wrong", b"one", at=datetime(2030, 1, 1))),
    "both times": (SettingError, lambda producer: producer.publish("wrong", b"one", at=1, delay=1)),
    "too big": (TooBigError, lambda producer: producer.publish("wrong", bytes(2 << 20))),
    "too big in a batch": (TooBigError, lambda producer: producer.publish_many("wrong", [b"one", bytes(2 << 20)])),
    "too late": (RefusedError, lambda producer: producer.publish("wrong", b"one", delay=3601)),
    "too late in a batch": (RefusedError, lambda producer: producer.publish_many("wrong", [Outgoing(b"a", 9999)])),
    "submitted": (RefusedError, lambda producer: producer.submit("wrong", b"one", delay=9999).result(10)),
    "closed": (ClosedError, lambda producer: (producer.close(), producer.publish("wrong", b"one"))),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_publish_raises_the_same_error(world: World, case: str) -> None:
    error, publish = WRONG[case]
    producer = world.producer()
    with pytest.raises(error) as caught:
        publish(producer)
    assert type(caught.value) is error
    if isinstance(caught.value, RefusedError):
        assert caught.value.code == ("E_BAD_MESSAGE" if error is TooBigError else "E_INVALID")
    assert world.published("wrong") == []


def test_a_batch_is_published_whole_or_not_at_all(world: World, topic: str) -> None:
    producer = world.producer()
    assert producer.publish_many(topic, []) == []
    with pytest.raises(SettingError):
        producer.publish_many(topic, [b"one", b""])
    with pytest.raises(TooBigError):
        producer.publish_many(topic, [b"one", bytes(2 << 20)])
    assert world.published(topic) == []
