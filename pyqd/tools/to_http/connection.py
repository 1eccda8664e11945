"""HTTP/1.1 connections for asyncio that are kept and used again, one request at a time each.

Bodies of responses are read and dropped: the caller gets the status, and the Location of a redirect. No package that
pyqd depends on has an asynchronous HTTP client, and requests are what pyq_to_http spends its time on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections import deque
from typing import Final, NamedTuple

import httptools

from pyqd.primitives.addresses import check_host
from pyqd.primitives.http_client import HttpAddress

# A connection that was idle for so long is not used again. Source: Go's default transport, as NSQ's tool uses it.
IDLE_S: Final = 90.0
# Connections to one server that are opened at the same time.
OPENING_MAX: Final = 16
HEAD_BYTES_MAX: Final = 1 << 20
INFORMATIONAL: Final = range(100, 200)


class ServerResponse(NamedTuple):
    """End of a request. location: of a redirect; empty without one."""

    status: int
    location: str = ""


class RequestError(Exception):
    """A request without a response: the connection failed, or the received bytes are not HTTP."""


class RequestTimeoutError(RequestError):
    """The response did not come in time."""


class StaleError(RequestError):
    """The server closed the connection before it sent a byte. An idle one may have ended before the request."""


class ServerConnection(asyncio.Protocol):
    """Connection to one server."""

    def __init__(self) -> None:
        self.is_open = True
        self.idle_since_s = 0.0
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[ServerResponse] | None = None
        self._location = ""
        self._head_bytes = 0
        self._has_head = False

    async def exchange(self, request: bytes, timeout_s: float) -> ServerResponse:
        """Send a request, and return its response. Raises: RequestError."""
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[ServerResponse] = loop.create_future()
        self._waiter = waiter
        self._location, self._head_bytes, self._has_head = "", 0, False
        self._transport.write(request)
        timer = loop.call_later(timeout_s, self._fail, RequestTimeoutError("no response in time"))
        try:
            return await waiter
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            timer.cancel()

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: RequestError) -> None:
        self.close()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    # Events of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._waiter is None or self._waiter.done():
            return
        if self._has_head:
            # The end of the connection is the end of the body, or the body is cut, which does not change the status.
            self._waiter.set_result(ServerResponse(self._parser.get_status_code(), self._location))
        elif self._head_bytes == 0:
            reason = f": {error.strerror or error}" if isinstance(error, OSError) else ""
            self._fail(StaleError(f"the server closed the connection{reason}"))
        else:
            self._fail(RequestError("the server closed the connection within its response"))

    def data_received(self, data: bytes) -> None:
        if self._waiter is None or self._waiter.done():
            # Bytes that no request asked for.
            self.close()
            return
        if not self._has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(RequestError("the server wants to switch protocols"))
        except httptools.HttpParserError as error:
            self._fail(RequestError(f"the response is not HTTP: {error}"))
        else:
            if not self._has_head and self._head_bytes > HEAD_BYTES_MAX:
                self._fail(RequestError(f"the head of the response has more than {HEAD_BYTES_MAX} bytes"))

    # Events of the parser.

    def on_message_begin(self) -> None:
        if self._waiter is None or self._waiter.done():
            # A second response: it must not be taken for that of the next request.
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"location":
            self._location = value.decode(errors="replace")

    def on_headers_complete(self) -> None:
        self._has_head = self._parser.get_status_code() not in INFORMATIONAL

    def on_message_complete(self) -> None:
        if self._has_head and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(ServerResponse(self._parser.get_status_code(), self._location))
            if not self._parser.should_keep_alive():
                self.close()


class ServerPool:
    """Connections to one server. A request takes one that is free, or opens one; it may get a freed one meanwhile.

    A burst of requests opens few connections at a time: servers that are asked for hundreds at once drop some.
    """

    def __init__(self, origin: HttpAddress, connect_timeout_s: float, tls: ssl.SSLContext | None) -> None:
        self._origin = origin
        self._connect_timeout_s = connect_timeout_s
        self._tls = tls
        self._idle: list[ServerConnection] = []
        self._opening_count = 0
        # Requests that wait for a connection, or with None for leave to open one.
        self._waiters: deque[asyncio.Future[ServerConnection | None]] = deque()

    async def take(self, deadline_s: float) -> tuple[ServerConnection, bool]:
        """Return a connection, and whether it was used before. Raises: RequestError."""
        loop = asyncio.get_running_loop()
        while True:
            connection = self._kept(loop.time())
            if connection is not None:
                return connection, True
            if self._opening_count < OPENING_MAX:
                return await self._open(deadline_s - loop.time()), False
            waiter: asyncio.Future[ServerConnection | None] = loop.create_future()
            self._waiters.append(waiter)
            timer = loop.call_at(deadline_s, expire, waiter)
            try:
                connection = await waiter
            finally:
                timer.cancel()
            if connection is not None and connection.is_open:
                return connection, True

    def give(self, connection: ServerConnection) -> None:
        if connection.is_open and not self._wake(connection):
            connection.idle_since_s = asyncio.get_running_loop().time()
            self._idle.append(connection)

    def _wake(self, connection: ServerConnection | None) -> bool:
        """Give the request that waits longest a connection, or leave to open one; return whether a request waits."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return True
        return False

    def _kept(self, now_s: float) -> ServerConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and now_s - connection.idle_since_s < IDLE_S:
                return connection
            connection.close()
        return None

    async def _open(self, timeout_s: float) -> ServerConnection:
        try:
            check_host(self._origin.host)
        except OSError as error:
            raise RequestError(f"cannot connect: {error}") from None
        self._opening_count += 1
        opening = asyncio.get_running_loop().create_connection(
            ServerConnection, self._origin.host, self._origin.port, ssl=self._tls
        )
        try:
            _, connection = await asyncio.wait_for(opening, min(timeout_s, self._connect_timeout_s))
        except asyncio.TimeoutError:
            raise RequestTimeoutError("no connection in time") from None
        except OSError as error:
            raise RequestError(f"cannot connect: {reason_of(error)}") from error
        finally:
            self._opening_count -= 1
            self._wake(None)
        return connection

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()


def expire(waiter: asyncio.Future[ServerConnection | None]) -> None:
    if not waiter.done():
        waiter.set_exception(RequestTimeoutError("no connection in time"))


class ServerConnections:
    """Connections to servers, kept for the next request. connect_timeout_s: for connecting and TLS."""

    def __init__(self, connect_timeout_s: float) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._pools: dict[HttpAddress, ServerPool] = {}
        self._tls: ssl.SSLContext | None = None

    async def request(self, origin: HttpAddress, request: bytes, timeout_s: float) -> ServerResponse:
        """Send a request and return its response. Raises: RequestError."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        pool = self._pool(origin)
        while True:
            connection, is_used = await pool.take(deadline_s)
            try:
                response = await connection.exchange(request, deadline_s - loop.time())
            except StaleError:
                if is_used:
                    # The server has closed it while it was idle. The next one may be new.
                    continue
                raise
            finally:
                pool.give(connection)
            return response

    def _pool(self, origin: HttpAddress) -> ServerPool:
        pool = self._pools.get(origin)
        if pool is None:
            if origin.secure and self._tls is None:
                self._tls = ssl.create_default_context()
            tls = self._tls if origin.secure else None
            pool = self._pools[origin] = ServerPool(origin, self._connect_timeout_s, tls)
        return pool

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()


def reason_of(error: OSError) -> str:
    """Return the reason for a failed connection. asyncio names the address in the text, and errors of TLS have more."""
    if isinstance(error, ssl.SSLError) or error.errno is None:
        return str(error)
    with contextlib.suppress(ValueError, OverflowError):
        return os.strerror(error.errno)
    return str(error)
