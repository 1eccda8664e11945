"""Tests of pyqd.testing.MemoryBroker and its clock. test_conformance.py has the behaviour that it shares with pyqd."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from pyqd.client.consumption import RetryPolicy
from pyqd.client.errors import RefusedError, SettingError, TooBigError
from pyqd.client.message import Message, Requeue
from pyqd.testing import MemoryBroker
from tests.support.server import REPOSITORY


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker(now=datetime(2026, 5, 1, 12, tzinfo=timezone.utc))


def bodies(messages: list[Message]) -> list[bytes]:
    return [message.body for message in messages]


def test_a_deferred_message_comes_when_the_clock_reaches_its_time(broker: MemoryBroker) -> None:
    consumer = broker.consumer("orders", "email", max_in_flight=10)
    broker.publish("orders", b"delayed", delay=60)
    broker.publish("orders", b"timed", at=broker.clock.now + timedelta(seconds=30))
    broker.publish("orders", b"in unix time", at=broker.clock.now_s + 90)
    assert consumer.fetch(10) == []
    broker.clock.advance(29.999)
    assert consumer.fetch(10) == []
    broker.clock.advance(0.001)
    assert bodies(consumer.fetch(10)) == [b"timed"]
    broker.clock.advance(60)
    assert bodies(consumer.fetch(10)) == [b"delayed", b"in unix time"]


def test_iteration_ends_when_no_message_is_due(broker: MemoryBroker) -> None:
    consumer = broker.consumer("orders", "email")
    broker.publish_many("orders", [b"one", b"two"])
    broker.publish("orders", b"later", delay=1)
    seen = []
    for message in consumer:
        with message:
            seen.append(message.body)
    assert seen == [b"one", b"two"]


def test_the_timestamp_is_the_brokers_time(broker: MemoryBroker) -> None:
    consumer = broker.consumer("orders", "email")
    broker.publish("orders", b"one", delay=5)
    published = broker.clock.now
    broker.clock.advance(5)
    (message,) = consumer.fetch()
    assert message.timestamp == published
    (kept,) = broker.published_messages("orders")
    assert (kept.id, kept.timestamp, kept.due) == (message.id, published, published + timedelta(seconds=5))


def test_a_touch_begins_the_timeout_again_up_to_a_limit() -> None:
    broker = MemoryBroker(msg_timeout=10, max_msg_timeout=25)
    consumer = broker.consumer("orders", "email", auto_touch=False)
    broker.publish("orders", b"one")
    (message,) = consumer.fetch()
    for _ in range(3):
        broker.clock.advance(8)
        message.touch()
    assert consumer.fetch() == []
    broker.clock.advance(1)
    assert consumer.fetch()[0].attempts == 2


def test_automatic_touches_keep_a_message_up_to_the_limit(broker: MemoryBroker) -> None:
    consumer = broker.consumer("orders", "email", msg_timeout=10)
    broker.publish("orders", b"one")
    assert consumer.fetch()
    broker.clock.advance(899)
    assert consumer.fetch() == []
    broker.clock.advance(1)
    assert consumer.fetch()[0].attempts == 2


def test_an_answer_after_the_timeout_is_late(broker: MemoryBroker) -> None:
    slow = broker.consumer("orders", "email", auto_touch=False)
    fast = broker.consumer("orders", "email")
    broker.publish("orders", b"one")
    (message,) = slow.fetch()
    broker.clock.advance(60)
    (again,) = fast.fetch()
    message.finish()
    assert slow.stats()["answered_late"] == 1
    assert broker.topic_stats("orders", "email")["in_flight_count"] == 1  # type: ignore[index]
    again.finish()
    assert fast.stats()["answered_late"] == 0
    assert broker.topic_stats("orders", "email")["in_flight_count"] == 0  # type: ignore[index]


def test_the_retry_policy_delays_by_attempts_until_its_dead_letter(broker: MemoryBroker) -> None:
    retry = RetryPolicy(max_attempts=3, delay=10, max_delay=15, dead_letter_topic="failed")
    consumer = broker.consumer("orders", "email", retry=retry)
    failures: list[datetime] = []

    @consumer.handler()
    def fail(message: Message) -> None:
        failures.append(broker.clock.now)
        raise RuntimeError(f"attempt {message.attempts}")

    start = broker.clock.now
    broker.publish("orders", b"poison")
    for _ in range(40):
        consumer.run_pending()
        broker.clock.advance(1)
    assert [(each - start).total_seconds() for each in failures] == [0, 10, 25]
    assert [str(error) for error in consumer.errors] == ["attempt 1", "attempt 2", "attempt 3"]
    assert broker.published("failed") == [b"poison"]
    assert consumer.stats()["dead_letters"] == 1


def test_a_failed_handler_is_logged_and_the_next_message_handled(
    broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = broker.consumer("orders", "email")
    seen = []

    @consumer.handler()
    def handle(message: Message) -> None:
        seen.append(message.body)
        if message.body == b"bad":
            raise ValueError("no such customer")

    broker.publish_many("orders", [b"bad", b"good"])
    with caplog.at_level(logging.ERROR, "pyqd.client"):
        assert consumer.run_pending() == 2
    assert seen == [b"bad", b"good"]
    assert "no such customer" in caplog.text


def test_a_handler_may_ask_for_a_delay(broker: MemoryBroker) -> None:
    consumer = broker.consumer("orders", "email")
    attempts = []

    @consumer.handler()
    def handle(message: Message) -> None:
        attempts.append(message.attempts)
        if message.attempts == 1:
            raise Requeue(timedelta(minutes=5))

    broker.publish("orders", b"one")
    assert consumer.run_pending() == 1
    broker.clock.advance(299)
    assert consumer.run_pending() == 0
    broker.clock.advance(1)
    assert consumer.run_pending() == 1
    assert attempts == [1, 2]
    assert consumer.errors == []


def test_handlers_that_publish_for_each_other_run_to_the_end(broker: MemoryBroker) -> None:
    orders, emails = broker.consumer("orders", "worker"), broker.consumer("emails", "worker")
    producer, sent = broker.producer(), []

    @emails.handler()
    def send(message: Message) -> None:
        sent.append(message.body)

    @orders.handler()
    def handle(message: Message) -> None:
        producer.publish("emails", b"confirm " + message.body)

    producer.publish_many("orders", [b"1", b"2"])
    assert broker.run_pending() == 4
    assert sent == [b"confirm 1", b"confirm 2"]


def test_work_without_end_is_an_error(broker: MemoryBroker) -> None:
    consumer = broker.consumer("orders", "email", retry=RetryPolicy(delay=0))
    logging.getLogger("pyqd.client").disabled = True
    try:

        @consumer.handler()
        def fail(message: Message) -> None:
            raise RuntimeError

        broker.publish("orders", b"one")
        with pytest.raises(AssertionError, match="delivered 1000 times at the same time"):
            consumer.run_pending()
    finally:
        logging.getLogger("pyqd.client").disabled = False


def test_back_off_pauses_a_consumer_on_the_brokers_clock(broker: MemoryBroker) -> None:
    consumer = broker.consumer("orders", "email", backoff=120, max_in_flight=5)
    broker.publish_many("orders", [b"bad"] * 5 + [b"good"])
    for message in consumer.fetch(5):
        message.requeue(600)
    assert consumer.stats()["backoff_level"] == 1
    assert consumer.fetch() == []
    broker.clock.advance(120)
    (message,) = consumer.fetch(5)
    message.finish()
    assert consumer.stats()["backoff_level"] == 0


@pytest.mark.parametrize(("limit", "hours"), [({}, 1), ({"max_req_timeout": 86_400.0}, 5)])
def test_the_delay_of_a_requeue_is_cut_to_the_limit(limit: dict[str, Any], hours: int) -> None:
    broker = MemoryBroker(**limit)
    consumer = broker.consumer("orders", "email")
    broker.publish("orders", b"one")
    consumer.fetch()[0].requeue(timedelta(hours=5))
    broker.clock.advance(timedelta(hours=hours, seconds=-1))
    assert consumer.fetch() == []
    broker.clock.advance(1)
    assert bodies(consumer.fetch()) == [b"one"]


def test_limits_are_those_of_the_daemon() -> None:
    broker = MemoryBroker(max_msg_size=3, max_defer=10)
    producer = broker.producer()
    with pytest.raises(TooBigError, match="message too big 4 > 3"):
        producer.publish("orders", b"abcd")
    with pytest.raises(RefusedError, match="timeout 10001 out of range 0-10000"):
        producer.publish("orders", b"abc", delay=10.001)
    assert producer.submit("orders", b"abcd").exception().code == "E_BAD_MESSAGE"  # type: ignore[union-attr]
    assert broker.published("orders") == []
    assert producer.stats()["failed"] == 3
    for msg_timeout in (0.5, 901):
        with pytest.raises(SettingError, match=r"expected 1\.0 to 900\.0 seconds"):
            broker.consumer("orders", "email", msg_timeout=msg_timeout)


def test_single_messages_are_cancelled_and_rescheduled(broker: MemoryBroker) -> None:
    consumer = broker.consumer("orders", "email", max_in_flight=5)
    producer = broker.producer()
    first = producer.publish("orders", b"cancelled", delay=60)
    second = producer.publish("orders", b"rescheduled", delay=60)
    assert first is not None
    assert second is not None
    assert producer.cancel("orders", first) == [("email", "done", "deferred")]
    assert producer.reschedule("orders", second, at=broker.clock.now + timedelta(seconds=5))
    broker.clock.advance(5)
    assert bodies(consumer.fetch(5)) == [b"rescheduled"]


def test_deleted_topics_and_channels_are_gone(broker: MemoryBroker) -> None:
    consumer = broker.consumer("orders", "email")
    broker.publish("orders", b"one")
    broker.delete_channel("orders", "email")
    assert broker.topic_stats("orders", "email") is None
    assert consumer.fetch() == []
    broker.delete_topic("orders")
    assert broker.topic_stats("orders") is None
    assert broker.published("orders") == []
    broker.publish("orders", b"two")
    assert bodies(consumer.fetch()) == [b"two"]


def test_run_handles_what_is_due_and_ends(broker: MemoryBroker) -> None:
    consumer = broker.consumer("orders", "email")
    consumer.handler()(lambda message: None)
    broker.publish_many("orders", [b"one", b"two"])
    assert consumer.run() == 0
    assert consumer.stats()["finished"] == 2
    assert broker.topic_stats("orders", "email")["client_count"] == 0  # type: ignore[index]


def test_an_asyncio_consumer_handles_messages_of_an_asyncio_producer(broker: MemoryBroker) -> None:
    async def scenario() -> list[bytes]:
        seen: list[bytes] = []
        async with broker.aio_producer() as producer, broker.aio_consumer("orders", "email") as consumer:
            consumer.handler()(lambda message: note(seen, message))
            await producer.publish("orders", b"later", delay=60)
            assert await producer.publish_many("orders", [b"one", b"two"])
            assert await producer.submit("orders", b"three")
            assert await consumer.run_pending() == 3
            broker.clock.advance(60)
            assert await consumer.run() == 0
        return seen

    async def note(seen: list[bytes], message: Message) -> None:
        await asyncio.sleep(0)
        seen.append(message.body)

    assert asyncio.run(scenario()) == [b"one", b"two", b"three", b"later"]


def test_asyncio_iteration_and_batches_end_when_no_message_is_due(broker: MemoryBroker) -> None:
    async def scenario() -> None:
        consumer = broker.aio_consumer("orders", "email", max_in_flight=2)
        broker.publish_many("orders", [b"one", b"two", b"three"])
        batch = await consumer.fetch(5)
        assert bodies(batch) == [b"one", b"two"]
        consumer.finish_many(batch)
        async for message in consumer:
            async with message:
                assert message.body == b"three"
        assert await consumer.drain()

    asyncio.run(scenario())
    assert broker.topic_stats("orders", "email")["depth"] == 0  # type: ignore[index]


@pytest.mark.slow
def test_nothing_of_gevent_is_loaded() -> None:
    program = (
        "import sys\nfrom pyqd.testing import MemoryBroker\nbroker = MemoryBroker()\n"
        "print([name for name in sys.modules if name.startswith(('gevent', 'greenlet'))])\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "[]\n"
