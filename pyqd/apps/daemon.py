"""The daemon `pyqd`: flags, wiring, signals, and the order of stopping."""

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import gevent
from gevent.event import Event

from pyqd.api.debug import DebugRoutes
from pyqd.api.login import login_of, warn_if_open
from pyqd.api.publish import plain_publishers
from pyqd.api.restart import ProcessRoutes, RestartError
from pyqd.api.routes import daemon_routes
from pyqd.apps.http_servers import HttpServers
from pyqd.apps.inherited import Inherited, inherited_from
from pyqd.apps.listeners import ListeningAddresses, accepted_sites, http_settings, timeout_s, tls_server
from pyqd.apps.program import DAEMON_CHECKS, check_data_path, run_program
from pyqd.apps.restart import Predecessor, Restarts, report_failure
from pyqd.apps.service_manager import ServiceManager
from pyqd.apps.stop_watchdog import StopWatchdog
from pyqd.broker.broker import NODE_FILE, Broker
from pyqd.broker.capacity import Capacity
from pyqd.broker.importer import import_on_start
from pyqd.broker.unclean_stop import recovery_text
from pyqd.config.live_options import LiveOptions
from pyqd.config.options import DAEMON, PROGRAM, TLS_REQUIRED, Options
from pyqd.debug.profiler import Profiler
from pyqd.diskqueue.files import Files
from pyqd.diskqueue.lock import DirectoryLock
from pyqd.durability.direct import AfterPoll, DirectWriter
from pyqd.durability.fin_sync import FinSync
from pyqd.durability.group_commit import GroupCommit
from pyqd.durability.housekeeper import Housekeeper
from pyqd.durability.syncer import Syncer
from pyqd.hot.net import buffers
from pyqd.hot.primitives import releases
from pyqd.lookupd.channel_query import ChannelQuery
from pyqd.lookupd.channel_search import ChannelSearch
from pyqd.lookupd.peer_queries import SILENT_S
from pyqd.lookupd.registration import Registration
from pyqd.metrics.identity import Identity, first_command, lookupd_identity, port_of
from pyqd.metrics.prometheus import ConnectionCounts, LoopLag, Metrics
from pyqd.metrics.statsd import StatsdPusher
from pyqd.net.admission import Admission
from pyqd.net.background import Background
from pyqd.net.greenlets import PromptPool, WorkerPool, isolate_native_stacks, spawn, start_threads
from pyqd.net.listener import Listener
from pyqd.net.loop_driver import LoopDriver, yield_to_loop
from pyqd.net.shedding import Shedder
from pyqd.primitives.addresses import Address
from pyqd.primitives.errors import StartupError
from pyqd.primitives.loglines import LogFormat
from pyqd.primitives.memory import FullCollections, leave_to_exit, loading, watch_collections
from pyqd.primitives.nsq_compat import NSQ_VERSION
from pyqd.primitives.program_start import begin_program, missed_hangup
from pyqd.tcp.authd import AuthServers
from pyqd.tcp.drain import Drain
from pyqd.tcp.server import TcpServer

THREADS = 4
# Each read is of MiB, which keep the disk busy: several threads would wait for one another.
READ_THREADS = 1
COMMIT_THREADS = 1
PROMPT_THREADS = 2
SYNC_THREADS = 1
# Before the connections are closed for a successor.
ACCEPTED_S = 0.05

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

logger = logging.getLogger("pyqd.apps.daemon")


class Daemon:
    """One broker with its listeners, on the hub of the calling thread. Raises: StartupError."""

    def __init__(self, options: Options, files: Files | None = None, inherited: Inherited | None = None) -> None:
        self.options = options
        self.hub: Any = gevent.get_hub()
        if not self.hub:
            # The hub runs already if this daemon follows one in the same process.
            isolate_native_stacks(self.hub)
        buffers.keep_freed_memory()
        self.stop_wanted = Event()
        self.failure: BaseException | None = None
        self.identity = Identity(
            hostname=socket.gethostname(),
            start_ns=time.time_ns(),
            producers=lambda: self.tcp.producers(),
            lookup_daemons=lambda: self.registration.stats(),
        )
        # Mistakes in the flags are found before the data directory is locked or changed.
        self.tls = tls_server(options)
        self.auth = AuthServers(options)
        self.login = login_of(options, self.auth)
        self.addresses = ListeningAddresses(options, https=self.tls.enabled)
        check_data_path(options)
        self.inherited = inherited or inherited_from(os.environ, self.addresses.by_name())
        self.lock = DirectoryLock(options.data_path or os.curdir, self.inherited.lock_fd)
        self.restarts = Restarts(self.shared, self.stop_wanted.set)
        new_background = partial(Background, self.hub, on_failure=self.on_internal_error)
        self.background = new_background(THREADS)
        self.commit_background = new_background(COMMIT_THREADS)
        self.read_background = new_background(READ_THREADS)
        self.fin_background = new_background(COMMIT_THREADS)
        # While drained segments wait for their syncs, the log needs new ones, whose making keeps the disk busy.
        self.prompt_background = new_background(PROMPT_THREADS, PromptPool)
        # For the periodic sync. In the hub's pool it would wait behind look-ups of names, and could need a new thread.
        self.sync_pool = WorkerPool(SYNC_THREADS, hub=self.hub)
        self.start_all_threads()
        self.loop_driver = LoopDriver(self.hub, self.on_turn_error)
        self.registration = self.new_registration()
        self.broker = self.new_broker(files)
        self.metrics = Metrics(self.broker, self.connection_counts, self.registration.stats)
        self.direct = DirectWriter(self.hub)
        self.new_syncs()
        self.tcp = TcpServer(self.broker, options, self.hub, self.tls, self.auth, self.on_internal_error, self.commit)
        self.live = LiveOptions(self.broker, yield_to_loop, self.tcp.change_options, self.find_lookup_daemons)
        self.profiler = Profiler()
        self.drain = Drain(
            self.broker,
            lambda: self.tcp.connections,
            syncing=lambda: not self.commit.is_idle,
            on_begin=(self.registration.stop, self.restarts.abandon),
            on_complete=self.stop_wanted.set,
        )
        capacity = self.broker.capacity
        self.http_admission = Admission(self.http_connection_limits, capacity.http_refusal, capacity.refused_max)
        self.http = self.new_http_servers()
        self.shedder = Shedder(self.hub, options.max_buffer_bytes, lambda: self.tcp.connections, self.http.connections)
        self.loop_lag = LoopLag(self.hub, self.metrics.loop_lag.observe)
        self.housekeeper = Housekeeper(self.broker, self.on_internal_error)
        self.statsd = StatsdPusher(self.broker, self.identity)

    def start_all_threads(self) -> None:
        """Start the threads. One that starts later could take the memory that the broker keeps free for its topics,
        or fail.
        """
        backgrounds = [self.background, self.commit_background, self.read_background, self.prompt_background]
        if self.options.sync_fin:
            backgrounds.append(self.fin_background)
        for background in backgrounds:
            start_threads(background.pool, background.thread_count)
        start_threads(self.sync_pool, SYNC_THREADS)
        # For requests over HTTP that wait for the disk.
        start_threads(self.hub.threadpool, 1)

    def new_broker(self, files: Files | None) -> Broker:
        return Broker(
            self.options,
            files,
            in_background=self.background.run,
            prompt_in_background=self.prompt_background.run,
            capacity=Capacity.of_machine(self.options, lambda: self.tcp.admission.count + self.http_admission.count),
            read_in_background=self.read_background.run,
            read_and_wait=self.read_background.run_and_wait,
            scheduler=self.loop_driver.scheduler,
            on_finished=(lambda channel: self.fin_sync.note(channel)) if self.options.sync_fin else None,
            observer=self.registration,
        )

    def new_syncs(self) -> None:
        soon, after_poll = self.hub.loop.run_callback, AfterPoll(self.hub).call
        reports: Any = {
            "on_timed": self.metrics.sync_duration.observe,
            "on_internal_error": self.on_internal_error,
        }
        self.commit = GroupCommit(
            self.broker, self.commit_background.run, soon, self.direct.write, after_poll, **reports
        )
        self.fin_sync = FinSync(self.broker, self.fin_background.run, soon, **reports)
        self.syncer = Syncer(self.broker, self.sync_pool.apply, on_end=self.fin_sync.retry, **reports)

    def new_http_servers(self) -> HttpServers:
        debug = DebugRoutes(self.profiler, self.tcp.greenlets)
        sites = accepted_sites(self.options)
        routes = daemon_routes(
            self.broker,
            self.identity,
            wait_durable=self.commit.wait,
            metrics=self.metrics,
            live=self.live,
            debug=debug,
            process=ProcessRoutes(self.broker, self.drain, self.restarts.begin, self.restarts.as_dict),
        )
        return HttpServers(
            routes,
            self.addresses,
            self.tls,
            on_internal_error=self.on_internal_error,
            settings=http_settings(self.options),
            admission=self.http_admission,
            login=self.login,
            https_only=self.options.tls_required == TLS_REQUIRED,
            sites=sites,
            short_path=plain_publishers(self.broker, sites),
        )

    def new_registration(self) -> Registration:
        """Return the registration with lookup daemons, which learns of topics and channels from the broker."""
        options = self.options
        silent_s = min(SILENT_S, timeout_s(options.http_client_request_timeout_ns))
        return Registration(
            lambda: self.broker.topics_by_name(),
            lambda: lookupd_identity(self.broker.options, self.identity),
            ChannelSearch(ChannelQuery(options.tls_root_ca_file), silent_s),
        )

    def connection_counts(self) -> ConnectionCounts:
        return ConnectionCounts(
            len(self.tcp.connections),
            self.http.connection_count(),
            self.tcp.admission.refused_count,
            self.http_admission.refused_count,
            self.shedder.shed_count,
        )

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

    def terminate(self) -> None:
        """Stop, with --drain-timeout after a drain. A second signal stops at once."""
        self.restarts.abandon()
        timeout_ns = self.broker.options.drain_timeout_ns
        if timeout_ns and not self.drain.began and not self.stop_wanted.is_set():
            self.drain.begin(timeout_ns)
        else:
            self.stop_wanted.set()

    def on_internal_error(self, error: BaseException) -> None:
        """End the daemon: an invariant is broken, and writing on could damage the data."""
        self.failure = error
        self.stop_wanted.set()

    def exit_code(self) -> int:
        return 0 if self.failure is None else 1

    def on_turn_error(self, error: BaseException) -> None:
        """Log an error of a scheduled run; a broken invariant ends the daemon."""
        logger.error("internal error in a scheduled run - %s", error, exc_info=error)
        if isinstance(error, AssertionError):
            self.on_internal_error(error)

    def start(self) -> None:
        """Load the data from disk, then listen."""
        watch_collections()
        FullCollections.stop_automatic()
        import_on_start(self.broker.files, self.broker.root, self.options)
        # A channel that runs in the middle of its own load would find half a change.
        begun_ns = time.monotonic_ns()
        with loading(), self.loop_driver.held():
            self.broker.load()
        if (recovery := recovery_text(self.broker, time.monotonic_ns() - begun_ns)) is not None:
            logger.info("recovery: %s", recovery)
        take = self.inherited.take
        for listener in self.listeners().values():
            listener.removes_file = not self.inherited.from_systemd
        self.identity.tcp_port = port_of(self.tcp.start(self.addresses.tcp, take("tcp", self.addresses.tcp)))
        http, https = self.http.start(take)
        if http is not None:
            self.identity.http_port = port_of(http)
            if self.login is None and self.options.tls_required != TLS_REQUIRED:
                warn_if_open("HTTP", http)
                self.show_first_command(http)
        if https is not None:
            self.identity.https_port = port_of(https)
            if self.login is None and self.options.tls_client_auth_policy not in ("require", "require-verify"):
                warn_if_open("HTTPS", https)
        self.inherited.close_unused()
        # When it listens: consumers connect as soon as a lookup daemon names this broker.
        self.find_lookup_daemons(self.options)
        self.syncer.start()
        self.housekeeper.start()
        self.statsd.start()
        self.loop_lag.start()
        releases.start()

    def find_lookup_daemons(self, options: Options) -> None:
        """Register with the lookup daemons of the options. PUT /config may have set the list to null."""
        self.registration.set_addresses(options.lookupd_tcp_address or ())

    def show_first_command(self, http: Address) -> None:
        """Log a first command for a person who reads the log on a terminal."""
        if sys.stderr.isatty() and self.options.log_format is LogFormat.TEXT:
            logger.info("publish a first message with: %s", first_command(http))

    def stop_steps(self) -> int:
        return self.broker.closed_count + self.broker.syncs.done_count

    def listeners(self) -> dict[str, Listener]:
        return {"tcp": self.tcp.listener, **self.http.listeners()}

    def shared(self) -> Inherited:
        """Return the listening sockets, their flags and the lock, for a successor process."""
        found = Inherited(from_systemd=self.inherited.from_systemd, lock_fd=self.lock.fd)
        listeners = self.listeners()
        for name, address in self.addresses.by_name().items():
            opened = listeners[name].opened
            if opened is not None:
                found.listeners[name] = opened
                found.flags[name] = str(address)
        return found

    def hand_over(self) -> Inherited:
        """Stop, but keep the listening sockets and the lock. Returns: these."""
        kept = self.shared()
        for listener in self.listeners().values():
            listener.release()
        # Requests on connections that were accepted just now are answered.
        gevent.sleep(ACCEPTED_S)
        self.stop_serving()
        return kept

    def stop(self) -> None:
        """Stop in nsqd's order: listeners, clients, HTTP, then write everything to disk."""
        self.restarts.abandon()
        self.stop_serving()
        self.restarts.wait_ended()
        self.lock.release()
        logger.info("NSQ: bye")

    def release(self, kept: Inherited) -> None:
        """Release the sockets and the lock that `hand_over` has kept: no successor takes them."""
        listeners = self.listeners()
        for name, each in kept.listeners.items():
            listeners[name].close(each)
        self.lock.release()
        logger.info("NSQ: bye")

    def stop_serving(self) -> None:
        """Stop everything but hold the lock on the data directory."""
        self.drain.stop()
        self.tcp.stop_listening()
        # First, so that consumers are not sent to a broker that stops.
        self.registration.stop()
        self.tcp.close_all(at_once=self.failure is not None)
        self.http.stop()
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
        self.loop_driver.stop_timer()
        # Before the lock is released and another daemon may take the directory.
        self.background.stop()
        self.read_background.stop()
        self.prompt_background.stop()
        self.commit_background.stop()
        self.fin_background.stop()
        self.sync_pool.kill()
        self.direct.stop()
        releases.stop()


class Signals:
    """Signal handlers of the process, which pass each signal to the current daemon.

    They stay installed while one daemon follows another in this process: a signal would end the process otherwise.
    """

    def __init__(self) -> None:
        self._daemon: Daemon | None = None
        self._handlers: list[Any] = []
        self._stop_missed = self._reload_missed = False

    def pass_to(self, daemon: Daemon) -> None:
        """Pass signals to a daemon that is about to start, also those that came since `hold`."""
        self._daemon = daemon
        if self._stop_missed:
            # Not by `terminate`: there are no clients to drain. The daemon stops as soon as it serves.
            daemon.stop_wanted.set()
        if not self._handlers:
            self._handlers += [gevent.signal_handler(number, self._terminate) for number in STOP_SIGNALS]
            self._handlers.append(gevent.signal_handler(signal.SIGHUP, self._reload))
            self._handlers.append(gevent.signal_handler(signal.SIGUSR2, self._restart))
        if missed_hangup() or self._reload_missed:
            self._reload_missed = False
            daemon.reload()

    def hold(self) -> None:
        """Keep signals for the daemon that follows; a request for a restart is dropped, as during a start."""
        self._daemon = None

    def _terminate(self) -> None:
        if self._daemon is None:
            self._stop_missed = True
        else:
            self._daemon.terminate()

    def _reload(self) -> None:
        if self._daemon is None:
            self._reload_missed = True
        else:
            self._daemon.reload()

    def _restart(self) -> None:
        if self._daemon is not None:
            spawn(self._daemon.restarts.begin_unasked)


def run(options: Options) -> int:
    """Run the daemon until a signal, or until a successor serves. Returns: the exit code."""
    manager = ServiceManager(os.environ)
    manager.watch(gevent.get_hub())
    signals = Signals()
    inherited = None
    last_error = ""
    while True:
        daemon = Daemon(options, inherited=inherited)
        daemon.restarts.last_error = last_error
        signals.pass_to(daemon)
        start(daemon)
        manager.ready(f"serving on {daemon.addresses.tcp}")
        daemon.stop_wanted.wait()
        watch = StopWatchdog(daemon.stop_steps)
        watch.start()
        if not daemon.restarts.is_ready or daemon.exit_code():
            manager.stopping()
            daemon.stop()
            watch.finish()
            return daemon.exit_code()
        manager.restarting()
        inherited = daemon.hand_over()
        watch.finish()
        if daemon.exit_code():
            # As before a restart: the data was not written, and the exit code reports the internal error.
            manager.stopping()
            daemon.restarts.abandon()
            daemon.restarts.wait_ended()
            daemon.release(inherited)
            return daemon.exit_code()
        try:
            pid = daemon.restarts.hand_over()
        except RestartError as error:
            if daemon.restarts.abandoned:
                daemon.release(inherited)
                return 0
            signals.hold()
            daemon.restarts.note_failure(error)
            last_error = daemon.restarts.last_error
        else:
            manager.succeeded_by(pid)
            logger.info("NSQ: process %d has taken over; bye", pid)
            return 0


def start(daemon: Daemon) -> None:
    """Start a daemon; one that succeeds another waits until that has stopped. Raises: StartupError."""
    control = daemon.inherited.predecessor
    predecessor = None if control is None else Predecessor(control)
    try:
        if predecessor is not None:
            predecessor.wait_for_go()
        daemon.start()
        if predecessor is not None:
            predecessor.report_serving()
    except StartupError as error:
        if predecessor is not None:
            # The predecessor goes on with its sockets.
            for listener in daemon.listeners().values():
                listener.removes_file = False
        daemon.tcp.stop_listening()
        if predecessor is not None:
            predecessor.report_failed(str(error))
        raise


def log_data_path(options: Options) -> None:
    """Log the data path; warn if no flag named the directory and it holds no data of pyqd yet."""
    path = os.path.abspath(options.data_path or os.curdir)
    if options.data_path:
        logger.info("data path: %s", path)
    else:
        level = logging.INFO if os.path.exists(os.path.join(path, NODE_FILE)) else logging.WARNING
        logger.log(level, "data path: %s, the current directory; --data-path names another", path)


def run_logged(options: Options) -> int:
    """Log the settings that matter in a problem report, and run. Raises: StartupError."""
    if not __debug__:
        raise StartupError("python -O removes the assertions that guard the data; start pyqd without it")
    logger.info("ID: %d", options.node_id)
    logger.info("PROTOCOL: V2 of NSQ, compatible with nsqd %s", NSQ_VERSION)
    log_data_path(options)
    try:
        return run(options)
    finally:
        leave_to_exit()


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and run. Returns: the exit code. Source: docs/nsq/broker-semantics.md, "Stopping"."""
    begin_program(PROGRAM, holds_hangups=True)
    settings = DAEMON.parse_settings(sys.argv[1:] if argv is None else argv)
    return run_program(settings, DAEMON_CHECKS, run_logged, partial(report_failure, os.environ))


if __name__ == "__main__":
    sys.exit(main())
