"""Server for NSQ clients: accepts them, and lists the connected and the publishing ones."""

import logging
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from pyqd.broker.broker import Broker
from pyqd.config.options import Options
from pyqd.hot.primitives.clock import mono
from pyqd.hot.tcp.publisher import ProtocolLimits
from pyqd.net.admission import Admission
from pyqd.net.listener import Listener
from pyqd.net.slice_queue import BEHIND_SOCKETS, slice_queue_of
from pyqd.net.tls import TlsServer
from pyqd.primitives.addresses import Address
from pyqd.primitives.durations import SECOND_NS
from pyqd.tcp.authd import AuthServers
from pyqd.tcp.connection import Connection, PublishSyncs

# Connections closed between two passes of the loop while the daemon stops.
CLOSED_AT_ONCE = 16
# Clients of a deleted channel that are closed at once, and the time for others in a pass of the loop.
AT_ONCE = 16
BUDGET_S = 0.001
FRAME_TYPE_ERROR = 1
BY_DAEMON = "closed by the daemon"
SWEEP_NS_MIN = SECOND_NS // 4
SWEEP_NS_MAX = 5 * SECOND_NS

logger = logging.getLogger(__name__)


class ClosingQueue:
    """Closes the clients of deleted channels: a few at once, and the others in slices between passes of the event loop.

    Closing takes some 100 us for each client, with the log lines and the end of its greenlets. The 400 clients of a
    channel would hold the loop for 40 ms. A client that waits here has left its channel: nothing is delivered to it,
    and its FIN, REQ and TOUCH are refused, as the messages are gone. clock: seconds of CPU time or of any clock.
    """

    def __init__(self, hub: Any, close: Callable[[Connection], None], clock: Callable[[], float] = time.thread_time):
        self._loop = hub.loop
        self._close = close
        self._clock = clock
        self._waiting: deque[Connection] = deque()
        self._timer = hub.loop.timer(0, priority=BEHIND_SOCKETS)
        self._pass_s = 0.0
        self._closed_count = 0

    def add(self, connection: Connection) -> None:
        """Close a connection: at once if it is among the first of this pass, else in a later pass. Switches: no."""
        now_s = self._loop.now()
        if now_s != self._pass_s:
            self._pass_s = now_s
            self._closed_count = 0
        if not self._waiting and self._closed_count < AT_ONCE:
            self._closed_count += 1
            self._close(connection)
            return
        if not self._waiting:
            self._timer.start(self._run)
        self._waiting.append(connection)

    def _run(self) -> None:
        """Close connections, one at least, until the budget is used up."""
        end_s = self._clock() + BUDGET_S
        while self._waiting:
            self._close(self._waiting.popleft())
            if self._clock() >= end_s:
                break
        if self._waiting:
            self._timer.start(self._run)


class TcpServer:
    """Accepts clients on the hub of the calling thread.

    tls: makes the TLS connections. auth: servers that return the permissions of a client. durability: waits for syncs
    with --sync-every=1. on_internal_error: called with an AssertionError of a connection; the daemon then ends.
    """

    def __init__(
        self,
        broker: Broker,
        options: Options,
        hub: Any,
        tls: TlsServer,
        auth: AuthServers,
        on_internal_error: Callable[[BaseException], None],
        durability: PublishSyncs,
    ) -> None:
        self.broker = broker
        self.options = options
        self.hub = hub
        self.tls = tls
        self.auth = auth
        self.on_internal_error = on_internal_error
        self.durability = durability
        self.limits = ProtocolLimits(
            max_msg_bytes=options.max_msg_size,
            max_body_bytes=options.max_body_size,
            max_rdy_count=options.max_rdy_count,
            max_req_timeout_ns=options.max_req_timeout_ns,
            max_defer_ns=options.defer_ns_max(),
            sync_each=options.sync_every == 1,
        )
        self.connections: set[Connection] = set()
        self.publishers: dict[Connection, None] = {}
        self.admission = Admission(
            lambda: (self.options.max_connections, self.options.max_connections_per_address),
            broker.capacity.connection_refusal,
            broker.capacity.refused_max,
        )
        self.slice_queue = slice_queue_of(hub)
        self.closing = ClosingQueue(hub, lambda connection: connection.close_because(BY_DAEMON))
        self.listener = Listener(self.accept_client)
        self.sweep_timer: Any = None

    def start(self, address: Address, inherited: socket.socket | None = None) -> Address:
        """Listen and accept from now on. Returns: the address with its real port. Raises: StartupError.

        inherited: a listening socket that another process has opened, or None.
        """
        bound = self.listener.start(address, inherited)
        # A repeating timer: one that has gone off once and is started again goes off at once.
        self.sweep_timer = self.hub.loop.timer(self.sweep_s(), self.sweep_s())
        self.sweep_timer.start(self.sweep)
        logger.info("TCP: listening on %s", bound)
        return bound

    def accept_client(self, sock: socket.socket, remote_address: str) -> None:
        """Serve a new client, or refuse it if there are too many."""
        reason = self.admission.admit(remote_address)
        if reason:
            logger.warning("TCP: refused client(%s) - %s", remote_address, reason)
            answer = f"E_TOO_MANY_CONNECTIONS {reason}".encode()
            self.admission.turn_away(sock, struct.pack(">ii", 4 + len(answer), FRAME_TYPE_ERROR) + answer)
            return
        logger.info("TCP: new client(%s)", remote_address)
        self.connections.add(Connection(self, sock, remote_address))

    def note_producer(self, connection: Connection) -> None:
        """Remember a client that publishes."""
        self.publishers[connection] = None

    def remove_client(self, connection: Connection) -> None:
        """Remove a connection that has ended."""
        if connection in self.connections:
            self.connections.remove(connection)
            self.admission.leave(connection.remote_address)
        self.publishers.pop(connection, None)

    def producers(self) -> Iterator[dict[str, Any]]:
        """Yield the stats of every client that has published and is still connected when its turn comes."""
        for connection in list(self.publishers):
            if connection in self.publishers and connection.pub_counts():
                yield connection.stats()

    def greenlets(self) -> Iterator[tuple[Any, str]]:
        """Yield the greenlets of the connections, each with a description."""
        for connection in self.connections:
            yield connection.ioloop.greenlet, "IOLoop of a client"
            yield connection.output.pump_greenlet, "messagePump of a client"

    def sweep_s(self) -> float:
        """Return the seconds between two searches for late clients."""
        times_ns = [each for each in (self.options.first_command_timeout_ns, self.options.command_timeout_ns) if each]
        return min(max(min(times_ns, default=SWEEP_NS_MAX) // 4, SWEEP_NS_MIN), SWEEP_NS_MAX) / SECOND_NS

    def sweep(self) -> None:
        """Close the clients that take too long to send their first command or the rest of one."""
        now_ns, options = mono(), self.options
        for connection in list(self.connections):
            reason = connection.ioloop.timeout_reason(
                now_ns, options.first_command_timeout_ns, options.command_timeout_ns
            )
            if reason is not None:
                connection.close_because(reason)

    def change_options(self, options: Options) -> None:
        """Use other options for new connections and commands."""
        self.options = options

    def stop_listening(self) -> None:
        """Accept no more clients."""
        self.listener.stop()
        if self.sweep_timer is not None:
            self.sweep_timer.stop()
            self.sweep_timer.close()
            self.sweep_timer = None

    def close_all(self, *, at_once: bool = False) -> None:
        """Close every client's connection. at_once: without yielding to the event loop. Switches: unless at_once."""
        for index, connection in enumerate(list(self.connections)):
            if not at_once and index % CLOSED_AT_ONCE == CLOSED_AT_ONCE - 1:
                self.slice_queue.wait()
            connection.close_because(BY_DAEMON)
