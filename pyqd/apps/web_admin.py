"""The web admin as a process: listener, signals, and the order of stopping. Needs gevent's patches of the library."""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence
from typing import Any, Final

import gevent
from gevent.event import Event
from gevent.pywsgi import WSGIHandler, WSGIServer

from pyqd.admin.app import new_app
from pyqd.admin.options import ADMIN, AdminOptions, check_options
from pyqd.admin.site import Site, context_maker, read_token
from pyqd.apps.config_check import Checks
from pyqd.apps.program import run_program
from pyqd.net.listener import listening_socket
from pyqd.primitives.addresses import split_address
from pyqd.primitives.errors import StartupError

# Requests that are under way get this long when the process stops.
STOP_TIMEOUT_S: Final = 2.0

logger = logging.getLogger(__name__)


class Handler(WSGIHandler):
    """Logs each request as NSQ's daemons do."""

    def log_request(self) -> None:
        """Log status, method, path and time of a request."""
        status = getattr(self, "code", None) or (self.status or "000").split()[0]
        took_ms = ((self.time_finish or 0) - (self.time_start or 0)) * 1000
        address = self.client_address[0] if self.client_address else "-"
        logger.info("%s %s %s (%s) %.3fms", status, self.command, self.path, address, took_ms)


class AdminServer:
    """One web admin with its listener. Raises: StartupError."""

    def __init__(self, options: AdminOptions) -> None:
        check_options(options)
        self.options = options
        self.address = split_address(options.http_address)
        self.site = Site(options)
        self.app = new_app(self.site)
        self.server: Any = None

    def start(self) -> None:
        """Listen. Raises: StartupError."""
        try:
            listener = listening_socket(self.address)
        except OSError as error:
            raise StartupError(f"listen ({self.options.http_address}) failed - {error}") from None
        self.server = WSGIServer(listener, self.app, handler_class=Handler, log=None, error_log=None)
        self.server.start()
        self.site.poller.start()
        logger.info("HTTP: listening on %s", listener.getsockname())

    def stop(self) -> None:
        """Stop listening, let requests end, and close everything."""
        self.site.is_closing = True
        if self.server is not None:
            self.server.stop(timeout=STOP_TIMEOUT_S)
        self.site.close()
        logger.info("bye")


ADMIN_CHECKS: Final[Checks[AdminOptions]] = {
    check_options: ("lookupd-http-address", "nsqd-http-address", "graphite-url", "allow-config-from-cidr"),
    context_maker: (
        "http-client-tls-root-ca-file",
        "http-client-tls-cert",
        "http-client-tls-key",
        "http-client-tls-insecure-skip-verify",
    ),
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
    return run_program(ADMIN.parse_settings(argv), ADMIN_CHECKS, run)
