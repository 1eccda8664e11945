"""Requests and responses: plain values, no sockets.

Source: docs/nsq/http-api.md, "Conventions".
"""

import dataclasses
import functools
import http
import json
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from email.utils import formatdate
from typing import Any, Final, NamedTuple

from pyqd.http.query import UrlQuery
from pyqd.primitives.errors import StorageError

JSON: Final = "application/json; charset=utf-8"
TEXT: Final = "text/plain; charset=utf-8"
OCTETS: Final = "application/octet-stream"
PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
HTML: Final = "text/html; charset=utf-8"
CHUNKED: Final = -1
# A length of 0 would be that of the page which the client has.
WITHOUT_BODY: Final = (204, 304)

_STATUS_LINES = {status.value: f"{status.value} {status.phrase}" for status in http.HTTPStatus}


class HttpError(Exception):
    """Refusal of a request: a status, and one of nsqd's codes, which becomes the body `{"message":"CODE"}`."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(status, code)
        self.status = status
        self.code = code


class Response:
    """A status, a body and its type.

    content_type None: the body is empty. headers: further ones, as (name, value).
    common_headers: it carries the headers common to the server's responses. pieces: the rest of the body. A large body
    comes in pieces, because one copy of it would hold the event loop. stream: the body instead, if its length is not
    known yet; it may switch between its pieces.
    """

    __slots__ = ("body", "common_headers", "content_type", "headers", "pieces", "status", "stream")

    def __init__(
        self,
        status: int,
        body: bytes = b"",
        content_type: str | None = None,
        headers: tuple[tuple[str, str], ...] = (),
        common_headers: bool = True,
        pieces: Sequence[bytes] = (),
        stream: Generator[bytes, None, None] | None = None,
    ) -> None:
        self.status = status
        self.stream = stream
        self.body = body
        self.pieces = pieces
        self.content_type = content_type
        self.headers = headers
        self.common_headers = common_headers


def text_response(text: str, status: int = 200) -> Response:
    """Return a response whose body is the text itself, without quotes."""
    return Response(status, text.encode(errors="backslashreplace"), TEXT)


def json_response(value: Any, status: int = 200) -> Response:
    """Return a response whose body is the value as JSON without spaces."""
    return Response(status, to_json(value), JSON)


def error_response(error: HttpError, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """Return the response for an error, with nsqd's JSON body."""
    return Response(error.status, to_json({"message": error.code}), JSON, headers)


def storage_refusal(error: StorageError) -> HttpError:
    """Return the refusal of a request that the disk or a quota has refused."""
    return HttpError(503, f"STORAGE_FAILED: {error}")


def to_json(value: Any) -> bytes:
    """Return JSON without spaces, in ASCII."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


class Request:
    """One request, complete or cut short.

    target: as received. path: of the target, as received. content_length: of the body as announced, or CHUNKED. body:
    at most the route's limit. body_too_big: the body is longer than the limit; the rest was dropped. complete: the body
    has been read to its end. keep_alive: the client means to send another request. remote: address of the client.
    """

    __slots__ = (
        "_query",
        "body",
        "body_too_big",
        "complete",
        "content_length",
        "headers",
        "keep_alive",
        "match",
        "method",
        "path",
        "query_text",
        "remote",
        "target",
        "version",
    )

    match: "Match"

    def __init__(self, method: str, target: str, version: str, headers: dict[bytes, bytes]) -> None:
        self.method = method
        self.target = target
        self.version = version
        self.headers = headers
        self.path, _, self.query_text = target.partition("?")
        self.content_length = CHUNKED if b"transfer-encoding" in headers else int(headers.get(b"content-length", 0))
        self.body = b""
        self.body_too_big = False
        self.complete = False
        self.keep_alive = False
        self.remote = ""
        self._query: UrlQuery | None = None

    def query(self) -> UrlQuery:
        """Return the parameters of the query. Raises: HttpError 400 INVALID_REQUEST for malformed ones."""
        if self._query is None:
            try:
                self._query = UrlQuery(self.query_text)
            except ValueError:
                raise HttpError(400, "INVALID_REQUEST") from None
        return self._query


Handler = Callable[[Request], Response]


@dataclasses.dataclass(frozen=True)
class Route:
    """A method and a path, with the handler of their requests.

    handler: raises HttpError to refuse; may switch. body_limit: returns how many bytes of body the handler takes,
    by default none; the rest is dropped on arrival. common_headers: the responses carry the server's common
    headers. logged: requests are logged. right: the right that a login must grant; if the server has logins, a
    route without a right refuses every request. topics, channel: parameters of the query that name the topics and
    the channel which the handler touches; a login decides by these and by no other. Without `topics` the right must
    be granted on everything, without `channel` on all channels. any_site: pages of other sites may call the route,
    by any name of the server.
    """

    method: str
    path: str
    handler: Handler
    body_limit: Callable[[], int] = int
    common_headers: bool = True
    logged: bool = True
    right: str = ""
    topics: tuple[str, ...] = ()
    channel: str = ""
    any_site: bool = False


class Match(NamedTuple):
    """Result of a look-up: a route, or the answer if there is none. argument: the value of the path's parameter."""

    route: Route | None
    answer: Response | None = None
    argument: str = ""
    logged: bool = True


@functools.lru_cache(1)
def date_line(second: int) -> str:
    """Return the Date header for a second of Unix time. Many responses share a second."""
    return f"Date: {formatdate(second, usegmt=True)}\r\n"


def header_lines(headers: Iterable[tuple[str, str]]) -> str:
    """Return headers, (name, value) each, as the lines of a response."""
    return "".join(f"{name}: {value}\r\n" for name, value in headers)


def render(
    response: Response,
    common_headers: str = "",
    *,
    version: str = "1.1",
    keep_alive: bool = False,
    body_left_out: bool = False,
) -> bytes:
    """Return the bytes of a response, without the pieces that follow.

    common_headers: lines for a response that carries them. version: the request's HTTP version.
    body_left_out: for the answer to HEAD, which has headers only.
    """
    lines = f"HTTP/{version} {_STATUS_LINES[response.status]}\r\n"
    if response.content_type is not None:
        lines += f"Content-Type: {response.content_type}\r\n"
    if response.common_headers:
        lines += common_headers
    lines += header_lines(response.headers)
    if not keep_alive:
        lines += "Connection: close\r\n"
    elif version == "1.0":
        lines += "Connection: keep-alive\r\n"
    lines += date_line(int(time.time()))
    if response.stream is not None:
        # HTTP/1.0 has no chunks: the body ends with the connection.
        lines += "Transfer-Encoding: chunked\r\n" if version == "1.1" else ""
    elif response.status not in WITHOUT_BODY:
        lines += f"Content-Length: {len(response.body) + sum(map(len, response.pieces))}\r\n"
    lines += "\r\n"
    head = lines.encode("latin-1", "replace")
    return head if body_left_out else head + response.body
