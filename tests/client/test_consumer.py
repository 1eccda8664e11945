"""Consumers of both faces on real brokers."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from pyqd.client import (
    AnsweredError,
    ClosedError,
    InvalidNameError,
    Message,
    Requeue,
    RetryPolicy,
    SettingError,
    consumption,
)
from tests.support.server import wait_until

WAIT_S = 20.0


@pytest.fixture
def publish(face, address, topic):
    """Function that publishes bodies to the topic."""
    producer = face.producer(address)
    return lambda *bodies: producer.publish_many(topic, bodies)


@pytest.fixture
def consume(face, address, topic):
    """Function that returns a consumer of the topic, without back-off."""

    def make(**options):
        return face.consumer(topic, nsqd=address, **{"backoff": 0.0, **options})

    return make


def settled(broker, topic, **counts):
    """Wait until the channel has these counts."""
    broker.wait_for_channel(topic, "c", **{"depth": 0, "in_flight_count": 0, "deferred_count": 0, **counts})


def in_thread(function, *arguments):
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    return thread


class TestIteration:
    def test_messages_are_finished_by_their_block(self, publish, consume, broker, topic):
        publish(b"a", b"b", b"c")
        consumer = consume()
        got: list[Any] = []
        for message in consumer:
            with message:
                got.append(message.body)
            if len(got) == 3:
                break
        assert sorted(got) == [b"a", b"b", b"c"]
        settled(broker, topic)
        assert consumer.stats()["finished"] == 3

    def test_a_message_knows_where_it_comes_from(self, publish, consume, address, topic):
        publish(b"x")
        (message,) = consume().fetch(1, WAIT_S)
        assert (message.topic, message.channel, message.broker) == (topic, "c", address)
        assert (message.body, message.value, message.attempts) == (b"x", b"x", 1)
        assert len(message.id) == 16
        assert abs(datetime.now(timezone.utc) - message.timestamp) < timedelta(minutes=1)
        assert message.timestamp.tzinfo is timezone.utc
        assert message.is_answered is False
        message.finish()
        assert message.is_answered is True

    def test_stop_ends_the_iteration(self, publish, consume):
        consumer = consume()
        publish(b"x")
        got: list[Any] = []

        def iterate():
            for message in consumer:
                message.finish()
                got.append(message.body)

        thread = in_thread(iterate)
        wait_until(lambda: got == [b"x"], "the message")
        consumer.stop()
        thread.join(WAIT_S)
        assert not thread.is_alive()
        assert list(consumer) == []

    def test_it_does_not_begin_after_close(self, consume):
        consumer = consume()
        consumer.close()
        with pytest.raises(ClosedError, match="inside of its `with` block"):
            next(iter(consumer))

    @pytest.mark.parametrize("face", ["blocking"], indirect=True)
    def test_close_ends_it_in_all_threads(self, face, publish, consume):
        consumer = consume(max_in_flight=10)
        got: list[Any] = []
        threads = [in_thread(lambda: got.extend(drain_bodies(consumer))) for _ in range(6)]
        publish(*(b"%d" % number for number in range(500)))
        wait_until(lambda: consumer.stats()["finished"] == 500, "all messages")
        assert all(thread.is_alive() for thread in threads)
        consumer.close()
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
        assert sorted(got) == sorted(b"%d" % number for number in range(500))

    def test_an_exception_requeues_the_message_and_reaches_the_caller(self, publish, consume, broker, topic):
        publish(b"x")
        consumer = consume(retry=RetryPolicy(delay=0.05))
        (message,) = consumer.fetch(1, WAIT_S)
        with pytest.raises(ValueError, match="mine"), message:
            raise ValueError("mine")
        (again,) = consumer.fetch(1, WAIT_S)
        assert (again.id, again.attempts) == (message.id, 2)
        again.finish()
        settled(broker, topic, requeue_count=1)

    def test_requeue_is_an_answer_and_no_error(self, publish, consume):
        publish(b"x")
        consumer = consume()
        message: Message = consumer.fetch(1, WAIT_S)[0]
        with message:
            raise Requeue(timedelta(milliseconds=20))
        (again,) = consumer.fetch(1, WAIT_S)
        assert again.attempts == 2
        again.finish()

    def test_a_block_may_answer_by_itself(self, publish, consume, broker, topic):
        publish(b"x")
        consumer = consume()
        (message,) = consumer.fetch(1, WAIT_S)
        with contextlib.suppress(KeyError), message:
            message.finish()
            raise KeyError
        settled(broker, topic, requeue_count=0)


def drain_bodies(consumer):
    for message in consumer:
        message.finish()
        yield message.body


class TestFetch:
    def test_it_returns_what_is_there(self, publish, consume):
        publish(*(b"%d" % number for number in range(10)))
        consumer = consume(max_in_flight=10)
        got: list[Any] = []
        while len(got) < 10:
            messages = consumer.fetch(4, WAIT_S)
            assert 1 <= len(messages) <= 4
            got += messages
        consumer.finish_many(got)
        assert consumer.fetch(1, 0.05) == []

    def test_nothing_comes_after_the_timeout(self, consume):
        consumer = consume()
        assert consumer.fetch(5, 0.1) == []
        assert consumer.fetch(5, 0) == []

    def test_the_number_must_be_positive(self, consume):
        with pytest.raises(SettingError, match="count=0"):
            consume().fetch(0)

    def test_a_closed_consumer_refuses(self, consume):
        consumer = consume()
        consumer.fetch(1, 0.05)
        consumer.close()
        with pytest.raises(ClosedError):
            consumer.fetch(1, 1)

    def test_close_wakes_a_fetch_that_waits(self, consume):
        consumer = consume()
        errors = []

        def fetch():
            try:
                consumer.fetch(1)
            except ClosedError as error:
                errors.append(error)

        thread = in_thread(fetch)
        wait_until(lambda: any(each["connected"] for each in consumer.stats()["brokers"].values()), "a connection")
        consumer.close()
        thread.join(WAIT_S)
        assert len(errors) == 1


class TestAnswers:
    def test_a_message_is_answered_once(self, publish, consume):
        publish(b"x")
        (message,) = consume().fetch(1, WAIT_S)
        message.finish()
        for call in (message.finish, message.requeue, message.touch):
            with pytest.raises(AnsweredError, match=message.id):
                call()

    def test_a_batch_is_finished_but_for_what_was_answered(self, publish, consume, broker, topic):
        publish(b"a", b"b", b"c")
        consumer = consume(max_in_flight=3)
        messages: list[Any] = []
        while len(messages) < 3:
            messages += consumer.fetch(3, WAIT_S)
        messages[1].finish()
        with pytest.raises(AnsweredError, match="1 of the messages"):
            consumer.finish_many(messages)
        settled(broker, topic)

    def test_a_consumer_is_starved_when_most_of_max_in_flight_is_held(self, publish, consume, broker, topic):
        consumer = consume(max_in_flight=10)
        assert consumer.is_starved() is False
        held: list[Any] = []
        for number in range(8):
            publish(b"%d" % number)
            held += consumer.fetch(10, WAIT_S)
            assert consumer.is_starved() is (number == 7), number
        consumer.finish_many(held)
        assert consumer.is_starved() is False
        settled(broker, topic)

    @pytest.mark.parametrize("delay", [0, 0.05, timedelta(milliseconds=50)])
    def test_a_requeued_message_comes_again(self, publish, consume, delay):
        publish(b"x")
        consumer = consume()
        (message,) = consumer.fetch(1, WAIT_S)
        message.requeue(delay)
        (again,) = consumer.fetch(1, WAIT_S)
        assert again.attempts == 2
        again.finish()

    def test_a_message_may_be_answered_in_another_thread(self, publish, consume, broker, topic):
        publish(b"x")
        (message,) = consume().fetch(1, WAIT_S)
        in_thread(message.finish).join(WAIT_S)
        settled(broker, topic)

    def test_an_answer_is_sent_although_the_program_does_something_else(self, publish, consume, broker, topic):
        publish(*(b"%d" % number for number in range(20)))
        consumer = consume(max_in_flight=20)
        got: list[Any] = []
        while len(got) < 20:
            got += consumer.fetch(20, WAIT_S)
        for message in got:
            message.finish()
            # No call of the consumer follows.
            time.sleep(0.001)
        settled(broker, topic)


class TestTimeouts:
    """The broker's timeout is a second."""

    @pytest.mark.slow
    def test_a_slow_handler_keeps_its_message(self, publish, consume, broker, topic):
        publish(b"x")
        consumer = consume()
        (message,) = consumer.fetch(1, WAIT_S)
        time.sleep(2.5)
        message.finish()
        settled(broker, topic, timeout_count=0)

    @pytest.mark.slow
    def test_without_touches_the_message_comes_again(self, publish, consume, caplog):
        publish(b"x")
        consumer = consume(auto_touch=False, max_in_flight=5)
        (message,) = consumer.fetch(1, WAIT_S)
        (again,) = consumer.fetch(1, WAIT_S)
        assert (again.id, again.attempts) == (message.id, 2)
        message.finish()
        again.finish()
        wait_until(lambda: consumer.stats()["in_flight"] == 0, "both are answered")

    @pytest.mark.slow
    def test_touch_begins_the_timeout_again(self, publish, consume, broker, topic):
        publish(b"x")
        (message,) = consume(auto_touch=False).fetch(1, WAIT_S)
        for _ in range(8):
            time.sleep(0.25)
            message.touch()
        message.finish()
        settled(broker, topic, timeout_count=0)

    @pytest.mark.slow
    def test_a_consumer_may_ask_for_another_timeout(self, publish, consume, broker, topic):
        publish(b"x")
        (message,) = consume(auto_touch=False, msg_timeout=30.0).fetch(1, WAIT_S)
        time.sleep(1.5)
        message.finish()
        settled(broker, topic, timeout_count=0)


@pytest.mark.slow
def test_a_clock_that_jumps_changes_nothing(publish, consume, broker, topic, monkeypatch):
    real = time.time
    jumps = itertools.cycle([-7200, 0, 7200, 86400 * 365])
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    consumer = consume(retry=RetryPolicy(delay=0.05), heartbeat_interval=1.0)
    publish(b"x")
    (message,) = consumer.fetch(1, WAIT_S)
    # The broker's timeout is a second.
    assert consumer.fetch(1, 1.5) == []
    message.requeue()
    (again,) = consumer.fetch(1, WAIT_S)
    assert again.attempts == 2
    again.finish()
    settled(broker, topic, timeout_count=0)


class TestHandlers:
    def test_messages_are_handled_in_parallel(self, publish, consume, broker, topic):
        consumer = consume()
        barrier = threading.Barrier(5)

        @consumer.handler(concurrency=5)
        def handle(message):
            barrier.wait(WAIT_S)

        assert consumer.max_in_flight == 5
        consumer.start()
        publish(*(b"%d" % number for number in range(20)))
        broker.wait_for_channel(topic, "c", depth=0, in_flight_count=0, message_count=20)
        assert consumer.drain(WAIT_S) is True

    def test_a_failure_is_logged_and_requeued(self, publish, consume, caplog):
        consumer = consume(retry=RetryPolicy(delay=0.01))
        attempts = []

        @consumer.handler()
        def handle(message):
            attempts.append(message.attempts)
            if message.attempts < 3:
                raise ValueError("not yet")

        with caplog.at_level(logging.ERROR):
            consumer.start()
            publish(b"x")
            wait_until(lambda: consumer.stats()["finished"] == 1, "the message is handled")
        assert attempts == [1, 2, 3]
        assert "not yet" in caplog.text
        assert consumer.stats()["requeued"] == 2

    # In asyncio it ends the loop: see test_aio.py.
    @pytest.mark.parametrize("face", ["blocking"], indirect=True)
    @pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=["SystemExit", "KeyboardInterrupt"])
    def test_a_handler_that_ends_its_thread_does_not_end_the_consumer(self, face, publish, consume, error):
        consumer = consume(retry=RetryPolicy(delay=0.01))
        seen = []

        @consumer.handler()
        def handle(message):
            seen.append(message.attempts)
            if len(seen) == 1:
                raise error

        consumer.start()
        publish(b"x")
        wait_until(lambda: consumer.stats()["finished"] == 1, "the message is handled")
        assert seen == [1, 2]

    @pytest.mark.slow
    def test_requeue_with_its_own_delay(self, publish, consume):
        consumer = consume()
        seen = []

        @consumer.handler()
        def handle(message):
            seen.append(time.monotonic())
            if len(seen) == 1:
                raise Requeue(0.3)

        consumer.start()
        publish(b"x")
        wait_until(lambda: len(seen) == 2, "the message comes again")
        assert seen[1] - seen[0] >= 0.3
        wait_until(lambda: consumer.stats()["finished"] == 1, "it is finished")

    def test_run_returns_0_after_stop(self, publish, consume):
        consumer = consume()
        handled = threading.Event()
        consumer.handler()(lambda message: handled.set())
        codes = []
        thread = in_thread(lambda: codes.append(consumer.run()))
        publish(b"x")
        assert handled.wait(WAIT_S)
        consumer.stop()
        thread.join(WAIT_S)
        assert codes == [0]

    @pytest.mark.slow
    def test_run_returns_1_if_a_handler_does_not_end_in_time(self, publish, consume):
        consumer = consume()
        begun, released = threading.Event(), threading.Event()

        @consumer.handler()
        def handle(message):
            begun.set()
            released.wait(WAIT_S)

        codes = []
        thread = in_thread(lambda: codes.append(consumer.run(drain_timeout=0.2)))
        publish(b"x")
        assert begun.wait(WAIT_S)
        consumer.stop()
        wait_until(lambda: consumer.stats()["in_flight"] == 0, "the connection is closed")
        released.set()
        thread.join(WAIT_S)
        assert codes == [1]

    def test_there_is_one_handler(self, consume):
        consumer = consume()
        with pytest.raises(SettingError, match="no handler"):
            consumer.start()
        consumer.handler()(print)
        with pytest.raises(SettingError, match="handler already"):
            consumer.handler()(print)
        with pytest.raises(SettingError, match="concurrency=0"):
            consumer.handler(concurrency=0)


class TestDeadLetters:
    def test_a_message_that_fails_too_often_is_moved(self, face, publish, consume, address, broker, topic):
        dead = face.consumer(f"{topic}-dead", nsqd=address)
        consumer = consume(retry=RetryPolicy(2, delay=0.01, dead_letter_topic=f"{topic}-dead"))

        @consumer.handler()
        def handle(message):
            raise ValueError("always")

        consumer.start()
        publish(b"poison")
        (message,) = dead.fetch(1, WAIT_S)
        assert message.body == b"poison"
        message.finish()
        settled(broker, topic)
        assert consumer.stats()["dead_letters"] == 1

    @pytest.mark.slow
    def test_a_message_whose_attempts_are_over_is_moved_unseen(self, face, publish, consume, address, topic):
        publish(b"poison")
        first = consume()
        for _ in range(3):
            first.fetch(1, WAIT_S)[0].requeue(0)
        first.drain()
        dead = face.consumer(f"{topic}-dead", nsqd=address)
        second = consume(retry=RetryPolicy(2, delay=0.01, dead_letter_topic=f"{topic}-dead"))
        assert second.fetch(1, 0.5) == []
        (message,) = dead.fetch(1, WAIT_S)
        assert message.body == b"poison"
        message.finish()

    @pytest.mark.pyqd_only(reason="nsqd has no quota by which a publish fails")
    @pytest.mark.flags("-max-topics=1")
    def test_a_message_is_kept_if_the_dead_letter_cannot_be_published(self, face, daemon, caplog):
        address = f"127.0.0.1:{daemon.tcp_port}"
        face.producer(address).publish("only", b"poison")
        retry = RetryPolicy(1, delay=0.01, max_delay=0.01, dead_letter_topic="dead")
        consumer = face.consumer("only", nsqd=address, retry=retry, backoff=0.0)
        (message,) = consumer.fetch(1, WAIT_S)
        with caplog.at_level(logging.ERROR), pytest.raises(ValueError, match="always"), message:
            raise ValueError("always")
        # It comes again and is refused again, and is never dropped.
        wait_until(lambda: consumer.stats()["requeued"] >= 2, "it is requeued")
        assert "E_TOO_MANY_TOPICS" in caplog.text
        consumer.drain()
        daemon.wait_for_channel("only", "c", in_flight_count=0)
        counts = daemon.channel("only", "c")
        assert counts["depth"] + counts["deferred_count"] == 1

    @pytest.mark.parametrize(
        "options", [{"max_attempts": 3}, {"dead_letter_topic": "t"}, {"max_attempts": -1}, {"delay": -1.0}]
    )
    def test_a_policy_that_would_drop_messages_is_refused(self, options):
        with pytest.raises(SettingError):
            RetryPolicy(**options)

    def test_the_name_of_its_topic_is_checked(self):
        with pytest.raises(InvalidNameError):
            RetryPolicy(3, dead_letter_topic="a b")


class TestFlow:
    @pytest.mark.slow
    def test_max_in_flight_is_kept(self, publish, consume):
        publish(*(b"%d" % number for number in range(20)))
        consumer = consume(max_in_flight=3)
        held: list[Any] = []
        while len(held) < 3:
            held += consumer.fetch(10, WAIT_S)
        assert consumer.fetch(1, 0.2) == []
        held[0].finish()
        assert len(consumer.fetch(10, WAIT_S)) == 1

    @pytest.mark.slow
    def test_it_may_be_raised_and_lowered(self, publish, consume):
        publish(*(b"%d" % number for number in range(40)))
        consumer = consume(max_in_flight=1)
        held = consumer.fetch(1, WAIT_S)
        consumer.max_in_flight = 10
        while len(held) < 10:
            held += consumer.fetch(10, WAIT_S)
        consumer.max_in_flight = 2
        consumer.finish_many(held)
        taken = []
        while messages := consumer.fetch(10, 0.3):
            taken += messages
        # Those that came before the lower limit reached the broker count too.
        assert len(taken) <= 12
        with pytest.raises(SettingError, match="max_in_flight=0"):
            consumer.max_in_flight = 0

    @pytest.mark.slow
    def test_a_loop_that_answers_no_message_is_warned_once(self, publish, consume, caplog, monkeypatch):
        monkeypatch.setattr(consumption, "UNANSWERED_S", 0.05)
        publish(b"a", b"b", b"c", b"d")
        consumer = consume(max_in_flight=2)
        thread = in_thread(lambda: list(consumer))
        wait_until(lambda: caplog.records, "the warning")
        (text,) = [record.getMessage() for record in caplog.records]
        assert "no message comes before one of the 2 unanswered ones is finished or requeued" in text
        assert "max_in_flight is 2" in text
        # Several times the time that it takes.
        time.sleep(0.3)
        assert len(caplog.records) == 1
        consumer.close()
        thread.join(WAIT_S)
        assert not thread.is_alive()

    @pytest.mark.slow
    def test_a_program_that_holds_its_messages_is_not_warned(self, publish, consume, caplog, monkeypatch):
        monkeypatch.setattr(consumption, "UNANSWERED_S", 0.05)
        publish(b"a", b"b", b"c")
        consumer = consume(max_in_flight=2)
        held: list[Any] = []
        while len(held) < 2:
            held += consumer.fetch(2, WAIT_S)
        assert consumer.fetch(1, 0.3) == []
        assert consumer.fetch(1, 0.3) == []
        assert caplog.records == []
        consumer.finish_many(held)

    @pytest.mark.slow
    def test_a_loop_that_answers_slowly_is_not_warned(self, publish, consume, caplog, monkeypatch):
        monkeypatch.setattr(consumption, "UNANSWERED_S", 0.05)
        publish(*(b"%d" % number for number in range(4)))
        consumer = consume(max_in_flight=1)
        for message in consumer:
            with message:
                time.sleep(0.1)
                if message.body == b"3":
                    consumer.stop()
        assert caplog.records == []

    @pytest.mark.slow
    @pytest.mark.parametrize(("options", "failures"), [({}, 5), ({"backoff_failures": 1}, 1)])
    def test_failures_that_prevail_slow_the_consumer_down(self, publish, consume, options, failures):
        publish(b"a", b"b")
        consumer = consume(backoff=120.0, **options)
        for count in range(failures):
            assert consumer.stats()["backoff_level"] == 0, count
            consumer.fetch(1, WAIT_S)[0].requeue(0)
        assert consumer.stats()["backoff_level"] == 1
        assert consumer.fetch(1, 0.3) == []

    def test_one_failed_message_among_others_pauses_nothing(self, publish, consume):
        publish(*(b"%d" % number for number in range(100)))
        consumer = consume(backoff=120.0, max_in_flight=10)
        consumer.fetch(1, WAIT_S)[0].requeue(60.0)
        taken = 1
        while taken < 100:
            messages = consumer.fetch(10, 1.0)
            assert messages, taken
            consumer.finish_many(messages)
            taken += len(messages)

    @pytest.mark.slow
    def test_dead_letters_count_as_failures(self, publish, consume, topic):
        publish(*(b"%d" % number for number in range(10)))
        retry = RetryPolicy(max_attempts=1, dead_letter_topic=topic + "_dead")
        consumer = consume(backoff=120.0, retry=retry)

        @consumer.handler()
        def fail(message):
            raise ValueError

        consumer.start()
        wait_until(lambda: consumer.stats()["backoff_level"] == 1, "the consumer backs off")
        wait_until(lambda: consumer.stats()["dead_letters"] == 5, "the dead letters are published")

    def test_a_requeue_without_back_off_does_not(self, publish, consume):
        publish(b"a")
        consumer = consume(backoff=120.0)
        consumer.fetch(1, WAIT_S)[0].requeue(0, backoff=False)
        consumer.fetch(1, WAIT_S)[0].finish()
        assert consumer.stats()["backoff_level"] == 0


class TestDrain:
    @pytest.mark.slow
    def test_it_waits_for_answers(self, publish, consume, broker, topic):
        publish(b"a", b"b", b"c")
        consumer = consume(max_in_flight=2)
        (message,) = consumer.fetch(1, WAIT_S)
        timer = threading.Timer(0.3, message.finish)
        timer.start()
        assert consumer.drain(WAIT_S) is True
        timer.join()
        broker.wait_for_channel(topic, "c", in_flight_count=0, depth=2)

    @pytest.mark.slow
    def test_it_gives_up_after_its_timeout(self, publish, consume):
        publish(b"a")
        consumer = consume()
        (message,) = consumer.fetch(1, WAIT_S)
        assert consumer.drain(0.1) is False
        # The connection is gone: the answer has no effect, and is no error.
        message.finish()
        assert message.is_answered

    @pytest.mark.slow
    def test_messages_of_a_closed_consumer_come_again(self, publish, consume):
        publish(b"a", b"b")
        first = consume(max_in_flight=2)
        held = first.fetch(1, WAIT_S)
        first.close()
        second = consume(max_in_flight=2)
        got: set[bytes] = set()
        while len(got) < 2:
            for message in second.fetch(2, WAIT_S):
                message.finish()
                got.add(message.body)
        assert got == {b"a", b"b"}
        assert not held[0].is_answered

    def test_it_may_be_repeated(self, consume):
        consumer = consume()
        consumer.fetch(1, 0.05)
        assert consumer.drain() is True
        assert consumer.drain() is True
        consumer.close()

    def test_a_consumer_that_was_never_used(self, consume):
        consumer = consume()
        assert consumer.drain() is True

    def test_a_closed_consumer_does_not_run(self, consume):
        consumer = consume()
        consumer.handler()(print)
        consumer.close()
        with pytest.raises(ClosedError, match="the consumer is closed"):
            consumer.run()


class TestSettings:
    @pytest.mark.parametrize(
        ("options", "text"),
        [({"max_in_flight": 0}, "max_in_flight=0"), ({"sample_rate": 100}, "sample_rate"), ({"nsqd": ""}, "no broker")],
    )
    def test_a_wrong_option_is_refused(self, face, address, options, text):
        with pytest.raises(SettingError, match=text):
            face.consumer("t", "c", **{"nsqd": address, **options})

    @pytest.mark.parametrize(("topic_name", "channel"), [("a b", "c"), ("t", ""), ("t", "ü"), ("t" * 65, "c")])
    def test_a_bad_name_is_refused(self, face, address, topic_name, channel):
        with pytest.raises(InvalidNameError):
            face.consumer(topic_name, channel, nsqd=address)

    @pytest.mark.slow
    def test_a_sample_of_the_messages(self, publish, consume):
        publish(*(b"%d" % number for number in range(400)))
        consumer = consume(max_in_flight=2500, sample_rate=20)
        got: list[Any] = []
        while messages := consumer.fetch(400, 0.5):
            got += messages
            consumer.finish_many(messages)
        assert 0 < len(got) < 250
