"""Replay: publishes messages of a table again, at a bounded rate, through the publisher of format("pyqd").

At least once: a task that is run again publishes its rows again. Without a rate the order within a file is that of its
positions; with a rate there is no order.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from pyqd_spark.jobs.errors import JobError, reason_in
from pyqd_spark.jobs.progress import JobProgress
from pyqd_spark.jobs.reading import chosen, read_table
from pyqd_spark.options import BrokerOptions
from pyqd_spark.writer import Published, WriteSettings, publish_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# Time for which a task with a rate gathers messages before it sends them.
PACE_S = 0.1


@dataclass(frozen=True)
class ReplayOptions:
    """Selection of messages and the way to publish them. path: of the table. where: an SQL expression, None for all
    rows.

    rate: messages per second at most, over all tasks. tasks: number of concurrent tasks; None: one per core.
    """

    path: str
    topic: str
    connection: BrokerOptions
    where: str | None = None
    rate: int | None = None
    tasks: int | None = None
    dry_run: bool = False


@dataclass(frozen=True)
class ReplayReport:
    """Result of a replay or of a dry run. bytes: of bodies. repeated: sent again because an answer was missing."""

    topic: str
    rows: int
    bytes: int
    repeated: int
    seconds: float
    dry_run: bool


def replay(options: ReplayOptions, spark: SparkSession, shown: JobProgress) -> ReplayReport:
    """Publish the selection, or count it. Raises: JobError, and BrokerError before a task starts."""
    from pyspark.sql import functions

    frame = chosen(read_table(spark, options.path), options.where)
    started_s = time.monotonic()
    counts = frame.agg(functions.count("*"), functions.sum(functions.length("value"))).collect()[0]
    rows, size = int(counts[0]), int(counts[1] or 0)
    repeated = 0
    if not options.dry_run and rows:
        limit = f", at most {options.rate:,} per second" if options.rate else ""
        shown.say(f"{rows:,} messages go to topic {options.topic}{limit}")
        started_s = time.monotonic()
        published, repeated = publish(options, frame, spark)
        if published != rows:
            raise JobError(
                f"{published:,} messages were published, {rows:,} were counted before: the table has changed"
            )
    seconds = round(time.monotonic() - started_s, 3)
    return ReplayReport(options.topic, rows, size, repeated, seconds, options.dry_run)


def publish(options: ReplayOptions, frame: DataFrame, spark: SparkSession) -> tuple[int, int]:
    """Publish the bodies of rows. Returns: how many, and how many of them were sent again. Raises: JobError."""
    from pyspark.errors import PySparkException

    tasks = options.tasks or max(1, spark.sparkContext.defaultParallelism)
    bodies = frame.select("value")
    # With a rate all tasks need equal shares; without one the shuffle would be useless.
    spread = bodies.coalesce(tasks) if options.rate is None else bodies.repartition(tasks)
    spark.dataSource.register(ReplaySink)
    with tempfile.TemporaryDirectory(prefix="pyqd-replay-") as directory:
        summary = os.path.join(directory, "summary.json")
        writer = spread.write.format(ReplaySink.name()).mode("append").options(**options.connection.given())
        if options.rate is not None:
            writer = writer.option("rate", options.rate / tasks)
        try:
            writer.option("topic", options.topic).option("summary", summary).save()
        except PySparkException as error:
            raise JobError(f"publishing failed, earlier messages stay published: {reason_in(str(error))}") from error
        with open(summary, encoding="utf-8") as file:
            done = json.load(file)
    return done["rows"], done["repeated"]


class ReplaySink(DataSource):
    """Publisher of format("pyqd") with a bounded rate. Options: those, `rate` of each task, `summary`, a path."""

    @classmethod
    def name(cls) -> str:
        return "pyqd-replay"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002 - Spark's signature
        given = {name: text for name, text in self.options.items() if name not in ("rate", "summary")}
        rate = self.options.get("rate")
        settings = WriteSettings.of(given, schema)
        return ReplayWriter(settings, None if rate is None else float(rate), self.options["summary"])


class ReplayWriter(DataSourceArrowWriter):
    """Publisher of each task's rows. rate: messages per second at most, of a task."""

    def __init__(self, settings: WriteSettings, rate: float | None, summary: str) -> None:
        self.settings = settings
        self.rate = rate
        self.summary = summary

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """Publish a task's rows and return when the brokers have said OK to each."""
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        batches = iterator if self.rate is None else paced(iterator, self.rate)
        return publish_batches(self.settings, batches, partition, "")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Write the totals of the tasks to a file on the driver's machine."""
        done = [message for message in messages if isinstance(message, Published)]
        content = {"rows": sum(each.rows for each in done), "repeated": sum(each.repeated for each in done)}
        with open(self.summary, "w", encoding="utf-8") as file:
            json.dump(content, file)


def paced(
    batches: Iterable[pa.RecordBatch],
    rate: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[pa.RecordBatch]:
    """Yield rows in slices, so that at no time more of them are out than the rate allows.

    rate: rows per second. clock: seconds; sleep: waits for some.
    """
    length = max(1, int(rate * PACE_S))
    started_s, count = clock(), 0
    for batch in batches:
        for first in range(0, batch.num_rows, length):
            piece = batch.slice(first, length)
            wait_s = started_s + (count + piece.num_rows) / rate - clock()
            if wait_s > 0:
                sleep(wait_s)
            count += piece.num_rows
            yield piece


def as_text(report: ReplayReport) -> str:
    if report.dry_run:
        return f"{report.rows:,} messages with {report.bytes:,} bytes would go to topic {report.topic}"
    again = f", {report.repeated:,} of them sent more than once" if report.repeated else ""
    rate = report.rows / max(report.seconds, 1e-3)
    return (
        f"{report.rows:,} messages with {report.bytes:,} bytes went to topic {report.topic} in {report.seconds:.1f} s: "
        f"{rate:,.0f} per second{again}"
    )
