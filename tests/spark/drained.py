"""Shared helpers for tests of drains: numbered messages, and their numbers in a table."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pyqd_spark.jobs.drain import DrainOptions, drain
from pyqd_spark.jobs.progress import JobProgress
from pyqd_spark.jobs.report import Report
from pyqd_spark.jobs.runner import Runner, Task
from pyqd_spark.options import BrokerOptions
from tests.support.nsq import Client
from tests.support.server import Daemon
from tests.support.spark_side import http_address

QUIET = JobProgress(quiet=True)
BATCH = 1000


class InProcess:
    """Runner of tasks one after the other in this process."""

    cores = 1

    def run(self, function: Task, arguments: Sequence[Any]) -> list[dict[str, Any]]:
        return [function(argument) for argument in arguments]


def publish(daemon: Daemon, topic: str, numbers: Iterable[int]) -> None:
    bodies = [b"%d" % number for number in numbers]
    with Client(daemon.tcp_address) as client:
        for first in range(0, len(bodies), BATCH):
            client.mpub(topic, bodies[first : first + BATCH])


def connection(*daemons: Daemon, retry_s: float = 0.0) -> BrokerOptions:
    return BrokerOptions(nsqd=tuple(http_address(daemon) for daemon in daemons), retry_timeout_s=retry_s)


def options(path: Path, *daemons: Daemon, **fields: Any) -> DrainOptions:
    fields.setdefault("connection", connection(*daemons))
    fields.setdefault("rows_per_file", 1000)
    return DrainOptions(str(path), **fields)


def run(chosen: DrainOptions, runner: Runner | None = None) -> list[Report]:
    return drain(chosen, runner or InProcess(), QUIET)


def files(path: Path) -> list[Path]:
    """Return the files that a reader of the table sees."""
    found = []
    for directory, below, names in os.walk(path):
        below[:] = [name for name in below if not name.startswith((".", "_"))]
        found += [Path(directory, name) for name in names if not name.startswith((".", "_"))]
    return sorted(found)


def bodies(path: Path, topic: str | None = None) -> list[bytes]:
    """Return all bodies of a table, or of one topic, in no order that counts."""
    found: list[bytes] = []
    for file in files(path):
        if topic is None or f"topic={topic}" in file.parts:
            found += pq.ParquetFile(file).read(columns=["value"])["value"].to_pylist()
    return found


def numbers(path: Path, topic: str | None = None) -> list[int]:
    """Return the numbers in a table, sorted, with repetitions."""
    return sorted(int(body) for body in bodies(path, topic))
