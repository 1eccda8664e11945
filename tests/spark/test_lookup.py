"""Brokers found by a real nsqlookupd: ours registered by its protocol, and Go's nsqd, which registers itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from pyqd_spark.brokers import BrokerError, UnreachableError, find_brokers
from pyqd_spark.channel import ChannelReadSettings, PyqdChannelReader
from pyqd_spark.decode import read_range
from pyqd_spark.discovery import DataLossError
from pyqd_spark.options import BrokerOptions
from pyqd_spark.read_options import parse_settings
from pyqd_spark.reader import batch_ranges
from pyqd_spark.writer import WriteSettings, publish_batches
from tests.spark import drained
from tests.spark.test_tls import https_address
from tests.support.certificates import Certificates
from tests.support.lookup import Lookupd, Registration, lookupd
from tests.support.nsq import Client
from tests.support.server import Daemon, free_port, nsqd, pyqd
from tests.support.spark_side import Starter, batch, bodies_of, http_address

Register = Callable[..., Registration]

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def lookup(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lookupd]:
    path = request.config.getoption("--nsqlookupd")
    if not path:
        pytest.skip("no path to an nsqlookupd was given: --nsqlookupd=PATH, or the environment variable NSQLOOKUPD")
    with lookupd([path], tmp_path_factory.mktemp("lookupd")) as running:
        yield running


@pytest.fixture
def register(lookup: Lookupd) -> Iterator[Register]:
    """Give register(broker, *topics, **fields of IDENTIFY)."""
    with contextlib.ExitStack() as stack:

        def make(daemon: Daemon, *topics: str, **fields: object) -> Registration:
            made = Registration(lookup, daemon, *topics, **fields)
            stack.callback(made.close)
            return made

        yield make


def read(lookups: str, **options: str) -> list[int]:
    """Return the numbers that are read by position, sorted."""
    settings = parse_settings({"lookupd": lookups, "retryTimeoutMs": "0", **options}, streaming=False)
    tables = [rows for part in batch_ranges(settings) for rows in read_range(settings, part)]
    return sorted(int(body) for rows in tables for body in rows["value"].to_pylist())


def consume(path: Path, **options: str) -> list[int]:
    """Empty a channel. Returns: the numbers that have landed, sorted."""
    reader = PyqdChannelReader(ChannelReadSettings.of({"path": str(path), "idleTimeoutMs": "1000", **options}))
    for part in reader.partitions():
        list(reader.read(part))
    return sorted(int(body) for file in path.iterdir() for body in pq.read_table(file)["value"].to_pylist())


def test_a_topic_is_read_from_all_brokers_that_have_registered_it(
    lookup: Lookupd, register: Register, brokers: tuple[Daemon, Daemon], topic: str
) -> None:
    for number, broker in enumerate(brokers):
        drained.publish(broker, topic, range(number, 2000, 2))
    first = register(brokers[0], topic)
    assert read(lookup.http_address, subscribe=topic) == list(range(0, 2000, 2))
    register(brokers[1], topic, broadcast_address="localhost")
    assert read(lookup.http_address, subscribe=topic) == list(range(2000))
    assert read(lookup.http_address, subscribePattern=f"{topic}.*") == list(range(2000))
    found = find_brokers(BrokerOptions(lookupd=(lookup.http_address,)), topic).addresses
    assert sorted(found) == sorted([http_address(brokers[0]), f"localhost:{brokers[1].http_port}"])
    first.close()
    lookup.wait_for(topic, brokers[1])
    assert read(lookup.http_address, subscribe=topic) == list(range(1, 2000, 2))


def test_an_unregistered_topic_is_an_error_that_names_the_lookup_daemons(lookup: Lookupd, topic: str) -> None:
    with pytest.raises(BrokerError, match=rf"no broker has topic {topic} \(asked: {lookup.http_address}\)"):
        read(lookup.http_address, subscribe=topic)


def test_a_lookup_daemon_that_does_not_answer_may_be_the_one_that_knows_more(
    lookup: Lookupd, register: Register, broker: Daemon, topic: str
) -> None:
    drained.publish(broker, topic, range(10))
    register(broker, topic)
    both = f"127.0.0.1:{free_port()},{lookup.http_address}"
    with pytest.raises(DataLossError, match=rf"who has topic {topic} is not known for sure: .*Connection refused"):
        read(both, subscribe=topic)
    assert read(both, subscribe=topic, failOnDataLoss="false") == list(range(10))
    with pytest.raises(UnreachableError, match=r"no lookup daemon answers: .*Connection refused"):
        read(f"127.0.0.1:{free_port()}", subscribe=topic)


def test_a_drain_finds_its_brokers_and_their_topics(
    lookup: Lookupd, register: Register, brokers: tuple[Daemon, Daemon], topic: str, tmp_path: Path
) -> None:
    for number, broker in enumerate(brokers):
        drained.publish(broker, topic, range(number, 1000, 2))
        register(broker, topic)
    asked = BrokerOptions(lookupd=(lookup.http_address,), retry_timeout_s=0)
    [report] = drained.run(drained.options(tmp_path, connection=asked, pattern=f"{topic}.*"))
    assert report.complete
    assert drained.numbers(tmp_path) == list(range(1000))


def test_rows_are_published_to_all_brokers_that_have_registered(
    lookup: Lookupd, register: Register, brokers: tuple[Daemon, Daemon], topic: str
) -> None:
    for broker in brokers:
        register(broker)
    table = StructType([StructField("value", BinaryType())])
    settings = WriteSettings.of({"lookupd": lookup.http_address, "topic": topic}, table)
    for partition in range(2):
        published = publish_batches(settings, [batch(value=[b"%d" % partition])], partition, "")
        assert published.rows == 1
    assert sorted(body for broker in brokers for body in bodies_of(broker, topic, 1)) == [b"0", b"1"]


def test_brokers_are_spoken_to_over_tls_at_their_port_of_https(
    lookup: Lookupd, register: Register, start: Starter, topic: str, tmp_path: Path
) -> None:
    certificates = Certificates(tmp_path)
    daemon = start(pyqd(), *certificates.server_flags(), "-https-address=127.0.0.1:0", "-tls-required=tcp-https")
    register(daemon, topic)
    given = {"tls": "true", "tlsRootCaFile": str(certificates.authority.path)}
    given["httpsPort"] = https_address(daemon).rpartition(":")[2]
    table = StructType([StructField("value", BinaryType())])
    asked = {**given, "lookupd": f"http://{lookup.http_address}"}
    published = publish_batches(WriteSettings.of({**asked, "topic": topic}, table), [batch(value=[b"1", b"2"])], 0, "")
    assert published.rows == 2
    assert read(f"http://{lookup.http_address}", subscribe=topic, **given) == [1, 2]
    assert consume(tmp_path / "landed", topic=topic, channel="c", **asked) == [1, 2]
    with pytest.raises(UnreachableError, match=r"no lookup daemon answers: .*speaks no TLS.*write http://"):
        read(lookup.http_address, subscribe=topic, **given)


def test_a_channel_of_an_nsqd_that_registers_itself_is_consumed(
    lookup: Lookupd, start: Starter, topic: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = request.config.getoption("--nsqd")
    if not path:
        pytest.skip("no path to an nsqd was given: --nsqd=PATH, or the environment variable NSQD")
    daemons = [start(nsqd(path), f"-lookupd-tcp-address={lookup.tcp_address}") for _ in range(2)]
    for number, daemon in enumerate(daemons):
        daemon.http("POST", "/channel/create", topic=topic, channel="c")
        with Client(daemon.tcp_address) as client:
            client.mpub(topic, [b"%d" % each for each in range(number, 1000, 2)])
    lookup.wait_for(topic, *daemons)
    given = {"lookupd": lookup.http_address, "topic": topic}
    with pytest.raises(BrokerError, match="reading topics by position needs pyqd's own daemon"):
        read(lookup.http_address, subscribe=topic)
    assert consume(tmp_path / "landed", channel="c", **given) == list(range(1000))
    for daemon in daemons:
        daemon.wait_for_channel(topic, "c", depth=0, in_flight_count=0)


def test_a_channel_is_consumed_at_the_brokers_of_the_lookup_daemon(
    lookup: Lookupd, register: Register, start: Starter, topic: str, tmp_path: Path
) -> None:
    daemons = [start(pyqd()) for _ in range(2)]
    for number, daemon in enumerate(daemons):
        daemon.http("POST", "/channel/create", topic=topic, channel="c")
        drained.publish(daemon, topic, range(number, 1000, 2))
        register(daemon, topic)
    given = {"lookupd": lookup.http_address, "topic": topic, "channel": "c"}
    assert consume(tmp_path / "landed", **given) == list(range(1000))
    with pytest.raises(UnreachableError, match="no lookup daemon knows a broker with topic nobody-has-it"):
        consume(tmp_path / "none", **{**given, "topic": "nobody-has-it"})
