"""The lookup daemon `pyqlookupd`: flags, wiring, signals, and the order of stopping."""

import logging
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any, Final

import gevent
from gevent.event import Event

from pyqd.api.login import Login, tokens_of
from pyqd.apps.http_servers import HttpServers
from pyqd.apps.listeners import (
    ADDRESS_FLAGS,
    API_SETTINGS,
    ListeningAddresses,
    accepted_sites,
    check_addresses,
    tls_flags,
    tls_server,
)
from pyqd.apps.program import Checks, run_program
from pyqd.lookupd.api import LookupRoutes
from pyqd.lookupd.metrics import LookupMetrics
from pyqd.lookupd.options import LOOKUP_DAEMON, PROGRAM, LookupOptions
from pyqd.lookupd.registry import Registry
from pyqd.lookupd.server import LookupServer
from pyqd.metrics.identity import port_of
from pyqd.net.admission import Admission
from pyqd.net.greenlets import isolate_native_stacks
from pyqd.net.tls import TlsServer
from pyqd.primitives.errors import StartupError
from pyqd.primitives.machine import descriptor_max
from pyqd.primitives.nsq_compat import NSQ_VERSION
from pyqd.primitives.program_start import begin_program, missed_hangup

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
        self.info = {
            "broadcast_address": options.broadcast_address,
            "hostname": socket.gethostname(),
            "http_port": 0,
            "tcp_port": 0,
            "version": NSQ_VERSION,
        }
        self.registry = Registry(options.inactive_producer_timeout_ns, options.tombstone_lifetime_ns)
        self.tcp = LookupServer(self.registry, self.hub, lambda: self.info, Admission(self.tcp_limits))
        metrics = LookupMetrics(self.registry, lambda: len(self.tcp.connections), lambda: self.http.connection_count())
        routes = [*LookupRoutes(self.registry).routes(), *metrics.routes()]
        self.http = HttpServers(
            routes,
            self.addresses,
            self.tls,
            on_internal_error=self.on_internal_error,
            settings=API_SETTINGS,
            admission=Admission(lambda: (options.max_http_connections, 0)),
            login=self.login,
            https_only=options.tls_required,
            sites=accepted_sites(options),
        )

    def tcp_limits(self) -> tuple[int, int]:
        possible = max(1, descriptor_max() - DESCRIPTORS_RESERVED - self.options.max_http_connections)
        return min(self.options.max_connections or possible, possible), 0

    def on_internal_error(self, error: BaseException) -> None:
        """End the daemon: an invariant is broken, so lookups may be wrong. Brokers register again after a restart."""
        self.failure = error
        self.stop_wanted.set()

    def start(self) -> None:
        """Listen. Raises: StartupError."""
        tcp = self.tcp.start(self.addresses.tcp)
        http, _ = self.http.start()
        # A port is 0 without a TCP listener.
        self.info["http_port"] = 0 if http is None else max(port_of(http), 0)
        self.info["tcp_port"] = max(port_of(tcp), 0)

    def reload(self) -> None:
        """Read certificates and tokens again, which an operator may renew while the daemon runs."""
        self.tls.reload()
        if self.login is not None and self.login.tokens is not None:
            self.login.tokens.reload()

    def stop(self) -> None:
        self.tcp.stop()
        self.http.stop()
        gevent.sleep(0)
        logger.info("bye")


def new_tls(options: LookupOptions) -> TlsServer:
    """Return the source of TLS connections. Raises: StartupError."""
    return tls_server(options, PROGRAM)


def new_login(options: LookupOptions) -> Login | None:
    """Return the login over HTTP; None for no login. Raises: StartupError."""
    tokens = tokens_of(options.http_auth_token_file, PROGRAM)
    return None if tokens is None else Login(tokens, None)


LOOKUP_CHECKS: Final[Checks[LookupOptions]] = {
    new_tls: tls_flags(LOOKUP_DAEMON.flags),
    new_login: ("http-auth-token-file",),
    check_addresses: ADDRESS_FLAGS,
}


def run(options: LookupOptions) -> int:
    """Run the daemon until a signal. Returns: the exit code."""
    daemon = LookupDaemon(options)
    for number in (signal.SIGINT, signal.SIGTERM):
        gevent.signal_handler(number, daemon.stop_wanted.set)
    gevent.signal_handler(signal.SIGHUP, daemon.reload)
    if missed_hangup():
        daemon.reload()
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
    begin_program(PROGRAM, holds_hangups=True)
    return run_program(LOOKUP_DAEMON.parse_settings(sys.argv[1:] if argv is None else argv), LOOKUP_CHECKS, run)


if __name__ == "__main__":
    sys.exit(main())
