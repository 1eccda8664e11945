"""Prometheus metrics of producers and consumers.

    from pyqd.client import metrics
    metrics.watch(producer, name="web")

Needs prometheus_client. Values are read from stats() when Prometheus asks; the hot path counts nothing more.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, Protocol

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

PRODUCER: Final = "producer"
CONSUMER: Final = "consumer"
PREFIX: Final = "pyqd_client"


class Field(NamedTuple):
    """Metric that shows one key of stats()."""

    role: str
    key: str
    name: str
    is_counter: bool
    text: str


FIELDS: Final = (
    Field(PRODUCER, "published", "published_messages", True, "Publications that the broker has accepted."),
    Field(PRODUCER, "failed", "failed_publications", True, "Publications that ended with an error."),
    Field(PRODUCER, "retried", "retried_publications", True, "Publications that were sent again."),
    Field(PRODUCER, "pending", "pending_publications", False, "Publications that wait for an answer."),
    Field(PRODUCER, "pending_bytes", "pending_bytes", False, "Bytes of publications that wait for an answer."),
    Field(CONSUMER, "received", "received_messages", True, "Messages that have arrived."),
    Field(CONSUMER, "finished", "finished_messages", True, "Messages that were finished."),
    Field(CONSUMER, "requeued", "requeued_messages", True, "Messages that were requeued."),
    Field(CONSUMER, "dead_letters", "dead_letters", True, "Messages that were moved to the dead-letter topic."),
    Field(CONSUMER, "answered_late", "answered_late_messages", True, "Answers that came too late for the broker."),
    Field(CONSUMER, "in_flight", "in_flight_messages", False, "Messages that are not answered."),
    Field(CONSUMER, "ready", "buffered_messages", False, "Messages that have arrived and are not taken yet."),
    Field(CONSUMER, "backoff_level", "backoff_level", False, "Level of the back-off; 0 is none."),
)


class Watched(Protocol):
    """A producer or consumer, blocking or for asyncio."""

    def stats(self) -> dict[str, Any]: ...


class ClientCollector:
    """Collector of the metrics of all producers and consumers that it watches. It does not keep them alive."""

    def __init__(self) -> None:
        self._watched: weakref.WeakKeyDictionary[Watched, dict[str, str]] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def watch(self, watched: Watched, name: str = "") -> None:
        """Show the metrics of a producer or consumer. name: value of the label `name`.

        Several with the same labels are added up.
        """
        labels = {"name": name, "topic": getattr(watched, "topic", ""), "channel": getattr(watched, "channel", "")}
        with self._lock:
            self._watched[watched] = labels

    def unwatch(self, watched: Watched) -> None:
        """Show the metrics of a producer or consumer no longer."""
        with self._lock:
            self._watched.pop(watched, None)

    def describe(self) -> list[Metric]:
        """Return no metrics: names are checked when metrics are collected."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        with self._lock:
            found = [(watched.stats(), labels) for watched, labels in self._watched.items()]
        for field in FIELDS:
            yield _family(field, found)
        yield _connections(found)


def _role_of(stats: dict[str, Any]) -> str:
    return PRODUCER if "published" in stats else CONSUMER


def _family(field: Field, found: list[tuple[dict[str, Any], dict[str, str]]]) -> Metric:
    names = ["name"] if field.role == PRODUCER else ["name", "topic", "channel"]
    sums: dict[tuple[str, ...], float] = {}
    for stats, labels in found:
        if _role_of(stats) == field.role:
            key = tuple(labels[name] for name in names)
            sums[key] = sums.get(key, 0) + stats[field.key]
    kind = CounterMetricFamily if field.is_counter else GaugeMetricFamily
    family = kind(f"{PREFIX}_{field.role}_{field.name}", field.text, labels=names)
    for key, value in sums.items():
        family.add_metric(key, value)
    return family


def _connections(found: list[tuple[dict[str, Any], dict[str, str]]]) -> Metric:
    family = GaugeMetricFamily(
        f"{PREFIX}_connections", "Connections to brokers that are open.", labels=["role", "name", "topic", "channel"]
    )
    sums: dict[tuple[str, ...], int] = {}
    for stats, labels in found:
        key: tuple[str, ...] = (_role_of(stats), labels["name"], labels["topic"], labels["channel"])
        sums[key] = sums.get(key, 0) + sum(broker["connected"] for broker in stats["brokers"].values())
    for key, value in sums.items():
        family.add_metric(key, value)
    return family


_collectors: Final[weakref.WeakKeyDictionary[CollectorRegistry, ClientCollector]] = weakref.WeakKeyDictionary()
_lock: Final = threading.Lock()


def watch(watched: Watched, name: str = "", registry: CollectorRegistry = REGISTRY) -> None:
    """Show the metrics of a producer or consumer in a registry, by default in that of prometheus_client."""
    with _lock:
        collector = _collectors.get(registry)
        if collector is None:
            collector = _collectors[registry] = ClientCollector()
            registry.register(collector)
    collector.watch(watched, name)
