"""A server that takes requests as a test says, and remembers them: the target of a tool that sends messages."""

from __future__ import annotations

import http.server
import socket
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
    """Answer of a target. closes: end the connection after it; silent: end it before."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    closes: bool = False
    is_silent: bool = False


Answers = Callable[[Taken], Answer]


class HttpTarget:
    """answer: returns the answer to a request. It is called by the threads of the connections."""

    def __init__(self, answer: Answers) -> None:
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
                self.take(Taken("POST", self.path, dict(self.headers.items()), body, self.number))

            def do_GET(self) -> None:
                self.take(Taken("GET", self.path, dict(self.headers.items()), b"", self.number))

            def take(self, taken: Taken) -> None:
                target.requests.append(taken)
                answer = target.answer(taken)
                if answer.is_silent:
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)
                self.close_connection |= answer.closes

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

        self._server = Server(("127.0.0.1", 0), RequestHandler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    @property
    def bodies(self) -> list[bytes]:
        """Bodies of the requests, in order."""
        return [taken.body for taken in self.requests]

    def stop(self) -> None:
        """Stop listening; open connections stay open."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def http_target(answer: Answers = lambda taken: Answer()) -> Iterator[HttpTarget]:
    """Take requests for a while."""
    target = HttpTarget(answer)
    try:
        yield target
    finally:
        target.stop()
