"""Tests of pyqd.net.background, on the hub of the test."""

import threading
from _thread import start_new_thread
from collections.abc import Iterator
from functools import partial
from typing import Any

import gevent
import pytest
from gevent import threadpool
from gevent.event import Event
from greenlet import settrace

from pyqd.net.background import Background
from pyqd.net.greenlets import start_threads

LONG_S = 30


@pytest.fixture
def hub() -> Any:
    return gevent.get_hub()


@pytest.fixture
def background(hub: Any) -> Iterator[Background]:
    background = Background(hub, 2)
    yield background
    background.stop()


def held(background: Background, count: int) -> tuple[threading.Event, list[int]]:
    """Run so many jobs that wait for the event; the list tells which are done."""
    let_go = threading.Event()
    ended: list[int] = []
    for number in range(count):

        def done(_result: Any, _error: BaseException | None, number: int = number) -> None:
            ended.append(number)

        background.run(lambda: let_go.wait(LONG_S), done)
    return let_go, ended


def until_done(background: Background) -> None:
    """Let the loop run until all jobs given so far have told their ends."""
    with gevent.Timeout(LONG_S):
        while background.waiting or background.free_threads < background.thread_count:
            gevent.sleep(0.001)


def test_a_job_given_in_a_turn_of_the_loop_runs_though_others_hold_all_threads_of_the_hub(hub, background):
    let_go = threading.Event()
    taken = [hub.threadpool.spawn(let_go.wait, LONG_S) for _ in range(hub.threadpool.maxsize + 1)]
    ended = Event()
    try:
        hub.loop.run_callback(background.run, lambda: 7, lambda result, error: ended.set())
        assert ended.wait(LONG_S / 2)
    finally:
        let_go.set()
        gevent.joinall(taken)


def test_giving_more_jobs_than_there_are_threads_never_switches(hub, background):
    let_go = threading.Event()
    ended: list[Any] = []
    given = Event()

    def give() -> None:
        # In the hub a switch would be an error.
        for number in range(20):
            background.run(lambda number=number: (let_go.wait(LONG_S), number)[1], lambda r, e: ended.append((r, e)))
        given.set()

    hub.loop.run_callback(give)
    assert given.wait(LONG_S)
    assert ended == []
    let_go.set()
    until_done(background)
    assert sorted(ended) == [(number, None) for number in range(20)]


def test_threads_that_were_started_before_take_jobs_without_a_switch(hub, background):
    start_threads(background.pool, background.thread_count)
    switches: list[str] = []
    ended: list[int] = []
    before = settrace(lambda event, _greenlets: switches.append(event))
    try:
        for _ in range(2 * background.thread_count):
            background.run(lambda: 7, lambda result, _error: ended.append(result))
    finally:
        settrace(before)
    assert switches == []
    until_done(background)
    assert ended == [7] * 2 * background.thread_count


def test_no_thread_is_made_before_there_is_a_job_nor_more_than_there_are_jobs(background):
    assert background.pool.size == 0
    let_go, _ended = held(background, 1)
    assert background.pool.size == 1
    let_go.set()
    until_done(background)


def test_a_finished_job_may_start_the_next_and_an_error_is_reported(background):
    told: list[Any] = []

    def fail() -> None:
        raise OSError("no such thing")

    def failed(_result: Any, error: BaseException | None) -> None:
        told.append(str(error))
        background.run(lambda: 5, lambda result, _error: told.append(result))

    background.run(fail, failed)
    until_done(background)
    assert told == ["no such thing", 5]


def test_an_error_of_a_job_is_for_its_giver_and_not_for_standard_error(
    background: Background, capfd: pytest.CaptureFixture[str]
) -> None:
    told: list[BaseException | None] = []
    background.run(lambda: [].pop(), lambda _result, error: told.append(error))
    until_done(background)
    assert [type(error) for error in told] == [IndexError]
    assert capfd.readouterr().err == ""


def test_a_stop_waits_for_running_jobs_drops_waiting_ones_and_ends_the_threads(hub):
    background = Background(hub, 2)
    let_go, ended = held(background, 5)
    gevent.spawn_later(0.01, let_go.set)
    background.stop()
    assert background.pool.size == 0
    until_done(background)
    assert sorted(ended) == [0, 1]
    background.run(lambda: 1, lambda result, error: ended.append(9))
    gevent.sleep(0)
    assert background.pool.size == 0
    assert 9 not in ended


def test_a_caller_that_waits_for_its_job_lets_the_loop_run_and_is_not_told_of_an_error(background):
    let_go = threading.Event()
    ended: list[str] = []

    def fail() -> None:
        let_go.wait(LONG_S)
        ended.append("job")
        raise OSError("no such thing")

    gevent.spawn_later(0.01, let_go.set)
    with gevent.Timeout(LONG_S):
        background.run_and_wait(fail)
    assert ended == ["job"]
    background.stop()
    background.run_and_wait(lambda: ended.append("after the stop"))
    assert ended == ["job"]


def test_a_stop_lets_those_go_on_that_wait_for_jobs(hub):
    background = Background(hub, 1)
    let_go = threading.Event()
    begun = 0

    def job() -> None:
        nonlocal begun
        begun += 1
        let_go.wait(LONG_S)

    callers: list[Any] = [gevent.spawn(background.run_and_wait, job) for _ in range(3)]
    gevent.sleep(0.01)
    gevent.spawn_later(0.01, let_go.set)
    background.stop()
    gevent.joinall(callers, timeout=LONG_S, raise_error=True)
    assert all(caller.successful() for caller in callers)
    assert begun == 1


def refuse_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next start of a thread fail."""
    refused: list[str] = []

    def start_or_fail(*arguments: Any) -> Any:
        if not refused:
            refused.append("can't start new thread")
            raise RuntimeError(refused[0])
        return start_new_thread(*arguments)

    monkeypatch.setattr(threadpool, "start_new_thread", start_or_fail)


def test_a_job_without_a_thread_is_reported_as_failed_and_never_runs(
    background: Background, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    refuse_a_thread(monkeypatch)
    failed: list[BaseException | None] = []
    ran: list[int] = []
    background.run(lambda: ran.append(1), lambda _result, error: failed.append(error))
    for number in (2, 3, 4):
        background.run(partial(ran.append, number), lambda _result, error: failed.append(error))
    until_done(background)
    assert [str(error) for error in failed] == ["can't start new thread", "None", "None", "None"]
    assert sorted(ran) == [2, 3, 4]
    assert capfd.readouterr().err == ""


def test_a_job_waits_for_the_thread_that_runs_if_no_other_can_be_started_and_runs_once(
    background: Background, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    let_go, ended = held(background, 1)
    refuse_a_thread(monkeypatch)
    ran: list[int] = []
    told: list[BaseException | None] = []
    background.run(lambda: ran.append(2), lambda _result, error: told.append(error))
    gevent.sleep(0.01)
    assert (ran, told, background.pool.size) == ([], [], 1)
    let_go.set()
    until_done(background)
    background.run(lambda: ran.append(3), lambda _result, error: told.append(error))
    until_done(background)
    assert (ended, ran, told) == ([0], [2, 3], [None, None])
    assert capfd.readouterr().err == ""


def test_an_error_at_the_end_of_a_job_is_reported_and_the_next_job_runs(background: Background) -> None:
    failures: list[BaseException] = []
    background.on_failure = failures.append
    results: list[Any] = []

    def fail(_result: Any, _error: BaseException | None) -> None:
        raise AssertionError("an invariant")

    background.run(lambda: 1, fail)
    background.run(lambda: 2, lambda result, _error: results.append(result))
    until_done(background)
    assert [str(failure) for failure in failures] == ["an invariant"]
    assert results == [2]
