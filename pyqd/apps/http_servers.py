"""HTTP and HTTPS of one daemon: two servers over the same routes."""

import socket
from collections.abc import Callable, Iterable
from functools import partial

from pyqd.api.login import Login
from pyqd.apps.listeners import ListeningAddresses
from pyqd.hot.http.front import ShortPath
from pyqd.http.connection import HttpConnection
from pyqd.http.messages import JSON, Response, Route
from pyqd.http.reader import HttpSettings
from pyqd.http.server import HttpServer
from pyqd.metrics.identity import port_of
from pyqd.net.admission import Admission
from pyqd.net.listener import Listener
from pyqd.net.tls import TlsServer
from pyqd.primitives.addresses import Address
from pyqd.primitives.sites import Sites


class HttpServers:
    """Servers for HTTP and HTTPS with the same routes, settings, login and limit on connections.

    https: None without TLS, or without an address for it. https_port: the real one, once it listens; 0 without it.
    https_only: requests without TLS are refused with the port of HTTPS. The other parameters are those of HttpServer.
    """

    def __init__(
        self,
        routes: Iterable[Route],
        addresses: ListeningAddresses,
        tls: TlsServer,
        *,
        on_internal_error: Callable[[BaseException], None],
        settings: HttpSettings,
        admission: Admission,
        login: Login | None,
        https_only: bool,
        sites: Sites,
        short_path: Callable[[str], ShortPath] | None = None,
    ) -> None:
        self._addresses = addresses
        self.https_port = 0
        new_server = partial(
            HttpServer,
            list(routes),
            on_internal_error=on_internal_error,
            settings=settings,
            admission=admission,
            login=None if login is None else login.refusal,
            sites=sites,
        )
        self.http = new_server(short_path=short_path, refusal=self._refuse_without_tls if https_only else None)
        self.https = None if addresses.https is None else new_server("HTTPS", tls=tls)

    def start(
        self, inherited: Callable[[str, Address], socket.socket | None] = lambda _name, _address: None
    ) -> tuple[Address | None, Address | None]:
        """Listen. Returns: the real addresses of HTTP and HTTPS; None without a listener. Raises: StartupError.

        inherited: returns the open socket for a listener by its name, `http` or `https`, and its address; None if the
        listener has to open one.
        """
        http, https = self._addresses.http, self._addresses.https
        # HTTPS listens first: refusals over HTTP name its port.
        if self.https is not None and https is not None:
            https = self.https.start(https, inherited("https", https))
            self.https_port = port_of(https)
        if http is not None:
            http = self.http.start(http, inherited("http", http))
        return http, https

    def stop(self) -> None:
        for server in self._servers():
            server.stop()

    def listeners(self) -> dict[str, Listener]:
        return {name: server.listener for name, server in (("http", self.http), ("https", self.https)) if server}

    def connections(self) -> list[HttpConnection]:
        return [connection for server in self._servers() for connection in server.connections]

    def connection_count(self) -> int:
        return sum(len(server.connections) for server in self._servers())

    def _servers(self) -> list[HttpServer]:
        return [self.http] if self.https is None else [self.http, self.https]

    def _refuse_without_tls(self) -> Response:
        """Return the answer to every request if TLS is required. Its spaces are nsqd's."""
        return Response(403, f'{{"message": "TLS_REQUIRED", "https_port": {self.https_port}}}'.encode(), JSON)
