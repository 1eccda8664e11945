"""HTTP client that queries the auth servers in the greenlet of the client; the event loop keeps running.

Each query has a connection of its own, as nsqd's have.

Source: docs/nsq/tcp-protocol.md, "Authorisation".
"""

import http.client
import importlib.util
import json
import random
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode

import gevent
import gevent.socket
import gevent.ssl

from pyqd import __version__
from pyqd.config.options import PROGRAM, TLS_VERSIONS, Options
from pyqd.primitives.durations import SECOND_NS
from pyqd.primitives.errors import StartupError, reason_of
from pyqd.primitives.goquote import go_quote
from pyqd.primitives.http_client import fetch
from pyqd.tcp.permissions import BadAnswer, Permissions, decode_permissions

METHODS: Final = ("get", "post")
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
SHOWN_BYTES_MAX: Final = 512
HEADERS: Final = {"Accept": "application/vnd.nsq; version=1.0", "User-Agent": f"{PROGRAM}/{__version__}"}


class AuthError(Exception):
    """No auth server gave a valid answer. str() gives the reasons, which are logged and not sent to the client."""


class AuthServers:
    """Auth servers given by the flags.

    Raises: StartupError if --auth-http-request-method is invalid, or a package is missing.
    """

    def __init__(self, options: Options) -> None:
        self.addresses = options.auth_http_address
        self.uses_post = options.auth_http_request_method == "post"
        self.connect_s = seconds(options.http_client_connect_timeout_ns)
        self.request_s = seconds(options.http_client_request_timeout_ns)
        self.options = options
        self._context: gevent.ssl.SSLContext | None = None
        if options.auth_http_request_method not in METHODS:
            raise StartupError(f"failed to instantiate {PROGRAM} - --auth-http-request-method must be post or get")
        # The patterns in answers are RE2's, which loads with the first answer.
        if self.enabled and importlib.util.find_spec("re2") is None:
            raise StartupError("--auth-http-address needs the package google-re2: pip install 'pyqd[re2]'")

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
                url = address if "://" in address else f"http://{address}/auth"
                return decode_permissions(self._query(url, values, secret))
            except (OSError, http.client.HTTPException, BadAnswer, ValueError) as error:
                failures.append(f"failed to auth against {address} - {reason_of(error)}")
        raise AuthError("; ".join(failures))

    def _query(self, url: str, values: Mapping[str, str], secret: bytes) -> bytes:
        """Return the answer of one server, by HTTPS if the server refuses plain HTTP and names its HTTPS port."""
        body, headers = None, HEADERS
        if self.uses_post:
            fields = {**values, "secret": secret.decode("utf-8", "replace")}
            body = json.dumps({key: [value] for key, value in sorted(fields.items())}, separators=(",", ":")).encode()
            headers = {**HEADERS, "Content-Type": "application/json"}
        else:
            url = f"{url}?{urlencode(sorted([*values.items(), ('secret', secret)]))}"
        with gevent.Timeout(self.request_s, BadAnswer("the request timed out")):
            reply = fetch(
                url,
                body,
                headers,
                takes_https=True,
                new_context=self._tls_context,
                bytes_max=ANSWER_BYTES_MAX,
                connect_timeout_s=self.connect_s,
                sockets=gevent.socket,
            )
        if reply.status != 200:
            raise BadAnswer(f"got response {reply.status} {go_quote(reply.body[:SHOWN_BYTES_MAX]).decode()}")
        return reply.body

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
