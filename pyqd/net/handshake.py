"""TLS handshake on a non-blocking socket, in the calling greenlet.

Source: docs/nsq/tcp-protocol.md, "Upgrade sequence".
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any, Final

import gevent

from pyqd.hot.net.tls import reason_of
from pyqd.net.slice_queue import READ_EVENT, WRITE_EVENT, slice_queue_of
from pyqd.primitives.openssl import SSL

RECEIVED_BYTES_MAX: Final = 16 * 1024
HANDSHAKE_S: Final = 5.0
RECORD_HEADER_BYTES: Final = 5


class HandshakeError(Exception):
    """Failure of a handshake; str() of it is the reason.

    began: the peer's first bytes, at most the header of one record.
    """

    def __init__(self, reason: str, began: bytes = b"") -> None:
        super().__init__(reason)
        self.began = began


class _TimedOut(Exception):  # noqa: N818 - an outcome
    pass


def shake_hands(connection: SSL.Connection, sock: socket.socket, hub: Any, early: bytes = b"") -> None:
    """Do the handshake. early: bytes of the peer that were already read. Raises: HandshakeError. Switches: yes.

    If the handshake fails, the peer is sent the alert that names the failure, as far as its socket takes it.
    """
    began = early[:RECORD_HEADER_BYTES]
    if early:
        connection.bio_write(early)
    try:
        with gevent.Timeout(HANDSHAKE_S, _TimedOut):
            slice_queue = slice_queue_of(hub)
            while True:
                # One step may cost some milliseconds, and a thousand clients may reconnect at once.
                slice_queue.wait()
                if _advanced(connection):
                    break
                _send(connection, sock, hub)
                began += _receive(connection, sock, hub)[: RECORD_HEADER_BYTES - len(began)]
            _send(connection, sock, hub)
    except _TimedOut:
        raise HandshakeError("i/o timeout") from None
    except SSL.Error as error:
        with contextlib.suppress(OSError, SSL.Error):
            sock.send(connection.bio_read(RECEIVED_BYTES_MAX))
        raise HandshakeError(f"tls: {reason_of(error)}", began) from error
    except OSError as error:
        raise HandshakeError(error.strerror or str(error)) from error


def _advanced(connection: SSL.Connection) -> bool:
    """Advance the handshake with the received bytes. Returns: whether it is done."""
    try:
        connection.do_handshake()
    except SSL.WantReadError:
        return False
    return True


def _send(connection: SSL.Connection, sock: socket.socket, hub: Any) -> None:
    try:
        records = connection.bio_read(RECEIVED_BYTES_MAX)
    except SSL.WantReadError:
        return
    while records:
        try:
            records = records[sock.send(records) :]
        except BlockingIOError:
            _wait(sock, hub, WRITE_EVENT)


def _receive(connection: SSL.Connection, sock: socket.socket, hub: Any) -> bytes:
    while True:
        try:
            received = sock.recv(RECEIVED_BYTES_MAX)
        except BlockingIOError:
            _wait(sock, hub, READ_EVENT)
            continue
        if not received:
            raise HandshakeError("EOF")
        connection.bio_write(received)
        return received


def _wait(sock: socket.socket, hub: Any, event: int) -> None:
    watcher = hub.loop.io(sock.fileno(), event)
    try:
        hub.wait(watcher)
    finally:
        watcher.stop()
        watcher.close()
