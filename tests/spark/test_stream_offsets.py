"""Streams without a session: Spark's calls of the reader, made by hand, and repeated after a kill."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from pyqd_spark.brokers import UnreachableError
from pyqd_spark.decode import read_range
from pyqd_spark.discovery import DataLossError
from pyqd_spark.read_options import parse_settings
from pyqd_spark.stream import PyqdStreamReader
from tests.support.numbered import addresses_of, publish_numbers, publish_until_dropped

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

ALL = ReadAllAvailable()


class Query:
    """Spark's use of a reader; `offsets` is the checkpoint. `killed` is a start after a kill."""

    def __init__(self, daemons: Any, topic: str, **options: str) -> None:
        daemons = daemons if isinstance(daemons, tuple) else (daemons,)
        options = {"nsqd": addresses_of(*daemons), "retryTimeoutMs": "0", **options}
        self.options = (
            options if "assign" in options or "subscribePattern" in options else {**options, "subscribe": topic}
        )
        self.offsets: list[str] = []
        self.rows: list[int] = []
        self.reader = self.started()

    def started(self) -> PyqdStreamReader:
        if self.offsets:
            self.reader.stop()
        self.reader = PyqdStreamReader(parse_settings(self.options, streaming=True))
        return self.reader

    def start_of(self, batch: int) -> Any:
        return json.loads(self.offsets[batch - 1]) if batch else self.reader.initialOffset()

    def plan(self) -> bool:
        """Plan the next batch and write its end to the checkpoint. Returns: whether there was anything new."""
        self.reader._found_s = -1000.0
        self.reader._places_s = -1000.0
        start = self.start_of(len(self.offsets))
        end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        if json.dumps(end) == json.dumps(start):
            return False
        self.offsets.append(json.dumps(end))
        return True

    def numbers(self, batch: int) -> list[int]:
        partitions = self.reader.partitions(self.start_of(batch), json.loads(self.offsets[batch]))
        tables = [rows for one in partitions for rows in read_range(self.reader.settings, one.value)]
        return [int(value) for rows in tables for value in rows["value"].to_pylist()]

    def run(self) -> list[int]:
        found = []
        while self.plan():
            found += self.numbers(len(self.offsets) - 1)
        return sorted(found)

    def close(self) -> None:
        self.reader.stop()


@pytest.fixture
def query(brokers, topic, request):
    made = []

    def make(daemons=None, **options):
        made.append(Query(daemons or brokers, topic, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_stream_starts_after_the_newest_message_and_reads_later_ones(query, broker, topic):
    publish_numbers(broker, topic, 0, 10)
    stream = query()
    assert stream.run() == []
    publish_numbers(broker, topic, 10, 30)
    assert stream.run() == list(range(10, 30))
    assert stream.run() == []


def test_latest_keeps_its_position_when_the_first_batch_is_planned_again(query, broker, topic):
    publish_numbers(broker, topic, 0, 10)
    stream = query()
    assert stream.plan()
    publish_numbers(broker, topic, 10, 20)
    stream.started()
    assert stream.numbers(0) == []
    assert stream.run() == list(range(10, 20))


def test_a_batch_planned_again_has_the_same_messages(query, brokers, topic):
    publish_numbers(brokers[0], topic, 0, 10)
    stream = query(startingOffsets="earliest")
    assert stream.plan()
    publish_numbers(brokers[0], topic, 10, 20)
    publish_numbers(brokers[1], topic, 20, 30)
    stream.started()
    assert stream.numbers(0) == list(range(10))
    assert stream.plan()
    publish_numbers(brokers[1], topic, 30, 40)
    stream.started()
    assert sorted(stream.numbers(1)) == list(range(10, 30))
    assert stream.run() == list(range(30, 40))


def test_a_topic_that_comes_later_is_read_from_its_beginning(query, broker, topic):
    stream = query()
    assert stream.run() == []
    publish_numbers(broker, topic, 0, 10)
    assert stream.run() == list(range(10))


def test_the_limit_is_shared_over_the_nodes(query, brokers, topic):
    publish_numbers(brokers[0], topic, 0, 300)
    publish_numbers(brokers[1], topic, 300, 400)
    stream = query(startingOffsets="earliest", maxOffsetsPerTrigger="40")
    assert stream.reader.getDefaultReadLimit() == ReadMaxRows(40)
    assert stream.plan()
    first = stream.numbers(0)
    assert (sum(number < 300 for number in first), len(first)) == (30, 40)
    assert sorted(first + stream.run()) == list(range(400))
    assert len(stream.offsets) == 10


def test_available_now_ends_at_the_end_that_the_log_had_at_the_start(query, broker, topic):
    publish_numbers(broker, topic, 0, 100)
    stream = query(startingOffsets="earliest", maxOffsetsPerTrigger="40")
    stream.reader.prepareForTriggerAvailableNow()
    publish_numbers(broker, topic, 100, 150)
    assert stream.run() == list(range(100))
    assert len(stream.offsets) == 3
    stream.started().prepareForTriggerAvailableNow()
    assert stream.run() == list(range(100, 150))


def test_offsets_are_by_topic_and_node_and_end_behind_the_last(query, broker, topic):
    publish_numbers(broker, topic, 0, 10)
    stream = query(broker, startingOffsets="earliest")
    stream.run()
    shown = json.loads(stream.offsets[-1])
    ((node, end),) = shown[topic].items()
    assert (len(node), end) == (32, 10)
    assert stream.reader.reportLatestOffset() == {topic: {node: 10}}
    stream = query(broker, startingOffsets=json.dumps({topic: {node: 7}}))
    assert stream.run() == [7, 8, 9]
    stream = query(assign=json.dumps({topic: [node]}), startingOffsets=json.dumps({topic: {node: -2}}))
    assert stream.run() == list(range(10))


def test_while_nothing_comes_brokers_are_not_asked_each_time(query, broker, topic, monkeypatch):
    publish_numbers(broker, topic, 0, 10)
    stream = query()
    stream.run()
    monkeypatch.setattr("pyqd_spark.stream.POSITIONS_KEPT_S", 1000.0)
    monkeypatch.setattr("pyqd_spark.stream.PLACES_KEPT_S", 1000.0)
    start = stream.start_of(len(stream.offsets))
    stream.reader.latestOffset(start, ALL)
    publish_numbers(broker, topic, 10, 20)
    assert stream.reader.latestOffset(start, ALL) is start


def test_messages_that_are_not_kept_any_more_fail_or_are_left_out(query, broker, topic):
    publish_numbers(broker, topic, 0, 10)
    streams = [query(broker, startingOffsets="earliest", failOnDataLoss=lose) for lose in ("true", "false")]
    for stream in streams:
        assert stream.run() == list(range(10))
    earliest = publish_until_dropped(broker, topic, 10)
    with pytest.raises(DataLossError, match=f"offset 10 is not kept any more, the oldest message has {earliest}"):
        streams[0].run()
    assert streams[1].run()[0] == earliest


def test_a_re_created_topic_fails_the_read_or_is_read_from_its_beginning(query, broker, topic):
    publish_numbers(broker, topic, 0, 10)
    streams = [query(broker, startingOffsets="earliest", failOnDataLoss=lose) for lose in ("true", "false")]
    for stream in streams:
        stream.run()
    broker.http("POST", "/topic/delete", topic=topic)
    publish_numbers(broker, topic, 100, 150)
    with pytest.raises(DataLossError, match="deleted and re-created, and offset 10 was of the former topic"):
        streams[0].run()
    assert streams[1].run() == list(range(100, 150))
    assert streams[1].run() == []


def test_a_topic_that_vanished_fails_or_is_waited_for(query, broker, topic):
    publish_numbers(broker, topic, 0, 10)
    streams = [query(broker, startingOffsets="earliest", failOnDataLoss=lose) for lose in ("true", "false")]
    for stream in streams:
        stream.run()
    broker.http("POST", "/topic/delete", topic=topic)
    with pytest.raises(DataLossError, match="is not there any more, read so far: to 10"):
        streams[0].run()
    assert streams[1].run() == []


def test_a_broker_that_is_away_fails_the_query_or_is_waited_for(query, brokers, make_broker, topic):
    away = make_broker()
    publish_numbers(brokers[0], topic, 0, 10)
    publish_numbers(away, topic, 10, 20)
    both = (brokers[0], away)
    streams = [query(both, startingOffsets="earliest", failOnDataLoss=lose) for lose in ("true", "false")]
    for stream in streams:
        assert stream.run() == list(range(20))
    publish_numbers(away, topic, 20, 30)
    publish_numbers(brokers[0], topic, 30, 40)
    away.kill()
    with pytest.raises(DataLossError, match=addresses_of(away)):
        streams[0].run()
    assert streams[1].run() == list(range(30, 40))
    away.start()
    assert streams[0].run() == list(range(20, 40))
    assert streams[1].run() == list(range(20, 30))


def test_a_planned_batch_is_not_short_while_its_broker_is_away(query, make_broker, topic):
    away = make_broker()
    publish_numbers(away, topic, 0, 10)
    stream = query(away, startingOffsets="earliest")
    assert stream.plan()
    away.kill()
    with pytest.raises(UnreachableError):
        stream.numbers(0)
    stream.started()
    with pytest.raises(DataLossError):
        stream.numbers(0)
    away.start()
    assert stream.numbers(0) == list(range(10))
