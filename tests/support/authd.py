"""An auth server for tests: HTTP on a loopback port, in a thread, whose answers a test changes as it goes."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit


class Query(NamedTuple):
    """One request: method, path without the query, the values by name, the headers, and the query as it came."""

    method: str
    path: str
    values: dict[str, list[str]]
    headers: dict[str, str]
    raw: str

    @property
    def secret(self) -> str:
        return self.values["secret"][0]


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


def entry(
    topic: str = ".*", channels: tuple[str, ...] = (".*",), permissions: str = "subscribe publish"
) -> dict[str, Any]:
    """Return one authorization."""
    return {"topic": topic, "channels": list(channels), "permissions": permissions.split()}


def state(*entries: dict[str, Any], ttl: Any = 3600, identity: str = "bob", identity_url: str = "http://bob") -> Answer:
    """Return an answer with these authorizations."""
    answer = {"ttl": ttl, "identity": identity, "identity_url": identity_url, "authorizations": list(entries)}
    return Answer(200, json.dumps(answer).encode())


class AuthServer:
    """answer: called with each query in a thread; it may wait until `released` is set."""

    def __init__(self, answer: Callable[[Query], Answer] | None = None, context: ssl.SSLContext | None = None) -> None:
        self.answer = answer or (lambda _query: state(entry()))
        self.queries: list[Query] = []
        self.released = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer._serve(self, parse_qs(urlsplit(self.path).query, keep_blank_values=True))

            def do_POST(self) -> None:
                outer._serve(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _serve(self, handler: BaseHTTPRequestHandler, values: dict[str, list[str]]) -> None:
        parts = urlsplit(handler.path)
        headers = {name.lower(): value for name, value in handler.headers.items()}
        query = Query(handler.command, parts.path, values, headers, parts.query)
        self.queries.append(query)
        status, body, more = self.answer(query)
        handler.send_response(status)
        for name, value in more:
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def stop(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
