"""HTTPS connection: an HTTP connection that reads through TLS. Every request goes to the routes."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Any, cast

import gevent

from pyqd.hot.net.tls import reason_of
from pyqd.http.connection import HttpConnection
from pyqd.http.messages import Request, Response
from pyqd.http.reader import DEFAULT_SETTINGS, HttpSettings
from pyqd.http.router import Router
from pyqd.net.slice_queue import READ_EVENT
from pyqd.primitives.openssl import SSL

READ_BYTES = 64 * 1024
CHUNK_BYTES = 64 * 1024
RECORDS_BYTES_MAX = 80 * 1024
# Memory of OpenSSL's connection and of its two memory buffers, which do not shrink. See pyx/net/tls.pyx.
STATE_BYTES = 48 * 1024
BUFFERS_PART = 4 / 3

# Shared by all connections: the buffer is free again before anything may switch.
_buffer = memoryview(bytearray(READ_BYTES))


class TlsSocket:
    """TLS connection after the handshake, with the methods of a non-blocking socket. Errors are those of a socket.

    Reading: one call receives bytes from the socket and returns as many decoded bytes as fit. `has_more` says that more
    decoded bytes are ready; the socket does not become readable for them. Sending: after BlockingIOError the caller
    sends the same bytes again, because OpenSSL has already turned them into records.
    """

    def __init__(self, plain: socket.socket, connection: SSL.Connection) -> None:
        self._socket = plain
        self._connection = connection
        self._records = memoryview(b"")
        self._sending_count = 0
        self._in_bytes = self._out_bytes = 0
        # The bytes that arrived with the end of the handshake are already in the connection.
        self.has_more = True

    @property
    def held_bytes(self) -> int:
        return STATE_BYTES + len(self._records) + int((self._in_bytes + self._out_bytes) * BUFFERS_PART)

    def fileno(self) -> int:
        return self._socket.fileno()

    def recv_into(self, buffer: memoryview) -> int:
        """Receive some bytes. Returns: how many, 0 at the end. Raises: BlockingIOError if there are none yet."""
        count = self._decoded_into(buffer) if self.has_more else 0
        if count == 0:
            records = self._socket.recv(CHUNK_BYTES)
            if not records:
                return 0
            self._connection.bio_write(records)
            self._in_bytes = max(self._in_bytes, len(records))
            count = self._decoded_into(buffer)
        if count < 0:
            return 0
        if count == 0:
            raise BlockingIOError
        return count

    def _decoded_into(self, buffer: memoryview) -> int:
        """Decode the received bytes that fit the buffer. Returns: how many bytes; -1 at the end."""
        count = 0
        self.has_more = False
        try:
            while count < len(buffer):
                count += self._connection.recv_into(buffer[count:])
            self.has_more = True
        except SSL.WantReadError:
            pass
        except SSL.ZeroReturnError:
            # The next call finds the end again.
            self.has_more = count > 0
            return count or -1
        except SSL.Error as error:
            raise ConnectionResetError(f"tls: {reason_of(error)}") from error
        return count

    def send(self, data: memoryview) -> int:
        """Send some bytes. Returns: how many. Raises: BlockingIOError if the socket is full."""
        if not self._records:
            self._encode(data[:CHUNK_BYTES])
        while self._records:
            self._records = self._records[self._socket.send(self._records) :]
        return self._sending_count

    def _encode(self, data: memoryview) -> None:
        try:
            self._sending_count = self._connection.send(data)
            self._records = memoryview(self._connection.bio_read(RECORDS_BYTES_MAX))
            self._out_bytes = max(self._out_bytes, len(self._records))
        except SSL.Error as error:
            raise ConnectionResetError(f"tls: {reason_of(error)}") from error

    def shutdown(self, how: int) -> None:
        """Send the alert that ends the stream, then shut the socket as `how` says."""
        self._send_alert()
        self._socket.shutdown(how)

    def close(self) -> None:
        """Close the socket after sending as much of the closing alert as the socket takes now."""
        self._send_alert()
        self._socket.close()

    def _send_alert(self) -> None:
        with contextlib.suppress(SSL.Error, OSError):
            self._connection.shutdown()
            self._socket.send(self._connection.bio_read(RECORDS_BYTES_MAX))


class HttpsConnection(HttpConnection):
    """One HTTPS connection. Arguments: as for HttpConnection, with a TlsSocket instead of the socket."""

    def __init__(
        self,
        connection: TlsSocket,
        remote: str,
        router: Router,
        answer: Callable[[Request, str], Response],
        settings: HttpSettings = DEFAULT_SETTINGS,
    ) -> None:
        super().__init__(cast(socket.socket, connection), remote, router, answer, settings=settings)
        self._secured = connection
        self._readable: Any = self._hub.loop.io(connection.fileno(), READ_EVENT)

    def next_bytes(self, between_requests: bool) -> memoryview:  # noqa: ARG002
        """Return decoded bytes as a view that is valid until the next switch; the view is empty at the end of the
        stream.

        Raises: OSError. Switches: yes, before it reads.
        """
        while True:
            if self._secured.has_more:
                gevent.sleep(0)
            else:
                self._hub.wait(self._readable)
            try:
                return _buffer[: self._secured.recv_into(_buffer)]
            except BlockingIOError:
                continue

    def transport_bytes(self) -> int:
        """Return the memory that TLS takes."""
        return self._secured.held_bytes

    def close_front(self) -> None:
        """Release the watchers that the event loop holds for the connection."""
        self._readable.close()
        super().close_front()
