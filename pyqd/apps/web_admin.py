"""The web admin as a process: listener, signals, and the order of stopping. Needs gevent's patches of the library."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Sequence
from typing import Final

import gevent
from gevent.event import Event
from gevent.threadpool import ThreadPool

from pyqd.admin.access.oidc import check_oidc
from pyqd.admin.access.users import user_command
from pyqd.admin.app import body_max, new_app
from pyqd.admin.options import ADMIN, AdminOptions, check_options
from pyqd.admin.site import Site, context_maker, read_token, trusted_by
from pyqd.apps.listeners import parse_address
from pyqd.apps.program import Checks, run_program
from pyqd.http.reader import HttpSettings
from pyqd.http.server import HttpServer
from pyqd.http.wsgi import WsgiRouter
from pyqd.net.admission import Admission
from pyqd.net.shedding import Shedder
from pyqd.net.tls import TlsConfigError, TlsServer, TlsSettings
from pyqd.primitives.addresses import TcpAddress
from pyqd.primitives.errors import StartupError

# Requests that are under way get this long when the process stops.
STOP_TIMEOUT_S: Final = 2.0
STOP_POLL_S: Final = 0.02
# Browsers keep connections for the next page; a header or a form of theirs comes at once.
SETTINGS: Final = HttpSettings(idle_s=75.0, header_s=10.0, body_s=30.0, write_s=60.0)
BUFFER_BYTES_MAX: Final = 128 << 20

logger = logging.getLogger(__name__)


class AdminServer:
    """One web admin with its listener. Raises: StartupError."""

    def __init__(self, options: AdminOptions) -> None:
        check_options(options)
        check_oidc(options)
        self.options = options
        self.address = parse_address(options.http_address, options.unix_socket_mode)
        # SQLite waits and reads in C, where gevent cannot switch. One thread suffices for its reads.
        self.site = Site(options, ThreadPool(1).apply)
        self.app = new_app(self.site)
        self.tls = tls_server(options)
        router = WsgiRouter(
            self.app,
            scheme="https" if self.tls.enabled else "http",
            body_max=lambda request: body_max(
                self.app, self.site, request.method, request.path, request.headers.get(b"cookie", b"")
            ),
            is_secret=lambda path: "/login/oidc/" in path,
        )
        self.server = HttpServer(
            router,
            "HTTPS" if self.tls.enabled else "HTTP",
            tls=self.tls if self.tls.enabled else None,
            settings=SETTINGS,
            admission=Admission(lambda: (options.max_http_connections, 0)),
        )
        Shedder(gevent.get_hub(), BUFFER_BYTES_MAX, lambda: self.server.connections)

    def start(self) -> None:
        """Listen. Raises: StartupError."""
        bound = self.server.start(self.address)
        self.site.poller.start()
        self._tell_access(bound.host if isinstance(bound, TcpAddress) else "127.0.0.1")

    def _tell_access(self, host: str) -> None:
        """Log who may use this process."""
        if self.site.policy.needs_login or self.options.admin_user:
            return
        is_local = host.startswith("127.") or host == "::1"
        reach = "on this machine" if is_local else "who reaches this address"
        text = "no login is set up: everybody %s may change things; --users-file sets up logins"
        logger.log(logging.INFO if is_local else logging.WARNING, text, reach)

    def stop(self) -> None:
        self.site.is_closing = True
        self.server.listener.stop()
        end_s = time.monotonic() + STOP_TIMEOUT_S
        while time.monotonic() < end_s and any(each.is_answering for each in self.server.connections):
            gevent.sleep(STOP_POLL_S)
        self.server.stop()
        self.site.close()
        logger.info("bye")


def tls_server(options: AdminOptions) -> TlsServer:
    """Return the TLS of the listener, which is off without a certificate. Raises: StartupError."""
    try:
        return TlsServer(TlsSettings(options.tls_cert, options.tls_key))
    except TlsConfigError as error:
        raise StartupError(f"failed to LoadX509KeyPair {options.tls_cert}, {options.tls_key} - {error}") from None


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
    tls_server: ("tls-cert", "tls-key"),
    check_oidc: ("oidc-issuer", "oidc-client-id", "oidc-role"),
    lambda options: read_token(options.http_client_token_file): ("http-client-token-file",),
}


def run(options: AdminOptions) -> int:
    """Run until a signal. Returns: the exit code."""
    server = AdminServer(options)
    wanted = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        gevent.signal_handler(number, wanted.set)
    # For a SIGHUP before this there is nothing to do: the server has just read the certificate.
    gevent.signal_handler(signal.SIGHUP, server.tls.reload)
    server.start()
    wanted.wait()
    server.stop()
    return 0


def run_admin(argv: Sequence[str]) -> int:
    """Parse a command line and run. Returns: the exit code."""
    if argv and argv[0] == "user":
        return user_command(argv[1:])
    return run_program(ADMIN.parse_settings(argv), ADMIN_CHECKS, run)
