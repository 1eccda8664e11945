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
from pyqd.broker.broker import Broker
from pyqd.broker.importer import import_on_start
from pyqd.diskqueue.files import Files
from pyqd.diskqueue.lock import DirectoryLock
from pyqd.primitives.errors import StartupError
from pyqd.primitives.loglines import configure, print_fatal
from pyqd.primitives.options import Options, parse_args, split_address
from pyqd.protocol.background import Background
from pyqd.protocol.listener import Address
from pyqd.protocol.server import TcpServer
from pyqd.protocol.turns import Turns
from pyqd.services.group_commit import GroupCommit
from pyqd.services.housekeeper import Housekeeper
from pyqd.services.http import HttpServer
from pyqd.services.identity import Identity, port_of
from pyqd.services.routes import daemon_routes
from pyqd.services.syncer import Syncer

THREADS = 4
COMMIT_THREADS = 1

logger = logging.getLogger("pyqd.apps.daemon")


class Daemon:
    """One broker with its listeners, on the hub of the calling thread. Raises: StartupError."""

    def __init__(self, options: Options, files: Files | None = None) -> None:
        self.options = options
        self.hub: Any = gevent.get_hub()
        self.stop_wanted = Event()
        self.failure: BaseException | None = None
        self.identity = Identity(hostname=socket.gethostname(), start_ns=time.time_ns())
        self.lock = DirectoryLock(options.data_path or os.curdir)
        self.broker = Broker(options, files, in_background=Background(self.hub, THREADS).run)
        self.broker.scheduler.on_error = self.on_turn_error
        self.turns = Turns(self.hub, self.broker.scheduler)
        background = Background(self.hub, COMMIT_THREADS).run
        self.commit = GroupCommit(self.broker, background, self.hub.loop.run_callback)
        self.tcp = TcpServer(self.broker, options, self.hub, self.on_bug, self.commit.wait)
        self.identity.producers = self.tcp.producers
        self.http = HttpServer(daemon_routes(self.broker, self.identity, self.commit.wait))
        self.syncer = Syncer(self.broker)
        self.housekeeper = Housekeeper(self.broker)

    def on_bug(self, error: BaseException) -> None:
        """End the daemon: an invariant is broken, and what it guards must not be written to any more."""
        self.failure = error
        self.stop_wanted.set()

    def on_turn_error(self, error: BaseException) -> None:
        """Log what went wrong in a turn that no client asked for; a broken invariant ends the daemon."""
        logger.error("a turn failed - %s", error, exc_info=error)
        if isinstance(error, AssertionError):
            self.on_bug(error)

    def start(self) -> None:
        """Load what is on disk, then listen."""
        import_on_start(self.broker.files, self.broker.root, self.options)
        self.broker.load()
        self.identity.tcp_port = port_of(self.tcp.start(address_of(self.options.tcp_address)))
        if self.options.http_address:
            self.identity.http_port = port_of(self.http.start(address_of(self.options.http_address)))
        self.syncer.start()
        self.housekeeper.start()

    def stop(self) -> None:
        """Stop in nsqd's order: no new clients, no clients, no HTTP, then leave everything on disk."""
        self.tcp.stop_listening()
        self.tcp.close_all()
        self.http.stop()
        gevent.sleep(0)
        logger.info("NSQ: closing topics")
        self.housekeeper.stop()
        self.syncer.stop()
        if self.failure is None:
            self.broker.close_topics()
            if self.syncer.sync_all():
                self.broker.mark_clean()
        logger.info("NSQ: stopping subsystems")
        self.turns.stop_timer()
        self.lock.release()
        logger.info("NSQ: bye")


def address_of(text: str) -> Address:
    """Return the address that a flag names. Raises: StartupError with nsqd's text."""
    try:
        return split_address(text)
    except ValueError as error:
        raise StartupError(f"listen ({text}) failed - listen tcp: {error}") from error


def run(options: Options) -> int:
    """Run the daemon until a signal. Returns: the exit code."""
    daemon = Daemon(options)
    for number in (signal.SIGINT, signal.SIGTERM):
        gevent.signal_handler(number, daemon.stop_wanted.set)
    try:
        daemon.start()
    except StartupError:
        daemon.tcp.stop_listening()
        raise
    daemon.stop_wanted.wait()
    daemon.stop()
    return 0 if daemon.failure is None else 1


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and run. Returns: the exit code. Source: spec of broker semantics, exit codes."""
    try:
        options = parse_args(sys.argv[1:] if argv is None else argv)
    except StartupError as error:
        print_fatal(str(error))
        return 1
    if not __debug__:
        print_fatal("python -O removes the assertions that guard the data; start pyqd without it")
        return 1
    configure(options.log_prefix, options.log_level)
    logger.info("pyqd v%s (built w/python%s)", __version__, platform.python_version())
    logger.info("ID: %d", options.node_id)
    for notice in options.notices:
        logger.warning("%s", notice)
    try:
        return run(options)
    except StartupError as error:
        print_fatal(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
