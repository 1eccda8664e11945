"""Lifecycle on Spark whose tasks stop at a gate before they read, so that a test can kill a process during the run.

As a program it is `pyq_spark` itself. The directory of the gate is its first argument, the others are those of
`pyq_spark`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyqd_spark import cli
from pyqd_spark.jobs import lifecycle
from pyqd_spark.jobs.runner import OnSpark, Task
from tests.spark.gated_drain import at_gate, waiting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Gated", "waiting"]


class Gated(OnSpark):
    """Runs tasks on Spark when the gate is open."""

    def __init__(self, spark: SparkSession, directory: str | Path) -> None:
        super().__init__(spark, "gated lifecycle")
        self.directory = str(directory)

    def run(self, function: Task, arguments: Sequence[Any]) -> list[dict[str, Any]]:
        return super().run(partial(at_gate, function, self.directory), arguments)


def main() -> int:
    """Run the command until it is killed."""
    gate, *words = sys.argv[1:]
    setattr(lifecycle, "OnSpark", lambda spark, _: Gated(spark, gate))  # noqa: B010 (a module does not export it)
    return cli.main(words)


if __name__ == "__main__":
    sys.exit(main())
