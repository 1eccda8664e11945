"""The table of the daemon's routes. Source: spec of the HTTP API, "Endpoint summary"."""

from pyqd.broker.broker import Broker
from pyqd.services.http_router import Route
from pyqd.services.identity import Identity
from pyqd.services.routes_publish import PublishRoutes
from pyqd.services.routes_status import StatusRoutes


def daemon_routes(broker: Broker, identity: Identity) -> list[Route]:
    """Return all routes of the daemon."""
    return [*StatusRoutes(broker, identity).routes(), *PublishRoutes(broker).routes()]
