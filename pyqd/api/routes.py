"""The table of the daemon's routes. Source: docs/nsq/http-api.md, "Endpoint summary"."""

from collections.abc import Callable
from typing import Any

from pyqd.api.admin import AdminRoutes
from pyqd.api.config import ConfigRoutes
from pyqd.api.debug import DebugRoutes
from pyqd.api.limits import LimitRoutes
from pyqd.api.messages import MessageRoutes
from pyqd.api.publish import PublishRoutes
from pyqd.api.replay import ReplayRoutes
from pyqd.api.restart import ProcessRoutes
from pyqd.api.status import StatusRoutes
from pyqd.api.topics import TopicRoutes
from pyqd.api.trace import TraceRoutes
from pyqd.broker.broker import Broker
from pyqd.broker.topic import Topic
from pyqd.config.live_options import LiveOptions
from pyqd.http.messages import Route
from pyqd.metrics.identity import Identity
from pyqd.metrics.prometheus import Metrics
from pyqd.metrics.statsd import full_prefix


def daemon_routes(
    broker: Broker,
    identity: Identity,
    *,
    wait_durable: Callable[[list[Topic]], None],
    metrics: Metrics,
    live: LiveOptions,
    debug: DebugRoutes,
    process: ProcessRoutes,
) -> list[Route]:
    """Return all routes of the daemon.

    wait_durable: waits for publishes with --sync-every=1. metrics: of the broker, for /metrics. live: the changeable
    options and their listeners. debug: profiles and diagnostics. process: its drain and restart.
    """
    options = broker.options
    resolved: dict[str, Callable[[], Any]] = {
        "statsd_prefix": lambda: full_prefix(options, identity),
        "broadcast_tcp_port": lambda: options.broadcast_tcp_port or identity.tcp_port,
        "broadcast_http_port": lambda: options.broadcast_http_port or identity.http_port,
    }
    return [
        *StatusRoutes(broker, identity, metrics).routes(),
        *PublishRoutes(broker, wait_durable).routes(),
        *ReplayRoutes(broker).routes(),
        *MessageRoutes(broker).routes(),
        *TopicRoutes(broker).routes(),
        *TraceRoutes(broker).routes(),
        *AdminRoutes(broker).routes(),
        *LimitRoutes(broker).routes(),
        *ConfigRoutes(live, resolved).routes(),
        *debug.routes(),
        *process.routes(),
    ]
