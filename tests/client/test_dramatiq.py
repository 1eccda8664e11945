"""Dramatiq broker against a daemon."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Lock
from typing import Any

import dramatiq
import pytest
from dramatiq.errors import ConnectionClosed, QueueJoinTimeout, QueueNotFound

from pyqd.client import Consumer, Producer
from pyqd.client.dramatiq import PyqdBroker
from tests.support.server import WAIT_S, Daemon, free_port, wait_until

WAIT_MS = int(WAIT_S * 1000)


@pytest.fixture
def broker(url: str) -> Iterator[PyqdBroker]:
    broker = PyqdBroker(url)
    yield broker
    broker.close()


class Runs:
    """Arguments that an actor was called with, and the times of the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, float]] = []
        self._lock = Lock()

    def __call__(self, value: Any) -> None:
        with self._lock:
            self.calls.append((value, time.time()))

    @property
    def values(self) -> list[Any]:
        return [value for value, _ in self.calls]


@contextmanager
def working(broker: PyqdBroker, threads: int = 2) -> Iterator[dramatiq.Worker]:
    """Run a worker for a block."""
    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=threads)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop(WAIT_MS)


def actor(broker: PyqdBroker, function: Callable[..., Any], **options: Any) -> dramatiq.Actor[..., Any]:
    return dramatiq.actor(function, broker=broker, actor_name="act", **options)  # type: ignore[call-overload,no-any-return]


def test_messages_are_processed_and_finished(broker: PyqdBroker, daemon: Daemon) -> None:
    runs = Runs()
    act = actor(broker, runs)
    with working(broker):
        for number in range(20):
            act.send(number)
        broker.join("default", timeout=WAIT_MS)
    assert sorted(runs.values) == list(range(20))
    daemon.wait_for_channel("default", "dramatiq", depth=0, in_flight_count=0, requeue_count=0)


def test_a_delayed_message_waits_in_the_broker_and_runs_when_it_is_due(broker: PyqdBroker, daemon: Daemon) -> None:
    runs = Runs()
    act = actor(broker, runs)
    with working(broker):
        act.send("first")
        broker.join("default", timeout=WAIT_MS)
        due_s = time.time() + 0.5
        act.send_with_options(args=("later",), delay=500)
        daemon.wait_for_channel("default", "dramatiq", deferred_count=1, in_flight_count=0)
        broker.join("default", timeout=WAIT_MS)
    assert runs.values == ["first", "later"]
    assert runs.calls[1][1] >= due_s - 0.001
    assert broker.get_declared_delay_queues() == set()
    # The message was published once, and delivered once.
    daemon.wait_for_channel("default", "dramatiq", message_count=2, requeue_count=0)


@pytest.mark.flags("-max-req-timeout=200ms")
def test_a_delay_behind_the_brokers_limit_is_kept(broker: PyqdBroker, daemon: Daemon) -> None:
    runs = Runs()
    act = actor(broker, runs)
    with working(broker):
        due_s = time.time() + 1
        act.send_with_options(args=("later",), delay=1000)
        broker.join("default", timeout=WAIT_MS)
    ((_, ran_s),) = runs.calls
    assert ran_s >= due_s - 0.001


def test_the_actor_sees_no_eta(broker: PyqdBroker) -> None:
    from dramatiq.middleware import CurrentMessage

    seen: list[dict[str, Any]] = []
    broker.add_middleware(CurrentMessage())
    act = actor(broker, lambda: seen.append(dict(CurrentMessage.get_current_message().options)))  # type: ignore[union-attr]
    with working(broker):
        act.send_with_options(delay=10)
        broker.join("default", timeout=WAIT_MS)
    assert [options.get("eta") for options in seen] == [None]


def test_a_failing_message_is_retried_with_a_delay_that_the_broker_keeps(broker: PyqdBroker) -> None:
    runs = Runs()

    def fail_twice(value: str) -> None:
        runs(value)
        if len(runs.calls) < 3:
            raise ValueError("not yet")

    act = actor(broker, fail_twice, min_backoff=50, max_backoff=100)
    with working(broker):
        act.send("x")
        broker.join("default", timeout=WAIT_MS)
    assert runs.values == ["x"] * 3


def test_a_message_that_fails_for_good_goes_to_the_dead_letter_topic(
    broker: PyqdBroker, url: str, daemon: Daemon
) -> None:
    def fail(value: str) -> None:
        raise ValueError("never")

    act = actor(broker, fail, max_retries=0)
    with working(broker):
        sent = act.send("x")
        broker.join("default", timeout=WAIT_MS)
    with Consumer("default.XQ", "inspect", nsqd=url) as consumer:
        (message,) = consumer.fetch(timeout=WAIT_S)
        assert dramatiq.Message.decode(message.body).message_id == sent.message_id
        message.finish()


def test_a_body_of_another_program_goes_to_the_dead_letter_topic(broker: PyqdBroker, url: str, daemon: Daemon) -> None:
    runs = Runs()
    act = actor(broker, runs)
    with Producer(url) as producer, working(broker):
        producer.publish("default", b"\x00 not JSON")
        producer.publish("default", b"[1]")
        act.send(1)
        broker.join("default", timeout=WAIT_MS)
    assert runs.values == [1]
    daemon.wait_for_topic("default.XQ", depth=2)


def body_with(**fields: object) -> bytes:
    """Return the body of a message to the actor `act` with the argument "odd" and other fields."""
    whole = {"queue_name": "default", "actor_name": "act", "args": ["odd"], "kwargs": {}, "options": {}}
    return json.dumps({**whole, **fields}).encode()


@pytest.mark.parametrize(
    "body",
    [body_with(options=None), body_with(options="eta"), body_with(actor_name=[]), b"[" * 100_000],
    ids=["options-null", "options-text", "actor", "deep"],
)
def test_a_message_with_fields_of_the_wrong_type_goes_to_the_dead_letter_topic(
    broker: PyqdBroker, url: str, daemon: Daemon, body: bytes
) -> None:
    runs = Runs()
    act = actor(broker, runs)
    with Producer(url) as producer, working(broker):
        producer.publish("default", body)
        act.send(1)
        broker.join("default", timeout=WAIT_MS)
    assert runs.values == [1]
    daemon.wait_for_topic("default.XQ", depth=1)


@pytest.mark.parametrize("eta", [float("nan"), float("inf"), float("-inf")])
def test_an_eta_that_is_no_time_is_ignored(broker: PyqdBroker, url: str, eta: float) -> None:
    runs = Runs()
    actor(broker, runs)
    with Producer(url) as producer, working(broker):
        producer.publish("default", body_with(options={"eta": eta}))
        broker.join("default", timeout=WAIT_MS)
    assert runs.values == ["odd"]


@pytest.mark.parametrize("eta", [1e308, 10**400], ids=["float", "int"])
def test_a_message_with_an_eta_that_never_comes_waits_in_the_broker(
    broker: PyqdBroker, url: str, daemon: Daemon, eta: float
) -> None:
    runs = Runs()
    act = actor(broker, runs)
    with Producer(url) as producer, working(broker):
        producer.publish("default", body_with(options={"eta": eta}))
        daemon.wait_for_channel("default", "dramatiq", deferred_count=1, in_flight_count=0)
        act.send(1)
        wait_until(lambda: runs.values == [1], "the next message is processed")


def test_messages_that_wait_in_a_worker_go_back_when_it_stops(url: str, daemon: Daemon) -> None:
    began, end = Event(), Event()

    def block(number: int) -> None:
        began.set()
        assert end.wait(WAIT_S)

    broker = PyqdBroker(url)
    act = actor(broker, block)
    with working(broker, threads=1) as worker:
        for number in range(5):
            act.send(number)
        assert began.wait(WAIT_S)
        # Twice the number of threads: dramatiq's prefetch.
        daemon.wait_for_channel("default", "dramatiq", in_flight_count=2, depth=3)
        for thread in worker.workers:
            thread.stop()
        end.set()
    broker.close()
    daemon.wait_for_channel("default", "dramatiq", depth=4, in_flight_count=0)


def test_a_queue_is_flushed_with_its_delayed_messages(broker: PyqdBroker, daemon: Daemon) -> None:
    runs = Runs()
    act = actor(broker, runs)
    act.send(1)
    act.send_with_options(args=(2,), delay=60_000)
    broker.flush_all()
    broker.join("default", timeout=WAIT_MS)
    with working(broker):
        act.send(3)
        broker.join("default", timeout=WAIT_MS)
    assert runs.values == [3]


def test_join_waits_for_delayed_messages(broker: PyqdBroker) -> None:
    actor(broker, Runs()).send_with_options(args=(1,), delay=60_000)
    with pytest.raises(QueueJoinTimeout):
        broker.join("default", timeout=300)


@pytest.mark.parametrize("call", ["consume", "flush", "join"])
def test_an_undeclared_queue_is_an_error(broker: PyqdBroker, call: str) -> None:
    with pytest.raises(QueueNotFound):
        getattr(broker, call)("nothing")


@pytest.mark.slow
def test_a_broker_that_cannot_be_reached_is_a_connection_error() -> None:
    broker = PyqdBroker(f"127.0.0.1:{free_port()}", http=f"127.0.0.1:{free_port()}", timeout=0.2)
    act = actor(broker, Runs())
    with pytest.raises(ConnectionClosed):
        act.send(1)
    with pytest.raises(ConnectionClosed):
        broker.flush("default")
    broker.close()


@pytest.mark.slow
@pytest.mark.parametrize("in_url", [True, False], ids=["url", "argument"])
def test_sending_waits_for_a_stopped_broker_as_long_as_the_setting_says(url: str, daemon: Daemon, in_url: bool) -> None:
    broker = PyqdBroker(f"{url}&not_connected_timeout=0.2") if in_url else PyqdBroker(url, not_connected_timeout=0.2)
    act = actor(broker, Runs())
    act.send(1)
    daemon.stop()
    cause = rf"not_connected_timeout=0\.2: .*:{daemon.tcp_port}: Connection refused"
    with pytest.raises(ConnectionClosed, match=cause):
        act.send(2)
    daemon.start()
    act.send(3)
    daemon.wait_for_topic("default", depth=2)
    broker.close()


def test_a_worker_outlasts_a_kill_of_the_broker(broker: PyqdBroker, daemon: Daemon) -> None:
    runs = Runs()
    act = actor(broker, runs)
    with working(broker):
        act.send(1)
        broker.join("default", timeout=WAIT_MS)
        act.send_with_options(args=(2,), delay=300)
        daemon.kill_and_start()
        act.send(3)
        broker.join("default", timeout=WAIT_MS)
    assert set(runs.values) == {1, 2, 3}


def test_queues_have_a_prefix_and_names_that_the_protocol_allows(url: str) -> None:
    broker = PyqdBroker(url, topic_prefix="app.")
    assert broker.topic_of("mail") == "app.mail"
    assert broker.dead_letter_topic_of("mail") == "app.mail.XQ"
    assert len(broker.dead_letter_topic_of("m" * 100)) <= 64
    broker.close()
