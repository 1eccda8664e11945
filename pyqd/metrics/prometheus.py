"""Prometheus metrics: the daemon as a whole here, its topics and channels in `pyqd.metrics.prometheus_text`.

The daemon's metrics live in a private registry of prometheus_client. Histograms are fed by the events; a collector
reads the broker at each scrape.
"""

import logging
import platform
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from gevent.lock import Semaphore
from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from pyqd import __version__
from pyqd.broker.broker import Broker
from pyqd.broker.capacity import RESOURCES
from pyqd.broker.stats import StatsDict
from pyqd.broker.tracing import STATS
from pyqd.hot.diskqueue import arena
from pyqd.hot.diskqueue.mapping import unmanaged_count
from pyqd.hot.net import buffers
from pyqd.hot.primitives.clock import mono
from pyqd.metrics.prometheus_text import SeriesWriter
from pyqd.net.loop_driver import yield_to_loop
from pyqd.primitives.durations import SECOND_NS
from pyqd.primitives.errors import StorageError
from pyqd.primitives.nsq_compat import NSQ_VERSION

SYNC_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LOOK_S = 0.25
LAG_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

logger = logging.getLogger(__name__)


class ConnectionCounts(NamedTuple):
    """Open connections, those refused, and those closed because of --max-buffer-bytes."""

    tcp: int = 0
    http: int = 0
    tcp_refused: int = 0
    http_refused: int = 0
    shed: int = 0


class LoopLag:
    """Measurement of the event loop's delay, a few times a second: the time from a timer's due time to its callback.

    An event waits at most that long after the kernel has reported it. hub: of the loop. noted: is called with seconds.
    """

    def __init__(self, hub: Any, noted: Callable[[float], None]) -> None:
        self._timer = hub.loop.timer(LOOK_S, LOOK_S)
        self._noted = noted
        self._due_ns = 0

    def start(self) -> None:
        self._due_ns = mono() + int(LOOK_S * SECOND_NS)
        self._timer.again(self._measure, update=True)

    def stop(self) -> None:
        self._timer.stop()
        self._timer.close()

    def _measure(self) -> None:
        self._noted(max(0, mono() - self._due_ns) / SECOND_NS)
        self.start()


class Metrics(Collector):
    """Metrics of one daemon, and the collector of those that are read at each scrape.

    lookup_daemons: returns the states of the connections to lookup daemons.
    """

    def __init__(
        self,
        broker: Broker,
        counts: Callable[[], ConnectionCounts] = ConnectionCounts,
        lookup_daemons: Callable[[], Iterable[StatsDict]] = tuple,
    ) -> None:
        # Without this each histogram would export its creation time in a series of its own.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._broker = broker
        self._one_at_a_time = Semaphore()
        # Topics without series of their own in the last scrape.
        self.summed_count = 0
        self.series_count = 0
        self.counts = counts
        self.lookup_daemons = lookup_daemons
        self.registry = CollectorRegistry(auto_describe=False)
        self.sync_duration = Histogram(
            "pyqd_sync_duration_seconds",
            "Duration of a sync of accepted messages and ledgers to stable storage.",
            registry=self.registry,
            buckets=SYNC_BUCKETS_S,
        )
        self.loop_lag = Histogram(
            "pyqd_loop_lag_seconds",
            "Lateness of a timer of the event loop, measured four times a second.",
            registry=self.registry,
            buckets=LAG_BUCKETS_S,
        )
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def pieces(self) -> list[bytes]:
        """Return the pieces of Prometheus' text of all metrics. Further scrapes wait meanwhile. Switches: yes."""
        with self._one_at_a_time:
            writer = SeriesWriter(self._broker)
            parts = list(writer.write())
            self.series_count = writer.series_count
            self._note_summed(writer.summed_count)
            parts.append(generate_latest(self.registry))
            yield_to_loop()
            return parts

    def _note_summed(self, count: int) -> None:
        if count and not self.summed_count:
            logger.warning(
                "METRICS: %d topics are shown as a sum: --metrics-max-series=%d is reached",
                count,
                self._broker.options.metrics_max_series,
            )
        self.summed_count = count

    def collect(self) -> Iterator[Metric]:
        broker = self._broker
        counts = self.counts()
        info = GaugeMetricFamily("pyqd_build_info", "Always 1; the labels have the versions.", labels=BUILD_LABELS)
        info.add_metric((__version__, NSQ_VERSION, platform.python_version()), 1)
        yield info
        yield gauge("pyqd_healthy", "1 while /ping answers OK.", broker.health() == "OK")
        yield gauge("pyqd_topics", "Topics.", len(broker.topics))
        channel_count = sum(len(topic.channels_by_name) for topic in broker.topics.values())
        yield gauge("pyqd_channels", "Channels of all topics.", channel_count)
        yield gauge("pyqd_tcp_connections", "Clients connected over TCP.", counts.tcp)
        yield gauge("pyqd_http_connections", "Connections of the HTTP API.", counts.http)
        yield from self.collect_lookup_daemons()
        yield from self.collect_limits(counts)
        yield from self.collect_machine()
        yield from self.collect_disk()
        yield from self.collect_trace()
        yield gauge("pyqd_metrics_series", "Time series of topics and channels in this scrape.", self.series_count)
        yield gauge(
            "pyqd_metrics_topics_summed",
            "Topics shown only as a sum; if not 0, raise --metrics-max-series.",
            self.summed_count,
        )

    def collect_lookup_daemons(self) -> Iterator[Metric]:
        connected = GaugeMetricFamily(
            "pyqd_lookupd_connected", "1 while the broker is registered with a lookup daemon.", labels=("address",)
        )
        reconnects = CounterMetricFamily(
            "pyqd_lookupd_reconnects", "Connections to a lookup daemon after the first one.", labels=("address",)
        )
        registrations = CounterMetricFamily(
            "pyqd_lookupd_registrations", "Registrations that a lookup daemon has confirmed.", labels=("address",)
        )
        for peer in self.lookup_daemons():
            labels = (peer["address"],)
            connected.add_metric(labels, float(peer["connected"]))
            reconnects.add_metric(labels, float(peer["reconnect_count"]))
            registrations.add_metric(labels, float(peer["registration_count"]))
        yield connected
        yield reconnects
        yield registrations

    def collect_limits(self, counts: ConnectionCounts) -> Iterator[Metric]:
        for name, text, value in (
            ("pyqd_tcp_refused", "Clients refused because of a limit, since the start.", counts.tcp_refused),
            ("pyqd_http_refused", "The same over HTTP and HTTPS.", counts.http_refused),
            ("pyqd_connections_shed", "Connections closed for --max-buffer-bytes, since the start.", counts.shed),
        ):
            yield CounterMetricFamily(name, text, value=value)
        yield gauge(
            "pyqd_buffer_bytes",
            "Memory of partly received and unsent data, and of TLS and compression.",
            buffers.total(),
        )

    def collect_machine(self) -> Iterator[Metric]:
        capacity, outside = self._broker.capacity, unmanaged_count()
        yield gauge("pyqd_files", "Files of topics and channels, mapped or idle.", arena.file_count() + outside)
        yield gauge("pyqd_mapped_files", "Of these, the files that are mapped now.", arena.mapped_count() + outside)
        yield gauge("pyqd_mapped_files_max", "Files that may be mapped at a time.", arena.mapped_max())
        text = "Idle files that were mapped again, since the start."
        yield CounterMetricFamily("pyqd_files_mapped_again", text, value=arena.remapped_count())
        reached = GaugeMetricFamily(
            "pyqd_machine_limit_reached",
            "1 while only the reserve of a limit of the machine is left.",
            labels=("resource",),
        )
        short = {shortage.resource for shortage in capacity.shortages()}
        for resource in RESOURCES:
            reached.add_metric((resource,), float(resource in short))
        yield reached

    def collect_disk(self) -> Iterator[Metric]:
        broker = self._broker
        try:
            free_bytes = float(broker.files.free_bytes(broker.root))
        except StorageError:
            free_bytes = float("nan")
        yield gauge("pyqd_disk_free_bytes", "Free bytes of the file system with the data.", free_bytes)
        yield gauge("pyqd_disk_free_min_bytes", "Bytes below which publishing is refused.", broker.reserve.floor_bytes)
        yield gauge(
            "pyqd_topics_refusing", "Topics that refuse publishing for lack of space.", len(broker.short_of_room)
        )
        damage = broker.damage
        for name, text, value in (
            ("pyqd_damage", "Places found damaged on disk, since the start.", damage.found_count),
            ("pyqd_damage_lost", "Messages lost to damage on disk, since the start.", damage.lost_count),
            ("pyqd_damage_bytes", "Bytes found damaged on disk, since the start.", damage.damaged_bytes),
            ("pyqd_write_failures", "Messages that could not be stored, since the start.", broker.write_failure_count),
            ("pyqd_sync_failures", "Syncs that failed, since the start.", broker.sync_failure_count),
        ):
            yield CounterMetricFamily(name, text, value=value)

    def collect_trace(self) -> Iterator[Metric]:
        stats = self._broker.tracing.stats() or dict.fromkeys(STATS, 0)
        for name, text, key in (
            ("pyqd_trace_events", "Events of traced messages, since the start.", "events"),
            ("pyqd_trace_events_lost", "Of these, events that could not be stored.", "lost"),
            (
                "pyqd_trace_events_overwritten",
                "Events that newer ones have replaced, since the start.",
                "overwritten",
            ),
        ):
            yield CounterMetricFamily(name, text, value=stats[key])
        yield gauge("pyqd_trace_bytes", "Bytes on disk of trace events.", stats["bytes"])
        yield gauge("pyqd_trace_kept_events", "Events that can be read.", stats["next"] - stats["oldest"])


BUILD_LABELS = ("version", "nsq_version", "python_version")


def gauge(name: str, help_text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help_text, value=float(value))
