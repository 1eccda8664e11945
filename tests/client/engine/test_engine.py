"""Threads that share an engine: who drives, who waits, who is woken; many at a time."""

from __future__ import annotations

import random
import sys
import threading
import time
from typing import Any

import pytest

from pyqd.client import ClosedError, Consumer, NotConnectedError, Producer
from pyqd.client.core.connection import ConnectionCore
from pyqd.primitives.addresses import TcpAddress
from tests.support.server import wait_until

WAIT_S = 20.0


@pytest.fixture(autouse=True)
def _switch_often():
    """Have threads switch often, so that races are hit."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval_s)


def start(*functions):
    """Start a thread for each function; return a function that waits for all, and raises the first error."""
    errors = []

    def guarded(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()

    def join():
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
        if errors:
            raise errors[0]

    return join


class TestWaiting:
    def test_a_deadline_is_kept(self, engine):
        started_s = time.monotonic()
        with engine.lock:
            assert engine.wait(lambda: False, time.monotonic() + 0.1) is False
        assert time.monotonic() - started_s >= 0.1

    def test_a_posted_callback_runs_without_a_user_s_thread(self, engine):
        done = threading.Event()
        engine.post(done.set)
        assert done.wait(WAIT_S)

    def test_timers_run_in_order(self, engine):
        seen = []
        with engine.lock:
            for number in (3, 1, 2):
                engine.call_later(number / 100, lambda number=number: seen.append(number))
            engine.call_later(0.015, lambda: seen.append("cancelled")).cancel()
            assert engine.wait(lambda: len(seen) == 3, time.monotonic() + WAIT_S)
        assert seen == [1, 2, 3]

    def test_all_waiting_threads_end_when_the_engine_is_closed(self, engine):
        def wait():
            with engine.lock:
                assert engine.wait(lambda: False) is False

        join = start(*[wait] * 8)
        wait_until(lambda: len(engine.role.waiters) == 7, "one drives, the others wait")
        with engine.lock:
            engine.close()
        engine.join()
        join()

    def test_the_role_goes_on_to_the_next_thread(self, engine):
        flags = [False] * 6

        def wait(number):
            with engine.lock:
                assert engine.wait(lambda: flags[number], time.monotonic() + WAIT_S)

        join = start(*[lambda number=number: wait(number) for number in range(6)])
        wait_until(lambda: len(engine.role.waiters) == 5, "one drives, the others wait")

        def set_flag(number):
            flags[number] = True
            engine.wake_waiters()

        # Each time another thread may be the driver.
        for number in random.sample(range(6), 6):
            engine.post(lambda number=number: set_flag(number))
        join()

    @pytest.mark.slow
    def test_an_error_in_a_callback_does_not_end_the_stand_in(self, engine, caplog):
        done = threading.Event()
        engine.post(lambda: 1 / 0)
        wait_until(lambda: "internal error" in caplog.text, "it is logged")
        engine.post(done.set)
        assert done.wait(WAIT_S)

    def test_callbacks_outside_may_wait_for_the_engine(self, engine):
        results = []

        def callback():
            with engine.lock:
                results.append(engine.wait(lambda: False, time.monotonic() + 0.05))

        with engine.lock:
            engine.call_outside(callback)
            assert engine.wait(lambda: results, time.monotonic() + WAIT_S)
        assert results == [False]


class TestHosts:
    @pytest.mark.parametrize("host", ["a\0b", "\ud800"])
    def test_a_host_that_no_system_call_takes_is_a_failed_connection(self, engine, host):
        errors = []

        class Handler:
            def link_lost(self, link, error):
                errors.append(error)

        with engine.lock:
            engine.connect(TcpAddress(host, 1), ConnectionCore({}), Handler(), WAIT_S)
            assert engine.wait(lambda: errors, time.monotonic() + WAIT_S)
        assert isinstance(errors[0], NotConnectedError)
        assert "cannot look up" in str(errors[0])


class TestProducers:
    @pytest.mark.slow
    def test_close_from_another_thread_while_many_publish(self, address, topic):
        for _ in range(10):
            self.close_while_publishing(Producer(address), topic)

    def close_while_publishing(self, producer, topic):
        closed = []

        def publish():
            try:
                while True:
                    producer.publish(topic, b"x")
            except ClosedError:
                closed.append(1)

        join = start(*[publish] * 4)
        wait_until(lambda: producer.stats()["published"] > 20, "they publish")
        producer.close()
        join()
        assert len(closed) == 4

    def test_callbacks_of_futures_publish_and_close(self, address, topic, broker):
        producer = Producer(address)
        ids = []
        closed = threading.Event()

        def close():
            producer.close()
            closed.set()

        def again(_future):
            ids.append(producer.publish(topic, b"from a callback"))
            producer.submit(topic, b"last").add_done_callback(lambda _: close())

        producer.submit(topic, b"first").add_done_callback(again)
        assert closed.wait(WAIT_S)
        assert len(ids) == 1
        assert broker.topic(topic)["message_count"] == 3
        wait_until(lambda: not [each for each in threading.enumerate() if each.name == "pyqd producer"], "no thread")

    @pytest.mark.slow
    def test_blocking_and_pipelined_publishes_side_by_side(self, address, topic, broker):
        with Producer(address, max_pending_bytes=200_000) as producer:

            def submit():
                for future in [producer.submit(topic, bytes(500)) for _ in range(1000)]:
                    future.result(WAIT_S)

            def publish():
                for _ in range(300):
                    producer.publish(topic, b"x")

            def flush():
                for _ in range(50):
                    assert producer.flush(WAIT_S)

            start(submit, submit, publish, publish, publish, flush)()
            assert producer.stats()["pending_bytes"] == 0
        assert broker.topic(topic)["message_count"] == 2 * 1000 + 3 * 300


class TestConsumers:
    @pytest.mark.slow
    def test_many_threads_take_each_message_once(self, address, topic):
        with Producer(address) as producer, Consumer(topic, "c", nsqd=address, max_in_flight=50) as consumer:
            got: list[Any] = []

            def iterate():
                for message in consumer:
                    with message:
                        got.append(message.body)

            def fetch():
                while True:
                    try:
                        messages = consumer.fetch(7, 0.01)
                    except ClosedError:
                        return
                    got.extend(message.body for message in messages)
                    consumer.finish_many(messages)

            join = start(iterate, iterate, iterate, iterate, fetch, fetch)
            for number in range(30):
                producer.publish_many(topic, [b"%d-%d" % (number, each) for each in range(100)])
            wait_until(lambda: consumer.stats()["finished"] == 3000, "all messages", WAIT_S)
            consumer.stop()
            join()
            assert len(got) == len(set(got)) == 3000

    def test_no_message_is_taken_twice_when_connections_break(self, daemon):
        """Messages of a lost connection are dropped while threads take others."""
        address = f"127.0.0.1:{daemon.tcp_port}"
        options: Any = {"reconnect_first": 0.01, "reconnect_max": 0.05}
        with (
            Producer(address, **options) as producer,
            Consumer("t", "c", nsqd=address, max_in_flight=500, backoff=0.0, **options) as consumer,
        ):
            answered = []

            def iterate():
                for message in consumer:
                    # A message that two threads have is answered twice, which raises an AnsweredError.
                    message.finish()
                    answered.append(message.body)

            join = start(*[iterate] * 6)
            for number in range(4):
                for each in range(1000):
                    producer.submit("t", b"%d-%d" % (number, each))
                daemon.kill_and_start()
            assert producer.flush(WAIT_S)
            wait_until(lambda: len(set(answered)) == 4000, "all messages", WAIT_S)
            consumer.stop()
            join()

    @pytest.mark.slow
    def test_drain_while_threads_iterate(self, address, topic):
        with Producer(address) as producer:
            producer.publish_many(topic, [b"x"] * 2000)
        finished = 0
        while finished < 2000:
            # Longer than a pause of a busy machine, after which a message would come again and be finished twice. And a
            # message that a drain leaves in flight stays there.
            consumer = Consumer(topic, "c", nsqd=address, max_in_flight=100, msg_timeout=30.0)
            finished += self.drain_after(consumer, min(500, 2000 - finished))
        assert finished == 2000

    def drain_after(self, consumer, count):
        """Return the number of messages that were finished."""

        def iterate():
            has_begun = False
            try:
                for message in consumer:
                    has_begun = True
                    with message:
                        pass
            except ClosedError:
                # A busy machine may begin a thread after the others have drained the consumer.
                assert not has_begun

        join = start(*[iterate] * 4)
        wait_until(lambda: consumer.stats()["finished"] >= count, "messages")
        assert consumer.drain(WAIT_S) is True
        join()
        return consumer.stats()["finished"]
