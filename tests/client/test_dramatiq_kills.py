"""Dramatiq's workers as processes, which are killed."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import dramatiq
import pytest

from pyqd.client.dramatiq import PyqdBroker
from tests.support.dramatiq_tasks import BROKER
from tests.support.server import Daemon
from tests.support.task_runs import RUNS, assert_complete, report, runs_in, wait_for_runs
from tests.support.workers import Spawn, Worker, kill, stop

pytestmark = pytest.mark.slow

# PROOF_TASKS=10000 is the whole proof.
TASK_COUNT = int(os.environ.get("PROOF_TASKS", "1000"))
QUEUE, CHANNEL = "default", "dramatiq"


@pytest.fixture
def runs_path(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def work(spawn: Spawn, url: str, runs_path: Path) -> Callable[[], Worker]:
    """Function that starts a worker; the broker delivers its messages again 5 s after it was killed."""

    def start() -> Worker:
        arguments = ("-m", "dramatiq", "tests.support.dramatiq_tasks", "-p", "2", "-t", "4")
        return spawn(*arguments, **{BROKER: f"{url}&msg_timeout=5", RUNS: str(runs_path)})

    return start


def message(number: int, due_s: float) -> dramatiq.Message[None]:
    return dramatiq.Message(queue_name=QUEUE, actor_name="run", args=(number, due_s), kwargs={}, options={})


def send(broker: PyqdBroker, number: int, delay_s: float) -> None:
    """Enqueue a message as a program does that knows only the actor's name."""
    broker.enqueue(message(number, time.time() + delay_s), delay=math.ceil(delay_s * 1000))


def test_a_stopped_worker_gives_its_messages_back(
    url: str, work: Callable[[], Worker], runs_path: Path, daemon: Daemon
) -> None:
    broker = PyqdBroker(url)
    worker = work()
    for number in range(50):
        broker.enqueue(message(number, 0.0))
    wait_for_runs(runs_path, 1)
    assert stop(worker) == 0
    daemon.wait_for_channel(QUEUE, CHANNEL, in_flight_count=0, depth=50 - len(runs_in(runs_path)))
    work()
    assert_complete(wait_for_runs(runs_path, 50), 50)
    broker.close()


@pytest.mark.timeout(600)
def test_no_message_is_lost_or_early_while_workers_and_broker_are_killed(
    url: str, work: Callable[[], Worker], runs_path: Path, daemon: Daemon
) -> None:
    wait_s = 60 + TASK_COUNT / 20
    spread_s = max(5.0, TASK_COUNT / 250)
    broker = PyqdBroker(url)
    workers = [work() for _ in range(2)]
    began_s = time.time()
    for number in range(TASK_COUNT):
        send(broker, number, 2 + spread_s * number / TASK_COUNT)
    published_s = time.time() - began_s
    daemon.kill_and_start()
    for part, worker in enumerate(workers, start=1):
        wait_for_runs(runs_path, TASK_COUNT * part // 4, wait_s)
        kill(worker)
        work()
    runs = wait_for_runs(runs_path, TASK_COUNT, wait_s)
    assert_complete(runs, TASK_COUNT)
    daemon.wait_for_channel(QUEUE, CHANNEL, depth=0, deferred_count=0, in_flight_count=0)
    broker.close()
    print(report(runs, TASK_COUNT, began_s, published_s))
