"""Celery app of the tests. Its tasks note each run in a file, so that runs of killed workers count too."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from celery import Celery

RUNS = "TEST_RUNS"
BROKER = "TEST_BROKER"

app = Celery("tests.support.celery_tasks", broker=os.environ.get(BROKER, "pyqd://"))
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=4)


class Run(NamedTuple):
    """One run of a task: its number, the time it was due, and the time it ran."""

    number: int
    due_s: float
    ran_s: float


def note(number: int, due_s: float) -> None:
    """Append a run to the file. A line is one write, which no other process can interrupt."""
    file = os.open(os.environ[RUNS], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{number} {due_s!r} {time.time()!r}\n".encode())
    finally:
        os.close(file)


def runs_in(path: Path) -> list[Run]:
    """Return the runs in a file."""
    if not path.exists():
        return []
    rows = [line.split() for line in path.read_text().splitlines()]
    return [Run(int(number), float(due_s), float(ran_s)) for number, due_s, ran_s in rows]


@app.task  # type: ignore[untyped-decorator]
def run(number: int, due_s: float = 0.0) -> None:
    """Note a run."""
    note(number, due_s)


@app.task  # type: ignore[untyped-decorator]
def run_slowly(number: int, seconds: float) -> None:
    """Note a run, then take some time."""
    note(number, 0.0)
    time.sleep(seconds)


@app.task(bind=True, max_retries=5)  # type: ignore[untyped-decorator]
def retry_twice(self: Any, number: int) -> None:
    """Note a run, and fail the first two times."""
    note(number, 0.0)
    if self.request.retries < 2:
        raise self.retry(countdown=0.3)
