"""Upgrades that IDENTIFY negotiates: TLS, then snappy or deflate, each followed by an OK that goes through it.

If a client sends bytes after its IDENTIFY without waiting for the answer, they count as the first bytes of the upgraded
stream. So unencrypted bytes are never executed as if they had come encrypted.

Source: docs/nsq/tcp-protocol.md, "Upgrade sequence".
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyqd.hot.net.tls import Tls
from pyqd.hot.net.transport import CodecTransport
from pyqd.hot.tcp.deflate import Deflate
from pyqd.hot.tcp.snappy import Snappy
from pyqd.net.handshake import HandshakeError, shake_hands
from pyqd.net.slice_queue import slice_queue_of
from pyqd.net.tls import TlsServer, session_of
from pyqd.primitives.errors import CommandError
from pyqd.tcp.negotiate import Upgrades

if TYPE_CHECKING:
    from OpenSSL import SSL

    from pyqd.tcp.connection import Connection

OK = b"OK"
# nsqd's names, by OpenSSL's.
TLS_VERSION_NAMES = {"TLSv1": "TLS1.0", "TLSv1.1": "TLS1.1", "TLSv1.2": "TLS1.2", "TLSv1.3": "TLS1.3"}

logger = logging.getLogger(__name__)


def upgrade(connection: Connection, upgrades: Upgrades, tls: TlsServer, hub: Any) -> None:
    """Start the granted upgrades after the queued answer is sent. Raises: CommandError. Switches: yes."""
    connection.ioloop.drain()
    if connection.gone:
        return
    transport: CodecTransport | None = None
    early = connection.ioloop.take_partial()
    if upgrades.tls:
        logger.info("PROTOCOL(V2): [%s] upgrading connection to TLS", connection.remote_address)
        transport = start_tls(connection, tls.connection, hub, early)
        early = b""
        confirm(connection, transport)
    if upgrades.snappy:
        logger.info("PROTOCOL(V2): [%s] upgrading connection to snappy", connection.remote_address)
        confirm(connection, CodecTransport(connection.socket.fileno(), Snappy(), below=transport, early=early))
    if upgrades.deflate:
        level = upgrades.deflate_level
        logger.info("PROTOCOL(V2): [%s] upgrading connection to deflate (level %d)", connection.remote_address, level)
        confirm(connection, CodecTransport(connection.socket.fileno(), Deflate(level), below=transport, early=early))


def start_tls(connection: Connection, new_tls: Callable[[], SSL.Connection], hub: Any, early: bytes) -> CodecTransport:
    """Do the TLS handshake; nothing else is sent meanwhile. Raises: CommandError. Switches: yes."""
    connection.output.withhold(True)
    try:
        slice_queue_of(hub).wait()
        secured = new_tls()
        shake_hands(secured, connection.socket, hub, early)
    except HandshakeError as error:
        raise CommandError("E_IDENTIFY_FAILED", f"IDENTIFY failed {error}") from error
    finally:
        connection.output.withhold(False)
    connection.ioloop.tls_needed = False
    connection.tls = connection.authorizer.tls = secured
    return CodecTransport(connection.socket.fileno(), Tls(secured))


def confirm(connection: Connection, transport: CodecTransport) -> None:
    """Put a transport in place and send an OK through it. Switches: if the socket is full."""
    if connection.gone:
        return
    connection.ioloop.upgrade(transport)
    connection.respond(OK)
    connection.ioloop.drain()


def tls_stats(connection: SSL.Connection | None) -> dict[str, object]:
    """Return the TLS fields of a client in /stats, in nsqd's words. connection: None for a client without TLS.

    A suite that nsqd has no name for is shown by its number, as nsqd shows it. Source: docs/nsq/http-api.md, "TLS
    fields".
    """
    session = None if connection is None else session_of(connection)
    suite = "" if session is None else session.cipher_suite or f"Unknown {session.cipher_number}"
    return {
        "tls": session is not None,
        "tls_cipher_suite": suite,
        "tls_version": "" if session is None else TLS_VERSION_NAMES[session.version],
        "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": session is not None,
    }
