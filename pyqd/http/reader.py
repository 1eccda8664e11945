"""Incremental parser of HTTP requests: no sockets, no clock, no waiting.

`feed` takes the bytes of a socket. Complete requests then stand in `ready`, in order. `state` describes the request
that is arriving:

    IDLE       between two requests
    HEADERS    a request has begun
    BODY       the headers are known, the body arrives; `wants_continue`: the client waits for leave to send the body
    CUT_SHORT  answer the request in `cut` as it is, then close the connection; nothing more is fed
    FAILED     the bytes are not HTTP, the status is in `failure`; nothing more is fed

A body is limited while it arrives: the headers determine the route and its limit, and bytes beyond the limit are
dropped. If the dropped rest is short it is read to its end, so that the connection can go on. A request with a longer
rest is cut short.

Invariants: 1. A request holds at most its route's limit of body. 2. The memory of a request besides its body is bounded
by the limit on headers, plus a multiple of the body's bytes for the headers of chunks.
"""

import dataclasses
import enum
from typing import Any

import httptools

from pyqd.http.messages import Request
from pyqd.http.router import Router

CHUNK_HEADER_BYTES_MAX = 16
DROPPED_BYTES_MAX = 256 * 1024
VERSIONS = ("1.0", "1.1")
CHUNKED_CODING = b"chunked"
# If one of these headers has two values, a proxy and the daemon may disagree on the end of the request or on its host.
SINGLE_HEADERS = frozenset((b"host", b"content-length", b"transfer-encoding", b"authorization"))


# A body gets one more second for so many bytes received.
BODY_BYTES_PER_S = 1024


@dataclasses.dataclass(frozen=True, slots=True)
class HttpSettings:
    """Settings of an HTTP server.

    idle_s, header_s, body_s, write_s: time for a peer's next request, for the headers of a request, for its body, and
    to read an answer. header_bytes_max: of one request. common_headers: lines that the responses of routes and errors
    carry, each with its CR LF; redirects, answers to OPTIONS and routes with common_headers=False go without.
    """

    idle_s: float = 300.0
    header_s: float = 30.0
    body_s: float = 60.0
    write_s: float = 60.0
    header_bytes_max: int = 64 * 1024
    common_headers: str = ""


DEFAULT_SETTINGS = HttpSettings()


class ReaderState(enum.IntEnum):
    """State of the reader; see the head of the module."""

    IDLE = 0
    HEADERS = 1
    BODY = 2
    CUT_SHORT = 3
    FAILED = 4


def head_without_upgrade(request: Request) -> bytes:
    """Return the bytes of a request's line and headers without the `Upgrade` header."""
    lines = [f"{request.method} {request.target} HTTP/{request.version}".encode()]
    lines += [name + b": " + value for name, value in request.headers.items() if name != b"upgrade"]
    return b"\r\n".join([*lines, b"", b""])


class RequestReader:
    """Reader of one connection's requests. The parser calls the methods `on_...`. header_bytes_max: of one request."""

    def __init__(self, router: Router, header_bytes_max: int = DEFAULT_SETTINGS.header_bytes_max) -> None:
        self._header_bytes_max = header_bytes_max
        self.state = ReaderState.IDLE
        self.ready: list[Request] = []
        self.wants_continue = False
        self.failure = 0
        self.cut: Request | None = None
        self._router = router
        self._parser: Any = httptools.HttpRequestParser(self)
        self._overhead_bytes = 0
        # Bytes of body received so far of the arriving request.
        self.body_bytes = 0
        self._fed_body_bytes = 0
        self._clear()

    def _clear(self) -> None:
        self._request: Request | None = None
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._header_bytes = 0
        self._limit_bytes = 0
        self._body: bytes | bytearray = b""
        self._dropped_bytes = 0

    def feed(self, data: memoryview) -> None:
        """Parse bytes. The reader copies the bytes that it keeps."""
        self._fed_body_bytes = 0
        rest: memoryview | None = data
        try:
            while rest is not None:
                rest = self._parse(rest)
        except httptools.HttpParserCallbackError:
            raise
        except httptools.HttpParserError:
            self._fail(400)
        # An upper bound, because one feed may hold the end of one request and the start of another.
        self._overhead_bytes += len(data) - self._fed_body_bytes
        if self._overhead_bytes > self._header_bytes_max + len(data) + CHUNK_HEADER_BYTES_MAX * self.body_bytes:
            self._fail(431)

    def _parse(self, data: memoryview) -> memoryview | None:
        """Parse bytes up to the end of a request that offers another protocol; return the bytes still to be parsed.

        The daemon speaks HTTP/1.1 only and ignores the offer. The parser takes such a request for the last one and does
        not read its body. So another parser begins with the same headers without `Upgrade`.
        """
        try:
            self._parser.feed_data(data)
            return None
        except httptools.HttpParserUpgrade as upgrade:
            # A request that was refused or cut short while it arrived is not in `ready`.
            if self.state != ReaderState.IDLE:
                return None
            if self.ready[-1].method == "CONNECT":
                self.ready[-1].keep_alive = False
                return None
            request = self.ready.pop()
            self._parser = httptools.HttpRequestParser(self)
            self._parser.feed_data(head_without_upgrade(request))
            return data[upgrade.args[0] :]

    @property
    def held_bytes(self) -> int:
        return len(self._body)

    def release(self) -> None:
        """Release the parser, which holds a reference to this object."""
        self._parser = None

    def _fail(self, status: int) -> None:
        if self.state < ReaderState.CUT_SHORT:
            self.state = ReaderState.FAILED
            self.failure = status

    def on_message_begin(self) -> None:
        self._clear()
        self._overhead_bytes = self.body_bytes = 0
        if self.state == ReaderState.IDLE:
            self.state = ReaderState.HEADERS

    def on_url(self, part: bytes) -> None:
        self._target += part
        self._count_header(len(part))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header. Trailers after a chunked body are dropped."""
        if self._request is None:
            key = name.lower()
            former = self._headers.get(key)
            if former is not None and key in SINGLE_HEADERS:
                self._fail(400)
            self._headers[key] = value if former is None else former + b", " + value
        self._count_header(len(name) + len(value))

    def _count_header(self, size_bytes: int) -> None:
        self._header_bytes += size_bytes
        if self._header_bytes > self._header_bytes_max:
            self._fail(431)

    def _is_ambiguous(self, version: str) -> bool:
        """Return whether a proxy may disagree with this parser about the end of the body. Source: RFC 9112, 6.1."""
        coding = self._headers.get(b"transfer-encoding")
        return coding is not None and (
            coding.lower() != CHUNKED_CODING or version != "1.1" or b"content-length" in self._headers
        )

    def on_headers_complete(self) -> None:
        """Find the route, which limits the body."""
        parser = self._parser
        version = parser.get_http_version()
        if (
            version not in VERSIONS
            or (version == "1.1" and b"host" not in self._headers)
            or self._is_ambiguous(version)
        ):
            self._fail(400)
        if self.state != ReaderState.HEADERS:
            return
        request = Request(
            parser.get_method().decode("ascii"),
            self._target.decode("ascii", "backslashreplace"),
            version,
            self._headers,
        )
        request.match = self._router.match(request)
        self._request = request
        self.state = ReaderState.BODY
        route = request.match.route
        self._limit_bytes = 0 if route is None else route.body_limit()
        if request.content_length > self._limit_bytes:
            request.body_too_big = True
            self._limit_bytes = 0
        # A client of HTTP/1.0 would take an interim answer for the final one. Source: RFC 9110, 10.1.1.
        expects = version == "1.1" and request.headers.get(b"expect", b"").lower() == b"100-continue"
        if expects and request.content_length != 0:
            if route is None or request.body_too_big:
                self._cut_short(request)
            self.wants_continue = self.state == ReaderState.BODY
        elif request.body_too_big and request.content_length > DROPPED_BYTES_MAX:
            self._cut_short(request)

    def on_body(self, part: bytes) -> None:
        """Append a part of the body, or drop the part beyond the limit."""
        self.wants_continue = False
        self.body_bytes += len(part)
        self._fed_body_bytes += len(part)
        request = self._request
        if request is None or self.state != ReaderState.BODY:
            return
        remaining = self._limit_bytes - len(self._body)
        if len(part) > remaining:
            request.body_too_big = True
            self._dropped_bytes += len(part) - remaining
            part = part[:remaining]
        if not self._body:
            self._body = part
        elif part:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += part
        if self._dropped_bytes > DROPPED_BYTES_MAX:
            self._cut_short(request)

    def on_message_complete(self) -> None:
        request = self._request
        if request is None or self.state != ReaderState.BODY:
            return
        request.body = bytes(self._body)
        request.complete = True
        request.keep_alive = self._parser.should_keep_alive()
        self.wants_continue = False
        self.ready.append(request)
        self._clear()
        self.state = ReaderState.IDLE

    def _cut_short(self, request: Request) -> None:
        request.body = bytes(self._body)
        self.cut = request
        self.state = ReaderState.CUT_SHORT
