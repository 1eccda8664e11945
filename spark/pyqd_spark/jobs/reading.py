"""Reading of drained tables with Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyqd_spark.jobs.errors import JobError
from pyqd_spark.jobs.table import JobTable
from pyqd_spark.landing import uri_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_table(spark: SparkSession, path: str) -> DataFrame:
    """Return a table's rows.

    The files are listed under the lock of readers, so no compaction replaces any of them during the listing. Topic and
    day are read as text. Raises: TableError; JobError if there is no row yet.
    """
    table = JobTable(path)
    with table.reading():
        if not table.partitions():
            raise JobError(f"{table.path} has no rows yet")
        # A topic named 007 is not a number.
        with settings(spark, {"spark.sql.sources.partitionColumnTypeInference.enabled": "false"}):
            return spark.read.parquet(uri_of(table.path))


@contextlib.contextmanager
def settings(spark: SparkSession, values: dict[str, str]) -> Iterator[None]:
    """Change settings of a session for a block."""
    before = {name: str(spark.conf.get(name)) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def chosen(frame: DataFrame, where: str | None) -> DataFrame:
    """Return the rows that an SQL expression selects. Raises: JobError if the expression is invalid."""
    from pyspark.errors import AnalysisException, ParseException

    if where is None:
        return frame
    try:
        return frame.where(where)
    except (AnalysisException, ParseException) as error:
        said = (error.getMessage() or str(error)).strip().splitlines()[0]
        raise JobError(f"--where {where!r}: {said}; the columns are {', '.join(frame.columns)}") from None
