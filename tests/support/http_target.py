"""An HTTP server in a thread that takes requests, answers as a test says, and remembers them."""

from __future__ import annotations

import http.server
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Taken:
    """Request that a target got. connection: its number, from 0."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int


@dataclass(frozen=True)
class Answer:
    """Answer of a target. closes: end the connection after it; is_silent: end it before.

    The connection also ends after a body that is not as long as its header Content-Length.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    closes: bool = False
    is_silent: bool = False


Answers = Callable[[Taken], Answer]


class Server(http.server.ThreadingHTTPServer):
    """A server whose clients may leave before they have read the answer."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        # No traceback for those: it parses source, and before CPython 3.11.8 a thread that does so disturbs another one
        # that does (gh-106905).
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class HttpTarget:
    """answer: returns the answer to a request. It is called by the threads of the connections."""

    def __init__(self, answer: Answers, context: ssl.SSLContext | None = None) -> None:
        self.requests: list[Taken] = []
        self.connection_count = 0
        self.answer = answer
        target = self

        class RequestHandler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.number = target.connection_count
                target.connection_count += 1

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                self.take(Taken(self.command, self.path, dict(self.headers.items()), body, self.number))

            def do_GET(self) -> None:
                self.do_POST()

            def take(self, taken: Taken) -> None:
                target.requests.append(taken)
                answer = target.answer(taken)
                if answer.is_silent:
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                length = str(len(answer.body))
                if "Content-Length" not in answer.headers:
                    self.send_header("Content-Length", length)
                self.end_headers()
                self.wfile.write(answer.body)
                self.close_connection |= answer.closes or answer.headers.get("Content-Length", length) != length

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), RequestHandler)
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port: int = self._server.server_address[1]
        self.address = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.address}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    @property
    def bodies(self) -> list[bytes]:
        return [taken.body for taken in self.requests]

    def stop(self) -> None:
        """Stop listening; open connections stay open."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def http_target(answer: Answers = lambda taken: Answer()) -> Iterator[HttpTarget]:
    target = HttpTarget(answer)
    try:
        yield target
    finally:
        target.stop()
