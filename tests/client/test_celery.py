"""Celery on pyqd: real workers in processes, which are stopped and killed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu.exceptions import OperationalError

from tests.support.celery_tasks import BROKER, app, retry_twice, run, run_slowly
from tests.support.server import Daemon, wait_until
from tests.support.task_runs import RUNS, WAIT_S, assert_complete, report, runs_in, wait_for_runs
from tests.support.workers import Spawn, Worker, kill, stop

pytestmark = pytest.mark.slow

# PROOF_TASKS=10000 is the whole proof.
TASK_COUNT = int(os.environ.get("PROOF_TASKS", "1000"))
QUEUE = "celery"


@pytest.fixture
def tasks(url: str) -> Iterator[Any]:
    """The app, publishing to the daemon."""
    app.conf.broker_url = url
    yield app
    app.pool.force_close_all()
    app._pool = None
    app.amqp._producer_pool = None


@pytest.fixture
def runs_path(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def work(spawn: Spawn, url: str, runs_path: Path) -> Callable[..., Worker]:
    """Function that starts a worker."""

    def start(*options: str, settings: str = "") -> Worker:
        arguments = ("-m", "celery", "-A", "tests.support.celery_tasks", "worker", "-c", "2", *options)
        return spawn(*arguments, **{BROKER: url + settings, RUNS: str(runs_path)})

    return start


def test_tasks_run_at_once_or_when_they_are_due(
    tasks: Any, work: Callable[..., Worker], runs_path: Path, daemon: Daemon
) -> None:
    worker = work()
    run.delay(0)
    wait_for_runs(runs_path, 1)
    due_s = time.time() + 2
    run.apply_async((1, due_s), countdown=2)
    # The worker holds nothing: the broker does.
    daemon.wait_for_channel(QUEUE, QUEUE, deferred_count=1, in_flight_count=0)
    _, later = wait_for_runs(runs_path, 2)
    assert later.ran_s >= due_s
    assert stop(worker) == 0
    daemon.wait_for_channel(QUEUE, QUEUE, depth=0, deferred_count=0, in_flight_count=0)


def test_a_task_sent_to_a_stopped_broker_fails_after_the_default_time_and_another_is_sent_after_its_return(
    tasks: Any, daemon: Daemon
) -> None:
    run.delay(0)
    daemon.stop()
    cause = rf"within not_connected_timeout=1: .*:{daemon.tcp_port}: Connection refused"
    with pytest.raises(OperationalError, match=cause):
        run.apply_async((1,), retry=False)
    with pytest.raises(OperationalError, match=f":{daemon.tcp_port}: .*Connection refused"):
        run.delay(2)
    daemon.start()
    run.delay(3)
    daemon.wait_for_topic(QUEUE, depth=2)


def test_retries_wait_in_the_broker(tasks: Any, work: Callable[..., Worker], runs_path: Path, daemon: Daemon) -> None:
    work()
    retry_twice.delay(7)
    wait_until(lambda: len(runs_in(runs_path)) == 3, "the task has run three times", WAIT_S)
    daemon.wait_for_channel(QUEUE, QUEUE, depth=0, deferred_count=0, in_flight_count=0, requeue_count=0)


@pytest.mark.flags("-msg-timeout=1s")
def test_a_task_that_takes_longer_than_the_message_timeout_runs_once(
    tasks: Any, work: Callable[..., Worker], runs_path: Path, daemon: Daemon
) -> None:
    work()
    run_slowly.delay(1, 3.0)
    wait_for_runs(runs_path, 1)
    daemon.wait_for_channel(QUEUE, QUEUE, in_flight_count=0, depth=0, timeout_count=0)
    assert len(runs_in(runs_path)) == 1


def test_a_stopped_worker_finishes_its_tasks_and_gives_the_others_back(
    tasks: Any, work: Callable[..., Worker], runs_path: Path, daemon: Daemon
) -> None:
    first = work()
    for number in range(20):
        run_slowly.delay(number, 0.5)
    wait_for_runs(runs_path, 2)
    assert stop(first) == 0
    done = {run.number for run in runs_in(runs_path)}
    daemon.wait_for_channel(QUEUE, QUEUE, depth=20 - len(done), in_flight_count=0)
    work()
    runs = wait_for_runs(runs_path, 20)
    assert sorted(run.number for run in runs) == list(range(20))


def test_remote_control_reaches_every_worker(tasks: Any, work: Callable[..., Worker], runs_path: Path) -> None:
    for name in ("one", "two"):
        work("-n", f"{name}@test")
    for number in range(8):
        run_slowly.delay(number, 0.1)
    wait_for_runs(runs_path, 8)

    def both_answer() -> bool:
        answers = tasks.control.ping(timeout=1.0)
        return sorted(name for answer in answers for name in answer) == ["one@test", "two@test"]

    wait_until(both_answer, "both workers answer", WAIT_S)
    (answer,) = tasks.control.inspect(["one@test"], timeout=5.0, limit=1).active_queues().items()
    assert (answer[0], answer[1][0]["name"]) == ("one@test", QUEUE)
    tasks.control.cancel_consumer(QUEUE, destination=["one@test"], reply=True, timeout=5.0, limit=1)
    tasks.control.add_consumer(QUEUE, destination=["one@test"], reply=True, timeout=5.0, limit=1)


def test_a_purge_drops_tasks_and_deferred_tasks(tasks: Any, daemon: Daemon) -> None:
    for number in range(3):
        run.delay(number)
    run.apply_async((3,), countdown=60)
    assert tasks.control.purge() == 4
    daemon.wait_for_topic(QUEUE, depth=0)
    assert tasks.control.purge() == 0


def test_events_of_workers_reach_a_receiver(tasks: Any, work: Callable[..., Worker]) -> None:
    seen: list[dict[str, Any]] = []
    with tasks.connection() as connection:
        receiver = tasks.events.Receiver(connection, handlers={"task-succeeded": seen.append})
        events = receiver.itercapture(limit=None, timeout=WAIT_S, wakeup=False)
        work("-E")
        # The worker says that it is alive; from then on the receiver's queue exists.
        next(events)
        run.delay(1)
        for _ in events:
            if seen:
                break
    assert seen[0]["type"] == "task-succeeded"


@pytest.mark.timeout(600)
def test_no_task_is_lost_or_early_while_workers_and_broker_are_killed(
    tasks: Any, work: Callable[..., Worker], runs_path: Path, daemon: Daemon
) -> None:
    wait_s = 60 + TASK_COUNT / 20
    spread_s = max(5.0, TASK_COUNT / 250)
    # The broker delivers the tasks of a killed worker again after this time.
    settings = "&msg_timeout=5"
    workers = [work("-n", f"w{number}@test", settings=settings) for number in range(2)]
    began_s = time.time()
    for number in range(TASK_COUNT):
        countdown_s = 2 + spread_s * number / TASK_COUNT
        run.apply_async((number, time.time() + countdown_s), countdown=countdown_s)
    published_s = time.time() - began_s
    daemon.kill_and_start()
    for part, worker in enumerate(workers, start=1):
        wait_for_runs(runs_path, TASK_COUNT * part // 4, wait_s)
        kill(worker)
        work("-n", f"next{part}@test", settings=settings)
    runs = wait_for_runs(runs_path, TASK_COUNT, wait_s)
    assert_complete(runs, TASK_COUNT)
    daemon.wait_for_channel(QUEUE, QUEUE, depth=0, deferred_count=0, in_flight_count=0)
    print(report(runs, TASK_COUNT, began_s, published_s))
