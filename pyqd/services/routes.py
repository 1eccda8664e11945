"""The table of the daemon's routes. Source: spec of the HTTP API, "Endpoint summary"."""

from collections.abc import Callable

from pyqd.broker.broker import Broker
from pyqd.broker.topic import Topic
from pyqd.services.http_router import Route
from pyqd.services.identity import Identity
from pyqd.services.routes_publish import PublishRoutes
from pyqd.services.routes_replay import ReplayRoutes
from pyqd.services.routes_status import StatusRoutes
from pyqd.services.routes_topics import TopicRoutes


def daemon_routes(
    broker: Broker, identity: Identity, wait_durable: Callable[[list[Topic]], None] | None = None
) -> list[Route]:
    """Return all routes of the daemon. wait_durable: for publishes with --sync-every=1; none is waited for without."""
    return [
        *StatusRoutes(broker, identity).routes(),
        *PublishRoutes(broker, wait_durable).routes(),
        *ReplayRoutes(broker).routes(),
        *TopicRoutes(broker).routes(),
    ]
