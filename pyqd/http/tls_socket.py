"""TLS connection with the methods of a non-blocking socket that an HTTP connection uses.

Reading: one call receives bytes from the socket and returns as many decoded bytes as fit. `has_more` says that more
decoded bytes are ready; the socket does not become readable for them. Sending: after BlockingIOError the caller sends
the same bytes again, because OpenSSL has already turned them into records.
"""

from __future__ import annotations

import contextlib
import socket

from pyqd.hot.net.tls import reason_of
from pyqd.primitives.openssl import SSL

CHUNK_BYTES = 64 * 1024
RECORDS_BYTES_MAX = 80 * 1024
# Memory of OpenSSL's connection and of its two memory buffers, which do not shrink. See pyx/net/tls.pyx.
STATE_BYTES = 48 * 1024
BUFFERS_PART = 4 / 3


class TlsSocket:
    """A socket with its TLS connection after the handshake. Errors are those of a socket: OSError."""

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
        """The memory that TLS takes."""
        return STATE_BYTES + len(self._records) + int((self._in_bytes + self._out_bytes) * BUFFERS_PART)

    def fileno(self) -> int:
        """Return the socket's descriptor."""
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
        with contextlib.suppress(SSL.Error, OSError):
            self._connection.shutdown()
            self._socket.send(self._connection.bio_read(RECORDS_BYTES_MAX))
        self._socket.shutdown(how)

    def close(self) -> None:
        """Close the socket after sending as much of the closing alert as the socket takes now."""
        with contextlib.suppress(SSL.Error, OSError):
            self._connection.shutdown()
            self._socket.send(self._connection.bio_read(RECORDS_BYTES_MAX))
        self._socket.close()
