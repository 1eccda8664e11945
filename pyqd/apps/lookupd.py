"""The lookup daemon `pyqlookupd`: flags, wiring, signals, and the order of stopping."""

import logging
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any, Final

import gevent
from gevent.event import Event

from pyqd.api.login import Login, token_login
from pyqd.apps.config_check import Checks
from pyqd.apps.listeners import ListeningAddresses, tls_refusal, tls_server
from pyqd.apps.program import run_program
from pyqd.http.messages import Response, header_lines
from pyqd.http.server import HttpServer
from pyqd.http.settings import HttpSettings
from pyqd.lookupd.api import LookupRoutes
from pyqd.lookupd.metrics import LookupCollector, LookupMetrics
from pyqd.lookupd.options import LOOKUP_DAEMON, PROGRAM, LookupOptions
from pyqd.lookupd.registry import Registry
from pyqd.lookupd.server import LookupServer
from pyqd.net.admission import Admission
from pyqd.net.greenlets import isolate_native_stacks
from pyqd.net.tls import TlsServer
from pyqd.primitives.addresses import Address
from pyqd.primitives.errors import StartupError
from pyqd.primitives.machine import descriptor_max
from pyqd.primitives.nsq_compat import API_VERSION_HEADER, NSQ_VERSION

# Descriptors for listeners, logs and the event loop, which connections leave free.
DESCRIPTORS_RESERVED = 64

logger = logging.getLogger("pyqd.apps.lookupd")


class LookupDaemon:
    """One lookup daemon with its listeners, on the hub of the calling thread. Raises: StartupError."""

    def __init__(self, options: LookupOptions) -> None:
        self.options = options
        self.hub: Any = gevent.get_hub()
        isolate_native_stacks(self.hub)
        self.stop_wanted = Event()
        self.failure: BaseException | None = None
        self.tls = new_tls(options)
        self.login = new_login(options)
        self.addresses = ListeningAddresses(options, https=self.tls.enabled)
        self.https_port = 0
        self.info = {
            "broadcast_address": options.broadcast_address,
            "hostname": socket.gethostname(),
            "http_port": 0,
            "tcp_port": 0,
            "version": NSQ_VERSION,
        }
        self.registry = Registry(options.inactive_producer_timeout_ns, options.tombstone_lifetime_ns)
        self.tcp = LookupServer(self.registry, self.hub, lambda: self.info, Admission(self.tcp_limits))
        collector = LookupCollector(self.registry, lambda: len(self.tcp.connections), self.http_connection_count)
        routes = [*LookupRoutes(self.registry).routes(), *LookupMetrics(collector).routes()]
        settings = HttpSettings(common_headers=header_lines([API_VERSION_HEADER]))
        admission = Admission(lambda: (options.max_http_connections, 0))
        self.http = HttpServer(
            routes,
            on_internal_error=self.on_internal_error,
            refusal=self.refuse_without_tls if options.tls_required else None,
            settings=settings,
            admission=admission,
            login=self.login,
        )
        self.https: HttpServer | None = None
        if self.addresses.https is not None:
            self.https = HttpServer(
                routes,
                "HTTPS",
                on_internal_error=self.on_internal_error,
                tls=self.tls,
                settings=settings,
                admission=admission,
                login=self.login,
            )

    def http_connection_count(self) -> int:
        """Return the number of open connections over HTTP and HTTPS."""
        return len(self.http.connections) + (0 if self.https is None else len(self.https.connections))

    def refuse_without_tls(self) -> Response:
        """Return the answer to every HTTP request if TLS is required."""
        return tls_refusal(self.https_port)

    def tcp_limits(self) -> tuple[int, int]:
        """Return how many brokers may be connected, and how many of one address."""
        possible = max(1, descriptor_max() - DESCRIPTORS_RESERVED - self.options.max_http_connections)
        return min(self.options.max_connections or possible, possible), 0

    def on_internal_error(self, error: BaseException) -> None:
        """End the daemon: an invariant is broken, so lookups may be wrong. Brokers register again after a restart."""
        self.failure = error
        self.stop_wanted.set()

    def start(self) -> None:
        """Listen. Raises: StartupError."""
        if self.https is not None:
            assert self.addresses.https is not None
            self.https_port = port_of(self.https.start(self.addresses.https))
        self.info["tcp_port"] = port_of(self.tcp.start(self.addresses.tcp))
        if self.addresses.http is not None:
            self.info["http_port"] = port_of(self.http.start(self.addresses.http))

    def reload(self) -> None:
        """Read certificates and tokens again, which an operator may renew while the daemon runs."""
        self.tls.reload()
        if self.login is not None and self.login.tokens is not None:
            self.login.tokens.reload()

    def stop(self) -> None:
        """Stop listening and close all connections."""
        self.tcp.stop()
        self.http.stop()
        if self.https is not None:
            self.https.stop()
        gevent.sleep(0)
        logger.info("bye")


def new_tls(options: LookupOptions) -> TlsServer:
    """Return the source of TLS connections. Raises: StartupError."""
    return tls_server(options, PROGRAM)


def new_login(options: LookupOptions) -> Login | None:
    """Return the login over HTTP; None for no login. Raises: StartupError."""
    return token_login(options.http_auth_token_file, PROGRAM)


def check_addresses(options: LookupOptions) -> None:
    """Raise StartupError for an invalid address. Without a certificate there is no listener for HTTPS."""
    ListeningAddresses(options, https=bool(options.tls_cert))


LOOKUP_CHECKS: Final[Checks[LookupOptions]] = {
    new_tls: tuple(flag.name for flag in LOOKUP_DAEMON.flags if flag.name.startswith("tls-")),
    new_login: ("http-auth-token-file",),
    check_addresses: ("tcp-address", "http-address", "https-address", "tls-cert"),
}


def port_of(address: Address) -> int:
    """Return the port of an address; 0 for a unix socket."""
    return getattr(address, "port", 0)


def run(options: LookupOptions) -> int:
    """Run the daemon until a signal. Returns: the exit code."""
    daemon = LookupDaemon(options)
    for number in (signal.SIGINT, signal.SIGTERM):
        gevent.signal_handler(number, daemon.stop_wanted.set)
    gevent.signal_handler(signal.SIGHUP, daemon.reload)
    try:
        daemon.start()
    except StartupError:
        daemon.stop()
        raise
    daemon.stop_wanted.wait()
    daemon.stop()
    return 0 if daemon.failure is None else 1


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and run. Returns: the exit code."""
    return run_program(LOOKUP_DAEMON.parse_settings(sys.argv[1:] if argv is None else argv), LOOKUP_CHECKS, run)


if __name__ == "__main__":
    sys.exit(main())
