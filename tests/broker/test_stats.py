"""Snapshots of counters in nsqd's shape."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyqd import __version__
from pyqd.api import stats_text, status
from pyqd.broker.broker import Broker
from pyqd.broker.channel import Channel
from pyqd.broker.stats import (
    STEPS_PER_PAUSE,
    Selection,
    Steps,
    head_stats,
    latency_stats,
    shown_producers,
    topic_stats,
)
from pyqd.config.options import parse_args
from pyqd.hot.broker.consumer import Consumer
from pyqd.http.messages import to_json
from tests.support.snapshot import snapshot
from tests.support.structures import note_latency

CLIENTS = 5000
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
        ("pyqd_version", __version__),
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


class Pauses:
    """Counter of pauses. during: called in the first one."""

    def __init__(self, during: Callable[[], object] = int) -> None:
        self.count = 0
        self.during = during

    def __call__(self) -> None:
        self.count += 1
        if self.count == 1:
            self.during()


def shown_in_the_text(number: int) -> dict[str, Any]:
    """Return the entry of a client in /stats."""
    keys = "state", "in_flight_count", "ready_count", "finish_count", "requeue_count", "message_count", "connect_ts"
    shown = {"hostname": "h", "version": "V2", "remote_address": f"127.0.0.1:{number}", "user_agent": "u"}
    return {**shown, **dict.fromkeys(keys, 0)}


class NumberedClient:
    """Connection of a consumer with all that the page of text shows."""

    def __init__(self, number: int) -> None:
        self.number = number

    def stats(self) -> dict[str, Any]:
        return shown_in_the_text(self.number)

    def close(self) -> None:
        """Do nothing."""


def add_consumers(channel: Channel, count: int) -> list[Consumer]:
    """Subscribe consumers that stand in for connections."""
    consumers = [Consumer() for _ in range(count)]
    for number, consumer in enumerate(consumers):
        consumer.client = NumberedClient(number)
        channel.add_consumer(consumer)
    return consumers


def test_many_clients_of_one_channel_are_collected_with_pauses(broker: Broker) -> None:
    add_consumers(broker.topic("t").channel("c"), CLIENTS)
    pauses = Pauses()
    shown = topic_stats(broker.topic("t"), Selection(), Steps(pauses))
    assert pauses.count >= CLIENTS // STEPS_PER_PAUSE
    assert shown == topic_stats(broker.topic("t"), Selection())


def test_a_few_clients_of_each_of_many_channels_are_collected_with_pauses(broker: Broker) -> None:
    for number in range(8):
        add_consumers(broker.topic("t").channel(f"c{number}"), STEPS_PER_PAUSE // 2)
    pauses = Pauses()
    topic_stats(broker.topic("t"), Selection(), Steps(pauses))
    assert pauses.count >= 4


def test_clients_that_leave_during_a_pause_are_left_out(broker: Broker) -> None:
    channel = broker.topic("t").channel("c")
    consumers = add_consumers(channel, 2 * STEPS_PER_PAUSE)

    def leave() -> None:
        channel.remove_consumer(consumers[-1])
        consumers[-1].client = None

    shown = topic_stats(broker.topic("t"), Selection(), Steps(Pauses(leave)))
    assert shown is not None
    (found,) = shown["channels"]
    assert len(found["clients"]) == found["client_count"] == len(consumers) - 1


def test_a_channel_that_is_deleted_among_its_clients_is_left_out(broker: Broker) -> None:
    topic = broker.topic("t")
    add_consumers(topic.channel("c"), 2 * STEPS_PER_PAUSE)
    topic.channel("d")
    shown = topic_stats(topic, Selection(), Steps(Pauses(lambda: topic.delete_channel("c"))))
    assert shown is not None
    assert [channel["channel_name"] for channel in shown["channels"]] == ["d"]


def test_producers_are_collected_with_pauses() -> None:
    pauses = Pauses()
    clients = [shown_in_the_text(number) for number in range(CLIENTS)]
    assert shown_producers(clients, Selection(), Steps(pauses)) == clients
    assert pauses.count == CLIENTS // STEPS_PER_PAUSE


def test_the_json_of_many_clients_is_made_with_pauses_and_is_the_same(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic("t")
    for name, count in (("a", 1), ("b", CLIENTS), ("c", 60), ("d", 60), ("e", 0)):
        add_consumers(topic.channel(name), count)
    shown = topic_stats(topic, Selection())
    assert shown is not None
    producers = [shown_in_the_text(number) for number in range(CLIENTS)]
    head = head_stats(broker, 1)
    pauses = Pauses()
    monkeypatch.setattr(status, "yield_to_loop", pauses)
    text = b"".join(status.stats_json(head, [shown], None, producers))
    assert text == to_json({**head, "topics": [shown], "producers": producers})
    assert pauses.count >= 2 * (CLIENTS // STEPS_PER_PAUSE)


def test_the_text_of_many_clients_is_made_with_pauses(broker: Broker) -> None:
    topic = broker.topic("t")
    add_consumers(topic.channel("c"), CLIENTS)
    shown = topic_stats(topic, Selection())
    assert shown is not None
    producers = [shown_in_the_text(number) for number in range(CLIENTS)]
    pauses = Pauses()
    text = "".join(stats_text.stats_text(head_stats(broker, 1), 1, [shown], None, producers, pauses))
    assert text.count("[V2 h:") == 2 * CLIENTS
    assert pauses.count >= 2 * (CLIENTS // STEPS_PER_PAUSE)


def test_latencies_of_many_channels_are_merged_with_pauses(tmp_path: Path) -> None:
    broker = Broker(parse_args([f"--data-path={tmp_path}", "--e2e-processing-latency-percentile=0.5"]))
    broker.load()
    topic = broker.topic("t")
    channels = [topic.channel(f"c{number}#ephemeral") for number in range(4 * STEPS_PER_PAUSE)]
    for channel in channels:
        assert channel.latency is not None
        note_latency(channel.latency, time.time_ns())
    pauses = Pauses(lambda: topic.delete_channel(channels[-1].name))
    assert latency_stats(broker, channels, Steps(pauses))["count"] == len(channels) - 1
    assert pauses.count == 4
    broker.close()
