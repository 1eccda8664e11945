"""The upgrades that IDENTIFY negotiates: TLS, then snappy or deflate, each followed by an OK that goes through it.

What a client sends behind its IDENTIFY without waiting for the answer is taken for the first bytes of the upgraded
stream. So nothing that came unencrypted is ever executed as if it had come encrypted.

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
    """Put in place what was granted; the answer that grants it is queued. Raises: ClientError. Switches: yes."""
    connection.drain()
    if connection.gone:
        return
    transport: Transport | None = None
    early = connection.take_held()
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
    """Do the handshake; nothing else is sent meanwhile. Raises: ClientError. Switches: yes."""
    connection.withhold(True)
    try:
        pieces_of(connection.server.hub).wait()
        secured = connection.server.tls.connection()
        shake_hands(secured, connection.socket, connection.server.hub, early)
    except HandshakeError as error:
        raise ClientError("E_IDENTIFY_FAILED", f"IDENTIFY failed {error}") from error
    finally:
        connection.withhold(False)
    connection.tls_needed = False
    connection.tls = secured
    return Tls(connection.socket.fileno(), secured)


def confirm(connection: "Connection", transport: Transport) -> None:
    """Put a transport in place and say so through it. Switches: where the socket is full."""
    if connection.gone:
        return
    connection.upgrade(transport)
    connection.respond(OK)
    connection.drain()
