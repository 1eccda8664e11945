"""format("pyqd") in a session: batches, SQL, streams; errors for wrong requests."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812

from pyqd_spark.source import SCHEMA
from tests.support.numbered import addresses_of, publish_bodies, publish_numbers


@pytest.fixture
def options(brokers, topic):
    return {"nsqd": addresses_of(*brokers), "subscribe": topic}


def numbers_in(frame):
    return sorted(int(row.value) for row in frame.select("value").collect())


def test_a_batch_has_each_message_once(spark, brokers, topic, options):
    publish_numbers(brokers[0], topic, 0, 60_000)
    publish_numbers(brokers[1], topic, 60_000, 100_000)
    frame = spark.read.format("pyqd").options(**options).option("minPartitions", 4).load()
    assert frame.schema == SCHEMA
    number = F.col("value").cast("string").cast("long")
    nodes = F.count_distinct("node", "partition")
    (row,) = frame.agg(F.count("*"), F.count_distinct(number), F.min(number), F.max(number), nodes).collect()
    assert tuple(row) == (100_000, 100_000, 0, 99_999, 2)
    assert frame.count() == 100_000


def test_a_topic_is_a_table_of_sql(spark, brokers, topic):
    publish_bodies(brokers[0], topic, [b"a", b"b", b"c"])
    address = addresses_of(brokers[0])
    view = "topic_of_sql"
    spark.sql(f"CREATE TEMPORARY VIEW {view} USING pyqd OPTIONS (nsqd '{address}', subscribe '{topic}')")
    rows = spark.sql(f"SELECT offset, CAST(value AS STRING) AS text FROM {view} ORDER BY offset").collect()
    assert [tuple(row) for row in rows] == [(0, "a"), (1, "b"), (2, "c")]


def test_a_topic_without_messages_is_an_empty_table(spark, broker, topic, options):
    broker.http("POST", "/topic/create", topic=topic)
    assert spark.read.format("pyqd").options(**options).load().collect() == []


def test_bodies_are_left_out_when_asked(spark, broker, topic, options):
    publish_numbers(broker, topic, 0, 10)
    frame = spark.read.format("pyqd").options(**options, includeBody="false").load()
    assert frame.columns == [field.name for field in SCHEMA][1:]
    assert frame.count() == 10


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"startingOffset": "earliest"}, 'no option "startingoffset"; did you mean "startingOffsets"?'),
        ({"subscribePattern": ".*"}, "exactly one of subscribe, subscribePattern, assign is needed"),
        ({"subscribe": "no-such-topic"}, "no broker has topic no-such-topic"),
    ],
)
def test_a_faulty_batch_is_reported_with_the_reason(spark, broker, topic, options, given, said):
    with pytest.raises((AnalysisException, PythonException)) as caught:
        spark.read.format("pyqd").options(**{**options, **given}).load().count()
    assert said in str(caught.value)


def stream(spark, options, path, **more):
    frame = spark.readStream.format("pyqd").options(**options, startingOffsets="earliest", **more).load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(path / "checkpoint"))
    return writer.option("path", str(path / "table"))


def test_a_stream_lands_existing_messages_and_resumes_after_them(spark, brokers, topic, options, tmp_path):
    publish_numbers(brokers[0], topic, 0, 5000)
    publish_numbers(brokers[1], topic, 5000, 8000)
    for last in (8000, 10_000):
        query = stream(spark, options, tmp_path, maxOffsetsPerTrigger="4000").trigger(availableNow=True).start()
        query.awaitTermination()
        assert numbers_in(spark.read.parquet(str(tmp_path / "table"))) == list(range(last))
        publish_numbers(brokers[0], topic, last, 10_000)


def test_a_stream_fails_when_its_next_messages_are_gone(spark, broker, topic, options, tmp_path):
    publish_numbers(broker, topic, 0, 10)
    stream(spark, options, tmp_path).trigger(availableNow=True).start().awaitTermination()
    broker.http("POST", "/topic/delete", topic=topic)
    publish_numbers(broker, topic, 0, 20)
    with pytest.raises(StreamingQueryException, match="deleted and re-created"):
        stream(spark, options, tmp_path).trigger(availableNow=True).start().awaitTermination()
