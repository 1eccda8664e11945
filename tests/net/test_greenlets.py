"""Tests of pyqd.net.greenlets: services that end, threads."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import gevent
import pytest
from gevent import threadpool

from pyqd.durability.housekeeper import Housekeeper
from pyqd.durability.syncer import Syncer
from pyqd.net import greenlets
from tests.support.storage import broker_on

LONG_S = 30


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greenlets, "RESTART_S", 0.0)


def raising(errors: list[BaseException]) -> Callable[[], None]:
    """Return a function that raises one error after the other, and then returns."""

    def fail() -> None:
        if errors:
            raise errors.pop(0)

    return fail


@pytest.mark.parametrize("error", [None, AssertionError("an invariant"), OSError("a file")])
def test_a_service_that_ends_says_so(error: BaseException | None) -> None:
    failures: list[BaseException] = []
    greenlets.spawn_service("service", raising([error] if error else []), failures.append).join(LONG_S)
    assert [str(failure) for failure in failures] == [str(error or "it returned")]


def test_a_service_without_memory_begins_again() -> None:
    failures: list[BaseException] = []
    errors: list[BaseException] = [MemoryError(), MemoryError(), AssertionError("an invariant")]
    greenlets.spawn_service("service", raising(errors), failures.append).join(LONG_S)
    assert [str(failure) for failure in failures] == ["an invariant"]


def test_a_service_that_is_killed_says_nothing() -> None:
    failures: list[BaseException] = []
    service = greenlets.spawn_service("service", lambda: gevent.sleep(LONG_S), failures.append)
    gevent.sleep(0)
    service.kill()
    assert failures == []


def test_a_failing_housekeeper_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: gevent.event.AsyncResult[BaseException] = gevent.event.AsyncResult()
    monkeypatch.setattr("pyqd.durability.housekeeper.LOOK_S", 0.0)
    monkeypatch.setattr("pyqd.durability.housekeeper.LOOK_SHORT_OF_ROOM_S", 0.0)
    broker = broker_on(tmp_path)
    broker.topic("t")
    monkeypatch.setattr("pyqd.durability.housekeeper.reclaim", lambda _topic, _now_ns: 1 / 0)
    housekeeper = Housekeeper(broker, failed.set)
    housekeeper.start()
    assert isinstance(failed.get(timeout=LONG_S), ZeroDivisionError)
    housekeeper.stop()
    broker.close()


def test_a_failing_syncer_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: gevent.event.AsyncResult[BaseException] = gevent.event.AsyncResult()
    broker = broker_on(tmp_path, sync_timeout=1_000_000)
    syncer = Syncer(broker, on_internal_error=failed.set)
    monkeypatch.setattr(syncer, "note", lambda: 1 / 0)
    syncer.start()
    assert isinstance(failed.get(timeout=LONG_S), ZeroDivisionError)
    syncer.stop()
    broker.close()


def test_a_job_of_a_pool_waits_for_the_thread_that_runs_if_no_other_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    pool = greenlets.WorkerPool(2)
    try:
        greenlets.start_threads(pool, 1)
        monkeypatch.setattr(threadpool, "start_new_thread", refuse)
        let_go = threading.Event()
        first = pool.spawn(let_go.wait, LONG_S)
        gevent.spawn_later(0.01, let_go.set)
        assert pool.apply(lambda: 7) == 7
        assert first.get(timeout=LONG_S)
        assert pool.size == 1
    finally:
        pool.kill()


def test_a_thread_of_a_pool_does_not_preempt_the_thread_that_gives_it_work() -> None:
    pool = greenlets.WorkerPool(1)
    try:
        assert pool.apply(os.sched_getscheduler, (0,)) == os.SCHED_BATCH
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
    finally:
        pool.kill()
