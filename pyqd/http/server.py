"""HTTP server: listens, gives each connection a greenlet and answers by a table of routes.

The server knows nothing about the routes. Its log lines follow nsqd's.
"""

import logging
import socket
import time
from collections.abc import Callable, Iterable
from functools import partial

import gevent

from pyqd.hot.http.front import ShortPath
from pyqd.http.connection import HttpConnection
from pyqd.http.https_connection import HttpsConnection, TlsSocket
from pyqd.http.messages import HttpError, Request, Response, Route, error_response, render, storage_refusal
from pyqd.http.reader import DEFAULT_SETTINGS, HttpSettings
from pyqd.http.router import Router
from pyqd.net.admission import Admission
from pyqd.net.greenlets import spawn, spawn_service
from pyqd.net.handshake import HandshakeError, shake_hands
from pyqd.net.listener import UNIX_REMOTE, Listener
from pyqd.net.tls import TlsServer, common_name_of
from pyqd.primitives.addresses import Address
from pyqd.primitives.durations import format_duration
from pyqd.primitives.errors import LimitReached, MachineLimitReached, StorageError
from pyqd.primitives.loglines import fields
from pyqd.primitives.sites import Sites

SWEEP_S = 1.0
# Each reason to refuse requests of other sites is logged once: a page can send any number of them.
PROBLEMS_LOGGED_MAX = 100
# Go's net/http gives the same answer if a client speaks HTTP on the HTTPS port.
PLAIN_BEGINNINGS = (b"GET /", b"HEAD ", b"POST ", b"PUT /", b"OPTIO")
PLAIN_ANSWER = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"

logger = logging.getLogger(__name__)


class HttpServer:
    """HTTP server over a table of routes.

    routes: the table, or a router of another kind. name: in log lines, HTTP or HTTPS. short_path: makes the short path
    of a connection (pyx/http/front.pyx) from the client's address.
    on_internal_error: is called with an AssertionError, a broken invariant: the daemon's state can no longer be
    trusted. Other errors of handlers are answered and logged. tls: secures the connections; None for plain HTTP.
    refusal: returns the answer to every request; None if requests are answered by routes. settings: of each connection.
    admission: limits the number of connections; several servers may share one. login: takes route, request, remote, tls
    and common_name, and returns the answer if the request is refused, else None; it may switch. sites: the hosts and
    origins that are accepted; None accepts all.
    """

    def __init__(
        self,
        routes: Iterable[Route] | Router,
        name: str = "HTTP",
        short_path: Callable[[str], ShortPath] | None = None,
        on_internal_error: Callable[[BaseException], None] | None = None,
        *,
        tls: TlsServer | None = None,
        refusal: Callable[[], Response] | None = None,
        settings: HttpSettings = DEFAULT_SETTINGS,
        admission: Admission | None = None,
        login: Callable[..., Response | None] | None = None,
        sites: Sites | None = None,
    ) -> None:
        self.name = name
        # The short path checks neither the refusal nor the login.
        self._short_path = short_path if refusal is None and login is None else None
        self._on_internal_error = on_internal_error
        self._tls = tls
        self._refusal = refusal
        self._login = login
        self._sites = sites
        self._problems: set[str] = set()
        self._settings = settings
        self._admission = admission or Admission(lambda: (0, 0))
        self.connections: set[HttpConnection] = set()
        self._router = routes if isinstance(routes, Router) else Router(routes)
        self.listener = Listener(self._accepted)
        self._sweeper: gevent.Greenlet[[], None] | None = None
        self._stopped = False

    def start(self, address: Address, inherited: socket.socket | None = None) -> Address:
        """Start to listen and serve. Returns: the address with its real port. Raises: StartupError.

        inherited: a listening socket that another process has opened, or None.
        """
        bound = self.listener.start(address, inherited)
        self._sweeper = spawn_service(f"sweeper of {self.name}", self._sweep)
        logger.info("%s: listening on %s", self.name, bound)
        return bound

    def stop(self) -> None:
        """Stop listening and end all connections, even in the middle of a request. No other request is executed."""
        self._stopped = True
        self.listener.stop()
        if self._sweeper is not None:
            self._sweeper.kill(block=False)
            logger.info("%s: closing %s", self.name, self.name)
        for connection in list(self.connections):
            connection.shut()

    def _accepted(self, accepted: socket.socket, remote: str) -> None:
        reason = self._admission.admit(remote)
        if reason:
            logger.warning("%s: refused %s - %s", self.name, remote, reason)
            answer = error_response(HttpError(503, "TOO_MANY_CONNECTIONS"))
            # Before a TLS handshake the peer could not read an answer.
            self._admission.turn_away(
                accepted, b"" if self._tls is not None else render(answer, self._settings.common_headers)
            )
            return
        if self._tls is not None:
            spawn(self._secure, self._tls, accepted, remote)
            return
        short_path = None if self._short_path is None else self._short_path(remote)
        connection = HttpConnection(accepted, remote, self._router, self.answer, short_path, self._settings)
        self.connections.add(connection)
        spawn(self._serve, connection)

    def _secure(self, tls: TlsServer, accepted: socket.socket, remote: str) -> None:
        secured = tls.connection()
        is_secure = False
        parting = b""
        try:
            shake_hands(secured, accepted, gevent.get_hub())
            is_secure = not self._stopped
        except HandshakeError as error:
            reason = str(error)
            if error.began in PLAIN_BEGINNINGS:
                reason, parting = "client sent an HTTP request to an HTTPS server", PLAIN_ANSWER
            logger.info("%s: TLS handshake error from %s: %s", self.name, remote, reason)
        finally:
            if not is_secure:
                self._admission.turn_away(accepted, parting)
                self._admission.leave(remote)
        if not is_secure:
            return
        answer = partial(self.answer, common_name=common_name_of(secured)) if self._login is not None else self.answer
        connection = HttpsConnection(TlsSocket(accepted, secured), remote, self._router, answer, self._settings)
        self.connections.add(connection)
        self._serve(connection)

    def _serve(self, connection: HttpConnection) -> None:
        try:
            connection.run()
        except AssertionError as error:
            logger.exception("%s: internal error, closing connection", self.name)
            self._note_internal_error(error)
        finally:
            self.connections.discard(connection)
            self._admission.leave(connection.remote)

    def _note_internal_error(self, error: Exception) -> None:
        if isinstance(error, AssertionError) and self._on_internal_error is not None:
            self._on_internal_error(error)

    def _sweep(self) -> None:
        while True:
            gevent.sleep(SWEEP_S)
            now_s = time.monotonic()
            for connection in list(self.connections):
                if connection.deadline_s < now_s:
                    connection.shut()

    def answer(self, request: Request, remote: str, common_name: str = "") -> Response:
        """Return the response to a request, and log it. common_name: of the client's certificate, or empty."""
        if self._stopped:
            # Of the requests that came in one piece, some may be unanswered. The data may be another process's by now.
            return error_response(HttpError(503, "EXITING"))
        if self._refusal is not None:
            return self._refusal()
        started_ns = time.monotonic_ns()
        request.remote = remote
        match = request.match
        response = self._refused_as_foreign(request, remote) or match.answer
        if response is None:
            assert match.route is not None
            response = self._handled(match.route, request, remote, common_name)
        if match.logged and logger.isEnabledFor(logging.INFO):
            took_ns = time.monotonic_ns() - started_ns
            logger.info(
                "%d %s %s (%s) %s",
                response.status,
                request.method,
                request.target,
                remote,
                format_duration(took_ns),
                extra=fields(
                    status=response.status, method=request.method, target=request.target, remote=remote, took_ns=took_ns
                ),
            )
        return response

    def _refused_as_foreign(self, request: Request, remote: str) -> Response | None:
        """Return the answer if a request is one of another site's page; None if it is not."""
        route, headers = request.match.route, request.headers
        if self._sites is None or (route is not None and route.any_site):
            return None
        host, site, origin = (
            None if value is None else value.decode("latin-1")
            for value in map(headers.get, (b"host", b"sec-fetch-site", b"origin"))
        )
        problem = self._sites.origin_problem(site, origin, host or "")
        code = "CROSS_SITE_REQUEST"
        # No page can have its name resolved to a unix socket, nor have a certificate of this server's names.
        if not problem and host and self._tls is None and remote != UNIX_REMOTE:
            problem = self._sites.host_problem(host)
            code = "UNKNOWN_HOST"
        if not problem:
            return None
        if problem not in self._problems and len(self._problems) < PROBLEMS_LOGGED_MAX:
            self._problems.add(problem)
            logger.warning("%s: refused %s %s (%s): %s", self.name, request.method, request.path, remote, problem)
        return error_response(HttpError(403, f"{code}: {problem}"))

    def _refused(self, route: Route, request: Request, remote: str, common_name: str) -> Response | None:
        """Return the answer to a request that the login refuses; None if the request is allowed."""
        if self._login is None:
            return None
        tls = self._tls is not None
        refusal = self._login(route, request, remote, tls=tls, common_name=common_name)
        if refusal is None and self._stopped:
            # Meanwhile: the login may have waited for an auth server.
            raise HttpError(503, "EXITING")
        return refusal

    def _handled(self, route: Route, request: Request, remote: str, common_name: str) -> Response:
        try:
            response = self._refused(route, request, remote, common_name) or route.handler(request)
        except HttpError as error:
            response = error_response(error)
        except LimitReached as error:
            logger.warning("%s: %s", self.name, error)
            if isinstance(error, MachineLimitReached):
                response = error_response(HttpError(503, f"{error.code}: {error}"))
            else:
                response = error_response(HttpError(403, error.code))
        except StorageError as error:
            logger.error("%s: %s %s failed: %s", self.name, request.method, request.path, error)
            response = error_response(storage_refusal(error))
        except Exception as error:
            logger.exception("%s: internal error in the handler of %s", self.name, route.path)
            response = error_response(HttpError(500, "INTERNAL_ERROR"))
            self._note_internal_error(error)
        response.common_headers = route.common_headers
        return response
