"""One HTTP connection: a greenlet that reads, has requests answered in order, and sends.

It waits for the socket before each read, even when more is there already: so each connection gets its turn, and what
one read brings bounds the work of a turn. All read into one buffer, which is free again before anything may switch. The
answers of one read leave in one send, or in several where they are large.

Whenever a connection waits for its peer it has a deadline, moved by progress; a sweep of the server's shuts the socket
of those that are past it, which wakes the greenlet.

Source: spec of the HTTP API, "Conventions".
"""

import contextlib
import logging
import math
import socket
import time
from collections.abc import Callable
from typing import Any

import gevent

from pyqd.services.http_messages import TEXT, Request, Response, render
from pyqd.services.http_reader import RequestReader, State
from pyqd.services.http_router import Router

READ_EVENT = 1
WRITE_EVENT = 2
READ_BYTES = 64 * 1024
SENT_AT_ONCE_BYTES = 256 * 1024
LINGER_BYTES_MAX = 16 * 1024 * 1024

IDLE_S = 300.0
HEADERS_S = 30.0
BODY_S = 60.0
SEND_S = 60.0
LINGER_S = 5.0

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
REASONS = {400: "Bad Request", 431: "Request Header Fields Too Large"}

_buffer = memoryview(bytearray(READ_BYTES))

logger = logging.getLogger(__name__)


class HttpConnection:
    """One connection. answer: returns the response to a request; may switch. remote: the peer's address as text."""

    # How long to wait for the peer, by State.
    wait_s: tuple[float, ...] = (IDLE_S, HEADERS_S, BODY_S, SEND_S, SEND_S)

    def __init__(
        self, connection: socket.socket, remote: str, router: Router, answer: Callable[[Request, str], Response]
    ) -> None:
        self.deadline_s = time.monotonic() + self.wait_s[State.IDLE]
        self.remote = remote
        self._socket = connection
        self._reader = RequestReader(router)
        self._answer = answer
        self._hub = gevent.get_hub()
        self._readable: Any = self._hub.loop.io(connection.fileno(), READ_EVENT)
        self._writable: Any = None
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0

    def run(self) -> None:
        """Serve the connection to its end. Switches: yes."""
        try:
            while self._serve_once():
                pass
        except ConnectionError:
            logger.debug("HTTP: the connection of %s broke", self.remote)
        except OSError as error:
            logger.warning("HTTP: the connection of %s failed - %s", self.remote, error)
        finally:
            self._close()

    def shut(self) -> None:
        """Make the greenlet end, whatever it waits for."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _close(self) -> None:
        for watcher in (self._readable, self._writable):
            if watcher is not None:
                watcher.close()
        self._readable = self._writable = None
        self._reader.release()
        self._socket.close()

    def _serve_once(self) -> bool:
        """Read once, and answer what is whole. Returns: whether the connection goes on."""
        count = self._wait_read()
        if count == 0:
            return False
        reader = self._reader
        before = reader.state
        reader.feed(_buffer[:count])
        state = reader.state
        # A slow header does not get more time by each of its bytes.
        if state != State.HEADERS or before != State.HEADERS or reader.ready:
            self.deadline_s = time.monotonic() + self.wait_s[state]
        goes_on = self._answer_ready()
        if goes_on and state >= State.CUT_SHORT:
            goes_on = self._refuse()
        elif goes_on and reader.wants_continue:
            reader.wants_continue = False
            self._put(CONTINUE)
        self._send()
        if not goes_on and state >= State.CUT_SHORT:
            self._linger()
        return goes_on

    def _answer_ready(self) -> bool:
        reader = self._reader
        if not reader.ready:
            return True
        requests, reader.ready = reader.ready, []
        for request in requests:
            self._put_answer(request)
            if not request.keep_alive:
                return False
            if self._unsent_bytes > SENT_AT_ONCE_BYTES:
                self._send()
                gevent.sleep(0)
        return True

    def _refuse(self) -> bool:
        """Answer what cannot go on: a request with too much body, or what is no request at all."""
        request = self._reader.cut
        if request is not None:
            self._put_answer(request)
            return False
        status = self._reader.failure
        reason = f"{status} {REASONS[status]}"
        self._put(render(Response(status, reason.encode(), TEXT, versioned=False)))
        return False

    def _put_answer(self, request: Request) -> None:
        deadline_s = self.deadline_s
        self.deadline_s = math.inf
        response = self._answer(request, self.remote)
        self.deadline_s = deadline_s
        keep_alive = request.keep_alive and request.complete
        self._put(
            render(
                response,
                version=request.version,
                keep_alive=keep_alive,
                body_left_out=request.method == "HEAD",
            )
        )

    def _put(self, data: bytes) -> None:
        self._unsent.append(data)
        self._unsent_bytes += len(data)

    def _wait_read(self) -> int:
        """Read into the shared buffer. Returns: how many bytes, 0 at the end. Switches: yes, before reading."""
        while True:
            self._hub.wait(self._readable)
            try:
                return self._socket.recv_into(_buffer)
            except BlockingIOError:
                continue

    def _send(self) -> None:
        """Send what is to be sent. Switches: where the socket is full."""
        if not self._unsent:
            return
        data = memoryview(self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent))
        self._unsent = []
        self._unsent_bytes = 0
        while True:
            with contextlib.suppress(BlockingIOError):
                data = data[self._socket.send(data) :]
            if not data:
                return
            self.deadline_s = max(self.deadline_s, time.monotonic() + SEND_S)
            if self._writable is None:
                self._writable = self._hub.loop.io(self._socket.fileno(), WRITE_EVENT)
            self._hub.wait(self._writable)

    def _linger(self) -> None:
        """Read on and drop for a moment: closing with unread bytes would reset, and the answer might be lost."""
        self.deadline_s = time.monotonic() + LINGER_S
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        left_bytes = LINGER_BYTES_MAX
        while left_bytes > 0:
            count = self._wait_read()
            if count == 0:
                return
            left_bytes -= count
