"""Prometheus metrics of a lookup daemon, read from the registry at each scrape."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from pyqd import __version__
from pyqd.http.messages import PROMETHEUS, Request, Response, Route
from pyqd.lookupd.registry import Registry

HELP = {
    "producers": "Brokers that are connected and have sent IDENTIFY.",
    "topics": "Topics that are registered or were created over HTTP.",
    "channels": "Channels that are registered or were created over HTTP.",
    "registrations": "Registrations of brokers for topics and channels.",
}


class LookupMetrics(Collector):
    """Metrics of one registry, and the route that Prometheus scrapes.

    tcp_connections, http_connections: return the open connections.
    """

    def __init__(
        self, registry: Registry, tcp_connections: Callable[[], int], http_connections: Callable[[], int]
    ) -> None:
        self._registry = registry
        self._connections = {"tcp": tcp_connections, "http": http_connections}
        self._collectors = CollectorRegistry()
        self._collectors.register(self)
        for of_process in (ProcessCollector, PlatformCollector, GCCollector):
            of_process(registry=self._collectors)

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("pyqlookupd_build", "Version of the program.", {"version": __version__})
        for name, count in self._registry.counts().items():
            yield GaugeMetricFamily(f"pyqlookupd_{name}", HELP[name], count)
        family = GaugeMetricFamily("pyqlookupd_connections", "Open connections.", labels=["protocol"])
        for protocol, count_of in self._connections.items():
            family.add_metric([protocol], count_of())
        yield family

    def routes(self) -> list[Route]:
        """Return the route. It is not logged: scrapes come every few seconds."""
        return [Route("GET", "/metrics", self.scrape, common_headers=False, logged=False, right="status")]

    def scrape(self, _request: Request) -> Response:
        """Return all metrics as text."""
        return Response(200, generate_latest(self._collectors), PROMETHEUS)
