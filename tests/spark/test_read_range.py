"""Batches without a session: planned and read by hand, from real brokers, with failures in between."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from pyqd.fallback import columns as columns_in_python
from pyqd.fallback.records import FORMAT
from pyqd_spark import decode, source
from pyqd_spark.brokers import BrokerClient, BrokerError, LogPage, UnreachableError
from pyqd_spark.decode import read_range
from pyqd_spark.discovery import DataLossError
from pyqd_spark.options import BrokerOptions, OptionError
from pyqd_spark.plan import LogRange
from pyqd_spark.read_options import ReadSettings, parse_settings
from pyqd_spark.reader import PyqdReader, batch_ranges
from tests.support.http_stub import http_stub, json_answer
from tests.support.numbered import addresses_of, body_of, publish_bodies, publish_numbers, publish_until_dropped
from tests.support.storage import record_bytes


def settings(daemons: Any, topic: str, **options: str) -> ReadSettings:
    daemons = daemons if isinstance(daemons, tuple) else (daemons,)
    given = {"nsqd": addresses_of(*daemons), "subscribe": topic, "retryTimeoutMs": "0", **options}
    return parse_settings(given, streaming=False)


def read(asked: ReadSettings, ranges: list[LogRange] | None = None) -> pa.Table:
    planned = batch_ranges(asked) if ranges is None else ranges
    schema = decode.SCHEMA if asked.include_body else decode.SCHEMA_WITHOUT_BODY
    return pa.Table.from_batches([batch for one in planned for batch in read_range(asked, one)], schema)


def numbers_in(table: pa.Table) -> list[int]:
    return sorted(int(value) for value in table["value"].to_pylist())


@pytest.mark.parametrize("include_body", [True, False])
def test_the_columns_are_just_those_that_spark_expects(include_body):
    arrow = decode.SCHEMA if include_body else decode.SCHEMA_WITHOUT_BODY
    assert arrow.equals(to_arrow_schema(source.schema_with(include_body), timezone="UTC"))


def test_a_message_has_its_columns(broker, topic):
    publish_bodies(broker, topic, [b"first"])
    broker.http("POST", "/pub", b"later", topic=topic, defer="600000")
    with BrokerClient(addresses_of(broker), BrokerOptions()) as client:
        positions = client.positions(topic)
    first, later = read(settings(broker, topic)).to_pylist()
    assert (first["value"], first["topic"], first["node"], first["partition"]) == (b"first", topic, positions.node, 0)
    assert (first["offset"], first["deferred_until"]) == (0, None)
    assert first["timestamp_ns"] // 1000 == int(first["timestamp"].timestamp() * 1_000_000)
    assert int(first["id"], 16) < int(later["id"], 16)
    assert (later["offset"], round((later["deferred_until"] - later["timestamp"]).total_seconds())) == (1, 600)


def test_each_message_of_two_brokers_is_read_once_and_again_the_same(brokers, topic):
    publish_numbers(brokers[0], topic, 0, 12_000)
    publish_numbers(brokers[1], topic, 12_000, 20_000)
    asked = settings(brokers, topic, minPartitions="7", maxRecordsPerPartition="2500")
    ranges = batch_ranges(asked)
    assert len(ranges) == 9
    table = read(asked, ranges)
    assert numbers_in(table) == list(range(20_000))
    assert sorted(set(table["partition"].to_pylist())) == [0, 1]
    publish_numbers(brokers[0], topic, 20_000, 20_010)
    assert read(asked, ranges) == table


@pytest.mark.slow
def test_pages_of_any_size_make_the_same_rows(broker, topic, monkeypatch):
    publish_numbers(broker, topic, 0, 3000)
    whole = read(settings(broker, topic))
    monkeypatch.setattr(decode, "LOG_PAGE_BYTES", 1000)
    assert read(settings(broker, topic)) == whole


def test_without_anything_compiled_the_rows_are_the_same(broker, topic, monkeypatch):
    publish_numbers(broker, topic, 0, 3000)
    whole = read(settings(broker, topic))
    monkeypatch.setattr(decode, "decode", columns_in_python.decode)
    assert read(settings(broker, topic)) == whole


def test_bodies_can_be_left_out(broker, topic):
    publish_numbers(broker, topic, 0, 100)
    table = read(settings(broker, topic, includeBody="false"))
    assert table.num_rows == 100
    assert "value" not in table.column_names


def test_an_empty_topic_has_no_rows(broker, topic):
    broker.http("POST", "/topic/create", topic=topic)
    assert batch_ranges(settings(broker, topic)) == []
    assert list(PyqdReader(settings(broker, topic)).read(InputPartition(None))) == []


def test_a_topic_that_no_broker_has_is_an_error(broker, topic):
    with pytest.raises(BrokerError, match=f"no broker has topic {topic}"):
        batch_ranges(settings(broker, topic))


def test_offsets_and_times_bound_a_batch(broker, topic):
    publish_numbers(broker, topic, 0, 50)
    half = read(settings(broker, topic)).to_pylist()[-1]
    publish_numbers(broker, topic, 50, 100)
    node, rows = half["node"], read(settings(broker, topic)).to_pylist()
    bounds = {
        "startingOffsets": f'{{"{topic}": {{"{node}": 10}}}}',
        "endingOffsets": f'{{"{topic}": {{"{node}": 90}}}}',
    }
    assert numbers_in(read(settings(broker, topic, **bounds))) == list(range(10, 90))
    time_ms = str(rows[50]["timestamp_ns"] // 1_000_000)
    assert 50 not in numbers_in(read(settings(broker, topic, endingTimestamp=time_ms)))
    assert 50 in numbers_in(read(settings(broker, topic, startingTimestamp=time_ms)))
    assert numbers_in(read(settings(broker, topic, startingTimestamp="2199-01-01T00:00:00Z"))) == []
    with pytest.raises(OptionError, match="start 90 is behind 10"):
        batch_ranges(
            settings(broker, topic, startingOffsets=bounds["endingOffsets"], endingOffsets=bounds["startingOffsets"])
        )


def test_an_offset_past_the_end_fails_or_is_moved_there(broker, topic):
    publish_numbers(broker, topic, 0, 10)
    node = read(settings(broker, topic))["node"][0]
    beyond = f'{{"{topic}": {{"{node}": 1000}}}}'
    with pytest.raises(DataLossError, match="the end 1000 is behind the end, the next message gets 10"):
        batch_ranges(settings(broker, topic, endingOffsets=beyond))
    assert numbers_in(read(settings(broker, topic, endingOffsets=beyond, failOnDataLoss="false"))) == list(range(10))


@pytest.fixture
def planned(broker, topic) -> tuple[Any, str, Any]:
    """A topic of 100 messages, and a function that reads the ranges planned before the test changed it."""
    publish_numbers(broker, topic, 0, 100)
    ranges = batch_ranges(settings(broker, topic))
    return broker, topic, lambda **options: read(settings(broker, topic, **options), ranges)


def test_positions_no_longer_kept_fail_or_are_left_out(planned):
    broker, topic, read_planned = planned
    earliest = publish_until_dropped(broker, topic, 100)
    with pytest.raises(DataLossError, match=rf"POSITION_GONE; the oldest message kept has {earliest}"):
        read_planned()
    assert numbers_in(read_planned(failOnDataLoss="false")) == []


def test_a_topic_that_vanished_fails_or_is_left_out(planned):
    broker, topic, read_planned = planned
    broker.http("POST", "/topic/delete", topic=topic)
    with pytest.raises(DataLossError, match="does not exist"):
        read_planned()
    assert read_planned(failOnDataLoss="false").num_rows == 0


def test_a_re_created_topic_is_not_mistaken_for_the_former_one(planned):
    broker, topic, read_planned = planned
    broker.http("POST", "/topic/delete", topic=topic)
    publish_numbers(broker, topic, 1000, 1200)
    with pytest.raises(DataLossError, match="was deleted and re-created"):
        read_planned()
    assert read_planned(failOnDataLoss="false").num_rows == 0


def test_a_log_that_ends_before_the_range_fails_or_is_short(broker, topic):
    publish_numbers(broker, topic, 0, 100)
    (one,) = batch_ranges(settings(broker, topic))
    longer = LogRange(one.topic, one.node, 0, one.address, one.created, 90, 130)
    with pytest.raises(DataLossError, match="30 messages from 100 to the end of the range, 130 cannot be read"):
        read(settings(broker, topic), [longer])
    assert numbers_in(read(settings(broker, topic, failOnDataLoss="false"), [longer])) == list(range(90, 100))


def test_another_node_at_the_address_fails_or_is_left_out(brokers, topic):
    for daemon in brokers:
        publish_numbers(daemon, topic, 0, 10)
    (one,) = batch_ranges(settings(brokers[0], topic))
    moved = LogRange(one.topic, one.node, 0, addresses_of(brokers[1]), 0, one.first, one.stop)
    with pytest.raises(DataLossError, match="is served by node"):
        read(settings(brokers[1], topic), [moved])
    assert read(settings(brokers[1], topic, failOnDataLoss="false"), [moved]).num_rows == 0


def headers_of(page: LogPage) -> dict[str, str]:
    names = ("Format", "Node", "Created", "From", "Next", "End", "Count")
    told = (FORMAT, page.node, page.created, page.first, page.next, page.end, page.records)
    return {f"X-Pyqd-{name}": str(value) for name, value in zip(names, told, strict=True)}


def test_a_damaged_page_fails_or_leaves_the_damaged_messages_out(broker, topic):
    publish_numbers(broker, topic, 0, 100)
    (one,) = batch_ranges(settings(broker, topic))
    with BrokerClient(one.address, BrokerOptions()) as client:
        page = client.page(topic, 0, 100)
    data = page.data.replace(body_of(42), b"damaged!")
    with http_stub(lambda *_: (200, headers_of(page), data)) as stub:
        damaged = LogRange(topic, one.node, 0, stub.address, one.created, 0, 100)
        with pytest.raises(DataLossError, match="cannot be decoded: the checksum of the record at offset"):
            read(settings(broker, topic), [damaged])
        table = read(settings(broker, topic, failOnDataLoss="false"), [damaged])
    assert numbers_in(table) == [number for number in range(100) if number != 42]


@pytest.mark.parametrize("lose", ["true", "false"])
def test_a_record_with_a_flag_that_a_reader_must_know_fails_the_task_and_is_not_left_out(broker, topic, lose):
    publish_numbers(broker, topic, 0, 1)
    (one,) = batch_ranges(settings(broker, topic))
    with BrokerClient(one.address, BrokerOptions()) as client:
        page = client.page(topic, 0, 1)
    with http_stub(lambda *_: (200, headers_of(page), record_bytes(0, b"body", flags=0x200))) as stub:
        later = LogRange(topic, one.node, 0, stub.address, one.created, 0, 1)
        with pytest.raises((DataLossError, ValueError), match="has flags of a later format: 0x200"):
            read(settings(broker, topic, failOnDataLoss=lose), [later])


@pytest.mark.slow
def test_a_broker_that_is_gone_fails_the_task(make_broker, topic):
    broker = make_broker()
    publish_numbers(broker, topic, 0, 10)
    asked = settings(broker, topic)
    ranges = batch_ranges(asked)
    broker.kill()
    for lose in ("true", "false"):
        with pytest.raises(UnreachableError, match=addresses_of(broker)):
            read(settings(broker, topic, failOnDataLoss=lose), ranges)


@pytest.mark.slow
def test_a_task_sits_out_the_restart_of_a_killed_broker(make_broker, topic, monkeypatch):
    monkeypatch.setattr(decode, "LOG_PAGE_BYTES", 50_000)
    broker = make_broker()
    publish_numbers(broker, topic, 0, 20_000)
    asked = settings(broker, topic, retryTimeoutMs="60000")
    (one,) = batch_ranges(asked)
    batches = read_range(asked, one)
    read_before = [next(batches)]
    broker.kill()
    restart = threading.Thread(target=broker.start)
    restart.start()
    table = pa.Table.from_batches([*read_before, *batches])
    restart.join()
    assert [int(value) for value in table["value"].to_pylist()] == list(range(20_000))


def test_a_read_that_is_given_up_ends_its_thread(broker, topic, monkeypatch):
    monkeypatch.setattr(decode, "LOG_PAGE_BYTES", 1000)
    publish_numbers(broker, topic, 0, 5000)
    asked = settings(broker, topic)
    (one,) = batch_ranges(asked)
    batches = read_range(asked, one)
    next(batches)
    (thread,) = [thread for thread in threading.enumerate() if thread.name.startswith("pyqd-pages")]
    batches.close()  # type: ignore[attr-defined]
    thread.join(30)
    assert not thread.is_alive()


def test_the_details_of_an_error_reach_the_driver(topic):
    with http_stub(lambda *_: json_answer({"message": "FORBIDDEN"}, 403)) as stub:
        one = LogRange(topic, "n", 0, stub.address, 0, 0, 10)
        asked = parse_settings({"nsqd": stub.address, "subscribe": topic}, streaming=False)
        with pytest.raises(BrokerError, match="has it the right to do this"):
            read(asked, [one])
