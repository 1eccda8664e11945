"""Prometheus metrics of producers and consumers."""

from __future__ import annotations

import gc
import re

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from pyqd.client import Consumer, Producer, metrics
from tests.support.server import REPOSITORY, WAIT_S


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_counters_and_gauges_follow_producer_and_consumer(url: str, registry: CollectorRegistry) -> None:
    with Producer(url) as producer, Consumer("orders", "email", nsqd=url, max_in_flight=5) as consumer:
        metrics.watch(producer, "web", registry)
        metrics.watch(consumer, "mailer", registry)
        for _ in range(3):
            producer.publish("orders", b"x")
        first, second, _ = (consumer.fetch(timeout=WAIT_S)[0] for _ in range(3))
        first.finish()
        second.requeue(60)
        labels = {"name": "mailer", "topic": "orders", "channel": "email"}
        value = registry.get_sample_value
        assert value("pyqd_client_producer_published_messages_total", {"name": "web"}) == 3
        assert value("pyqd_client_consumer_finished_messages_total", labels) == 1
        assert value("pyqd_client_consumer_requeued_messages_total", labels) == 1
        assert value("pyqd_client_consumer_in_flight_messages", labels) == 1
        assert value("pyqd_client_connections", {"role": "consumer", **labels}) == 1
        assert value("pyqd_client_connections", {"role": "producer", "name": "web", "topic": "", "channel": ""}) == 1


def test_producers_with_the_same_name_are_added_up(url: str, registry: CollectorRegistry) -> None:
    with Producer(url) as first, Producer(url) as second:
        for producer in (first, second):
            metrics.watch(producer, registry=registry)
            producer.publish("orders", b"x")
        assert registry.get_sample_value("pyqd_client_producer_published_messages_total", {"name": ""}) == 2


def test_a_registry_shows_only_what_it_watches(registry: CollectorRegistry) -> None:
    other = CollectorRegistry()
    with Producer("127.0.0.1:1") as first, Producer("127.0.0.1:1") as second:
        metrics.watch(first, "first", registry)
        metrics.watch(second, "second", other)
        assert b'name="second"' not in generate_latest(registry)
        assert b'name="first"' not in generate_latest(other)


def test_a_producer_that_is_gone_has_no_metrics(url: str, registry: CollectorRegistry) -> None:
    producer = Producer(url)
    metrics.watch(producer, "gone", registry)
    assert b'name="gone"' in generate_latest(registry)
    producer.close()
    del producer
    gc.collect()
    assert b'name="gone"' not in generate_latest(registry)


def test_every_metric_has_a_key_of_stats(url: str) -> None:
    with Producer(url) as producer, Consumer("orders", "email", nsqd=url) as consumer:
        stats = {metrics.PRODUCER: producer.stats(), metrics.CONSUMER: consumer.stats()}
    for role in stats:
        shown = {field.key for field in metrics.FIELDS if field.role == role}
        assert shown == set(stats[role]) - {"brokers"}


def test_the_manual_lists_every_metric() -> None:
    page = (REPOSITORY / "docs" / "client-telemetry.md").read_text()
    listed = set(re.findall(r"^\| `(pyqd_client_\w+)`", page, re.MULTILINE))
    suffixes = {True: "_total", False: ""}
    names = {f"{metrics.PREFIX}_{field.role}_{field.name}{suffixes[field.is_counter]}" for field in metrics.FIELDS}
    assert listed == {*names, f"{metrics.PREFIX}_connections"}
