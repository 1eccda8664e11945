"""HTTP client that queries the auth servers in the greenlet of the client; the event loop keeps running.

The HTTP client is Python's own on gevent's sockets. Each query has a connection of its own, as nsqd's have.

Source: docs/nsq/tcp-protocol.md, "Authorisation".
"""

import http.client
import json
import random
from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult, urlencode, urljoin, urlsplit, urlunsplit

import gevent
import gevent.socket
import gevent.ssl

from pyqd import __version__
from pyqd.config.options import PROGRAM, TLS_VERSIONS, Options
from pyqd.primitives.addresses import check_host
from pyqd.primitives.durations import SECOND_NS
from pyqd.primitives.errors import StartupError, reason_of
from pyqd.primitives.goquote import go_quote
from pyqd.primitives.http_body import read_body
from pyqd.primitives.nsq_compat import https_port_in
from pyqd.tcp.permissions import BadAnswer, Permissions, decode_permissions

METHODS: Final = ("get", "post")
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
SHOWN_BYTES_MAX: Final = 512
REDIRECTS_MAX: Final = 10
REDIRECTS: Final = (301, 302, 303, 307, 308)
KEEPING_THE_METHOD: Final = (307, 308)


class AuthError(Exception):
    """No auth server gave a valid answer. str() gives the reasons, which are logged and not sent to the client."""


class _TimedOut(Exception):  # noqa: N818 - an outcome, not an error
    pass


class AuthServers:
    """Auth servers given by the flags. Raises: StartupError if --auth-http-request-method is invalid."""

    def __init__(self, options: Options) -> None:
        self.addresses = options.auth_http_address
        self.uses_post = options.auth_http_request_method == "post"
        self.connect_s = seconds(options.http_client_connect_timeout_ns)
        self.request_s = seconds(options.http_client_request_timeout_ns)
        self.options = options
        self._context: gevent.ssl.SSLContext | None = None
        if options.auth_http_request_method not in METHODS:
            raise StartupError(f"failed to instantiate {PROGRAM} - --auth-http-request-method must be post or get")

    @property
    def enabled(self) -> bool:
        """Return whether the flags name an auth server."""
        return bool(self.addresses)

    def reload(self) -> None:
        """Re-read the certificate authorities before the next query over HTTPS."""
        self._context = None

    def ask(self, secret: bytes, remote_ip: str, *, tls: bool, common_name: str) -> Permissions:
        """Return the permissions of a client. Raises: AuthError. Switches: yes.

        The servers are queried in order, beginning with a random one, until one gives a valid answer. remote_ip: empty
        for a unix socket. common_name: of the client's certificate, or empty.
        """
        values = {"common_name": common_name, "remote_ip": remote_ip, "tls": "true" if tls else "false"}
        failures = []
        start = random.randrange(len(self.addresses))
        for address in self.addresses[start:] + self.addresses[:start]:
            try:
                return decode_permissions(self._query(endpoint_of(address), values, secret))
            except (OSError, http.client.HTTPException, BadAnswer, _TimedOut, ValueError) as error:
                failures.append(f"failed to auth against {address} - {reason_of(error)}")
        raise AuthError("; ".join(failures))

    def _query(self, url: str, values: Mapping[str, str], secret: bytes) -> bytes:
        """Return the answer of one server, by HTTPS if the server refuses plain HTTP and names its HTTPS port."""
        text = urlencode(sorted([*values.items(), ("secret", secret)]))
        body = None
        if self.uses_post:
            fields = {**values, "secret": secret.decode("utf-8", "replace")}
            body = json.dumps({key: [value] for key, value in sorted(fields.items())}, separators=(",", ":")).encode()
        else:
            url = f"{url}?{text}"
        status, answer = self._request(url, body)
        if status == 403 and not url.startswith("https"):
            status, answer = self._request(https_url(url, answer), body)
        if status != 200:
            raise BadAnswer(f"got response {status} {quoted_start(answer)}")
        return answer

    def _request(self, url: str, body: bytes | None) -> tuple[int, bytes]:
        """Send a request and follow redirects. Returns: status and body. Raises: the exceptions that `ask` catches."""
        with gevent.Timeout(self.request_s, _TimedOut("the request timed out")):
            for _ in range(REDIRECTS_MAX):
                status, location, answer = self._exchange(urlsplit(url), body)
                if status not in REDIRECTS or not location:
                    return status, answer
                url = urljoin(url, location)
                if status not in KEEPING_THE_METHOD:
                    body = None
        raise BadAnswer(f"stopped after {REDIRECTS_MAX} redirects")

    def _exchange(self, url: SplitResult, body: bytes | None) -> tuple[int, str, bytes]:
        headers = {"Accept": "application/vnd.nsq; version=1.0", "User-Agent": f"{PROGRAM}/{__version__}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection = self._connection(url)
        try:
            target = urlunsplit(("", "", url.path or "/", url.query, ""))
            connection.request("GET" if body is None else "POST", target, body, headers)
            response = connection.getresponse()
            answer = read_body(response, ANSWER_BYTES_MAX)
            if len(answer) > ANSWER_BYTES_MAX:
                raise BadAnswer(f"the answer has more than {ANSWER_BYTES_MAX} bytes")
            return response.status, response.headers.get("Location", ""), answer
        finally:
            connection.close()

    def _connection(self, url: SplitResult) -> http.client.HTTPConnection:
        """Return a connection to the server of a URL, connected."""
        if url.scheme not in ("http", "https") or not url.hostname:
            raise BadAnswer(f'unsupported URL "{url.geturl()}"')
        port = url.port or (443 if url.scheme == "https" else 80)
        connection = http.client.HTTPConnection(url.hostname, port)
        with gevent.Timeout(self.connect_s, _TimedOut("connecting timed out")):
            check_host(url.hostname)
            sock = gevent.socket.create_connection((url.hostname, port))
        if url.scheme == "https":
            try:
                sock = self._tls_context().wrap_socket(sock, server_hostname=url.hostname)
            except BaseException:
                sock.close()
                raise
        connection.sock = sock
        return connection

    def _tls_context(self) -> gevent.ssl.SSLContext:
        """Return the TLS context that verifies servers: by the authorities of --tls-root-ca-file, or the system's."""
        if self._context is not None:
            return self._context
        context = gevent.ssl.create_default_context(cafile=self.options.tls_root_ca_file or None)
        version = max(self.options.tls_min_version, TLS_VERSIONS["tls1.2"])
        context.minimum_version = gevent.ssl.TLSVersion(version)
        self._context = context
        return context


def seconds(time_ns: int) -> float | None:
    """Return a timeout in seconds, or None for 0, which means no timeout."""
    return time_ns / SECOND_NS if time_ns > 0 else None


def endpoint_of(address: str) -> str:
    """Return the URL for a value of --auth-http-address: an address gets the path /auth."""
    return address if "://" in address else f"http://{address}/auth"


def quoted_start(answer: bytes) -> str:
    """Return the start of an answer in double quotes."""
    return go_quote(answer[:SHOWN_BYTES_MAX]).decode()


def https_url(url: str, answer: bytes) -> str:
    """Return the URL by HTTPS on the port that a refusal names. Raises: BadAnswer."""
    port = https_port_in(answer)
    if not port:
        raise BadAnswer(f"got response 403 {quoted_start(answer)}")
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return urlunsplit(("https", f"{host}:{port}", parts.path, parts.query, ""))
