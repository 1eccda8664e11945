"""Upgrades that IDENTIFY negotiates: TLS, then snappy or deflate, each followed by an OK that goes through it.

If a client sends bytes after its IDENTIFY without waiting for the answer, they count as the first bytes of the upgraded
stream. So unencrypted bytes are never executed as if they had come encrypted.

Source: docs/nsq/tcp-protocol.md, "Upgrade sequence".
"""

import logging
from typing import TYPE_CHECKING

from pyqd.hot.net.tls import Tls
from pyqd.hot.net.transport import Transport
from pyqd.hot.tcp.deflate import Deflate
from pyqd.hot.tcp.snappy import Snappy
from pyqd.net.handshake import HandshakeError, shake_hands
from pyqd.net.pieces import pieces_of
from pyqd.primitives.errors import ClientError
from pyqd.tcp.negotiate import Upgrades

if TYPE_CHECKING:
    from pyqd.tcp.connection import Connection

OK = b"OK"

logger = logging.getLogger(__name__)


def upgrade(connection: "Connection", upgrades: Upgrades) -> None:
    """Put the granted upgrades in place, after the queued answer has left. Raises: ClientError. Switches: yes."""
    connection.ioloop.drain()
    if connection.gone:
        return
    transport: Transport | None = None
    early = connection.ioloop.take_partial()
    if upgrades.tls:
        logger.info("PROTOCOL(V2): [%s] upgrading connection to TLS", connection.remote_address)
        transport = start_tls(connection, early)
        early = b""
        confirm(connection, transport)
    if upgrades.snappy:
        logger.info("PROTOCOL(V2): [%s] upgrading connection to snappy", connection.remote_address)
        confirm(connection, Snappy(connection.socket.fileno(), below=transport, early=early))
    if upgrades.deflate:
        level = upgrades.deflate_level
        logger.info("PROTOCOL(V2): [%s] upgrading connection to deflate (level %d)", connection.remote_address, level)
        confirm(connection, Deflate(connection.socket.fileno(), level, below=transport, early=early))


def start_tls(connection: "Connection", early: bytes) -> Tls:
    """Do the TLS handshake; nothing else is sent meanwhile. Raises: ClientError. Switches: yes."""
    connection.output.withhold(True)
    try:
        pieces_of(connection.server.hub).wait()
        secured = connection.server.tls.connection()
        shake_hands(secured, connection.socket, connection.server.hub, early)
    except HandshakeError as error:
        raise ClientError("E_IDENTIFY_FAILED", f"IDENTIFY failed {error}") from error
    finally:
        connection.output.withhold(False)
    connection.ioloop.tls_needed = False
    connection.tls = connection.authorizer.tls = secured
    return Tls(connection.socket.fileno(), secured)


def confirm(connection: "Connection", transport: Transport) -> None:
    """Put a transport in place and send an OK through it. Switches: if the socket is full."""
    if connection.gone:
        return
    connection.ioloop.upgrade(transport)
    connection.respond(OK)
    connection.ioloop.drain()
