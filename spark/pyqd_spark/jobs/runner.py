"""Runner of a job's tasks: one Spark task for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Task = Callable[[Any], dict[str, Any]]


class Runner(Protocol):
    """Runner of one function over many arguments. cores: how many run at the same time."""

    cores: int

    def run(self, function: Task, arguments: Sequence[Any]) -> list[dict[str, Any]]:
        """Return the results, in the order of the arguments."""


class OnSpark:
    """Runner of each task as a Spark task, which Spark runs again if its worker dies. Functions must be importable."""

    def __init__(self, spark: SparkSession, description: str) -> None:
        self.context = spark.sparkContext
        self.description = description
        self.cores = max(1, self.context.defaultParallelism)

    def run(self, function: Task, arguments: Sequence[Any]) -> list[dict[str, Any]]:
        """Return the results, in the order of the arguments. Raises: Spark's error if a task fails for good."""
        if not arguments:
            return []
        self.context.setJobDescription(self.description)
        try:
            results: list[dict[str, Any]] = (
                self.context.parallelize(list(arguments), len(arguments)).map(function).collect()
            )
        finally:
            self.context.setJobDescription("")
        return results
