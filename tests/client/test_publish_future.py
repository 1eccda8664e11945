"""Futures of published messages behave as those of concurrent.futures."""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

from pyqd.client import Producer, UnansweredError
from pyqd.client.publish_future import PublishFuture
from tests.support.publish_broker import Publish, PublishBroker
from tests.support.scripted_broker import RESPONSE, frame
from tests.support.server import WAIT_S, wait_until

ROUNDS = 2000


class Gate:
    """Broker that answers the messages of one producer, or breaks their connection, when it is told to."""

    def __init__(self, broker: PublishBroker) -> None:
        self._broker = broker
        self._is_open = threading.Event()
        self._breaks = False
        broker.answer = self._answer
        self.producer = Producer(broker.address, retry_unanswered=False)

    def _answer(self, publish: Publish) -> bytes | None:
        assert self._is_open.wait(WAIT_S)
        return None if self._breaks else frame(RESPONSE, b"OK %016x" % publish.number)

    def finish(self) -> None:
        self._is_open.set()

    def fail(self) -> None:
        self._breaks = True
        self._is_open.set()


@pytest.fixture
def gate(scripted: PublishBroker) -> Iterator[Gate]:
    made = Gate(scripted)
    yield made
    made.finish()
    made.producer.close()


@pytest.fixture
def future(gate: Gate) -> Future[str | None]:
    """Future whose answer comes when the gate opens."""
    return gate.producer.submit("t", b"x")


@pytest.fixture(params=["done before", "done after"])
def done_by(request: pytest.FixtureRequest) -> Callable[[Future[str | None], Callable[[], None]], Callable[[], None]]:
    """Function that ends a future by an action and returns nothing to do; or returns the action."""

    def before(future: Future[str | None], action: Callable[[], None]) -> Callable[[], None]:
        action()
        future.exception(WAIT_S)
        return lambda: None

    return before if request.param == "done before" else lambda _, action: action


def test_the_result_is_there_when_the_broker_has_answered(gate: Gate, future: Future[str | None]) -> None:
    assert (future.done(), future.running(), future.cancelled(), future.cancel()) == (False, True, False, False)
    for ask in (future.result, future.exception):
        with pytest.raises(concurrent.futures.TimeoutError):
            ask(timeout=0)
    gate.finish()
    assert future.result(WAIT_S) == "0000000000000001"
    assert (future.done(), future.running(), future.cancel(), future.exception()) == (True, False, False, None)


def test_an_error_is_raised_and_returned(gate: Gate, future: Future[str | None]) -> None:
    gate.fail()
    with pytest.raises(UnansweredError, match="may have been published"):
        future.result(WAIT_S)
    assert isinstance(future.exception(), UnansweredError)


def test_a_wrong_answer_is_an_error_for_callbacks_too(scripted: PublishBroker) -> None:
    scripted.answer = lambda _: frame(RESPONSE, b"what")
    with Producer(scripted.address) as producer:
        errors: queue.Queue[object] = queue.Queue()
        producer.submit("t", b"x").add_done_callback(lambda future: errors.put(future.exception()))
        assert "instead of OK" in str(errors.get(timeout=WAIT_S))


@pytest.mark.parametrize("end", [Gate.finish, Gate.fail])
def test_a_callback_is_called_once(
    gate: Gate, future: Future[str | None], end: Callable[[Gate], None], done_by: Callable[..., Callable[[], None]]
) -> None:
    called: queue.Queue[object] = queue.Queue()
    later = done_by(future, lambda: end(gate))
    future.add_done_callback(called.put)
    later()
    assert called.get(timeout=WAIT_S) is future
    gate.producer.close()
    assert called.empty()


@pytest.mark.parametrize("end", [Gate.finish, Gate.fail])
def test_wait_and_as_completed_take_it(
    gate: Gate, future: Future[str | None], end: Callable[[Gate], None], done_by: Callable[..., Callable[[], None]]
) -> None:
    other: Future[str | None] = Future()
    other.set_result("other")
    later = done_by(future, lambda: end(gate))
    ending = threading.Thread(target=later)
    ending.start()
    assert concurrent.futures.wait([future, other], WAIT_S).not_done == set()
    assert set(concurrent.futures.as_completed([future, other], WAIT_S)) == {future, other}
    ending.join(WAIT_S)


def test_a_future_that_is_done_needs_no_lock_for_its_condition(
    gate: Gate, future: Future[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate.finish()
    future.result(WAIT_S)
    engine = gate.producer._engine
    were_locked: list[bool] = []
    settle = PublishFuture._settle

    def note(self: PublishFuture) -> None:
        were_locked.append(engine.lock.locked())
        settle(self)

    # wait() holds the condition of one future while the state of the next one is made, which takes the lock.
    monkeypatch.setattr(PublishFuture, "_settle", note)
    assert concurrent.futures.wait([future], WAIT_S).done == {future}
    assert were_locked == [False]


def test_asyncio_waits_for_it(
    gate: Gate, future: Future[str | None], done_by: Callable[..., Callable[[], None]]
) -> None:
    later = done_by(future, gate.finish)

    async def run() -> str | None:
        wrapped = asyncio.wrap_future(future)
        later()
        return await asyncio.wait_for(wrapped, WAIT_S)

    assert asyncio.run(run()) == "0000000000000001"


def test_several_threads_may_wait_for_one(gate: Gate, future: Future[str | None]) -> None:
    engine = gate.producer._engine
    results: list[str | None] = []
    threads = [threading.Thread(target=lambda: results.append(future.result(WAIT_S))) for _ in range(5)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(engine.role.waiters) == 4, "one drives, and the others sleep")
    gate.finish()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert results == ["0000000000000001"] * 5


def test_no_thread_misses_a_result_that_comes_while_it_begins_to_wait(url: str) -> None:
    with Producer(url) as producer:
        futures: queue.Queue[Future[str | None] | None] = queue.Queue()
        called: queue.Queue[object] = queue.Queue()

        def wait() -> None:
            while (future := futures.get(timeout=WAIT_S)) is not None:
                assert future.result(WAIT_S) is not None
                future.add_done_callback(called.put)

        threads = [threading.Thread(target=wait) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(ROUNDS):
            future = producer.submit("numbers", b"x")
            future.add_done_callback(called.put)
            futures.put(future)
        for _ in threads:
            futures.put(None)
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
    assert called.qsize() == 2 * ROUNDS


def test_a_callback_may_wait_for_the_producer(url: str) -> None:
    with Producer(url) as producer:
        results: queue.Queue[str | None] = queue.Queue()
        producer.submit("numbers", b"x").add_done_callback(
            lambda _: results.put(producer.submit("numbers", b"y").result(WAIT_S))
        )
        assert results.get(timeout=WAIT_S) is not None


def test_messages_are_sent_without_a_thread_that_waits(gate: Gate, scripted: PublishBroker) -> None:
    gate.finish()
    called: queue.Queue[Future[str | None]] = queue.Queue()
    futures = [gate.producer.submit("t", b"%d" % number) for number in range(5)]
    for future in futures:
        future.add_done_callback(called.put)
    assert [called.get(timeout=WAIT_S) for _ in futures] == futures
    assert scripted.bodies() == [b"0", b"1", b"2", b"3", b"4"]


def test_a_future_that_is_kept_does_not_keep_its_message(url: str) -> None:
    with Producer(url) as producer:
        future = producer.submit("numbers", bytes(1000))
        future.result(WAIT_S)
        assert future.publication.command == b""  # type: ignore[attr-defined] # of the class that is returned


def test_an_attribute_that_no_future_has_is_missing(future: Future[str | None]) -> None:
    with pytest.raises(AttributeError, match="no attribute 'results'"):
        _ = future.results  # type: ignore[attr-defined] # it does not exist
