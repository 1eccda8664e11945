"""Celery app of the tests. Its tasks note each run."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

from tests.support.task_runs import note

BROKER = "TEST_BROKER"

app = Celery("tests.support.celery_tasks", broker=os.environ.get(BROKER, "pyqd://"))
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=4)


@app.task  # type: ignore[untyped-decorator]
def run(number: int, due_s: float = 0.0) -> None:
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
