"""Publishing from tasks, driven by hand: the commands to a broker, and the reaction to its refusals."""

from __future__ import annotations

import datetime
import itertools
import logging
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyqd_spark import writer
from pyqd_spark.brokers import BrokerError, UnreachableError
from pyqd_spark.options import OptionError
from pyqd_spark.writer import Published, PyqdArrowWriter, PyqdStreamArrowWriter, publish_batches
from tests.support import nsq
from tests.support.authd import AuthServer
from tests.support.publish_broker import ok, publish_brokers
from tests.support.server import Daemon, Implementation, free_port, pyqd
from tests.support.spark_side import (
    Starter,
    batch,
    bodies_of,
    http_address,
    parametrize_implementation,
    tcp_address,
)

pytest_generate_tests = parametrize_implementation

HOUR_MS = 3_600_000
TYPE_OF: dict[str, DataType] = {"topic": StringType(), "deferred_until": TimestampType(), "defer_ms": LongType()}


def schema(*names: str, value: DataType | None = None) -> StructType:
    return StructType([StructField(name, TYPE_OF.get(name, value or BinaryType())) for name in names])


def settings(*names: str, **options: str) -> writer.WriteSettings:
    return PyqdArrowWriter({"retryTimeoutMs": "5000", **options}, schema(*(names or ("value",)))).settings


def publish(options: dict[str, str], *batches: pa.RecordBatch, partition: int = 0, label: str = "w/0/0/") -> Published:
    return publish_batches(settings(*batches[0].schema.names, **options), batches, partition, label)


def to(daemon: Daemon, **options: str) -> dict[str, str]:
    return {"nsqd": http_address(daemon), "topic": "t", **options}


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"message %d" % number for number in range(start, start + count)]


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string(), pa.string_view()])
def test_rows_become_messages_with_their_values_as_bodies(daemon: Daemon, kind: pa.DataType) -> None:
    bodies = numbered(25)
    values = pa.array(bodies, pa.binary()).cast(pa.string()).cast(kind)
    batches = [pa.record_batch([values.slice(at, 10)], ["value"]) for at in (0, 10, 20)]
    assert publish(to(daemon), *batches) == Published(0, 25, 0, (tcp_address(daemon),))
    assert sorted(bodies_of(daemon, "t", 25)) == sorted(bodies)


def test_rows_come_in_order(start: Starter) -> None:
    daemon = start(pyqd())
    publish(to(daemon), batch(value=numbered(10)), batch(value=numbered(10, 10)))
    assert bodies_of(daemon, "t", 20) == numbered(20)


def test_an_empty_partition_publishes_nothing_and_asks_no_broker() -> None:
    options = {"nsqd": f"127.0.0.1:{free_port()}", "topic": "t", "retryTimeoutMs": "0"}
    empty = batch(value=pa.array([], pa.binary()))
    assert publish_batches(settings(**options), [], 3, "") == Published(3, 0, 0, ())
    assert publish(options, empty) == Published(0, 0, 0, ())


def test_the_topic_is_a_column_and_order_holds_within_each(start: Starter) -> None:
    daemon = start(pyqd())
    topics = [f"t{number % 3}" for number in range(30)]
    options = {"nsqd": http_address(daemon)}
    publish(options, batch(topic=topics[:17], value=numbered(17)), batch(topic=topics[17:], value=numbered(13, 17)))
    for index in range(3):
        assert bodies_of(daemon, f"t{index}", 10) == numbered(30)[index::3]


def test_the_option_topic_wins_over_the_column(daemon: Daemon) -> None:
    publish(to(daemon), batch(topic=["other", None], value=[b"a", b"b"]))
    assert sorted(bodies_of(daemon, "t", 2)) == [b"a", b"b"]
    assert daemon.topic("other") is None


def in_an_hour() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=50)


def test_messages_wait_until_the_time_in_deferred_until(daemon: Daemon) -> None:
    with nsq.Client(daemon.tcp_address) as client:
        client.sub("t", "c", rdy_count=10)
        past = datetime.datetime(1999, 1, 1, tzinfo=datetime.timezone.utc)
        moments = pa.array([in_an_hour(), None, past, in_an_hour()], pa.timestamp("us", "America/Lima"))
        done = publish(to(daemon), batch(value=[b"later", b"now", b"past", b"later"], deferred_until=moments))
        assert done.rows == 4
        assert sorted(client.read_message().body for _ in range(2)) == [b"now", b"past"]
        daemon.wait_for_channel("t", "c", deferred_count=2, depth=0)


def test_messages_wait_as_long_as_defer_ms_says(daemon: Daemon) -> None:
    with nsq.Client(daemon.tcp_address) as client:
        client.sub("t", "c", rdy_count=10)
        # More than one go of DPUBs, for the server that has no DMPUB.
        delays = [HOUR_MS] * 600 + [None, 0]
        bodies = [b"later"] * 600 + [b"none", b"zero"]
        assert publish(to(daemon), batch(value=bodies, defer_ms=delays)).rows == 602
        assert sorted(client.read_message().body for _ in range(2)) == [b"none", b"zero"]
        daemon.wait_for_channel("t", "c", deferred_count=600)


def test_a_due_time_out_of_range_fails_with_the_words_of_the_broker(daemon: Daemon) -> None:
    with pytest.raises(BrokerError, match=r"topic t: E_INVALID .*3600001 out of range 0-3600000"):
        publish(to(daemon), batch(value=[b"a"], defer_ms=[HOUR_MS + 1]))


def test_due_times_go_with_topics_and_ids(daemon: Daemon) -> None:
    options = {"nsqd": http_address(daemon), "withId": "true"}
    publish(options, batch(topic=["a", "b", "a"], value=[b"1", b"2", b"3"], defer_ms=[0, 0, 0]), label="w/0/4/")
    assert sorted(bodies_of(daemon, "a", 2)) == [b"w/0/4/0\n1", b"w/0/4/1\n3"]
    assert bodies_of(daemon, "b", 1) == [b"w/0/4/0\n2"]


def test_an_id_is_the_same_in_every_attempt(start: Starter) -> None:
    daemon = start(pyqd())
    for sizes in ([3, 4], [7]):
        rows = iter(numbered(7))
        batches = [batch(value=list(itertools.islice(rows, size))) for size in sizes]
        publish(to(daemon, withId="true"), *batches, label="nightly/0/2/")
    expected = [b"nightly/0/2/%d\n%s" % (index, body) for index, body in enumerate(numbered(7))]
    assert bodies_of(daemon, "t", 14) == expected * 2


def test_commands_keep_to_the_bytes_that_a_broker_takes(start: Starter, implementation: Implementation) -> None:
    daemon = start(implementation, "-max-body-size=4096", "-max-msg-size=2048")
    bodies = [b"%04d" % number * 250 for number in range(40)]
    assert publish(to(daemon, maxBodyBytes="4096"), batch(value=bodies)).rows == 40
    assert sorted(bodies_of(daemon, "t", 40)) == sorted(bodies)


def test_a_body_larger_than_the_broker_takes_names_the_option(start: Starter, implementation: Implementation) -> None:
    daemon = start(implementation, "-max-body-size=4096", "-max-msg-size=2048")
    with pytest.raises(BrokerError, match=r"E_BAD_BODY MPUB body too big 10044 > 4096; the option maxBodyBytes"):
        publish(to(daemon), batch(value=[b"x" * 1000] * 10))


def test_a_message_larger_than_the_broker_takes_fails_with_its_words(
    start: Starter, implementation: Implementation
) -> None:
    daemon = start(implementation, "-max-msg-size=100")
    with pytest.raises(BrokerError, match=r"topic t: E_BAD_MESSAGE MPUB message too big 101 > 100"):
        publish(to(daemon), batch(value=[b"x" * 101]))


def test_a_name_that_is_no_topic_fails_with_the_words_of_the_broker(daemon: Daemon) -> None:
    with pytest.raises(BrokerError, match=r'E_BAD_TOPIC MPUB topic name "no/topic" is not valid'):
        publish(to(daemon, topic="no/topic"), batch(value=[b"a"]))


@pytest.mark.parametrize("name", ["", "a b", "a\nPUB b", "ä"])
def test_a_name_that_would_break_the_command_is_not_sent(daemon: Daemon, name: str) -> None:
    with pytest.raises(ValueError, match="is not valid"):
        publish({"nsqd": http_address(daemon)}, batch(topic=[name], value=[b"a"]))
    assert daemon.topics() == {}


def test_a_full_topic_fails_the_task_with_the_words_of_the_broker(start: Starter) -> None:
    daemon = start(pyqd(), "-max-topic-bytes=262144")
    with pytest.raises(BrokerError, match=r"publishing to topic t: E_MPUB_FAILED MPUB failed"):
        publish(to(daemon), *[batch(value=[b"x" * 10_000] * 10)] * 10)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"value": [b"a", None]}, "row 3 of the partition: value is null"),
        ({"value": [b"", b"b"]}, "row 2 of the partition: value is empty"),
        ({"value": [b"a", b"b"], "topic": ["t", None]}, "row 3 of the partition: topic is null"),
        ({"value": [b"a", b"b"], "defer_ms": [0, -1]}, "row 3 of the partition: defer_ms is negative"),
    ],
)
def test_a_row_that_is_no_message_is_named(daemon: Daemon, columns: dict[str, Any], said: str) -> None:
    good = {"value": [b"a", b"b"], "topic": ["t", "t"], "defer_ms": [0, 0]}
    options = {"nsqd": http_address(daemon)} | ({} if "topic" in columns else {"topic": "t"})
    with pytest.raises(ValueError, match=said):
        publish(options, batch(**{name: good[name] for name in columns}), batch(**columns))


def test_partitions_go_round_the_brokers(start: Starter) -> None:
    daemons = [start(pyqd()), start(pyqd())]
    options = {"nsqd": ",".join(map(http_address, daemons)), "topic": "t"}
    for partition in range(4):
        publish(options, batch(value=[b"%d" % partition]), partition=partition)
    assert [bodies_of(daemon, "t", 2) for daemon in daemons] == [[b"0", b"2"], [b"1", b"3"]]


@pytest.mark.parametrize("option", ["nsqd", "nsqdTcp"])
def test_a_broker_that_is_not_there_is_passed_over(start: Starter, option: str) -> None:
    daemon = start(pyqd())
    address = http_address(daemon) if option == "nsqd" else tcp_address(daemon)
    done = publish({option: f"127.0.0.1:{free_port()},{address}", "topic": "t"}, batch(value=numbered(10)))
    assert done.brokers == (tcp_address(daemon),)
    assert bodies_of(daemon, "t", 10) == numbered(10)


def test_if_no_broker_is_reachable_all_are_named() -> None:
    addresses = [f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"]
    options = {"nsqdTcp": ",".join(addresses), "topic": "t", "retryTimeoutMs": "0"}
    with pytest.raises(UnreachableError) as raised:
        publish(options, batch(value=[b"a"]))
    assert all(address in str(raised.value) for address in addresses)


def test_a_broker_that_comes_back_is_waited_for(start: Starter) -> None:
    daemon = start(pyqd())

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch(value=numbered(10))
        daemon.restart()
        yield batch(value=numbered(10, 10))

    done = publish_batches(settings(**to(daemon, retryTimeoutMs="60000")), batches(), 0, "")
    assert done.rows == 20
    assert set(bodies_of(daemon, "t", message_count(daemon))) == set(numbered(20))


def test_batches_unanswered_by_a_killed_broker_go_to_the_next(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "WINDOW_COMMANDS", 4)
    first, second = start(pyqd()), start(pyqd())

    def batches() -> Iterator[pa.RecordBatch]:
        for index in range(20):
            if index == 10:
                first.kill()
            yield batch(value=numbered(500, 500 * index))

    options = {"nsqd": f"{http_address(first)},{http_address(second)}", "topic": "t"}
    done = publish_batches(settings(**options), batches(), 0, "")
    assert done.rows == 10_000
    first.start()
    got = [body for daemon in (first, second) for body in bodies_of(daemon, "t", message_count(daemon))]
    assert set(got) == set(numbered(10_000))
    assert len(got) <= 10_000 + done.repeated


def message_count(daemon: Daemon) -> int:
    """Return how many messages a topic has, also after a restart: a new channel gets them all."""
    daemon.http("POST", "/channel/create", topic="t", channel="readers-of-the-test")
    channel = daemon.channel("t", "readers-of-the-test")
    assert channel is not None
    return int(channel["depth"])


@pytest.mark.parametrize("answers", [0, 1, 3])
def test_only_unanswered_batches_are_sent_again(start: Starter, answers: int, caplog: pytest.LogCaptureFixture) -> None:
    daemon = start(pyqd())
    batches = [batch(value=numbered(10, 10 * index)) for index in range(6)]
    with publish_brokers(1) as (mute,), caplog.at_level(logging.WARNING, "pyqd_spark"):
        mute.answer = lambda message: ok(message) if message.number <= answers else None
        done = publish({"nsqdTcp": f"{mute.address},{tcp_address(daemon)}", "topic": "t"}, *batches)
        assert mute.address in caplog.text
    assert done.rows == 60
    assert bodies_of(daemon, "t", 60 - 10 * answers) == numbered(60 - 10 * answers, 10 * answers)


def test_a_connection_idle_for_long_is_reconnected(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "IDLE_LONGEST_S", -1.0)
    daemon = start(pyqd())
    publisher = writer.TaskPublisher(settings(**to(daemon)), 0)
    rows = writer.TopicRuns(publisher.settings)
    clients = []
    for index in range(2):
        for run in rows.runs(batch(value=numbered(5, 5 * index))):
            publisher.publish(run)
        clients.append(publisher._client)
        publisher.flush()
    publisher.close()
    assert clients[0] is not clients[1]
    assert bodies_of(daemon, "t", 10) == numbered(10)


def test_a_secret_is_used_if_given(start: Starter) -> None:
    authd = AuthServer()
    daemon = start(pyqd(), f"-auth-http-address={authd.address}")
    try:
        options = {"nsqdTcp": tcp_address(daemon), "topic": "t", "authSecret": "sesame"}
        assert publish(options, batch(value=[b"a"])).rows == 1
        assert daemon.topics()["t"]["message_count"] == 1
        assert authd.queries[0].secret == "sesame"
        with pytest.raises(BrokerError, match="E_AUTH_FIRST"):
            publish({"nsqdTcp": tcp_address(daemon), "topic": "t"}, batch(value=[b"a"]))
    finally:
        authd.stop()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topc": "t"}, 'no option "topc"; did you mean "topic"?'),
        ({"nsqd": "a", "lookupd": "b"}, "exactly one of nsqd, lookupd, nsqdTcp"),
        ({"topic": "t"}, "exactly one of nsqd, lookupd, nsqdTcp is needed; none is given"),
        ({"nsqdTcp": "https://a"}, "nsqdTcp"),
        ({"nsqd": "a"}, "no topic: give the option topic, or a column topic"),
        ({"nsqd": "a", "topic": "t", "maxBodyBytes": "5"}, "maxBodyBytes"),
    ],
)
def test_options_that_make_no_sense_are_named_before_anything_runs(options: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as raised:
        PyqdArrowWriter(options, schema("value"))
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (schema("body"), 'cannot write column "body"'),
        (schema("topic"), "no column value"),
        (schema("value", value=IntegerType()), "column value is int and has to be binary or string"),
        (schema("value", "deferred_until", "defer_ms"), "drop one"),
    ],
)
def test_columns_that_make_no_sense_are_named_before_anything_runs(table: StructType, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        PyqdArrowWriter({"nsqd": "a", "topic": "t"}, table)


def test_a_table_that_was_read_can_be_written() -> None:
    table = schema("value", "topic", "partition", "node", "offset", "timestamp", "timestamp_ns", "id", "attempts")
    assert PyqdArrowWriter({"nsqd": "a"}, table).settings.topic is None


def test_published_messages_cannot_be_overwritten() -> None:
    with pytest.raises(ValueError, match=r'use mode\("append"\)'):
        PyqdArrowWriter({"nsqd": "a", "topic": "t"}, schema("value"), overwrite=True)


def test_writers_publish_and_report_their_counts(start: Starter, caplog: pytest.LogCaptureFixture) -> None:
    daemon = start(pyqd())
    table = PyqdArrowWriter(to(daemon), schema("value"))
    stream = PyqdStreamArrowWriter(to(daemon), schema("value"))
    with caplog.at_level(logging.INFO, "pyqd_spark"):
        table.commit([table.write(iter([batch(value=numbered(3))])), None])
        stream.commit([stream.write(iter([batch(value=numbered(2, 3))]))], 7)
    assert "3 rows published" in caplog.text
    assert "batch 7: 2 rows published" in caplog.text
    assert bodies_of(daemon, "t", 5) == numbered(5)
