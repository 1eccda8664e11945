"""The table of the daemon's routes. Source: spec of the HTTP API, "Endpoint summary"."""

from collections.abc import Callable
from typing import Any

from pyqd.broker.broker import Broker
from pyqd.broker.topic import Topic
from pyqd.services.http_router import Route
from pyqd.services.identity import Identity
from pyqd.services.live_options import LiveOptions
from pyqd.services.metrics import Metrics
from pyqd.services.routes_admin import AdminRoutes
from pyqd.services.routes_config import ConfigRoutes
from pyqd.services.routes_debug import DebugRoutes
from pyqd.services.routes_limits import LimitRoutes
from pyqd.services.routes_messages import MessageRoutes
from pyqd.services.routes_metrics import MetricsRoutes
from pyqd.services.routes_publish import PublishRoutes
from pyqd.services.routes_replay import ReplayRoutes
from pyqd.services.routes_status import StatusRoutes
from pyqd.services.routes_topics import TopicRoutes
from pyqd.services.statsd import full_prefix


def daemon_routes(
    broker: Broker,
    identity: Identity,
    wait_durable: Callable[[list[Topic]], None] | None = None,
    metrics: Metrics | None = None,
    live: LiveOptions | None = None,
    debug: DebugRoutes | None = None,
) -> list[Route]:
    """Return all routes of the daemon.

    wait_durable: for publishes with --sync-every=1; none is waited for without. metrics: of the broker, for /metrics.
    live: the options, and who is told of their change; the broker alone without. debug: what the process is doing.
    """
    options = broker.options
    resolved: dict[str, Callable[[], Any]] = {
        "statsd_prefix": lambda: full_prefix(options, identity),
        "broadcast_tcp_port": lambda: options.broadcast_tcp_port or identity.tcp_port,
        "broadcast_http_port": lambda: options.broadcast_http_port or identity.http_port,
    }
    return [
        *StatusRoutes(broker, identity).routes(),
        *PublishRoutes(broker, wait_durable).routes(),
        *ReplayRoutes(broker).routes(),
        *MessageRoutes(broker).routes(),
        *TopicRoutes(broker).routes(),
        *AdminRoutes(broker).routes(),
        *LimitRoutes(broker).routes(),
        *MetricsRoutes(metrics or Metrics(broker)).routes(),
        *ConfigRoutes(live or LiveOptions(broker), resolved).routes(),
        *(debug or DebugRoutes()).routes(),
    ]
