"""A session made by pyqd: the settings it makes, those it leaves alone, the imports of its Python processes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pyqd_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_tasks_run_in_the_interpreter_of_the_driver(spark: SparkSession) -> None:
    def executable(_: object) -> list[str]:
        import sys

        return [sys.executable]

    assert spark.sparkContext.parallelize([0], 1).mapPartitions(executable).collect() == [sys.executable]


def test_tasks_import_the_packages_under_test(spark: SparkSession) -> None:
    def origin(_: object) -> list[str]:
        import pyqd_spark

        return [str(pyqd_spark.__file__)]

    assert spark.sparkContext.parallelize([0], 1).mapPartitions(origin).collect() == [pyqd_spark.__file__]


def test_a_session_that_runs_is_taken_again(spark: SparkSession) -> None:
    assert pyqd_spark.session("another").sparkContext is spark.sparkContext
