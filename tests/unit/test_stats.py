"""Snapshots of counters in nsqd's shape."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyqd.broker.broker import Broker
from pyqd.broker.stats import Selection, snapshot
from pyqd.config.options import parse_args
from pyqd.hot.broker.consumer import Consumer

NO_LATENCY = {"count": 0, "percentiles": None}


class Client:
    """Connection of a consumer."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer

    def stats(self) -> dict[str, Any]:
        counts = [{"topic": "a", "count": 1}, {"topic": "orders", "count": 2}]
        return {"client_id": "c", "message_count": self.consumer.message_count, "pub_counts": counts, "tls": False}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(parse_args([f"--data-path={tmp_path}", "--mem-queue-size=2"]))
    broker.load()
    yield broker
    broker.close()


def stats_of(broker: Broker, **selection: Any) -> dict[str, Any]:
    return snapshot(broker, 1795177302, list, Selection(**selection))


def fill(broker: Broker) -> None:
    """Five messages for orders: email has one in flight, one deferred, one requeued; audit is paused."""
    topic = broker.topic("orders")
    email, audit = topic.channel("email"), topic.channel("audit")
    now_ns = time.time_ns()
    for body in (b"1", b"22", b"333", b"4444"):
        topic.publish_body(body, now_ns, 0)
    topic.publish_body(b"55555", now_ns, now_ns + 3600 * 10**9)
    audit.pause(True)
    consumer = Consumer()
    consumer.client = Client(consumer)
    consumer.msg_timeout_ns = 60 * 10**9
    email.add_consumer(consumer)
    email.take_message(consumer)
    taken = email.take_message(consumer)
    assert taken is not None
    assert email.requeue_message(consumer, taken[0], 0) == 0
    broker.topic("empty")


def test_a_broker_without_topics_has_an_empty_list(broker: Broker) -> None:
    stats = stats_of(broker)
    memory = stats.pop("memory")
    assert list(stats.items()) == [
        ("version", "1.3.0"),
        ("health", "OK"),
        ("start_time", 1795177302),
        ("topics", []),
        ("producers", None),
    ]
    assert memory["heap_objects"] > 1000


def test_topics_and_channels_come_sorted_with_all_their_counters(broker: Broker) -> None:
    fill(broker)
    empty, orders = stats_of(broker)["topics"]
    assert list(empty.items()) == [
        ("topic_name", "empty"),
        ("channels", []),
        ("depth", 0),
        ("backend_depth", 0),
        ("message_count", 0),
        ("message_bytes", 0),
        ("paused", False),
        ("e2e_processing_latency", NO_LATENCY),
    ]
    assert (orders["message_count"], orders["message_bytes"], orders["depth"]) == (5, 15, 0)
    audit, email = orders["channels"]
    assert list(audit.items()) == [
        ("channel_name", "audit"),
        ("depth", 4),
        ("backend_depth", 2),
        ("in_flight_count", 0),
        ("deferred_count", 1),
        ("message_count", 5),
        ("requeue_count", 0),
        ("timeout_count", 0),
        ("client_count", 0),
        ("clients", []),
        ("paused", True),
        ("e2e_processing_latency", NO_LATENCY),
    ]
    assert (email["depth"], email["in_flight_count"], email["deferred_count"]) == (3, 1, 1)
    assert (email["requeue_count"], email["client_count"], email["paused"]) == (1, 1, False)


def test_a_client_shows_one_topic_that_it_publishes_to(broker: Broker) -> None:
    fill(broker)
    (client,) = stats_of(broker)["topics"][1]["channels"][1]["clients"]
    assert list(client.items()) == [
        ("client_id", "c"),
        ("message_count", 2),
        ("pub_counts", [{"topic": "a", "count": 1}]),
        ("tls", False),
    ]
    (client,) = stats_of(broker, topic="orders")["topics"][0]["channels"][1]["clients"]
    assert client["pub_counts"] == [{"topic": "orders", "count": 2}]


def test_clients_turned_off_are_still_counted(broker: Broker) -> None:
    fill(broker)
    email = stats_of(broker, include_clients=False)["topics"][1]["channels"][1]
    assert (email["client_count"], email["clients"]) == (1, None)


def test_one_topic_is_shown_alone_and_an_unknown_one_is_null(broker: Broker) -> None:
    fill(broker)
    assert [topic["topic_name"] for topic in stats_of(broker, topic="orders")["topics"]] == ["orders"]
    stats = stats_of(broker, topic="nothing", include_mem=False)
    assert (stats["topics"], stats["producers"]) == (None, None)
    assert "memory" not in stats


def test_topics_without_the_channel_asked_for_are_left_out(broker: Broker) -> None:
    fill(broker)
    broker.topic("other").channel("email")
    topics = stats_of(broker, channel="email")["topics"]
    assert [(topic["topic_name"], len(topic["channels"])) for topic in topics] == [("orders", 1), ("other", 1)]
    assert stats_of(broker, channel="nothing")["topics"] == []


def test_producers_are_asked_for_only_when_shown(broker: Broker) -> None:
    def producers() -> list[dict[str, Any]]:
        raise AssertionError("nobody wants them")

    assert snapshot(broker, 0, producers, Selection(include_clients=False))["producers"] is None
    assert snapshot(broker, 0, producers, Selection(topic="nothing"))["producers"] is None
    shown = snapshot(broker, 0, lambda: [{"client_id": "p"}])["producers"]
    assert shown == [{"client_id": "p"}]
