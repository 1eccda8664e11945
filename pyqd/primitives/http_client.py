"""HTTP connection that all HTTP clients of the product stand on. Needs only the standard library.

`HttpConnection` keeps one connection between requests; `fetch` asks a URL once and follows redirects. Both bound an
answer's bytes and, if wanted, its time. Sockets come from a module with the interface of `socket`: those of
gevent.socket let a request wait in its greenlet alone.
"""

from __future__ import annotations

import errno
import http.client
import io
import socket
import ssl
import struct
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, urljoin, urlsplit, urlunsplit

from pyqd.primitives.addresses import check_host, reaches_itself
from pyqd.primitives.nsq_compat import https_port_in

# A connection that was idle for longer is not reused: the other side may be closing it.
IDLE_LONGEST_S: Final = 5.0
ANSWER_BYTES_MAX: Final = 256 << 20
REDIRECTS_MAX: Final = 10
# Redirects after which a POST stays one. Source: RFC 9110, 15.4.
REPEATED: Final = (307, 308)
REDIRECTS: Final = (301, 302, 303, *REPEATED)
PORTS: Final = {"http": 80, "https": 443}
NONE: Final[Mapping[str, str]] = MappingProxyType({})


class Reply(NamedTuple):
    """An answer: status, headers with lower-case names, body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpAddress(NamedTuple):
    """Host and port, and whether they speak TLS; or the path of a unix socket, and then host and port are for show."""

    host: str
    port: int
    secure: bool
    path: str | None = None


class AnswerTooLongError(http.client.HTTPException):
    """An answer has more bytes than the client takes."""


class LateAnswerError(TimeoutError):
    """An answer did not end in time, though its bytes may still be coming."""


class _AnswerReader(io.RawIOBase):
    """Bytes of one answer until a deadline, in seconds of the monotonic clock. Stands for the socket in http.client.

    The timeout of a socket begins again with each byte, so that a slow answer would never end.
    """

    def __init__(self, sock: socket.socket, timeout_s: float | None, within_s: float) -> None:
        self._sock = sock
        self._raw: Any = sock.makefile("rb", 0)
        self._timeout_s = timeout_s
        self._within_s = within_s
        self._deadline_s = time.monotonic() + within_s

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._deadline_s - time.monotonic()
        try:
            if left_s <= 0:
                raise TimeoutError
            self._sock.settimeout(left_s if self._timeout_s is None else min(left_s, self._timeout_s))
            count: int | None = self._raw.readinto(buffer)
        except TimeoutError:
            if self._timeout_s is None or left_s <= self._timeout_s:
                raise LateAnswerError(f"no whole answer within {self._within_s:g} s") from None
            raise
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class HttpClientConnection:
    """Connection to one server, kept between requests and opened again when it was closed or idle for too long.

    new_context: makes the TLS context. timeout_s: without progress; None for no limit. connect_timeout_s: of
    connecting, if it differs. bytes_max: of an answer's body. sockets: module like `socket`. check_peer: called with
    the host of the address, and with the IP address of the peer; raises an exception to refuse it.
    """

    def __init__(
        self,
        address: HttpAddress,
        *,
        new_context: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        timeout_s: float | None = None,
        connect_timeout_s: float | None = None,
        bytes_max: int = ANSWER_BYTES_MAX,
        sockets: ModuleType = socket,
        check_peer: Callable[[str], None] = lambda _host: None,
    ) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self._new_context = new_context
        self._connect_timeout_s = timeout_s if connect_timeout_s is None else connect_timeout_s
        self._bytes_max = bytes_max
        self._sockets: Any = sockets
        self._check_peer = check_peer
        self._http: http.client.HTTPConnection | None = None
        self._used_s = 0.0

    def __enter__(self) -> HttpClientConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        return self._http is not None and self._http.sock is not None

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    def open(self) -> bool:
        """Connect, unless a connection is kept. Returns: True for a new one. Raises: OSError, HostNameError."""
        if not self.is_open or time.monotonic() - self._used_s > IDLE_LONGEST_S:
            self.close()
        if self._http is not None:
            return False
        address = self.address
        context = self._new_context() if address.secure else None
        if address.path is not None:
            connection = http.client.HTTPConnection("localhost")
        elif context is not None:
            connection = http.client.HTTPSConnection(address.host, address.port, context=context)
        else:
            connection = http.client.HTTPConnection(address.host, address.port)
        # Otherwise http.client would connect by itself after an answer that has closed the connection.
        connection.auto_open = 0
        connection.sock = self._connected(context)
        self._http = connection
        self._used_s = time.monotonic()
        return True

    def _connected(self, context: ssl.SSLContext | None) -> socket.socket:
        """Return a socket that is connected to the server. Raises: OSError."""
        host, port, _, path = self.address
        sock: socket.socket
        if path is not None:
            sock = self._sockets.socket(socket.AF_UNIX)
        else:
            check_host(host)
            self._check_peer(host)
            sock = self._sockets.create_connection((host, port), self._connect_timeout_s)
        try:
            if path is not None:
                sock.settimeout(self._connect_timeout_s)
                sock.connect(path)
            else:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                refuse_own(sock)
                # A name may lead anywhere, and elsewhere each time that it is resolved.
                self._check_peer(sock.getpeername()[0])
            if context is not None:
                sock = context.wrap_socket(sock, server_hostname=host)
        except BaseException:
            sock.close()
            raise
        return sock

    def exchange(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: Mapping[str, str] = NONE,
        *,
        within_s: float | None = None,
    ) -> Reply:
        """Send a request on the open connection and return the answer. within_s: limit for the whole answer.

        Raises: OSError, also LateAnswerError; http.client.HTTPException, also AnswerTooLongError, and NotConnected
        without an open connection. The connection is closed then.
        """
        connection = self._http
        if connection is None or not self.is_open:
            raise http.client.NotConnected
        try:
            connection.sock.settimeout(self.timeout_s)
            kind: Any = http.client.HTTPResponse
            if within_s is not None:
                reader: Any = _AnswerReader(connection.sock, self.timeout_s, within_s)
                # http.client makes the file of an answer from the socket that it gives here.
                kind = lambda _sock, **options: http.client.HTTPResponse(reader, **options)  # noqa: E731
            connection.response_class = kind
            connection.request(method, target, body=body, headers=headers)
            answer = connection.getresponse()
            data = read_body(answer, self._bytes_max)
        except BaseException:
            self.close()
            raise
        if len(data) > self._bytes_max:
            self.close()
            raise AnswerTooLongError(f"an answer of more than {self._bytes_max} bytes")
        self._used_s = time.monotonic()
        return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, data)


def read_body(answer: http.client.HTTPResponse, bytes_max: int) -> bytes:
    """Return the body of an answer, or its first `bytes_max + 1` bytes if it is longer.

    Raises: OSError; http.client.HTTPException, such as IncompleteRead if the connection ends before the body does.
    """
    data = answer.read(bytes_max + 1)
    # http.client checks the announced length only in a read without an amount.
    if len(data) <= bytes_max and answer.length:
        raise http.client.IncompleteRead(data, answer.length)
    return data


def refuse_own(connection: socket.socket) -> None:
    """Close a connection that has reached its own socket, so that its port is free at once. Raises: OSError."""
    if not reaches_itself(connection):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    raise ConnectionRefusedError(errno.ECONNREFUSED, "no process listens: the connection has reached its own socket")


def fetch(
    url: str,
    body: bytes | None = None,
    headers: Mapping[str, str] = NONE,
    *,
    private: Mapping[str, str] = NONE,
    redirects_max: int = REDIRECTS_MAX,
    takes_https: bool = False,
    within_s: float | None = None,
    **options: Any,
) -> Reply:
    """Send a GET, or a POST of a body, and return the answer, whatever its status.

    private: headers for the server of the URL alone. redirects_max: answers that lead elsewhere; 0 returns the first.
    takes_https: repeat by HTTPS if the server refuses plain HTTP and names its port of HTTPS. options: as in
    HttpClientConnection. Raises: as HttpClientConnection.exchange; ValueError for a URL that cannot be requested.
    """
    first = None
    redirect_count = 0
    while True:
        parts = urlsplit(url)
        address = _address_of(parts)
        first = first or address
        sent = {**headers, **private} if address == first else headers
        target = urlunsplit(("", "", parts.path or "/", parts.query, ""))
        with HttpClientConnection(address, **options) as connection:
            connection.open()
            reply = connection.exchange("GET" if body is None else "POST", target, body, sent, within_s=within_s)
        location = reply.headers.get("location", "")
        if redirects_max and location and reply.status in REDIRECTS:
            redirect_count += 1
            if redirect_count == redirects_max:
                raise http.client.HTTPException(f"stopped after {redirects_max} redirects")
            url = urljoin(url, location)
            if reply.status not in REPEATED:
                body = None
            continue
        port = 0
        if takes_https and reply.status == http.client.FORBIDDEN and not address.secure:
            port = https_port_in(reply.body)
        if not port:
            return reply
        host = f"[{address.host}]" if ":" in address.host else address.host
        url = urlunsplit(("https", f"{host}:{port}", parts.path, parts.query, ""))


def _address_of(parts: SplitResult) -> HttpAddress:
    """Return the server of a URL. Raises: ValueError."""
    if parts.scheme not in PORTS or not parts.hostname:
        raise ValueError(f'unsupported URL "{parts.geturl()}"')
    return HttpAddress(parts.hostname, parts.port or PORTS[parts.scheme], parts.scheme == "https")
