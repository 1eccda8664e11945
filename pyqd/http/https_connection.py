"""One HTTPS connection: as one over HTTP, but for how it reads. Every request goes the long way."""

import socket
from collections.abc import Callable
from typing import Any, cast

import gevent

from pyqd.http.connection import HttpConnection
from pyqd.http.limits import DEFAULT_LIMITS, HttpLimits
from pyqd.http.messages import Request, Response
from pyqd.http.router import Router
from pyqd.http.tls_socket import TlsSocket

READ_EVENT = 1
READ_BYTES = 64 * 1024

# Shared, as it is free again before anything may switch.
_buffer = memoryview(bytearray(READ_BYTES))


class HttpsConnection(HttpConnection):
    """One connection. Arguments: as HttpConnection's, but for the socket."""

    def __init__(
        self,
        connection: TlsSocket,
        remote: str,
        router: Router,
        answer: Callable[[Request, str], Response],
        limits: HttpLimits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(cast(socket.socket, connection), remote, router, answer, limits=limits)
        self._secured = connection
        self._readable: Any = self._hub.loop.io(connection.fileno(), READ_EVENT)

    def next_bytes(self, between_requests: bool) -> memoryview:  # noqa: ARG002
        """Return what was decoded: a view that is valid until the next switch; empty at the end.

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
        """Let go of what the loop holds of the connection."""
        self._readable.close()
        super().close_front()
