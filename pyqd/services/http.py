"""The HTTP server: listens, gives each connection a greenlet, answers by a table of routes.

The same server serves any table. Its log lines are nsqd's.
"""

import logging
import socket
import time
from collections.abc import Iterable

import gevent

from pyqd.primitives.durations import format_duration
from pyqd.protocol.listener import Address, Listener
from pyqd.services.http_connection import HttpConnection
from pyqd.services.http_messages import HttpError, Request, Response, error_response
from pyqd.services.http_router import Route, Router

SWEEP_S = 1.0

logger = logging.getLogger(__name__)


class HttpServer:
    """An HTTP server over a table of routes. name: in log lines, HTTP or HTTPS."""

    def __init__(self, routes: Iterable[Route], name: str = "HTTP") -> None:
        self.name = name
        self.connections: set[HttpConnection] = set()
        self._router = Router(routes)
        self._listener = Listener(self._accepted)
        self._sweeper: gevent.Greenlet[[], None] | None = None

    def start(self, address: Address) -> Address:
        """Listen and serve from now on. Returns: the address with its real port. Raises: StartupError."""
        bound = self._listener.start(address)
        self._sweeper = gevent.spawn(self._sweep)
        logger.info("%s: listening on %s", self.name, bound)
        return bound

    def stop(self) -> None:
        """Stop listening and end the connections, in the middle of a request too."""
        self._listener.stop()
        if self._sweeper is not None:
            self._sweeper.kill(block=False)
            logger.info("%s: closing %s", self.name, self.name)
        for connection in list(self.connections):
            connection.shut()

    def _accepted(self, accepted: socket.socket, remote: str) -> None:
        connection = HttpConnection(accepted, remote, self._router, self.answer)
        self.connections.add(connection)
        gevent.spawn(self._serve, connection)

    def _serve(self, connection: HttpConnection) -> None:
        try:
            connection.run()
        finally:
            self.connections.discard(connection)

    def _sweep(self) -> None:
        """Shut the connections that are past their deadline."""
        while True:
            gevent.sleep(SWEEP_S)
            now_s = time.monotonic()
            for connection in list(self.connections):
                if connection.deadline_s < now_s:
                    connection.shut()

    def answer(self, request: Request, remote: str) -> Response:
        """Return the response to a request, and log it."""
        started_ns = time.monotonic_ns()
        match = request.match
        response = match.answer
        if response is None:
            assert match.route is not None
            response = self._handled(match.route, request)
        if match.logged and logger.isEnabledFor(logging.INFO):
            took = format_duration(time.monotonic_ns() - started_ns)
            logger.info("%d %s %s (%s) %s", response.status, request.method, request.target, remote, took)
        return response

    def _handled(self, route: Route, request: Request) -> Response:
        try:
            response = route.handler(request)
        except HttpError as error:
            response = error_response(error)
        except Exception:
            logger.exception("%s: the handler of %s failed", self.name, route.path)
            response = error_response(HttpError(500, "INTERNAL_ERROR"))
        response.versioned = route.versioned
        return response
