"""GET /metrics, for Prometheus."""

from pyqd.api.rights import STATUS
from pyqd.http.messages import Request, Response
from pyqd.http.router import Route
from pyqd.metrics.prometheus import CONTENT_TYPE, Metrics


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
