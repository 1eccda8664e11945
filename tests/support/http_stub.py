"""A small HTTP server in a thread that answers as a test says: a lookup daemon, or a broker that misbehaves."""

from __future__ import annotations

import http.server
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlsplit

# Status, headers, body; None: the connection is closed without an answer. If the headers have a Content-Length other
# than the body's, the connection is closed after the body.
Answer = tuple[int, dict[str, str], bytes] | None
Handler = Callable[[str, dict[str, str]], Answer]


class Server(http.server.ThreadingHTTPServer):
    """A server whose clients may leave before they have read the answer."""

    def handle_error(self, request: object, client_address: object) -> None:
        # No traceback for those: it parses source, and before CPython 3.11.8 a thread that does so disturbs another one
        # that does (gh-106905).
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class HttpStub:
    """answer: returns the answer to a path and its query.

    requests: the received requests, in order. tokens: their headers Authorization, or None.
    """

    def __init__(self, answer: Handler) -> None:
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.tokens: list[str | None] = []
        stub = self

        class RequestHandler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Headers and body are two writes: else the second one waits 40 ms for a delayed acknowledgement.
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                parts = urlsplit(self.path)
                query = dict(parse_qsl(parts.query))
                stub.tokens.append(self.headers.get("Authorization"))
                stub.requests.append((parts.path, query))
                found = answer(parts.path, query)
                if found is None:
                    self.close_connection = True
                    return
                status, headers, body = found
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if "Content-Length" not in headers:
                    self.send_header("Content-Length", str(len(body)))
                elif headers["Content-Length"] != str(len(body)):
                    self.close_connection = True
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), RequestHandler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening; open connections stay open."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def http_stub(answer: Handler) -> Iterator[HttpStub]:
    """Serve answers for a while."""
    stub = HttpStub(answer)
    try:
        yield stub
    finally:
        stub.stop()


def json_answer(shown: Any, status: int = 200) -> Answer:
    """Return an answer with a JSON body."""
    return status, {"Content-Type": "application/json"}, json.dumps(shown).encode()


def cut_off(answer: Answer, byte_count: int) -> Answer:
    """Return an answer whose connection ends after so many bytes of the body."""
    assert answer is not None
    status, headers, body = answer
    assert byte_count < len(body)
    return status, {**headers, "Content-Length": str(len(body))}, body[:byte_count]


def lookup_answers(producers_of: dict[str, list[str]]) -> Handler:
    """Return the answers of a lookup daemon that knows these topics, by HTTP addresses of their brokers."""

    def row(address: str) -> dict[str, object]:
        host, _, port = address.rpartition(":")
        return {
            "broadcast_address": host,
            "hostname": "h",
            "http_port": int(port),
            "tcp_port": int(port),
            "version": "1.3.0",
        }

    def answer(path: str, query: dict[str, str]) -> Answer:
        if path == "/lookup":
            if query["topic"] not in producers_of:
                return json_answer({"message": "TOPIC_NOT_FOUND"}, 404)
            return json_answer({"channels": [], "producers": list(map(row, producers_of[query["topic"]]))})
        if path == "/topics":
            return json_answer({"topics": list(producers_of)})
        if path == "/ping":
            return json_answer({})
        assert path == "/nodes", path
        addresses = dict.fromkeys(address for found in producers_of.values() for address in found)
        return json_answer({"producers": list(map(row, addresses))})

    return answer
