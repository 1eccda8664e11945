"""One HTTP connection: a greenlet that reads requests, has them answered in order and sends the answers.

The greenlet waits for the socket before each read, even when more bytes are already there, and for a turn between the
requests of one read if these take long. So every connection gets its turn. All connections read into one shared buffer,
which is free again before anything may switch. The answers to one read leave in one send; large ones leave in several,
with a yield to the event loop after each. The short path of the connection, if there is one, answers its requests
before they reach this module (pyx/http/front.pyx).

A connection that waits for its peer has a deadline, which progress moves. The server's sweep shuts the socket of a
connection past its deadline, which wakes the greenlet.

Source: docs/nsq/http-api.md, "Conventions".
"""

import contextlib
import logging
import math
import socket
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import gevent

from pyqd.hot.http.front import HttpFront, ShortPath
from pyqd.hot.net.buffers import note_change
from pyqd.http.messages import TEXT, Request, Response, render
from pyqd.http.reader import BODY_BYTES_PER_S, DEFAULT_SETTINGS, HttpSettings, ReaderState, RequestReader
from pyqd.http.router import Router
from pyqd.net.loop_driver import yield_to_loop
from pyqd.net.slice_queue import WRITE_EVENT, slice_queue_of
from pyqd.primitives.errors import reason_of

SENT_AT_ONCE_BYTES = 256 * 1024
LINGER_BYTES_MAX = 16 * 1024 * 1024

LINGER_S = 5.0

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
REASONS = {400: "Bad Request", 431: "Request Header Fields Too Large"}

logger = logging.getLogger(__name__)


class HttpConnection(HttpFront):
    """One HTTP connection.

    answer: returns the response to a request; may switch. remote: the peer's address as text. short_path: None if every
    request goes to the routes.
    """

    def __init__(
        self,
        connection: socket.socket,
        remote: str,
        router: Router,
        answer: Callable[[Request, str], Response],
        short_path: ShortPath | None = None,
        settings: HttpSettings = DEFAULT_SETTINGS,
    ) -> None:
        super().__init__(connection.fileno(), gevent.get_hub(), short_path)
        # Indexed by ReaderState.
        self.wait_s = (settings.idle_s, settings.header_s, settings.body_s, settings.write_s, settings.write_s)
        self.idle_s = settings.idle_s
        self.gone = False
        self.buffer_bytes = 0
        self.deadline_s = time.monotonic() + self.idle_s
        self.remote = remote
        self._socket = connection
        self._reader = RequestReader(router, settings.header_bytes_max)
        self._common_headers = settings.common_headers
        self._body_since_s = 0.0
        self._answer = answer
        self._hub = gevent.get_hub()
        self._slice_queue = slice_queue_of(self._hub)
        self._writable: Any = None
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0

    def run(self) -> None:
        """Serve the connection to its end. Switches: yes."""
        try:
            while self._serve_once():
                pass
        except ConnectionError:
            logger.debug("HTTP: lost the connection from %s", self.remote)
        except OSError as error:
            logger.warning("HTTP: the connection from %s failed: %s", self.remote, reason_of(error))
        finally:
            self._close()

    @property
    def is_answering(self) -> bool:
        """True while a handler works on a request, or sends a stream."""
        return math.isinf(self.deadline_s)

    def close_because(self, reason: str) -> None:
        logger.warning("HTTP: closing %s - %s", self.remote, reason)
        self.shut()

    def shut(self) -> None:
        """Shut the socket, so that the greenlet ends whatever it waits for."""
        self.gone = True
        self.close_short_path()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _close(self) -> None:
        self.close_front()
        if self._writable is not None:
            self._writable.close()
            self._writable = None
        self._reader.release()
        self._count_buffers(0)
        self._socket.close()

    def transport_bytes(self) -> int:
        """Return the memory of the layer between the connection and its socket."""
        return 0

    def _note_buffers(self, size_bytes: int) -> None:
        """Count the bytes of half-received requests and unsent answers."""
        self._count_buffers(size_bytes + self.transport_bytes())

    def _count_buffers(self, size_bytes: int) -> None:
        if size_bytes != self.buffer_bytes:
            note_change(size_bytes - self.buffer_bytes)
            self.buffer_bytes = size_bytes

    def _serve_once(self) -> bool:
        reader = self._reader
        before = reader.state
        data = self.next_bytes(before == ReaderState.IDLE)
        if self.unsent is not None:
            # Answers of the short path precede the ones to this read.
            self._put(self.unsent)
            self.unsent = None
        if data is None:
            self._send()
            return True
        if not data:
            return False
        reader.feed(data)
        state = reader.state
        # A slow header does not gain time with each of its bytes.
        if state != ReaderState.HEADERS or before != ReaderState.HEADERS or reader.ready:
            self.deadline_s = time.monotonic() + self.wait_s[state]
        if state == ReaderState.BODY:
            if before != ReaderState.BODY or reader.ready:
                self._body_since_s = time.monotonic()
            longest_s = self.wait_s[ReaderState.BODY] + reader.body_bytes / BODY_BYTES_PER_S
            self.deadline_s = min(self.deadline_s, self._body_since_s + longest_s)
        self._note_buffers(reader.held_bytes)
        goes_on = self._answer_ready()
        if goes_on and state >= ReaderState.CUT_SHORT:
            goes_on = self._refuse()
        elif goes_on and reader.wants_continue:
            reader.wants_continue = False
            self._put(CONTINUE)
        self._send()
        if not goes_on and state >= ReaderState.CUT_SHORT:
            self._linger()
        return goes_on

    def _answer_ready(self) -> bool:
        reader = self._reader
        if not reader.ready:
            return True
        requests, reader.ready = reader.ready, []
        for number, request in enumerate(requests, 1):
            self._put_answer(request)
            if not request.keep_alive:
                return False
            if self._unsent_bytes > SENT_AT_ONCE_BYTES:
                self._send()
                if number < len(requests):
                    yield_to_loop()
            elif number < len(requests):
                # Each may have made a topic, or refused something in the log.
                self._slice_queue.wait_if_busy()
        return True

    def _refuse(self) -> bool:
        """Answer a request that cannot go on: its body is too large, or the bytes are not HTTP."""
        request = self._reader.cut
        if request is not None:
            self._put_answer(request)
            return False
        status = self._reader.failure
        reason = f"{status} {REASONS[status]}"
        self._put(render(Response(status, reason.encode(), TEXT, common_headers=False)))
        return False

    def _put_answer(self, request: Request) -> None:
        deadline_s = self.deadline_s
        self.deadline_s = math.inf
        response = self._answer(request, self.remote)
        self.deadline_s = deadline_s
        if response.stream is not None and request.version != "1.1":
            request.keep_alive = False
        keep_alive = request.keep_alive and request.complete
        head_only = request.method == "HEAD"
        self._put(
            render(
                response,
                self._common_headers,
                version=request.version,
                keep_alive=keep_alive,
                body_left_out=head_only,
            )
        )
        if response.stream is not None:
            self._send_stream(response.stream, is_chunked=request.version == "1.1", head_only=head_only)
        elif not head_only:
            for piece in response.pieces:
                self._put(piece)

    def _send_stream(self, stream: Generator[bytes, None, None], *, is_chunked: bool, head_only: bool) -> None:
        """Send a body as it is made, each piece at once. Switches: yes. Raises: OSError if the client is gone."""
        with contextlib.closing(stream):
            for piece in () if head_only else stream:
                if piece:
                    self._put(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece)
                    self.deadline_s = time.monotonic() + self.wait_s[ReaderState.CUT_SHORT]
                    self._send()
                # The next piece takes as long as it takes.
                self.deadline_s = math.inf
        if is_chunked and not head_only:
            self._put(b"0\r\n\r\n")
        self.deadline_s = time.monotonic() + self.wait_s[ReaderState.CUT_SHORT]

    def _put(self, data: bytes) -> None:
        self._unsent.append(data)
        self._unsent_bytes += len(data)

    def _send(self) -> None:
        """Send the queued answers. Switches: when the socket is full, and between the sends of large answers."""
        while self._unsent:
            self._send_whole(self._take_unsent())
            if self._unsent:
                self._extend_deadline()
                yield_to_loop()

    def _take_unsent(self) -> memoryview:
        taken = [self._unsent.popleft()]
        size_bytes = len(taken[0])
        while self._unsent and size_bytes + len(self._unsent[0]) <= SENT_AT_ONCE_BYTES:
            taken.append(self._unsent.popleft())
            size_bytes += len(taken[-1])
        self._unsent_bytes -= size_bytes
        return memoryview(taken[0] if len(taken) == 1 else b"".join(taken))

    def _send_whole(self, data: memoryview) -> None:
        """Send all bytes. Switches: when the socket is full."""
        while True:
            with contextlib.suppress(BlockingIOError):
                data = data[self._socket.send(data) :]
            self._note_buffers(self._reader.held_bytes + self._unsent_bytes + len(data))
            if not data:
                return
            self._extend_deadline()
            if self._writable is None:
                self._writable = self._hub.loop.io(self._socket.fileno(), WRITE_EVENT)
            self._hub.wait(self._writable)

    def _extend_deadline(self) -> None:
        """Give the peer the whole time of a write from now on, as some bytes have been sent."""
        self.deadline_s = max(self.deadline_s, time.monotonic() + self.wait_s[ReaderState.CUT_SHORT])

    def _linger(self) -> None:
        """Read and drop the peer's bytes for LINGER_S: closing with unread bytes would reset the connection and could
        lose the answer.
        """
        self.deadline_s = time.monotonic() + LINGER_S
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        left_bytes = LINGER_BYTES_MAX
        while left_bytes > 0:
            data = self.next_bytes(False)
            if not data:
                return
            left_bytes -= len(data)
