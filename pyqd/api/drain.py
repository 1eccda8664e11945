"""GET and POST /drain: end the work of the daemon and stop it. Source: docs/http.md, "Drain"."""

from pyqd.api.rights import ADMIN, STATUS
from pyqd.broker.broker import Broker
from pyqd.http.messages import HttpError, Request, Response, Route, json_response
from pyqd.primitives.durations import SECOND_NS, parse_duration
from pyqd.tcp.drain import Drain

# Without --drain-timeout.
TIMEOUT_NS_DEFAULT = 30 * SECOND_NS


class DrainRoutes:
    """Routes of a daemon's drain."""

    def __init__(self, broker: Broker, drain: Drain) -> None:
        self.broker = broker
        self.drain = drain

    def routes(self) -> list[Route]:
        """Return the routes of this group, each with its right and handler."""
        return [
            Route("GET", "/drain", self.show, right=STATUS),
            Route("POST", "/drain", self.begin, right=ADMIN),
        ]

    def show(self, _request: Request) -> Response:
        """Return the progress."""
        return json_response(self.drain.progress().as_dict())

    def begin(self, request: Request) -> Response:
        """Begin to drain, or change the deadline of a drain that has begun. The daemon stops when it is complete."""
        text = request.query().get("timeout")
        timeout_ns = self.broker.options.drain_timeout_ns or TIMEOUT_NS_DEFAULT
        if text is not None:
            try:
                timeout_ns = parse_duration(text)
            except ValueError:
                raise HttpError(400, "INVALID_TIMEOUT") from None
            if timeout_ns < 0:
                raise HttpError(400, "INVALID_TIMEOUT")
        self.drain.begin(timeout_ns)
        return json_response(self.drain.progress().as_dict())
