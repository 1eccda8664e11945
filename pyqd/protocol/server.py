"""The server for NSQ clients: the connections it has, and those of them that publish."""

import logging
import socket
from collections.abc import Callable
from typing import Any

from pyqd.broker.broker import Broker
from pyqd.broker.topic import Topic
from pyqd.hot.ioloop import Limits
from pyqd.primitives.options import Options
from pyqd.protocol.connection import Connection
from pyqd.protocol.listener import Address, Listener

logger = logging.getLogger(__name__)


class TcpServer:
    """Accepts clients on the hub of the calling thread.

    on_bug: called with an AssertionError from a connection; the daemon ends then. wait_durable: waits until the topics
    are on stable storage; called with --sync-every=1, before an OK leaves.
    """

    def __init__(
        self,
        broker: Broker,
        options: Options,
        hub: Any,
        on_bug: Callable[[BaseException], None],
        wait_durable: Callable[[list[Topic]], None],
    ) -> None:
        self.broker = broker
        self.options = options
        self.hub = hub
        self.on_bug = on_bug
        self.wait_durable = wait_durable
        self.limits = Limits(
            max_msg_bytes=options.max_msg_size,
            max_body_bytes=options.max_body_size,
            max_rdy_count=options.max_rdy_count,
            max_req_timeout_ns=options.max_req_timeout_ns,
            max_defer_ns=options.defer_ns_max(),
            sync_each=options.sync_every == 1,
        )
        self.connections: set[Connection] = set()
        self.publishers: dict[Connection, None] = {}
        self.listener = Listener(self.welcome)

    def start(self, address: Address) -> Address:
        """Listen and accept from now on. Returns: the address with its real port. Raises: StartupError."""
        bound = self.listener.start(address)
        logger.info("TCP: listening on %s", bound)
        return bound

    def welcome(self, sock: socket.socket, remote_address: str) -> None:
        """Serve a new client."""
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
        self.listener.stop()

    def close_all(self) -> None:
        """Close every client's connection."""
        for connection in list(self.connections):
            connection.close()
