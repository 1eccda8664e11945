"""Report of lives: waits and outcomes by topic and channel over a whole table, and the messages that are not over."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from pyqd.fallback.trace_states import OVER
from pyqd.primitives.quantities import aligned
from pyqd_spark.jobs.lifecycle import LifeTable, RunReport
from pyqd_spark.jobs.lives import LIFE, lives_of
from pyqd_spark.jobs.reading import read_table
from pyqd_spark.jobs.report import NAMES
from pyqd_spark.jobs.trace_log import DDL
from pyqd_spark.landing import uri_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PERCENTILES: Final = (50, 90, 99)
SPANS: Final = ("wait_s", "total_s")
# Enough for a hundredth of a percent.
ACCURACY: Final = 10_000
UNFINISHED_MAX: Final = 1_000
MESSAGES_SHOWN: Final = 10
HEAD: Final = (
    *("topic", "channel", "messages", *(outcome.replace("_", " ") for outcome in OVER), "redelivered"),
    *("wait p50", "p90", "p99", "total p50", "p90", "p99", "max"),
)


def report_of(path: str, run: RunReport, spark: SparkSession) -> dict[str, Any]:
    """Return the report of a table. `unfinished`: the oldest messages that are not over, UNFINISHED_MAX at most."""
    table = LifeTable(path)
    channels = [row.asDict() for row in figures(read_table(spark, path)).collect()] if table.partitions() else []
    return {"run": asdict(run), "channels": channels, "unfinished": unfinished(table, run, spark)}


def figures(lives: DataFrame) -> DataFrame:
    """Return the figures of each topic and channel."""
    from pyspark.sql import functions as f

    spans = [
        f.percentile_approx(name, percent / 100, ACCURACY).alias(f"{name}_p{percent}")
        for name in SPANS
        for percent in PERCENTILES
    ]
    outcomes = [f.count(f.when(f.col("outcome") == name, 1)).alias(name) for name in OVER]
    return (
        lives.groupBy("topic", "channel")
        .agg(
            f.count("*").alias("messages"),
            *outcomes,
            f.count(f.when(f.col("attempts") > 1, 1)).alias("redelivered"),
            *spans,
            f.max("total_s").alias("total_s_max"),
        )
        .orderBy("topic", "channel")
    )


def unfinished(table: LifeTable, run: RunReport, spark: SparkSession) -> list[dict[str, Any]]:
    """Return the oldest messages that are not over, by channel."""
    from pyspark.sql import functions as f

    path = os.path.join(table.open_path, f"{run.run:08d}")
    if not run.open or not os.path.isdir(path):
        return []
    lives = lives_of(spark, spark.read.schema(DDL).parquet(uri_of(path)), []).where("NOT is_over")
    since = f.timestamp_micros(f.expr("coalesce(published_ns, first_ns) DIV 1000"))
    chosen = lives.select(*LIFE, "state", f.coalesce("attempts", f.lit(0)).alias("attempts"), since.alias("since"))
    rows = chosen.withColumn("since", f.date_format("since", "yyyy-MM-dd HH:mm:ss.SSS")).orderBy("since", *LIFE)
    return [row.asDict() for row in rows.limit(UNFINISHED_MAX).collect()]


def run_text(run: RunReport) -> str:
    parts = [f"{run.events:,} events", f"{run.rows:,} messages are over", f"{run.open:,} are not"]
    if run.repeated:
        parts.append(f"{run.repeated:,} were over before and delivered again")
    if run.lost or run.unknown:
        parts.append(f"{run.lost:,} events are lost" + (f", and {run.unknown} gaps" if run.unknown else ""))
    return f"run {run.run}: {', '.join(parts)}, in {run.seconds:.1f} s"


def as_text(report: dict[str, Any]) -> str:
    lines = []
    if report["channels"]:
        lines += aligned([HEAD, *(channel_row(channel) for channel in report["channels"])], NAMES)
    for message in report["unfinished"][:MESSAGES_SHOWN]:
        where = f"{message['topic']}/{message['channel']}" if message["channel"] else message["topic"]
        lines.append(
            f"not over: {message['message_id']} of {where} at {message['node']}, {message['state']} since "
            f"{message['since']}, {message['attempts']} deliveries"
        )
    run = RunReport(**report["run"])
    if run.open > MESSAGES_SHOWN:
        lines.append(f"not over: {run.open - MESSAGES_SHOWN:,} more")
    return "\n".join([*lines, run_text(run)])


def channel_row(channel: dict[str, Any]) -> tuple[str, ...]:
    spans = [f"{name}_p{percent}" for name in SPANS for percent in PERCENTILES]
    return (
        channel["topic"],
        channel["channel"] or "-",
        *(f"{channel[name]:,}" for name in ("messages", *OVER, "redelivered")),
        *(span(channel[name]) for name in (*spans, "total_s_max")),
    )


def span(value: float | None) -> str:
    """Return a duration in the unit that suits it."""
    if value is None:
        return "-"
    if value < 1:
        return f"{value * 1000:.1f} ms"
    return f"{value:.1f} s" if value < 60 else f"{value / 60:.1f} min"
