"""Drain on Spark whose tasks stop at a gate, so that a test can kill a process during the drain.

As a program for spark-submit it is `pyq_spark` itself, whose tasks stop at the gate. The directory of the gate is its
first argument, the others are those of `pyq_spark`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyqd_spark import cli
from pyqd_spark.jobs import runner
from pyqd_spark.jobs.runner import OnSpark, Task

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Ranges before this one pass the gate at once.
GATED_FROM = 3
GATE_WAIT_S = 120.0


def gated(function: Task, directory: str, task: Any) -> dict[str, Any]:
    """Run a task; one behind the first few when the gate is open."""
    return at_gate(function, directory, task) if task.number >= GATED_FROM else function(task)


def at_gate(function: Task, directory: str, task: Any) -> dict[str, Any]:
    """Run a task when the gate is open; until then, say which process stands before it."""
    Path(directory, f"waiting-{os.getpid()}").touch()
    deadline_s = time.monotonic() + GATE_WAIT_S
    while not os.path.exists(os.path.join(directory, "open")):
        assert time.monotonic() < deadline_s, "nobody opened the gate"
        time.sleep(0.02)
    return function(task)


class Gated(OnSpark):
    """Runs tasks on Spark when the gate is open. at: `gated`, or `at_gate` if none passes before."""

    def __init__(self, spark: SparkSession, directory: str | Path, at: Callable[..., dict[str, Any]] = gated) -> None:
        super().__init__(spark, "gated job")
        self.directory = str(directory)
        self.at = at

    def run(self, function: Task, arguments: Sequence[Any]) -> list[dict[str, Any]]:
        return super().run(partial(self.at, function, self.directory), arguments)


def waiting(directory: Path) -> list[int]:
    """Return the processes that stand before the gate."""
    return [int(name.removeprefix("waiting-")) for name in os.listdir(directory) if name.startswith("waiting-")]


def main() -> int:
    gate, *words = sys.argv[1:]
    # The command looks the class up here.
    runner.OnSpark = lambda spark, _: Gated(spark, gate)  # type: ignore[assignment, misc]
    return cli.main(words)


if __name__ == "__main__":
    sys.exit(main())
