"""Listener on one address that hands out accepted connections.

A callback of the loop accepts several connections at a time and passes them to `accepted`, which must not wait. If the
process is out of descriptors, new connections stay in the system's queue for a short pause before the next attempt.
"""

import contextlib
import errno
import logging
import os
import socket
import stat
import time
from collections.abc import Callable
from typing import Any

import gevent

from pyqd.net.slice_queue import READ_EVENT
from pyqd.primitives.addresses import Address, TcpAddress, UnixAddress, check_host
from pyqd.primitives.errors import StartupError

# The kernel takes net.core.somaxconn if that is less: the queue holds the clients that connect during a restart.
BACKLOG_MAX = 65_535
ACCEPTED_PER_PASS_MAX = 16
ACCEPTING_S = 0.001
RETRY_S = 0.1
UNIX_REMOTE = "@"

logger = logging.getLogger(__name__)


class Listener:
    """One listening socket. accepted: called with each non-blocking connection and its remote address as text.

    removes_file: `stop` removes the file of a unix socket, as no other process keeps it for the next start.
    """

    removes_file = True

    def __init__(self, accepted: Callable[[socket.socket, str], None]) -> None:
        self._accepted = accepted
        # The listening socket; None if the listener has not started, or has stopped.
        self.opened: socket.socket | None = None
        self._path = ""
        self._file: os.stat_result | None = None
        self._watcher: Any = None
        self._retry: Any = None

    def start(self, address: Address, inherited: socket.socket | None = None) -> Address:
        """Listen. Returns: the address with its real port, or the full path of the socket. Raises: StartupError.

        inherited: a listening socket of that address, which another process has opened; None opens one.
        """
        try:
            self.opened = listening_socket(address) if inherited is None else inherited
            self.opened.setblocking(False)
        except OSError as error:
            family = "unix" if isinstance(address, UnixAddress) else "tcp"
            reason = os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)
            raise StartupError(f"listen ({address}) failed - listen {family} {address}: bind: {reason}") from error
        loop = gevent.get_hub().loop
        self._watcher = loop.io(self.opened.fileno(), READ_EVENT)
        self._retry = loop.timer(RETRY_S, RETRY_S)
        self._watcher.start(self._accept)
        bound = self.opened.getsockname()
        if self.opened.family == socket.AF_UNIX:
            self._path = os.path.abspath(bound)
            self._file = os.lstat(self._path)
            return UnixAddress(self._path)
        return TcpAddress(bound[0], bound[1])

    def stop(self) -> None:
        """Stop listening and remove the file of a unix socket. Accepted connections stay open."""
        released = self.release()
        if released is not None:
            self.close(released)

    def close(self, released: socket.socket) -> None:
        """Close the socket that `release` has returned, and remove the file of a unix socket."""
        released.close()
        if self.removes_file and self._file is not None and is_file(self._path, self._file):
            os.unlink(self._path)

    def release(self) -> socket.socket | None:
        """Accept nothing more, and return the socket: clients that connect wait in its queue until it is closed."""
        released, self.opened = self.opened, None
        if released is not None:
            self._watcher.stop()
            self._watcher.close()
            self._retry.stop()
            self._retry.close()
        return released

    def _resume(self) -> None:
        self._retry.stop()
        self._watcher.start(self._accept)

    def _accept(self) -> None:
        assert self.opened is not None
        end_s = time.thread_time() + ACCEPTING_S
        for count in range(ACCEPTED_PER_PASS_MAX):
            if count and time.thread_time() >= end_s:
                return
            try:
                connection, remote = self.opened.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                logger.error("cannot accept connections: %s; retrying in %s s", error.strerror, RETRY_S)
                self._watcher.stop()
                # `again`, because gevent runs a timer that has gone off at once when it is started.
                self._retry.again(self._resume)
                return
            connection.setblocking(False)
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._accepted(connection, remote_text(remote))


def listening_socket(address: Address) -> socket.socket:
    """Return a non-blocking listening socket. An empty host means every interface, IPv4 and IPv6. Raises: OSError."""
    if isinstance(address, UnixAddress):
        listener = socket.socket(socket.AF_UNIX)
        where: Any = address.path
    else:
        every = not address.host
        host = ("::" if socket.has_dualstack_ipv6() else "0.0.0.0") if every else address.host
        check_host(host)
        family, _, _, _, where = socket.getaddrinfo(
            host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if every else 1)
    try:
        try:
            listener.bind(where)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not isinstance(address, UnixAddress) or not remove_stale(where):
                raise
            listener.bind(where)
        if isinstance(address, UnixAddress) and address.mode is not None:
            # Nobody can connect before it listens.
            os.chmod(address.path, address.mode)
        listener.listen(BACKLOG_MAX)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def remove_stale(path: str) -> bool:
    """Remove the file of a unix socket that a killed daemon left. Returns: whether it was removed.

    The file stays if a daemon listens on the socket, or if the file is of any other kind.
    """
    try:
        found = os.lstat(path)
        if not stat.S_ISSOCK(found.st_mode):
            return False
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            if probe.connect_ex(path) != errno.ECONNREFUSED:
                return False
        # Renamed before it is removed: another daemon may have replaced the file since the probe.
        aside = f"{path}.stale-{os.getpid()}"
        os.rename(path, aside)
        if not is_file(aside, found):
            os.rename(aside, path)
            return False
        os.unlink(aside)
    except OSError as error:
        logger.warning("cannot remove the stale socket %s: %s", path, error.strerror)
        return False
    logger.warning("replaced the stale socket %s: no process listened on it", os.path.abspath(path))
    return True


def is_file(path: str, known: os.stat_result) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.lstat(path), known)
    return False


def remote_text(remote: Any) -> str:
    """Return a peer's address as it is written in logs and statistics."""
    if not isinstance(remote, tuple):
        return UNIX_REMOTE
    return str(TcpAddress(remote[0].removeprefix("::ffff:"), remote[1]))
