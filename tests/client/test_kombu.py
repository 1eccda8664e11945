"""kombu transport against a daemon."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kombu")

from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.exceptions import ChannelError, OperationalError

import pyqd.client.kombu  # noqa: F401 - registers the scheme where pyqd is not installed
from pyqd.client import Consumer as ClientConsumer
from pyqd.client import Producer as ClientProducer
from pyqd.client.ecosystem import kombu_channel
from pyqd.client.ecosystem.kombu_messages import decode_payload, due_ms_of
from pyqd.client.errors import NotConnectedError, SettingError
from pyqd.client.kombu import broker_url
from pyqd.client.settings import NAMES, parse_targets
from tests.lookupd.conftest import LookupDaemon
from tests.lookupd.conftest import running as lookupd_running
from tests.support.certificates import Certificates
from tests.support.server import REPOSITORY, WAIT_S, Daemon, daemons_running, free_port, wait_until
from tests.support.server import pyqd as pyqd_daemon
from tests.support.workers import url_of

WORK = Queue("work", Exchange("work"), routing_key="work")
Url = str


@pytest.fixture
def connection(url: Url) -> Iterator[Connection]:
    with Connection(url) as connection:
        yield connection


class Collector:
    """Consumer that keeps the messages it receives."""

    def __init__(self, connection: Connection, *queues: Queue, no_ack: bool = False, prefetch: int = 0) -> None:
        self.connection = connection
        self.messages: list[Any] = []
        channel = connection.channel()
        self.consumer = Consumer(channel, list(queues), on_message=self.messages.append, no_ack=no_ack)
        if prefetch:
            self.consumer.qos(prefetch_count=prefetch)
        self.consumer.consume()

    def collect(self, count: int) -> list[Any]:
        """Wait for so many messages more, and return their payloads."""
        wanted = len(self.messages) + count
        while len(self.messages) < wanted:
            self.connection.drain_events(timeout=WAIT_S)
        return [message.payload for message in self.messages[-count:]]

    def assert_nothing_comes(self, timeout: float = 0.3) -> None:
        with pytest.raises(TimeoutError):
            self.connection.drain_events(timeout=timeout)


def publish(connection: Connection, payload: Any, queue: Queue = WORK, **options: Any) -> None:
    Producer(connection.default_channel).publish(
        payload, exchange=queue.exchange, routing_key=queue.routing_key, declare=[queue], **options
    )


def test_a_message_goes_through_the_broker_with_headers_and_payload(connection: Connection) -> None:
    collector = Collector(connection, WORK)
    publish(connection, {"number": 1}, headers={"kind": "test"})
    publish(connection, b"\x00\xff", serializer=None, content_type="application/data", content_encoding="binary")
    assert collector.collect(2) == [{"number": 1}, b"\x00\xff"]
    assert collector.messages[0].headers == {"kind": "test"}


@pytest.mark.parametrize(
    ("serializer", "payload", "text"),
    [
        ("json", {"name": "Zoë"}, '{"name": "Zo\\u00eb"}'),
        ("raw", "Zoë", "Zoë"),
        ("pickle", {"name": "Zoë"}, None),
    ],
)
def test_the_body_of_a_serializer_of_text_stays_readable_in_the_broker(
    connection: Connection, url: Url, serializer: str, payload: Any, text: str | None
) -> None:
    channel = connection.channel()
    received: list[Any] = []
    consumer = Consumer(channel, [WORK], on_message=received.append, accept=["json", "pickle", "text/plain"])
    options = {"serializer": serializer} if serializer != "raw" else {"content_type": "text/plain"}
    publish(connection, payload, **options)
    with ClientConsumer("work", "celery", nsqd=url) as reader:
        (message,) = reader.fetch(1, WAIT_S)
        found = json.loads(message.body)
        message.requeue(delay=0.0)
    assert (found["properties"]["body_encoding"] == "text") is (text is not None)
    if text is not None:
        assert found["body"] == text
    consumer.consume()
    while not received:
        connection.drain_events(timeout=WAIT_S)
    assert received[0].decode() == payload


def test_text_that_no_consumer_could_decode_is_refused(connection: Connection) -> None:
    with pytest.raises(UnicodeEncodeError):
        publish(connection, "\ud800", content_type="text/plain", content_encoding="utf-8")


def test_an_acknowledged_message_is_finished(connection: Connection, daemon: Daemon) -> None:
    collector = Collector(connection, WORK)
    publish(connection, 1)
    collector.collect(1)
    daemon.wait_for_channel("work", "celery", in_flight_count=1)
    collector.messages[0].ack()
    daemon.wait_for_channel("work", "celery", in_flight_count=0, depth=0, requeue_count=0)


def test_a_requeued_message_comes_again_and_says_so(connection: Connection) -> None:
    collector = Collector(connection, WORK)
    publish(connection, 1)
    collector.collect(1)
    collector.messages[0].requeue()
    collector.collect(1)
    assert [message.delivery_info["redelivered"] for message in collector.messages] == [False, True]


def test_a_rejected_message_goes_to_the_dead_letter_topic(url: Url, daemon: Daemon) -> None:
    with Connection(url, transport_options={"dead_letter_topic": "dead"}) as connection:
        collector = Collector(connection, WORK)
        publish(connection, 1)
        collector.collect(1)
        collector.messages[0].reject()
        daemon.wait_for_topic("dead", depth=1)
        daemon.wait_for_channel("work", "celery", in_flight_count=0, depth=0)


def test_without_a_dead_letter_topic_the_body_of_a_rejected_message_is_logged(
    connection: Connection, daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    collector = Collector(connection, WORK)
    publish(connection, "precious")
    collector.collect(1)
    collector.messages[0].reject()
    daemon.wait_for_channel("work", "celery", in_flight_count=0, depth=0)
    (record,) = [record for record in caplog.records if record.name == "pyqd.client" and "dropped" in record.message]
    assert "precious" in record.message


def test_a_message_of_another_program_does_not_stop_the_consumer(url: Url, daemon: Daemon) -> None:
    with Connection(url, transport_options={"dead_letter_topic": "dead"}) as connection:
        collector = Collector(connection, WORK)
        with ClientProducer(url) as producer:
            producer.publish("work", b"not JSON")
            producer.publish("work", b'{"body": 1}')
        publish(connection, "mine")
        assert collector.collect(1) == ["mine"]
        daemon.wait_for_topic("dead", depth=2)


MISSHAPEN: dict[str, dict[str, Any]] = {
    "encoding": {"properties": {"body_encoding": "rot13"}},
    "encoding-number": {"properties": {"body_encoding": 5}},
    "text-number": {"body": 5, "properties": {"body_encoding": "text"}},
    "delivery-info": {"properties": {"delivery_info": None}},
    "properties": {"properties": []},
    "headers": {"headers": None},
    "routing-key": {"routing_key": 5},
    "decimal": {"headers": {"a": {"__type__": "decimal", "__value__": "x"}}},
    "bytes": {"headers": {"a": {"__type__": "bytes", "__value__": 5}}},
    "date": {"headers": {"a": {"__type__": "datetime", "__value__": "never"}}},
}


# Messages whose content alone is wrong.
UNDECODABLE: dict[str, dict[str, Any]] = {
    "base64": {"body": "x", "properties": {"body_encoding": "base64"}},
    "surrogate": {"body": "\ud800", "properties": {"body_encoding": "text"}},
}


def misshapen_body(name: str) -> bytes:
    return json.dumps({"body": "x", "headers": {}, "properties": {}, **(MISSHAPEN | UNDECODABLE)[name]}).encode()


@pytest.mark.parametrize("body", [*map(misshapen_body, MISSHAPEN), b"[" * 100_000], ids=[*MISSHAPEN, "deep"])
def test_a_body_that_is_no_message_of_kombu_is_told_from_one(body: bytes) -> None:
    assert decode_payload(body, kombu_channel.KombuChannel.codecs) is None


@pytest.mark.parametrize("name", ["headers", *UNDECODABLE])
def test_a_message_that_kombu_cannot_decode_goes_to_the_dead_letter_topic(url: Url, daemon: Daemon, name: str) -> None:
    with Connection(url, transport_options={"dead_letter_topic": "dead"}) as connection:
        collector = Collector(connection, WORK)
        with ClientProducer(url) as producer:
            producer.publish("work", misshapen_body(name))
        publish(connection, "mine")
        assert collector.collect(1) == ["mine"]
        daemon.wait_for_topic("dead", depth=1)


def test_at_most_prefetch_count_messages_are_unanswered(connection: Connection, daemon: Daemon) -> None:
    collector = Collector(connection, WORK, prefetch=2)
    for number in range(5):
        publish(connection, number)
    assert collector.collect(2) == [0, 1]
    daemon.wait_for_channel("work", "celery", in_flight_count=2, depth=3)
    collector.assert_nothing_comes()
    collector.messages[0].ack()
    assert collector.collect(1) == [2]
    collector.consumer.qos(prefetch_count=4)
    assert collector.collect(2) == [3, 4]


def test_an_answer_in_another_thread_wakes_the_consumer(connection: Connection) -> None:
    import threading

    collector = Collector(connection, WORK, prefetch=1)
    for number in range(2):
        publish(connection, number)
    collector.collect(1)
    timer = threading.Timer(0.1, collector.messages[0].ack)
    timer.start()
    assert collector.collect(1) == [1]
    timer.join()


def test_messages_that_no_callback_has_got_go_back_when_the_consumer_is_cancelled(url: Url, daemon: Daemon) -> None:
    with Connection(url) as first, Connection(url) as second:
        collector = Collector(first, WORK)
        for number in range(3):
            publish(first, number)
        collector.collect(1)
        daemon.wait_for_channel("work", "celery", in_flight_count=3)
        collector.consumer.cancel()
        other = Collector(second, WORK)
        assert sorted(other.collect(2)) == [1, 2]
        # The message that the first consumer has got can still be answered.
        collector.messages[0].ack()
        daemon.wait_for_channel("work", "celery", in_flight_count=2, depth=0)


def test_a_cancelled_consumer_can_begin_again(connection: Connection) -> None:
    collector = Collector(connection, WORK)
    collector.consumer.cancel()
    publish(connection, 1)
    collector.assert_nothing_comes()
    collector.consumer.consume()
    assert collector.collect(1) == [1]


def test_closing_the_connection_requeues_unanswered_messages(url: Url) -> None:
    with Connection(url) as connection:
        collector = Collector(connection, WORK)
        publish(connection, 1)
        collector.collect(1)
    with Connection(url) as connection:
        assert Collector(connection, WORK).collect(1) == [1]


def test_one_consumer_serves_several_queues_in_turn(connection: Connection) -> None:
    queues = [Queue(f"q{number}", Exchange(f"q{number}"), routing_key=f"q{number}") for number in range(3)]
    for queue in queues:
        for number in range(3):
            publish(connection, f"{queue.name}/{number}", queue)
    payloads = Collector(connection, *queues, no_ack=True).collect(9)
    assert len(set(payloads)) == 9


def test_a_fanout_exchange_reaches_every_queue(url: Url) -> None:
    exchange = Exchange("news", type="fanout")
    with Connection(url) as first, Connection(url) as second, Connection(url) as publisher:
        collectors = [
            Collector(connection, Queue(f"news-{number}", exchange, auto_delete=True), no_ack=True)
            for number, connection in enumerate((first, second))
        ]
        Producer(publisher.default_channel, exchange).publish("hello")
        assert [collector.collect(1) for collector in collectors] == [["hello"], ["hello"]]


def test_a_binding_that_follows_the_end_of_a_consumer_does_not_resume_it(url: Url) -> None:
    exchange = Exchange("more", type="fanout")
    with Connection(url) as former, Connection(url) as other:
        collector = Collector(former, WORK)
        collector.consumer.cancel()
        Queue(WORK.name, exchange, channel=collector.consumer.channel).declare()
        for number in range(20):
            publish(other, number)
        assert sorted(Collector(other, WORK).collect(20)) == list(range(20))


def test_a_transient_direct_exchange_routes_by_key_between_processes(url: Url) -> None:
    exchange = Exchange("replies", type="direct", durable=False)
    with Connection(url) as first, Connection(url) as second, Connection(url) as publisher:
        collectors = [
            Collector(connection, Queue(f"r{key}", exchange, routing_key=key, auto_delete=True), no_ack=True)
            for key, connection in (("a", first), ("b", second))
        ]
        producer = Producer(publisher.default_channel, exchange)
        for key in ("b", "c", "a"):
            producer.publish(f"for {key}", routing_key=key)
        assert [collector.collect(1) for collector in collectors] == [["for a"], ["for b"]]


def test_events_are_routed_by_pattern(url: Url) -> None:
    exchange = Exchange("celeryev", type="topic")
    with Connection(url) as receiver, Connection(url) as publisher:
        queue = Queue("celeryev.1", exchange, routing_key="worker.#", auto_delete=True)
        collector = Collector(receiver, queue, no_ack=True)
        producer = Producer(publisher.default_channel, exchange)
        for key in ("task.sent", "worker.online", "worker.a.b"):
            producer.publish(key, routing_key=key)
        assert collector.collect(2) == ["worker.online", "worker.a.b"]


def test_a_command_from_before_the_queue_existed_is_not_received(url: Url, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kombu_channel, "STALE_NS", 0)
    exchange = Exchange("commands", type="fanout", durable=False)
    with Connection(url) as receiver, Connection(url) as publisher:
        producer = Producer(publisher.default_channel, exchange)
        producer.publish("old")
        collector = Collector(receiver, Queue("c", exchange, auto_delete=True), no_ack=True)
        producer.publish("new")
        assert collector.collect(1) == ["new"]


def test_simple_queues_work_with_get_size_and_clear(connection: Connection) -> None:
    with contextlib.closing(connection.SimpleQueue("simple")) as queue:
        queue.put("one")
        queue.put("two")
        message = queue.get(timeout=WAIT_S)
        assert message.payload == "one"
        message.ack()
        # The FIN and the request of the size take different connections.
        wait_until(lambda: queue.qsize() == 1, "the first message is finished")
        assert queue.clear() == 1
        assert queue.qsize() == 0


def test_basic_get_returns_one_message_and_leaves_the_others(connection: Connection, daemon: Daemon) -> None:
    for number in range(3):
        publish(connection, number)
    bound = WORK(connection.default_channel)
    first, second = bound.get(), bound.get()
    assert [first.payload, second.payload] == [0, 1]
    daemon.wait_for_channel("work", "celery", depth=1, in_flight_count=2)
    first.ack()
    second.ack()
    bound.get().ack()
    assert bound.get() is None


def test_a_consumer_after_basic_get_receives_without_its_limit(connection: Connection) -> None:
    collector = Collector(connection)
    bound = WORK(collector.consumer.channel)
    publish(connection, "first")
    assert bound.get().payload == "first"
    collector.consumer.add_queue(bound)
    collector.consumer.consume()
    for number in range(5):
        publish(connection, number)
    assert sorted(collector.collect(5)) == list(range(5))


def test_basic_get_leaves_the_limit_of_a_consumer_of_the_queue(connection: Connection) -> None:
    collector = Collector(connection, WORK)
    publish(connection, "first")
    assert WORK(collector.consumer.channel).get().payload == "first"
    for number in range(5):
        publish(connection, number)
    assert sorted(collector.collect(5)) == list(range(5))


def test_a_deleted_queue_is_gone(connection: Connection, daemon: Daemon) -> None:
    publish(connection, 1)
    bound = WORK(connection.default_channel)
    bound.delete(if_empty=True)
    assert daemon.topic("work") is not None
    bound.delete()
    assert daemon.topic("work") is None
    with pytest.raises(ChannelError):
        bound.queue_declare(passive=True)


def test_a_message_with_an_eta_waits_in_the_broker(connection: Connection, daemon: Daemon) -> None:
    collector = Collector(connection, WORK)
    due = datetime.now(timezone.utc) + timedelta(seconds=1)
    publish(connection, "later", headers={"eta": due.isoformat()})
    publish(connection, "now")
    assert collector.collect(1) == ["now"]
    daemon.wait_for_channel("work", "celery", deferred_count=1)
    assert collector.collect(1) == ["later"]
    assert datetime.now(timezone.utc) >= due
    assert "eta" not in collector.messages[1].headers


@pytest.mark.flags("-max-req-timeout=300ms")
def test_a_message_that_is_due_behind_the_brokers_limit_comes_when_it_is_due(
    connection: Connection, daemon: Daemon
) -> None:
    collector = Collector(connection, WORK)
    due = datetime.now(timezone.utc) + timedelta(seconds=1)
    publish(connection, "later", headers={"eta": due.isoformat()})
    assert collector.collect(1) == ["later"]
    assert datetime.now(timezone.utc) >= due
    channel = daemon.channel("work", "celery")
    assert channel is not None
    assert channel["requeue_count"] > 0


@pytest.mark.parametrize(
    ("eta", "due_ms"),
    [
        ("2026-11-23T12:00:00+00:00", 1_795_435_200_000),
        ("2026-11-23T12:00:00Z", 1_795_435_200_000),
        ("2026-11-23T14:00:00+02:00", 1_795_435_200_000),
        ("2026-11-23T12:00:00", 1_795_435_200_000),
        ("2026-11-23T12:00:00.000001+00:00", 1_795_435_200_001),
        ("2026-11-23T12:00:00.999999+00:00", 1_795_435_201_000),
        ("tomorrow", None),
        (None, None),
        (5, None),
    ],
)
def test_the_due_time_is_the_eta_rounded_up(eta: object, due_ms: int | None) -> None:
    assert due_ms_of({"headers": {"eta": eta}}) == due_ms


@pytest.mark.slow
def test_a_queue_gets_the_messages_of_all_brokers_of_the_url(tmp_path: Path) -> None:
    with daemons_running() as start:
        daemons = [start(Daemon(pyqd_daemon(), tmp_path / str(number))) for number in range(2)]
        with Connection(url_of(*daemons)) as connection:
            collector = Collector(connection, WORK)
            for number, daemon in enumerate(daemons):
                with Connection(url_of(daemon)) as single:
                    publish(single, number)
            assert sorted(collector.collect(2)) == [0, 1]
            for message in collector.messages:
                message.ack()
            assert WORK(connection.default_channel).queue_declare(passive=True).message_count == 0


@pytest.mark.slow
def test_a_queue_is_found_through_a_lookup_daemon_before_its_first_message(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "pyqd.apps.lookupd")
    with lookupd_running(LookupDaemon(command, tmp_path / "lookupd.log")) as lookupd, daemons_running() as start:
        flags = (f"-lookupd-tcp-address=127.0.0.1:{lookupd.ports['TCP']}",)
        daemons = [start(Daemon(pyqd_daemon(), tmp_path / str(number), flags)) for number in range(2)]
        wait_until(lambda: len(lookupd.ask("GET", "/nodes")[1]["producers"]) == 2, "both brokers have registered")
        with Connection(
            f"pyqd://?lookupd=127.0.0.1:{free_port()}&lookupd=127.0.0.1:{lookupd.ports['HTTP']}"
        ) as connection:
            collector = Collector(connection, WORK, no_ack=True)
            for daemon in daemons:
                daemon.wait_for_channel("work", "celery", client_count=1)
            publish(connection, 1)
            assert collector.collect(1) == [1]


def test_consumers_and_producers_outlast_a_restart_of_the_broker(connection: Connection, daemon: Daemon) -> None:
    collector = Collector(connection, WORK)
    publish(connection, 1)
    collector.collect(1)
    daemon.kill_and_start()
    publish(connection, 2)
    # The first message was not answered: it comes again.
    assert set(collector.collect(2)) == {1, 2}
    collector.messages[0].ack()
    for message in collector.messages[1:]:
        message.ack()
    daemon.wait_for_channel("work", "celery", in_flight_count=0, depth=0)


@pytest.mark.slow
def test_tls_is_set_in_the_url(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    flags = (*certificates.server_flags(), "-tls-required=tcp-https")
    with daemons_running() as start:
        daemon = start(Daemon(pyqd_daemon(), tmp_path, flags))
        with Connection(f"{url_of(daemon)}&tls=true&tls_ca={certificates.authority.path}") as connection:
            collector = Collector(connection, WORK, no_ack=True)
            publish(connection, "secret")
            assert collector.collect(1) == ["secret"]


def test_connecting_fails_if_no_broker_listens() -> None:
    with Connection(f"pyqd://127.0.0.1:{free_port()}") as connection, pytest.raises(OperationalError):
        connection.ensure_connection(max_retries=1, interval_start=0)


@pytest.mark.parametrize(
    ("query", "client", "options"),
    [("?timeout=0.3", {}, {}), ("", {"timeout": 0.3}, {}), ("?timeout=60", {"timeout": 50.0}, {"timeout": 0.3})],
    ids=["url", "transport option", "publish"],
)
def test_a_publish_to_a_broker_that_hangs_fails_at_the_users_time_limit(
    query: str, client: dict[str, Any], options: dict[str, Any]
) -> None:
    # Its queue accepts the connection, and nothing answers.
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        url = f"pyqd://127.0.0.1:{hanging.getsockname()[1]}{query}"
        with Connection(url, transport_options={"client": client}) as connection:
            connection.connect()
            begun_s = time.monotonic()
            with pytest.raises(NotConnectedError, match="no connection to a broker within the timeout"):
                publish(connection, 1, **options)
            assert time.monotonic() - begun_s < 5.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "client", "seconds"),
    [("", {}, "1"), ("&not_connected_timeout=0.3", {}, "0.3"), ("", {"not_connected_timeout": 0.3}, "0.3")],
    ids=["default", "url", "transport option"],
)
def test_a_publish_to_a_broker_that_has_stopped_fails_after_the_time_that_is_set(
    query: str, client: dict[str, Any], seconds: str, url: Url, daemon: Daemon
) -> None:
    with Connection(url + query, transport_options={"client": client}) as connection:
        publish(connection, 1)
        daemon.stop()
        stats = connection.transport.producer.producer.stats
        # A message that is sent before the loss is noticed may have been published.
        wait_until(lambda: not any(each["connected"] for each in stats()["brokers"].values()), "the loss is noticed")
        cause = rf"within not_connected_timeout={re.escape(seconds)}: .*:{daemon.tcp_port}: Connection refused"
        with pytest.raises(NotConnectedError, match=cause):
            publish(connection, 2)
        daemon.start()
        publish(connection, 3)


@pytest.mark.slow
def test_a_publish_waits_for_a_broker_that_starts_again(url: Url, daemon: Daemon) -> None:
    with Connection(f"{url}&not_connected_timeout={WAIT_S}") as connection, ThreadPoolExecutor() as pool:
        publish(connection, 1)
        daemon.stop()
        waiting = pool.submit(publish, connection, 2)
        producer = connection.transport.producer.producer
        wait_until(lambda: producer.stats()["pending"] == 1, "the publish waits")
        daemon.start()
        waiting.result(WAIT_S)
        assert (producer.stats()["published"], producer.stats()["failed"]) == (2, 0)


@pytest.mark.parametrize("name", ["timeout", "not_connected_timeout", "tls"])
def test_a_setting_of_the_client_beside_its_dictionary_is_refused(name: str) -> None:
    with (
        Connection("pyqd://127.0.0.1", transport_options={name: 1}) as connection,
        pytest.raises(SettingError, match=f"transport option {name}: give it in the dictionary"),
    ):
        connection.connect()


@pytest.mark.parametrize(
    ("query", "client"),
    [
        ("?timeout=-1", {}),
        ("?timeout=soon", {}),
        ("", {"timeout": "soon"}),
        ("?not_connected_timeout=soon", {}),
        ("", {"not_connected_timeout": 0}),
    ],
)
def test_a_time_limit_that_is_none_is_refused(query: str, client: dict[str, Any]) -> None:
    with (
        Connection(f"pyqd://127.0.0.1{query}", transport_options={"client": client}) as connection,
        pytest.raises(SettingError, match="timeout="),
    ):
        connection.connect()


def test_a_consumer_takes_a_url_with_the_time_limit_of_publishes(url: Url) -> None:
    with Connection(f"{url}&timeout=5") as connection:
        collector = Collector(connection, WORK)
        publish(connection, 1)
        assert collector.collect(1) == [1]


def test_connecting_to_a_host_name_that_cannot_exist_fails_as_to_any_other() -> None:
    with (
        Connection("pyqd://a..b:4150") as connection,
        pytest.raises(OperationalError, match="is no host name"),
    ):
        connection.ensure_connection(max_retries=1, interval_start=0)


@pytest.mark.parametrize(
    ("given", "complete"),
    [
        ("pyqd://", "pyqd://127.0.0.1:4150"),
        (None, "pyqd://127.0.0.1:4150"),
        ("pyqd:///?tls=true", "pyqd://127.0.0.1:4150/?tls=true"),
        ("pyqd://a:1,b:2", "pyqd://a:1,b:2"),
        ("pyqd://?lookupd=a:4161", "pyqd://?lookupd=a:4161"),
        ("a:4150", "pyqd://a:4150"),
    ],
)
def test_a_url_without_a_host_means_the_local_broker(given: str | None, complete: str) -> None:
    assert broker_url(given).rstrip("/") == complete


def test_the_url_for_people_hides_the_secret() -> None:
    with Connection("pyqd://user:s3cret@a:4150,b:4150?tls=true") as connection:
        assert connection.as_uri() == "pyqd://user:**@a:4150,b:4150?tls=true"
        assert "s3cret" in connection.as_uri(include_password=True)


def test_the_child_of_a_fork_leaves_the_connection_of_its_parent_alone(connection: Connection) -> None:
    collector = Collector(connection, WORK)
    publish(connection, 1)
    collector.collect(1)
    child = multiprocessing.get_context("fork").Process(target=connection.release)
    child.start()
    child.join(WAIT_S)
    assert child.exitcode == 0
    collector.messages[0].ack()
    publish(connection, 2)
    assert collector.collect(1) == [2]


@pytest.mark.slow
def test_an_installed_pyqd_makes_kombu_know_the_scheme() -> None:
    program = "from kombu import Connection, Producer; print(Connection('pyqd://').transport_cls)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert "pyqd" in result.stdout


def test_every_url_of_the_manual_is_accepted() -> None:
    page = (REPOSITORY / "docs" / "celery.md").read_text()
    urls = re.findall(r"pyqd://[^\s\"`]+", page)
    assert len(urls) > 3
    for found in urls:
        assert parse_targets(found, None).settings.keys() <= NAMES.keys()
