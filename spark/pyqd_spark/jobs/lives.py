"""Conversion of trace events to lives: one row for each message and channel, with Spark.

The state of a message in a channel is that after the last event that changes it, as in pyqd.trace.story. A life that is
over is a row of the table. The events of all others stay *open*, and are read again together with the next ones.

A message's events in a channel begin with `stored`. A life without it was over in an earlier run and goes on, after a
kill of the broker for example; or its message was published before the topic was traced. Only the table tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyqd.fallback.trace_states import CLEARED, OVER, RELEASED, SEEK, STATE_AFTER, WAITING
from pyqd_spark.jobs.trace_log import DDL, SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

MESSAGE: Final = ["node", "topic", "message_id"]
LIFE: Final = [*MESSAGE, "channel"]
NS_PER_DAY: Final = 86_400 * 10**9


def lives_of(spark: SparkSession, events: DataFrame, many: list[dict[str, Any]]) -> DataFrame:
    """Return the lives, with their `state` and `is_whole`: whether the events have their beginning.

    events: one message each. many: events on many messages; `released` has been applied.
    """
    from pyspark.sql import functions as f

    heads = heads_of(events)
    parts = with_drops(spark, parts_of(events), many)
    held = with_topic_drops(spark, heads.join(parts.select(*MESSAGE).distinct(), MESSAGE, "left_anti"), many)
    lives = parts.join(heads, MESSAGE, "left").unionByName(held, allowMissingColumns=True)
    dropped = f.when(f.col("topic_dropped_ns").isNotNull(), "dropped")
    return (
        lives.withColumn("state", f.coalesce("state", dropped, f.lit(WAITING)))
        .withColumn("is_whole", f.coalesce("is_whole", f.lit(True)))
        .withColumn("is_over", f.col("state").isin(*OVER))
    )


def open_events(events: DataFrame, lives: DataFrame) -> DataFrame:
    """Return the events of the lives that are not over."""
    still = lives.where("NOT is_over")
    own = events.where("channel IS NOT NULL").join(still.select(*LIFE), LIFE, "left_semi")
    shared = events.where("channel IS NULL").join(still.select(*MESSAGE).distinct(), MESSAGE, "left_semi")
    return own.unionByName(shared)


def heads_of(events: DataFrame) -> DataFrame:
    """Return the publishing of each message, and its end if the topic itself has dropped it."""
    from pyspark.sql import functions as f

    def of(kind: str, column: str) -> Column:
        return f.min(f.when(f.col("kind") == kind, f.col(column)))

    return (
        events.where("channel IS NULL")
        .groupBy(*MESSAGE)
        .agg(
            of("published", "timestamp_ns").alias("published_ns"),
            of("published", "position").alias("published_position"),
            of("published", "due_ns").alias("due_ns"),
            of("published", "size_bytes").alias("size_bytes"),
            of("published", "client").alias("publisher"),
            of("dropped", "timestamp_ns").alias("topic_dropped_ns"),
        )
    )


def parts_of(events: DataFrame) -> DataFrame:
    """Return what happened to each message in each channel."""
    from pyspark.sql import functions as f

    kind, position, at = f.col("kind"), f.col("position"), f.col("timestamp_ns")
    # The channel had the message twice, and goes on with the other copy.
    changes = kind.isin(*STATE_AFTER) & ~f.coalesce((kind == "dropped") & (f.col("reason") == "copy"), f.lit(False))
    state_at = f.when(changes, position)
    states = f.create_map(*[f.lit(word) for pair in STATE_AFTER.items() for word in pair])

    def count(name: str) -> Column:
        return f.count(f.when(kind == name, 1)).cast("int")

    return (
        events.where("channel IS NOT NULL")
        .groupBy(*LIFE)
        .agg(
            f.max_by(states[kind], state_at).alias("state"),
            f.max_by(at, state_at).alias("state_ns"),
            f.max(state_at).alias("state_position"),
            f.max_by("reason", state_at).alias("reason"),
            f.min(at).alias("first_ns"),
            f.min(f.when(kind == "sent", at)).alias("first_sent_ns"),
            f.max(f.when(kind == "sent", at)).alias("last_sent_ns"),
            f.max_by("client", f.when(kind == "sent", position)).alias("consumer"),
            count("sent").alias("attempts"),
            count("requeued").alias("requeued"),
            count("timed_out").alias("timed_out"),
            count("client_gone").alias("disconnected"),
            (count("stored") > 0).alias("is_whole"),
        )
    )


def table_rows(over: DataFrame) -> DataFrame:
    """Return lives with the columns of the table."""
    from pyspark.sql import functions as f

    def time(name: str) -> Column:
        return f.timestamp_micros(f.expr(f"{name} DIV 1000"))

    def span(start: str, end: str) -> Column:
        return (f.col(end) - f.col(start)) / 1e9

    began = f.coalesce("published_ns", "first_ns", "topic_dropped_ns")
    frame = (
        over.withColumn("over_ns", f.coalesce("state_ns", "topic_dropped_ns"))
        # A message is not waited for before it is due.
        .withColumn("ready_ns", f.greatest("published_ns", "due_ns"))
        .withColumn("began_ns", began)
        .withColumn("day_number", f.expr(f"CAST(began_ns DIV {NS_PER_DAY} AS INT)"))
    )
    return frame.select(
        *("message_id", "node", "channel", f.col("state").alias("outcome"), "reason"),
        *(f.coalesce(name, f.lit(0)).alias(name) for name in ("attempts", "requeued", "timed_out", "disconnected")),
        time("published_ns").alias("published_at"),
        time("due_ns").alias("due_at"),
        time("first_sent_ns").alias("first_sent_at"),
        time("last_sent_ns").alias("last_sent_at"),
        time("over_ns").alias("over_at"),
        span("ready_ns", "first_sent_ns").alias("wait_s"),
        f.when(f.col("attempts") > 0, span("last_sent_ns", "over_ns")).alias("handling_s"),
        span("ready_ns", "over_ns").alias("total_s"),
        *("size_bytes", "publisher", "consumer", "topic"),
        f.date_add(f.lit("1970-01-01").cast("date"), f.col("day_number")).cast("string").alias("day"),
    )


# Events on many messages: few, so they are joined by their conditions.


def with_released(spark: SparkSession, events: DataFrame, many: list[dict[str, Any]]) -> DataFrame:
    """Return the events with a `stored` event for each message that a topic had held and has given to a channel."""
    from pyspark.sql import functions as f

    chosen = [row for row in many if row["kind"] == "stored" and row["reason"] == RELEASED]
    if not chosen:
        return events
    rows = _frame(spark, chosen)
    stored = events.where("channel IS NOT NULL").select(*MESSAGE).distinct()
    held = events.where("kind = 'published'").join(stored, MESSAGE, "left_anti").alias("held")
    given = held.join(
        f.broadcast(rows).alias("many"),
        f.expr("held.node = many.node AND held.topic = many.topic AND held.position < many.position"),
    )
    columns = {name: f.col(f"many.{name}") for name in ("node", "topic", "channel", "position", "timestamp_ns", "kind")}
    columns |= {"message_id": f.col("held.message_id"), "reason": f.col("many.reason")}
    return events.unionByName(given.select(*(columns.get(name, f.lit(None)).alias(name) for name in events.columns)))


def with_drops(spark: SparkSession, parts: DataFrame, many: list[dict[str, Any]]) -> DataFrame:
    """Return the parts, of which those that one bulk event dropped have that event as their end. many: bulk events."""
    from pyspark.sql import functions as f

    reasons = (*CLEARED, SEEK)
    chosen = [row for row in many if row["kind"] == "dropped" and row["channel"] and row["reason"] in reasons]
    if not chosen:
        return parts
    drops = f.broadcast(_frame(spark, chosen)).alias("many")
    met = parts.where(~f.col("state").isin(*OVER)).alias("part")
    condition = (
        "part.node = many.node AND part.topic = many.topic AND part.channel = many.channel"
        " AND part.state_position < many.position"
        f" AND (many.reason <> '{SEEK}' OR part.message_id <= many.message_id)"
    )
    ends = (
        met.join(drops, f.expr(condition))
        .groupBy(*(f.col(f"part.{name}").alias(name) for name in LIFE))
        .agg(
            f.min_by("many.timestamp_ns", "many.position").alias("end_ns"),
            f.min_by("many.reason", "many.position").alias("end_reason"),
        )
    )
    found = parts.join(ends, LIFE, "left")
    is_dropped = f.col("end_ns").isNotNull()
    return (
        found.withColumn("state", f.when(is_dropped, "dropped").otherwise(f.col("state")))
        .withColumn("state_ns", f.coalesce("end_ns", "state_ns"))
        .withColumn("reason", f.coalesce("end_reason", "reason"))
        .drop("end_ns", "end_reason")
    )


def with_topic_drops(spark: SparkSession, held: DataFrame, many: list[dict[str, Any]]) -> DataFrame:
    """Return the messages that a topic holds, with the ends of those that it has dropped together."""
    from pyspark.sql import functions as f

    chosen = [row for row in many if row["kind"] == "dropped" and not row["channel"] and row["reason"] in CLEARED]
    if not chosen:
        return held
    drops = f.broadcast(_frame(spark, chosen)).alias("many")
    condition = "held.node = many.node AND held.topic = many.topic AND held.published_position < many.position"
    keys = [f.col(f"held.{name}").alias(name) for name in MESSAGE]
    ends = (
        held.alias("held").join(drops, f.expr(condition)).groupBy(*keys).agg(f.min("many.timestamp_ns").alias("end_ns"))
    )
    found = held.join(ends, MESSAGE, "left")
    return found.withColumn("topic_dropped_ns", f.coalesce("topic_dropped_ns", "end_ns")).drop("end_ns")


def _frame(spark: SparkSession, rows: list[dict[str, Any]]) -> DataFrame:
    return spark.createDataFrame([tuple(row[field.name] for field in SCHEMA) for row in rows], DDL)
