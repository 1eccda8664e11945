"""Dramatiq actors of the tests. They note each run as the tasks for Celery do."""

from __future__ import annotations

import os

import dramatiq

from pyqd.client.dramatiq import PyqdBroker
from tests.support.task_runs import note

BROKER = "TEST_BROKER"

broker = PyqdBroker(os.environ.get(BROKER, "127.0.0.1:4150"))
dramatiq.set_broker(broker)


@dramatiq.actor
def run(number: int, due_s: float) -> None:
    note(number, due_s)
