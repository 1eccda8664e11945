"""The lookup daemon `pyqlookupd`: flags, wiring, signals, and the order of stopping."""

import logging
import platform
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any

import gevent
from gevent.event import Event

from pyqd import __version__
from pyqd.apps.listeners import parse_address
from pyqd.http.messages import header_lines
from pyqd.http.server import HttpServer
from pyqd.http.settings import HttpSettings
from pyqd.lookupd.api import LookupRoutes
from pyqd.lookupd.metrics import LookupCollector, LookupMetrics
from pyqd.lookupd.options import LOOKUP_DAEMON, LookupOptions
from pyqd.lookupd.registry import Registry
from pyqd.lookupd.server import LookupServer
from pyqd.net.admission import Admission
from pyqd.net.greenlets import isolate_native_stacks
from pyqd.primitives.addresses import Address
from pyqd.primitives.errors import StartupError
from pyqd.primitives.loglines import configure, print_fatal
from pyqd.primitives.machine import descriptor_max, raise_descriptor_limit
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
        self.tcp_address = parse_address(options.tcp_address)
        self.http_address = parse_address(options.http_address)
        self.info = {
            "broadcast_address": options.broadcast_address,
            "hostname": socket.gethostname(),
            "http_port": 0,
            "tcp_port": 0,
            "version": NSQ_VERSION,
        }
        self.registry = Registry(options.inactive_producer_timeout_ns, options.tombstone_lifetime_ns)
        self.tcp = LookupServer(self.registry, self.hub, lambda: self.info, Admission(self.tcp_limits))
        collector = LookupCollector(
            self.registry, lambda: len(self.tcp.connections), lambda: len(self.http.connections)
        )
        self.http = HttpServer(
            [*LookupRoutes(self.registry).routes(), *LookupMetrics(collector).routes()],
            on_bug=self.on_bug,
            settings=HttpSettings(common_headers=header_lines([API_VERSION_HEADER])),
            admission=Admission(lambda: (options.max_http_connections, 0)),
        )

    def tcp_limits(self) -> tuple[int, int]:
        """Return how many brokers may be connected, and how many of one address."""
        possible = max(1, descriptor_max() - DESCRIPTORS_RESERVED - self.options.max_http_connections)
        return min(self.options.max_connections or possible, possible), 0

    def on_bug(self, error: BaseException) -> None:
        """End the daemon: an invariant is broken, so lookups may be wrong. Brokers register again after a restart."""
        self.failure = error
        self.stop_wanted.set()

    def start(self) -> None:
        """Listen. Raises: StartupError."""
        self.info["tcp_port"] = port_of(self.tcp.start(self.tcp_address))
        self.info["http_port"] = port_of(self.http.start(self.http_address))

    def stop(self) -> None:
        """Stop listening and close all connections."""
        self.tcp.stop()
        self.http.stop()
        gevent.sleep(0)
        logger.info("bye")


def port_of(address: Address) -> int:
    """Return the port of an address; 0 for a unix socket."""
    return getattr(address, "port", 0)


def run(options: LookupOptions) -> int:
    """Run the daemon until a signal. Returns: the exit code."""
    daemon = LookupDaemon(options)
    for number in (signal.SIGINT, signal.SIGTERM):
        gevent.signal_handler(number, daemon.stop_wanted.set)
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
    settings = LOOKUP_DAEMON.parse_settings(sys.argv[1:] if argv is None else argv)
    try:
        options = settings.options()
    except StartupError as error:
        print_fatal(str(error))
        return 1
    raise_descriptor_limit()
    configure(options.log_prefix, options.log_level, form=options.log_format)
    logger.info("pyqlookupd v%s (built w/python%s)", __version__, platform.python_version())
    for notice in options.notices:
        logger.warning("%s", notice)
    try:
        return run(options)
    except StartupError as error:
        print_fatal(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
