"""GET and POST /restart: hand the sockets over to a new process of the daemon. GET and POST /drain: end its work.

Source: docs/http.md, "Restart", "Drain".
"""

from collections.abc import Callable

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


class ProcessRoutes:
    """Routes of a daemon's drain and restart.

    begin_restart: starts a successor, and returns its pid when it is ready; raises RestartError, and switches.
    restart_state: returns the process that answers, whether a restart is under way, and the last error.
    """

    def __init__(
        self,
        broker: Broker,
        drain: Drain,
        begin_restart: Callable[[], int],
        restart_state: Callable[[], dict[str, object]],
    ) -> None:
        self.broker = broker
        self.drain = drain
        self.begin_restart = begin_restart
        self.restart_state = restart_state

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/drain", lambda _request: json_response(self.drain.progress()), right=STATUS),
            Route("POST", "/drain", self.start_drain, right=ADMIN),
            Route("GET", "/restart", lambda _request: json_response(self.restart_state()), right=STATUS),
            Route("POST", "/restart", self.restart, right=ADMIN),
        ]

    def restart(self, _request: Request) -> Response:
        """Start a new process, and hand over to it when it is ready. The answer leaves before."""
        try:
            pid = self.begin_restart()
        except RestartError as error:
            raise HttpError(503, f"RESTART_REFUSED: {error}") from None
        return json_response({"pid": pid})

    def start_drain(self, request: Request) -> Response:
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
