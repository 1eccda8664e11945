"""GET /metrics, for Prometheus."""

from pyqd.services.http_messages import Request, Response
from pyqd.services.http_router import Route
from pyqd.services.metrics import CONTENT_TYPE, Metrics
from pyqd.services.rights import STATUS


class MetricsRoutes:
    """The route that Prometheus scrapes."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics

    def routes(self) -> list[Route]:
        """Return the route. What comes every few seconds is not logged."""
        return [Route("GET", "/metrics", self.scrape, versioned=False, logged=False, right=STATUS)]

    def scrape(self, _request: Request) -> Response:
        """Return all metrics as text. Switches: yes."""
        return Response(200, self.metrics.text(), CONTENT_TYPE)
