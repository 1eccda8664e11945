"""HTTPS connection: an HTTP connection that reads through TLS. Every request goes to the routes."""

import socket
from collections.abc import Callable
from typing import Any, cast

import gevent

from pyqd.http.connection import HttpConnection
from pyqd.http.messages import Request, Response
from pyqd.http.reader import DEFAULT_SETTINGS, HttpSettings
from pyqd.http.router import Router
from pyqd.http.tls_socket import TlsSocket
from pyqd.net.slice_queue import READ_EVENT

READ_BYTES = 64 * 1024

# Shared by all connections: the buffer is free again before anything may switch.
_buffer = memoryview(bytearray(READ_BYTES))


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
