"""The TCP (or unix socket) listener for NSQ clients, and the connections it has."""

import errno
import logging
import os
import socket
from collections.abc import Callable
from typing import Any

from pyqd.broker.broker import Broker
from pyqd.hot.ioloop import Limits
from pyqd.primitives.errors import StartupError
from pyqd.primitives.options import Options, UnixAddress, split_address
from pyqd.protocol.connection import Connection

READ_EVENT = 1
BACKLOG = 1024
ACCEPTS_PER_TURN = 64
ACCEPT_PAUSE_S = 0.1

logger = logging.getLogger(__name__)


def listen(address: str) -> socket.socket:
    """Return a listening socket, non-blocking. Raises: StartupError with nsqd's text."""
    target = split_address(address)
    try:
        if isinstance(target, UnixAddress):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            where: Any = target.path
        else:
            family = socket.AF_INET6 if ":" in target.host else socket.AF_INET
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            where = (target.host, target.port)
        sock.setblocking(False)
        sock.bind(where)
        sock.listen(BACKLOG)
    except OSError as error:
        kind = "unix" if isinstance(target, UnixAddress) else "tcp"
        reason = (error.strerror or str(error)).lower()
        raise StartupError(f"listen ({address}) failed - listen {kind} {address}: bind: {reason}") from error
    return sock


def address_text(sock: socket.socket) -> str:
    """Return a socket's own address as logs show it."""
    name = sock.getsockname()
    return name if isinstance(name, str) else f"{name[0]}:{name[1]}"


def peer_text(address: Any) -> str:
    """Return a peer's address as logs and /stats show it; "@" for a unix socket."""
    if isinstance(address, tuple):
        return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"
    return "@"


class TcpServer:
    """Accepts clients on the hub of the calling thread.

    on_bug: called with an AssertionError from a connection; the daemon ends then.
    """

    def __init__(self, broker: Broker, options: Options, hub: Any, on_bug: Callable[[BaseException], None]) -> None:
        self.broker = broker
        self.options = options
        self.hub = hub
        self.on_bug = on_bug
        self.limits = Limits(
            max_msg_bytes=options.max_msg_size,
            max_body_bytes=options.max_body_size,
            max_rdy_count=options.max_rdy_count,
            max_req_timeout_ns=options.max_req_timeout_ns,
        )
        self.connections: set[Connection] = set()
        self.publishers: dict[Connection, None] = {}
        self.sock: socket.socket | None = None
        self.watcher: Any = None
        self.path: str | None = None

    def start(self, address: str) -> str:
        """Listen and accept from now on. Returns: the address bound. Raises: StartupError."""
        self.sock = listen(address)
        bound = address_text(self.sock)
        if self.sock.family == socket.AF_UNIX:
            self.path = bound
        self.watcher = self.hub.loop.io(self.sock.fileno(), READ_EVENT)
        self.watcher.start(self.accept_some)
        logger.info("TCP: listening on %s", bound)
        return bound

    def accept_some(self) -> None:
        """Accept the clients that wait, a bounded number in one turn."""
        assert self.sock is not None, "accepting without a listener"
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, address = self.sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self.pause_accepting(error)
                    return
                logger.warning("TCP: accept failed - %s", error)
                continue
            self.welcome(sock, peer_text(address))

    def pause_accepting(self, error: OSError) -> None:
        """Leave the queue alone for a moment: there is no descriptor to accept with, and the event would not rest."""
        logger.error("TCP: accept failed, retrying in %d ms - %s", ACCEPT_PAUSE_S * 1000, error)
        self.watcher.stop()
        timer = self.hub.loop.timer(ACCEPT_PAUSE_S)
        timer.start(self.resume_accepting, timer)

    def resume_accepting(self, timer: Any) -> None:
        """Accept again after a pause."""
        timer.close()
        if self.sock is not None:
            self.watcher.start(self.accept_some)

    def welcome(self, sock: socket.socket, remote_address: str) -> None:
        """Serve a new client."""
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        logger.info("TCP: new client(%s)", remote_address)
        self.connections.add(Connection(self, sock, remote_address))

    def note_producer(self, connection: Connection) -> None:
        """Remember a client that publishes."""
        self.publishers[connection] = None

    def forget(self, connection: Connection) -> None:
        """Drop a connection that has ended."""
        self.connections.discard(connection)
        self.publishers.pop(connection, None)

    def producers(self) -> list[dict[str, Any]]:
        """Return the stats of every connected client that has published."""
        return [connection.stats() for connection in self.publishers if connection.pub_counts()]

    def stop_listening(self) -> None:
        """Accept no more clients."""
        if self.sock is not None:
            self.watcher.stop()
            self.watcher.close()
            self.sock.close()
            self.sock = None
            if self.path is not None:
                os.unlink(self.path)

    def close_all(self) -> None:
        """Close every client's connection."""
        for connection in list(self.connections):
            connection.close()
