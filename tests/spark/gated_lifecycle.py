"""Lifecycle whose tasks stop at a gate before they read, so that a test can kill a process during the run.

As a program it brings a table of lives up to date, with tasks in processes that outlive it: directory of the gate, of
the table, addresses of brokers. It is killed while its tasks are at the gate, before it needs a session of Spark.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, cast

from pyqd_spark.jobs.lifecycle import LifecycleOptions, update
from pyqd_spark.jobs.progress import JobProgress
from pyqd_spark.jobs.runner import Task
from pyqd_spark.options import BrokerOptions
from tests.spark.gated_drain import at_gate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class GatedProcesses:
    """Runs tasks in processes of their own when the gate is open."""

    cores = 2

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def run(self, function: Task, arguments: Sequence[Any]) -> list[dict[str, Any]]:
        # Forked processes would hold the table's lock.
        with ProcessPoolExecutor(self.cores, get_context("spawn")) as pool:
            return list(pool.map(partial(at_gate, function, self.directory), arguments))


def main() -> None:
    gate, table, *addresses = sys.argv[1:]
    options = LifecycleOptions(table, BrokerOptions(nsqd=tuple(addresses)))
    update(options, cast("SparkSession", None), JobProgress(quiet=True), GatedProcesses(gate))


if __name__ == "__main__":
    main()
