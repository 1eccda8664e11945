"""Futures of published messages behave as those of concurrent.futures."""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from pyqd.client import NotConnectedError, Producer
from pyqd.client.publish_future import PublishFuture
from tests.support.server import WAIT_S

ROUNDS = 2000
FAILURE = NotConnectedError("no broker")


def finish(future: Future[str | None]) -> None:
    future.set_result("id")


def fail(future: Future[str | None]) -> None:
    future.set_exception(FAILURE)


@pytest.fixture(params=["done before", "done after"])
def done_by(request: pytest.FixtureRequest) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Function that runs an action at once, and returns nothing to do; or returns a function that runs the action."""

    def before(action: Callable[[], None]) -> Callable[[], None]:
        action()
        return lambda: None

    return before if request.param == "done before" else lambda action: action


def test_the_result_is_there_as_soon_as_it_is_set() -> None:
    future = PublishFuture()
    assert (future.done(), future.running(), future.cancelled(), future.cancel()) == (False, True, False, False)
    with pytest.raises(concurrent.futures.TimeoutError):
        future.result(timeout=0)
    finish(future)
    assert (future.done(), future.running(), future.result(), future.exception()) == (True, False, "id", None)


def test_an_error_is_raised_and_returned() -> None:
    future = PublishFuture()
    fail(future)
    with pytest.raises(NotConnectedError, match="no broker"):
        future.result()
    assert future.exception() is FAILURE


@pytest.mark.parametrize("end", [finish, fail])
def test_a_callback_is_called_once(end: Callable[..., None], done_by: Callable[..., Callable[[], None]]) -> None:
    future, called = PublishFuture(), list[object]()
    later = done_by(lambda: end(future))
    future.add_done_callback(called.append)
    later()
    assert called == [future]


@pytest.mark.parametrize("end", [finish, fail])
def test_wait_and_as_completed_take_it(end: Callable[..., None], done_by: Callable[..., Callable[[], None]]) -> None:
    first: Future[str | None] = PublishFuture()
    second: Future[str | None] = Future()
    finish(second)
    later = done_by(lambda: end(first))
    thread = threading.Timer(0.01, later)
    thread.start()
    assert concurrent.futures.wait([first, second], WAIT_S).not_done == set()
    assert set(concurrent.futures.as_completed([first, second], WAIT_S)) == {first, second}
    thread.join()


def test_asyncio_waits_for_it(done_by: Callable[..., Callable[[], None]]) -> None:
    async def run() -> str | None:
        future = PublishFuture()
        threading.Timer(0.01, done_by(lambda: finish(future))).start()
        return await asyncio.wait_for(asyncio.wrap_future(future), WAIT_S)

    assert asyncio.run(run()) == "id"


def test_no_thread_misses_a_result_that_is_set_while_it_begins_to_wait() -> None:
    futures = [PublishFuture() for _ in range(ROUNDS)]
    called: list[object] = []
    start = threading.Barrier(3)

    def wait() -> None:
        start.wait(WAIT_S)
        for future in futures:
            assert future.result(WAIT_S) == "id"

    def add() -> None:
        start.wait(WAIT_S)
        for future in futures:
            future.add_done_callback(called.append)

    threads = [threading.Thread(target=wait), threading.Thread(target=add)]
    for thread in threads:
        thread.start()
    start.wait(WAIT_S)
    for future in futures:
        finish(future)
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert len(called) == ROUNDS


def test_a_producer_returns_such_futures(url: str) -> None:
    with Producer(url) as producer:
        futures = [producer.submit("numbers", b"%d" % number) for number in range(100)]
        done, _ = concurrent.futures.wait(futures, WAIT_S)
        assert len({future.result() for future in done}) == 100
        # Callbacks run without locks: they may use the producer.
        again: queue.Queue[Future[str | None]] = queue.Queue()
        first = producer.submit("numbers", b"x")
        first.add_done_callback(lambda _: again.put(producer.submit("numbers", b"y")))
        assert again.get(timeout=WAIT_S).result(WAIT_S) != first.result()
