"""Tables and streams published, and channels drained, by Spark itself."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import nsq
from tests.support.server import Daemon
from tests.support.spark_side import http_address

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 100_000
CHANNEL = "readers-of-the-test"


def messages_of(daemon: Daemon, topic: str) -> list[bytes]:
    """Take all that a topic has from a channel of the test's own. Returns: the bodies."""
    if topic not in daemon.topics():
        return []
    daemon.http("POST", "/channel/create", topic=topic, channel=CHANNEL)
    channel = daemon.channel(topic, CHANNEL)
    assert channel is not None
    with nsq.Client(daemon.tcp_address) as client:
        client.sub(topic, CHANNEL, rdy_count=2500)
        bodies: list[bytes] = []
        while len(bodies) < channel["depth"]:
            messages = client.read_messages(min(1000, channel["depth"] - len(bodies)))
            client.send(b"".join(nsq.fin(message.id) for message in messages))
            bodies += [message.body for message in messages]
        return bodies


def numbered(spark: SparkSession, count: int, partitions: int) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr("concat('row ', id) AS value")


def expected(count: int) -> list[bytes]:
    return sorted(b"row %d" % number for number in range(count))


def published(daemons: Iterable[Daemon], topic: str) -> list[list[bytes]]:
    return [messages_of(daemon, topic) for daemon in daemons]


def test_a_table_is_published_over_all_brokers(spark: SparkSession, brokers: tuple[Daemon, Daemon], topic: str) -> None:
    addresses = ",".join(map(http_address, brokers))
    table = numbered(spark, ROWS, 4)
    table.write.format("pyqd").option("nsqd", addresses).option("topic", topic).mode("append").save()
    found = published(brokers, topic)
    assert [len(bodies) for bodies in found] == [ROWS // 2] * 2
    assert sorted(body for bodies in found for body in bodies) == expected(ROWS)


def test_topics_and_due_times_are_columns(spark: SparkSession, broker: Daemon, topic: str) -> None:
    table = spark.sql(
        f"""SELECT concat('{topic}', id % 2) AS topic, concat('row ', id) AS value,
            CASE WHEN id < 10 THEN NULL ELSE current_timestamp() + INTERVAL 50 MINUTES END AS deferred_until
            FROM range(0, 30, 1, 1)"""
    )
    for index in range(2):
        broker.http("POST", "/topic/create", topic=f"{topic}{index}")
        broker.http("POST", "/channel/create", topic=f"{topic}{index}", channel=CHANNEL)
    table.write.format("pyqd").option("nsqd", http_address(broker)).mode("append").save()
    for index in range(2):
        broker.wait_for_channel(f"{topic}{index}", CHANNEL, depth=5, deferred_count=10)
        assert messages_of(broker, f"{topic}{index}") == [b"row %d" % number for number in range(index, 10, 2)]


def test_a_stream_is_published_with_ids_of_query_batch_and_partition(
    spark: SparkSession, broker: Daemon, topic: str, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    numbered(spark, ROWS, 2).write.parquet(str(source))

    def run() -> str:
        query = (
            spark.readStream.schema("value string")
            .option("maxFilesPerTrigger", 1)
            .parquet(str(source))
            .writeStream.format("pyqd")
            .queryName(topic.replace("-", "_"))
            .option("nsqd", http_address(broker))
            .option("topic", topic)
            .option("withId", "true")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query.id

    name = run()
    # Nothing new: nothing is published again.
    assert run() == name
    rows = [body.split(b"\n", 1) for body in messages_of(broker, topic)]
    assert sorted(value for _, value in rows) == expected(ROWS)
    assert len({label for label, _ in rows}) == ROWS
    assert {tuple(label.decode().split("/")[:2]) for label, _ in rows} == {(name, "0"), (name, "1")}


def test_a_refusal_of_the_broker_is_the_error_of_spark(spark: SparkSession, broker: Daemon) -> None:
    writer = numbered(spark, 1, 1).write.format("pyqd").option("nsqd", http_address(broker)).mode("append")
    with pytest.raises(Exception, match='E_BAD_TOPIC MPUB topic name "no/topic" is not valid'):
        writer.option("topic", "no/topic").save()
    with pytest.raises(Exception, match='no option "topc"; did you mean "topic"'):
        writer.option("topc", "t").save()


def test_a_channel_is_drained_into_files_that_spark_reads(
    spark: SparkSession, brokers: tuple[Daemon, Daemon], topic: str, tmp_path: Path
) -> None:
    addresses = ",".join(map(http_address, brokers))
    for daemon in brokers:
        daemon.http("POST", "/topic/create", topic=topic)
        daemon.http("POST", "/channel/create", topic=topic, channel="landing")
    table = numbered(spark, ROWS, 4)
    table.write.format("pyqd").option("nsqd", addresses).option("topic", topic).mode("append").save()
    manifest = (
        spark.read.format("pyqd-channel")
        .option("nsqd", addresses)
        .option("topic", topic)
        .option("channel", "landing")
        .option("idleTimeoutMs", 1000)
        .option("connections", 2)
        .load(str(tmp_path / "landed"))
        .collect()
    )
    landed = spark.read.parquet(str(tmp_path / "landed"))
    assert sum(row["count"] for row in manifest) == landed.count() == ROWS
    assert len({row["node"] for row in manifest}) == 2
    assert landed.dropDuplicates(["topic", "node", "id"]).count() == ROWS
    assert sorted(bytes(row["value"]) for row in landed.select("value").collect()) == expected(ROWS)
    for daemon in brokers:
        daemon.wait_for_channel(topic, "landing", depth=0, in_flight_count=0)
