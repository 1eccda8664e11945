"""The web admin as a process: listener, signals, and the order of stopping. Needs gevent's patches of the library."""

from __future__ import annotations

import logging
import signal
import ssl
from collections.abc import Sequence
from typing import Any, Final

import gevent
from gevent.event import Event
from gevent.pywsgi import WSGIHandler, WSGIServer
from gevent.threadpool import ThreadPool

from pyqd.admin.access.command import user_command
from pyqd.admin.access.oidc import check_oidc
from pyqd.admin.app import new_app
from pyqd.admin.options import ADMIN, AdminOptions, check_options
from pyqd.admin.site import Site, context_maker, read_token, trusted_by
from pyqd.apps.config_check import Checks
from pyqd.apps.program import run_program
from pyqd.net.listener import listening_socket
from pyqd.primitives.addresses import split_address
from pyqd.primitives.errors import StartupError

# Requests that are under way get this long when the process stops.
STOP_TIMEOUT_S: Final = 2.0
HANDSHAKE_TIMEOUT_S: Final = 10.0

logger = logging.getLogger(__name__)


class Handler(WSGIHandler):
    """Logs each request as NSQ's daemons do."""

    def log_request(self) -> None:
        """Log status, method, path and time of a request."""
        status = getattr(self, "code", None) or (self.status or "000").split()[0]
        took_ms = ((self.time_finish or 0) - (self.time_start or 0)) * 1000
        address = self.client_address[0] if self.client_address else "-"
        # A login by OpenID Connect comes back with a code, which is a secret for as long as nobody has used it.
        path = self.path or ""
        path = path.partition("?")[0] if "/login/oidc/" in path else path
        logger.info("%s %s %s (%s) %.3fms", status, self.command, path, address, took_ms)


class Server(WSGIServer):
    """Server whose clients may fail to begin TLS, as programs do that speak plain HTTP."""

    def wrap_socket_and_handle(self, client_socket: Any, address: Any) -> None:
        """Begin TLS and serve a connection."""
        client_socket.settimeout(HANDSHAKE_TIMEOUT_S)
        try:
            super().wrap_socket_and_handle(client_socket, address)
        except OSError as error:
            # Errors of TLS are OSErrors too. Without this, gevent would write a traceback for each.
            logger.info("connection from %s over TLS has failed: %s", address[0], error)

    def handle(self, client_socket: Any, address: Any) -> None:
        """Serve a connection, which is open for as long as its page."""
        client_socket.settimeout(None)
        super().handle(client_socket, address)


class AdminServer:
    """One web admin with its listener. Raises: StartupError."""

    def __init__(self, options: AdminOptions) -> None:
        check_options(options)
        check_oidc(options)
        self.options = options
        self.address = split_address(options.http_address)
        # SQLite waits and reads in C, where gevent cannot switch. One thread suffices for its reads.
        self.site = Site(options, ThreadPool(1).apply)
        self.app = new_app(self.site)
        self.server: Any = None

    def start(self) -> None:
        """Listen. Raises: StartupError."""
        try:
            listener = listening_socket(self.address)
        except OSError as error:
            raise StartupError(f"listen ({self.options.http_address}) failed - {error}") from None
        tls = tls_arguments(self.options)
        self.server = Server(listener, self.app, handler_class=Handler, log=None, error_log=None, **tls)
        self.server.start()
        self.site.poller.start()
        host, port = listener.getsockname()[:2]
        logger.info("%s: listening on %s:%d", "HTTPS" if self.options.tls_cert else "HTTP", host, port)
        self._tell_access(host)

    def _tell_access(self, host: str) -> None:
        """Log who may use this process."""
        if self.site.policy.needs_login or self.options.admin_user:
            return
        is_local = host.startswith("127.") or host == "::1"
        reach = "on this machine" if is_local else "who reaches this address"
        text = "no login is set up: everybody %s may change things; --users-file sets up logins"
        logger.log(logging.INFO if is_local else logging.WARNING, text, reach)

    def stop(self) -> None:
        """Stop listening, let requests end, and close everything."""
        self.site.is_closing = True
        if self.server is not None:
            self.server.stop(timeout=STOP_TIMEOUT_S)
        self.site.close()
        logger.info("bye")


def tls_arguments(options: AdminOptions) -> dict[str, Any]:
    """Return the arguments of the server for HTTPS. Raises: StartupError."""
    if not options.tls_cert:
        return {}
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # An empty password keeps OpenSSL from asking for one on the terminal.
        context.load_cert_chain(options.tls_cert, options.tls_key, password=lambda: b"")
    except (OSError, ssl.SSLError) as error:
        raise StartupError(f"failed to LoadX509KeyPair {options.tls_cert}, {options.tls_key} - {error}") from None
    return {"ssl_context": context}


ADMIN_CHECKS: Final[Checks[AdminOptions]] = {
    check_options: (
        "lookupd-http-address",
        "nsqd-http-address",
        "graphite-url",
        "allow-config-from-cidr",
        "trusted-proxy",
    ),
    context_maker: (
        "http-client-tls-root-ca-file",
        "http-client-tls-cert",
        "http-client-tls-key",
        "http-client-tls-insecure-skip-verify",
    ),
    trusted_by: ("trusted-broker", "lookupd-http-address", "nsqd-http-address"),
    tls_arguments: ("tls-cert", "tls-key"),
    check_oidc: ("oidc-issuer", "oidc-client-id", "oidc-role"),
    lambda options: read_token(options.http_client_token_file): ("http-client-token-file",),
}


def run(options: AdminOptions) -> int:
    """Run until a signal. Returns: the exit code."""
    server = AdminServer(options)
    wanted = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        gevent.signal_handler(number, wanted.set)
    server.start()
    wanted.wait()
    server.stop()
    return 0


def run_admin(argv: Sequence[str]) -> int:
    """Parse a command line and run. Returns: the exit code."""
    if argv and argv[0] == "user":
        return user_command(argv[1:])
    return run_program(ADMIN.parse_settings(argv), ADMIN_CHECKS, run)
