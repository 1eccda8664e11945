"""Profile: traffic of topics minute by minute, as Parquet and as a report in one HTML file.

Messages count for the minute of their publishing, in UTC. The log knows when a deferred message was due, not when it
was delivered. So the profile shows the requested delay. It shows the actual lateness if a table of the user's has a
column with the time of delivery.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from pyqd_spark.jobs.errors import JobError
from pyqd_spark.jobs.profile_report import page
from pyqd_spark.jobs.progress import JobProgress
from pyqd_spark.jobs.reading import chosen, read_table
from pyqd_spark.jobs.table import JobTable
from pyqd_spark.landing import local_path, make_directories, uri_of, write_file
from pyqd_spark.options import BrokerOptions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

REPORT: Final = "report.html"
MINUTES: Final = "minutes"
NEEDED: Final = ("topic", "timestamp", "value")

# Accuracy of percentile_approx: errors of a thousandth of a rank.
_ACCURACY: Final = 1000


@dataclass(frozen=True)
class ProfileOptions:
    """Options of a profile: a table's path, or topics over a connection; and the output directory.

    topics: only these. where: an SQL expression. received: a column with the time of receipt by a consumer.
    """

    output: str
    path: str | None = None
    connection: BrokerOptions | None = None
    topics: tuple[str, ...] = ()
    where: str | None = None
    received: str | None = None
    title: str = "Topics by minute"


def profile(options: ProfileOptions, spark: SparkSession, shown: JobProgress) -> str:
    """Write the profile. Returns: a line for people. Raises: JobError, ValueError, StorageError."""
    output = local_path(options.output)
    must_be_ours(output)
    frame = chosen(source(options, spark), options.where)
    missing = [name for name in (*NEEDED, *filter(None, [options.received])) if name not in frame.columns]
    if missing:
        raise JobError(f"no column {missing[0]} among {', '.join(frame.columns)}")
    if options.path is not None and options.topics:
        frame = frame.where(frame.topic.isin(*options.topics))
    make_directories(output)
    minutes = os.path.join(output, MINUTES)
    by_minute(frame, options.received).coalesce(1).sortWithinPartitions("topic", "minute").write.mode(
        "overwrite"
    ).parquet(uri_of(minutes))
    rows = rows_of(spark.read.parquet(uri_of(minutes)))
    if not rows:
        shutil.rmtree(minutes)
        raise JobError("there are no messages to profile")
    shown.say(f"{len(rows):,} minutes of {len({row['topic'] for row in rows})} topics")
    report = os.path.join(output, REPORT)
    write_file(report, page(options.title, origin(options), rows).encode())
    messages = sum(row["messages"] for row in rows)
    return f"{messages:,} messages, {len(rows):,} minutes of topics: {report} and {minutes}"


def must_be_ours(output: str) -> None:
    """Check that the output was written by a profile before it is replaced. Raises: JobError."""
    if os.path.exists(output) and set(os.listdir(output)) - {REPORT, MINUTES}:
        raise JobError(f"{output} holds other files: give a directory that is new, or an earlier profile")


def origin(options: ProfileOptions) -> str:
    """Return the source of the messages in words."""
    if options.path is not None:
        return f"table {options.path}"
    assert options.connection is not None
    return "topics at " + ", ".join(options.connection.nsqd or options.connection.lookupd)


def source(options: ProfileOptions, spark: SparkSession) -> DataFrame:
    if options.path is not None:
        if os.path.isdir(JobTable(options.path).state):
            return read_table(spark, options.path)
        return spark.read.parquet(options.path)
    assert options.connection is not None
    reader = spark.read.format("pyqd").options(**options.connection.given())
    if options.topics:
        return reader.option("subscribe", ",".join(options.topics)).load()
    return reader.option("subscribePattern", ".*").load()


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """Return a profile's rows, with UTC as the time zone of their minutes."""
    from pyspark.sql import functions as f

    rows = [row.asDict() for row in frame.withColumn("minute", f.unix_seconds("minute")).collect()]
    return [row | {"minute": datetime.fromtimestamp(row["minute"], timezone.utc)} for row in rows]


def by_minute(frame: DataFrame, received: str | None = None) -> DataFrame:
    """Return one row for each topic and minute that has messages. Sizes in bytes, times in ms, rate per second."""
    from pyspark.sql import functions as f

    size = f.length("value")
    deferred = f.col("deferred_until") if "deferred_until" in frame.columns else f.lit(None).cast("timestamp")
    delay = millis(deferred) - millis(f.col("timestamp"))
    late = (f.lit(None).cast("double") if received is None else millis(f.col(received))) - millis(deferred)
    return frame.groupBy("topic", f.date_trunc("minute", "timestamp").alias("minute")).agg(
        f.count("*").alias("messages"),
        (f.count("*") / 60.0).alias("rate"),
        f.sum(size).alias("bytes"),
        *spread(size, "size"),
        f.count(deferred).alias("deferred"),
        *spread(delay, "delay_ms"),
        *spread(late, "lateness_ms"),
    )


def spread(value: Column, name: str) -> list[Column]:
    """Return median, 99th percentile and maximum of a value; null if there is none."""
    from pyspark.sql import functions as f

    return [
        f.percentile_approx(value, 0.5, _ACCURACY).alias(f"{name}_p50"),
        f.percentile_approx(value, 0.99, _ACCURACY).alias(f"{name}_p99"),
        f.max(value).alias(f"{name}_max"),
    ]


def millis(moment: Column) -> Column:
    """Return a time in ms since 1970, with its fraction."""
    from pyspark.sql import functions as f

    return f.unix_micros(moment) / 1000.0
