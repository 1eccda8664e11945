"""The daemon `pyqd`: flags, wiring, signals, and the order of stopping."""

import logging
import os
import platform
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

import gevent
from gevent.event import Event

from pyqd import __version__
from pyqd.api.debug import DebugRoutes
from pyqd.api.login import login_of, warn_if_open
from pyqd.api.publish import plain_publishers
from pyqd.api.routes import daemon_routes
from pyqd.apps.config_check import check_config, check_data_path
from pyqd.apps.listeners import ListeningAddresses, http_settings, tls_server
from pyqd.broker.broker import NODE_FILE, Broker
from pyqd.broker.capacity import Capacity
from pyqd.broker.importer import import_on_start
from pyqd.config.live_options import LiveOptions
from pyqd.config.options import TLS_REQUIRED, Options, parse_settings
from pyqd.debug.profiler import Profiler
from pyqd.diskqueue.files import Files
from pyqd.diskqueue.lock import DirectoryLock
from pyqd.durability.direct import AfterPoll, DirectWriter
from pyqd.durability.fin_sync import FinSync
from pyqd.durability.group_commit import GroupCommit
from pyqd.durability.housekeeper import Housekeeper
from pyqd.durability.syncer import Syncer
from pyqd.hot.net import buffers
from pyqd.http.connection import HttpConnection
from pyqd.http.messages import JSON, Response
from pyqd.http.server import HttpServer
from pyqd.metrics.identity import Identity, first_command, port_of
from pyqd.metrics.loop_lag import LoopLag
from pyqd.metrics.prometheus import Metrics
from pyqd.metrics.statsd import StatsdPusher
from pyqd.net.admission import Admission
from pyqd.net.background import Background
from pyqd.net.greenlets import isolate_native_stacks
from pyqd.net.loop_driver import LoopDriver
from pyqd.net.shedding import Shedder
from pyqd.primitives.addresses import Address
from pyqd.primitives.errors import StartupError
from pyqd.primitives.loglines import LogFormat, configure, print_fatal
from pyqd.primitives.machine import raise_descriptor_limit
from pyqd.primitives.memory import loading, watch_collections
from pyqd.primitives.nsq_compat import NSQ_VERSION
from pyqd.tcp.authd import AuthServers
from pyqd.tcp.server import TcpServer

THREADS = 4
COMMIT_THREADS = 1

logger = logging.getLogger("pyqd.apps.daemon")


class Daemon:
    """One broker with its listeners, on the hub of the calling thread. Raises: StartupError."""

    def __init__(self, options: Options, files: Files | None = None) -> None:
        self.options = options
        self.hub: Any = gevent.get_hub()
        isolate_native_stacks(self.hub)
        buffers.keep_freed()
        self.stop_wanted = Event()
        self.failure: BaseException | None = None
        self.identity = Identity(hostname=socket.gethostname(), start_ns=time.time_ns())
        # Mistakes in the flags are found before the data directory is locked or changed.
        self.tls = tls_server(options)
        self.auth = AuthServers(options)
        self.login = login_of(options, self.auth)
        self.addresses = ListeningAddresses(options, https=self.tls.enabled)
        check_data_path(options)
        self.lock = DirectoryLock(options.data_path or os.curdir)
        self.background = Background(self.hub, THREADS)
        self.commit_background = Background(self.hub, COMMIT_THREADS)
        self.background.on_failure = self.commit_background.on_failure = self.on_bug
        self.capacity = Capacity.of_machine(options)
        self.broker = Broker(options, files, in_background=self.background.run, capacity=self.capacity)
        self.broker.scheduler.on_error = self.on_turn_error
        self.turns = LoopDriver(self.hub, self.broker.scheduler)
        self.direct = DirectWriter(self.hub)
        soon, after_poll = self.hub.loop.run_callback, AfterPoll(self.hub).call
        self.commit = GroupCommit(self.broker, self.commit_background.run, soon, self.direct.write, after_poll)
        self.tcp = TcpServer(self.broker, options, self.hub, self.tls, self.auth, self.on_bug, self.commit)
        self.identity.producers = self.tcp.producers
        self.metrics = Metrics(self.broker)
        self.live = LiveOptions(self.broker)
        self.live.listeners.append(self.tcp.change_options)
        self.profiler = Profiler()
        debug = DebugRoutes(self.profiler, self.tcp.greenlets)
        routes = daemon_routes(self.broker, self.identity, self.commit.wait, self.metrics, self.live, debug)
        settings = http_settings(options)
        admission = Admission(self.http_connection_limits, self.capacity.http_refusal, self.capacity.refused_max)
        self.capacity.connection_count = lambda: self.tcp.admission.count + admission.count
        self.http = HttpServer(
            routes,
            short_path=plain_publishers(self.broker),
            on_bug=self.on_bug,
            refusal=self.tls_refusal if options.tls_required == TLS_REQUIRED else None,
            settings=settings,
            admission=admission,
            login=self.login,
        )
        self.https: HttpServer | None = None
        if self.addresses.https is not None:
            self.https = HttpServer(
                routes,
                "HTTPS",
                on_bug=self.on_bug,
                tls=self.tls,
                settings=settings,
                admission=admission,
                login=self.login,
            )
        self.shedder = Shedder(self.hub, options.max_buffer_bytes)
        self.shedder.sources = [lambda: self.tcp.connections, self.all_http_connections]
        self.syncer = Syncer(self.broker)
        self.syncer.on_bug = self.commit.on_bug = self.on_bug
        self.syncer.on_timed = self.commit.on_timed = self.metrics.sync_duration.observe
        self.sync_fins()
        self.metrics.tcp_connections = lambda: len(self.tcp.connections)
        self.metrics.http_connections = self.count_http_connections
        self.metrics.tcp_refused = lambda: self.tcp.admission.refused_count
        self.metrics.http_refused = lambda: admission.refused_count
        self.metrics.shed = lambda: self.shedder.shed_count
        self.loop_lag = LoopLag(self.hub, self.metrics.loop_lag.observe)
        self.housekeeper = Housekeeper(self.broker, self.on_bug)
        self.statsd = StatsdPusher(self.broker, self.identity)

    def sync_fins(self) -> None:
        """Make FINs durable if --sync-fin is set. Called before the channels are loaded and after the syncer is
        created.
        """
        self.fin_background = Background(self.hub, COMMIT_THREADS)
        self.fin_background.on_failure = self.on_bug
        if self.options.sync_fin:
            fin_sync = FinSync(self.broker, self.fin_background.run, self.hub.loop.run_callback)
            fin_sync.on_bug = self.on_bug
            fin_sync.on_timed = self.metrics.sync_duration.observe
            self.syncer.on_end = fin_sync.retry

    def all_http_connections(self) -> list[HttpConnection]:
        """Return the open connections over HTTP and HTTPS."""
        return [*self.http.connections, *(() if self.https is None else self.https.connections)]

    def count_http_connections(self) -> int:
        """Return the number of open connections over HTTP and HTTPS."""
        return len(self.http.connections) + (0 if self.https is None else len(self.https.connections))

    def http_connection_limits(self) -> tuple[int, int]:
        """Return the limits on connections over HTTP and HTTPS: in total, and from one address."""
        options = self.broker.options
        return options.max_http_connections, options.max_connections_per_address

    def reload(self) -> None:
        """Read the files again that an operator may renew while the daemon runs: certificates and tokens."""
        self.tls.reload()
        self.auth.reload()
        if self.login is not None and self.login.tokens is not None:
            self.login.tokens.reload()

    def tls_refusal(self) -> Response:
        """Return the answer to every HTTP request if TLS is required. Its spaces are nsqd's."""
        body = f'{{"message": "TLS_REQUIRED", "https_port": {self.identity.https_port}}}'
        return Response(403, body.encode(), JSON)

    def on_bug(self, error: BaseException) -> None:
        """End the daemon: an invariant is broken, and writing on could damage the data."""
        self.failure = error
        self.stop_wanted.set()

    def on_turn_error(self, error: BaseException) -> None:
        """Log an error of a scheduled run; a broken invariant ends the daemon."""
        logger.error("internal error in a scheduled run - %s", error, exc_info=error)
        if isinstance(error, AssertionError):
            self.on_bug(error)

    def start(self) -> None:
        """Load the data from disk, then listen."""
        watch_collections()
        import_on_start(self.broker.files, self.broker.root, self.options)
        with loading():
            self.broker.load()
        self.identity.tcp_port = port_of(self.tcp.start(self.addresses.tcp))
        if self.addresses.http is not None:
            bound = self.http.start(self.addresses.http)
            self.identity.http_port = port_of(bound)
            if self.login is None and self.options.tls_required != TLS_REQUIRED:
                warn_if_open("HTTP", bound)
                self.show_first_command(bound)
        if self.https is not None:
            assert self.addresses.https is not None
            bound = self.https.start(self.addresses.https)
            self.identity.https_port = port_of(bound)
            if self.login is None and self.options.tls_client_auth_policy not in ("require", "require-verify"):
                warn_if_open("HTTPS", bound)
        self.syncer.start()
        self.housekeeper.start()
        self.statsd.start()
        self.loop_lag.start()

    def show_first_command(self, http: Address) -> None:
        """Log a first command for a person who reads the log on a terminal."""
        if sys.stderr.isatty() and self.options.log_format is LogFormat.TEXT:
            logger.info("publish a first message with: %s", first_command(http))

    def stop(self) -> None:
        """Stop in nsqd's order: listeners, clients, HTTP, then write everything to disk."""
        self.tcp.stop_listening()
        self.tcp.close_all(at_once=self.failure is not None)
        self.http.stop()
        if self.https is not None:
            self.https.stop()
        self.profiler.stop()
        gevent.sleep(0)
        self.statsd.stop()
        self.loop_lag.stop()
        logger.info("NSQ: closing topics")
        self.housekeeper.stop()
        self.syncer.stop()
        if self.failure is None:
            self.broker.close_topics()
            if self.syncer.sync_all():
                self.broker.mark_clean()
        logger.info("NSQ: stopping subsystems")
        self.turns.stop_timer()
        # Before the lock is released and another daemon may take the directory.
        self.background.stop()
        self.commit_background.stop()
        self.fin_background.stop()
        self.direct.stop()
        self.lock.release()
        logger.info("NSQ: bye")


def run(options: Options) -> int:
    """Run the daemon until a signal. Returns: the exit code."""
    daemon = Daemon(options)
    for number in (signal.SIGINT, signal.SIGTERM):
        gevent.signal_handler(number, daemon.stop_wanted.set)
    gevent.signal_handler(signal.SIGHUP, daemon.reload)
    try:
        daemon.start()
    except StartupError:
        daemon.tcp.stop_listening()
        raise
    daemon.stop_wanted.wait()
    daemon.stop()
    return 0 if daemon.failure is None else 1


def log_data_path(options: Options) -> None:
    """Log the data path; warn if no flag named the directory and it holds no data of pyqd yet."""
    path = os.path.abspath(options.data_path or os.curdir)
    if options.data_path:
        logger.info("data path: %s", path)
    else:
        level = logging.INFO if os.path.exists(os.path.join(path, NODE_FILE)) else logging.WARNING
        logger.log(level, "data path: %s, the current directory; --data-path names another", path)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and run. Returns: the exit code. Source: docs/nsq/broker-semantics.md, "Stopping"."""
    settings = parse_settings(sys.argv[1:] if argv is None else argv)
    if settings.values.get("check-config"):
        return check_config(settings)
    try:
        options = settings.options()
    except StartupError as error:
        print_fatal(str(error))
        return 1
    if not __debug__:
        print_fatal("python -O removes the assertions that guard the data; start pyqd without it")
        return 1
    raise_descriptor_limit()
    configure(options.log_prefix, options.log_level, form=options.log_format)
    logger.info("pyqd v%s (built w/python%s)", __version__, platform.python_version())
    logger.info("ID: %d", options.node_id)
    logger.info("PROTOCOL: V2 of NSQ, compatible with nsqd %s", NSQ_VERSION)
    log_data_path(options)
    for notice in options.notices:
        logger.warning("%s", notice)
    try:
        return run(options)
    except StartupError as error:
        print_fatal(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
