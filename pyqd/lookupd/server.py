"""TCP server of a lookup daemon: many connections of brokers, most of them idle.

A connection has a watcher on gevent's loop and no greenlet: 10,000 idle ones would have 10,000 stacks. Commands
are answered in the callback; while answers wait for a slow broker, nothing more is read from it.

Source: docs/nsq/lookupd.md, "TCP protocol".
"""

import logging
import socket
from collections.abc import Callable
from typing import Any, Final

from pyqd.lookupd.protocol import LookupSession, framed
from pyqd.lookupd.registry import Registry
from pyqd.net.admission import Admission
from pyqd.net.listener import Listener
from pyqd.net.slice_queue import READ_EVENT, WRITE_EVENT
from pyqd.primitives.addresses import Address
from pyqd.primitives.errors import CommandError

RECEIVED_BYTES_MAX: Final = 64 * 1024
# A broker that vanished without closing is found after KEEPALIVE_S + KEEPALIVE_COUNT * KEEPALIVE_EVERY_S.
KEEPALIVE_S: Final = 60
KEEPALIVE_EVERY_S: Final = 15
KEEPALIVE_COUNT: Final = 4

logger = logging.getLogger(__name__)


class LookupConnection:
    """Connection of one broker. on_end: called once, when it is closed."""

    def __init__(
        self, accepted: socket.socket, session: LookupSession, loop: Any, on_end: Callable[["LookupConnection"], None]
    ) -> None:
        self.session = session
        self._socket = accepted
        self._on_end = on_end
        self._unsent = b""
        self._reader = loop.io(accepted.fileno(), READ_EVENT)
        self._writer = loop.io(accepted.fileno(), WRITE_EVENT)
        self._reader.start(self._on_readable)

    def close(self) -> None:
        """Close and end the registrations."""
        for watcher in (self._reader, self._writer):
            watcher.stop()
            watcher.close()
        self._socket.close()
        self.session.end()
        self._on_end(self)

    def _on_readable(self) -> None:
        try:
            data = self._socket.recv(RECEIVED_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._send(self.session.receive(data))

    def _send(self, data: bytes) -> None:
        """Send answers. If the socket is full, keep the rest, and read nothing until the rest is sent."""
        try:
            sent = self._socket.send(data) if data else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()
            return
        was_blocked, self._unsent = bool(self._unsent), data[sent:]
        if self._unsent and not was_blocked:
            self._reader.stop()
            self._writer.start(self._on_writable)
        elif not self._unsent:
            if self.session.closing:
                self.close()
            elif was_blocked:
                self._writer.stop()
                self._reader.start(self._on_readable)

    def _on_writable(self) -> None:
        self._send(self._unsent)


class LookupServer:
    """Accepts brokers on the hub of the calling thread.

    info: returns the reply to IDENTIFY. admission: who may connect.
    """

    def __init__(self, registry: Registry, hub: Any, info: Callable[[], dict[str, Any]], admission: Admission) -> None:
        self.registry = registry
        self.admission = admission
        self.connections: set[LookupConnection] = set()
        self._hub = hub
        self._info = info
        self._listener = Listener(self._accepted)

    def start(self, address: Address) -> Address:
        """Listen and accept from now on. Returns: the address with its real port. Raises: StartupError."""
        bound = self._listener.start(address)
        logger.info("TCP: listening on %s", bound)
        return bound

    def stop(self) -> None:
        self._listener.stop()
        for connection in list(self.connections):
            connection.close()

    def _accepted(self, accepted: socket.socket, remote: str) -> None:
        reason = self.admission.admit(remote)
        if reason:
            logger.warning("TCP: refused %s - %s", remote, reason)
            self.admission.turn_away(accepted, framed(CommandError("E_INVALID", reason).frame()))
            return
        logger.info("TCP: new client(%s)", remote)
        if accepted.family != socket.AF_UNIX:
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_EVERY_S)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_COUNT)
        session = LookupSession(self.registry, remote, self._info)
        self.connections.add(LookupConnection(accepted, session, self._hub.loop, self._ended))

    def _ended(self, connection: LookupConnection) -> None:
        self.connections.discard(connection)
        self.admission.leave(connection.session.remote)
        logger.info("PROTOCOL(V1): [%s] exiting ioloop", connection.session.remote)
