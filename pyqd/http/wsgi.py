"""WSGI application as the routes of an HTTP server, which limits sizes, times and connections.

Each request has been read to its end before the application is called. An answer without a Content-Length is a stream
and is sent as the application makes it.

Source: PEP 3333.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any

from pyqd.http.messages import Match, Request, Response, Route
from pyqd.http.query import unescape
from pyqd.http.router import NOT_FOUND, Router
from pyqd.net.admission import ip_of

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication, WSGIEnvironment

# Made by the server, or of no meaning for one connection.
OWN_HEADERS = frozenset(("content-length", "connection", "date", "transfer-encoding", "keep-alive"))
PLAIN_HEADERS = {b"content-type": "CONTENT_TYPE"}
# No form is so large: the application refuses it before it reads.
TOO_BIG = str(sys.maxsize)


class WsgiRouter(Router):
    """Router that leads every request to one application.

    body_max: returns the limit of a request's body; called when its headers are known, must not switch. is_secret:
    whether the query of a path is left out of the log.
    """

    def __init__(
        self,
        application: WSGIApplication,
        *,
        scheme: str,
        body_max: Callable[[Request], int],
        is_secret: Callable[[str], bool] = lambda _path: False,
    ) -> None:
        super().__init__(())
        self._application = application
        self._scheme = scheme
        self._body_max = body_max
        self._is_secret = is_secret

    def match(self, request: Request) -> Match:
        """Return the route of a request, with the limit of its body."""
        if not request.path.startswith(("/", "http://", "https://")):
            return NOT_FOUND
        limit = self._body_max(request)
        return Match(Route(request.method, "/", self._answer, body_limit=lambda: limit, common_headers=False))

    def _answer(self, request: Request) -> Response:
        environ = environ_of(request, self._scheme)
        if self._is_secret(request.path):
            # The server logs the target after the answer.
            request.target = request.path
        return run(self._application, environ)


def environ_of(request: Request, scheme: str) -> WSGIEnvironment:
    """Return the environment of a request. The connection leaves the body of an answer to HEAD out, so HEAD is GET."""
    path = request.path
    if not path.startswith("/"):
        path = "/" + path.partition("://")[2].partition("/")[2]
    try:
        path = unescape(path)
    except ValueError:
        path = request.path
    host, _, port = request.headers.get(b"host", b"").decode("latin-1").rpartition(":")
    environ: dict[str, Any] = {
        "REQUEST_METHOD": "GET" if request.method == "HEAD" else request.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": path.encode("utf-8", "surrogateescape").decode("latin-1"),
        "QUERY_STRING": request.query_text,
        "CONTENT_LENGTH": TOO_BIG if request.body_too_big else str(len(request.body)),
        "SERVER_NAME": host or "localhost",
        "SERVER_PORT": port if port.isdigit() else "80",
        "SERVER_PROTOCOL": f"HTTP/{request.version}",
        "REMOTE_ADDR": ip_of(request.remote),
        "REMOTE_PORT": request.remote.rpartition(":")[2],
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scheme,
        "wsgi.input": io.BytesIO(request.body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    for name, value in request.headers.items():
        # A name with an underscore would take the place of the one with a hyphen.
        if b"_" not in name and name not in (b"content-length", b"transfer-encoding"):
            key = PLAIN_HEADERS.get(name) or "HTTP_" + name.decode("latin-1").upper().replace("-", "_")
            environ[key] = value.decode("latin-1").strip()
    return environ


def run(application: WSGIApplication, environ: WSGIEnvironment) -> Response:
    """Call the application. Returns: its answer. Switches: it may."""
    begun: list[tuple[int, list[tuple[str, str]]]] = []

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], object]:
        if exc_info is None and begun:
            raise AssertionError("an application begins its answer once")
        begun[:] = [(int(status.partition(" ")[0]), headers)]
        return unwritable

    pieces = application(environ, start_response)
    status, headers = begun[0]
    has_length = any(name.lower() == "content-length" for name, _value in headers)
    given = tuple((name, value) for name, value in headers if name.lower() not in OWN_HEADERS)
    if has_length or status in (204, 304):
        return Response(status, b"".join(streamed(pieces)), headers=given, common_headers=False)
    return Response(status, headers=given, common_headers=False, stream=streamed(pieces))


def streamed(pieces: Iterable[bytes]) -> Generator[bytes, None, None]:
    """Yield the pieces of an answer, and close it at the end or when the reader goes away."""
    try:
        yield from pieces
    finally:
        close = getattr(pieces, "close", None)
        if close is not None:
            close()


def unwritable(_data: bytes) -> object:
    """Refuse the old way of sending a body."""
    raise AssertionError("an application returns its body; `write` is not supported")
