"""GET and POST /restart: hand the sockets over to a new process of the daemon. GET and POST /drain: end its work.

Source: docs/http.md, "Restart", "Drain".
"""

from typing import Protocol

from pyqd.api.http_params import refusing
from pyqd.api.rights import ADMIN, STATUS
from pyqd.broker.broker import Broker
from pyqd.http.messages import HttpError, Request, Response, Route, json_response
from pyqd.primitives.durations import SECOND_NS, parse_duration
from pyqd.tcp.drain import Drain

# Without --drain-timeout.
TIMEOUT_NS_DEFAULT = 30 * SECOND_NS


class RestartError(Exception):
    """The reason why a restart was refused; str() of it is for the operator."""


class Restarting(Protocol):
    """Interface to the restarts of a daemon."""

    def begin(self) -> int:
        """Start a successor and wait until it is ready. Returns: its pid. Raises: RestartError. Switches: yes."""

    def as_dict(self) -> dict[str, object]:
        """Return the process that answers, whether a restart is under way, and the last error."""


class RestartRoutes:
    """Routes of a daemon's restart."""

    def __init__(self, restarts: Restarting) -> None:
        self.restarts = restarts

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/restart", self.show, right=STATUS),
            Route("POST", "/restart", self.begin, right=ADMIN),
        ]

    def show(self, _request: Request) -> Response:
        return json_response(self.restarts.as_dict())

    def begin(self, _request: Request) -> Response:
        """Start a new process, and hand over to it when it is ready. The answer leaves before."""
        try:
            pid = self.restarts.begin()
        except RestartError as error:
            raise HttpError(503, f"RESTART_REFUSED: {error}") from None
        return json_response({"pid": pid})


class DrainRoutes:
    """Routes of a daemon's drain."""

    def __init__(self, broker: Broker, drain: Drain) -> None:
        self.broker = broker
        self.drain = drain

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/drain", self.show, right=STATUS),
            Route("POST", "/drain", self.begin, right=ADMIN),
        ]

    def show(self, _request: Request) -> Response:
        return json_response(self.drain.progress())

    def begin(self, request: Request) -> Response:
        """Begin to drain, or change the deadline of a drain that has begun. The daemon stops when it is complete."""
        text = request.query().get("timeout")
        timeout_ns = self.broker.options.drain_timeout_ns or TIMEOUT_NS_DEFAULT
        if text is not None:
            with refusing("INVALID_TIMEOUT"):
                timeout_ns = parse_duration(text)
            if timeout_ns < 0:
                raise HttpError(400, "INVALID_TIMEOUT")
        self.drain.begin(timeout_ns)
        return json_response(self.drain.progress())
