"""State of one web admin, shared by all of its routes: options, cluster, notifications, and the rights of users."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import http.client
import ipaddress
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, AnyStr, Final
from urllib.parse import quote, unquote, urlsplit

from flask import g, request
from werkzeug.exceptions import Forbidden

from pyqd.admin.access.policy import Policy, basic_credentials
from pyqd.admin.access.roles import User, UserRole
from pyqd.admin.cluster import Cluster
from pyqd.admin.health import Finding, findings_of
from pyqd.admin.notifications import Caller, Notifier
from pyqd.admin.options import AdminOptions
from pyqd.admin.poller import ClusterPoller
from pyqd.admin.upstream import Upstream, UpstreamError
from pyqd.client.errors import SettingError
from pyqd.client.http import parse_http_address
from pyqd.client.trust import TrustedBrokers
from pyqd.primitives.durations import SECOND_NS
from pyqd.primitives.errors import StartupError
from pyqd.primitives.http_client import fetch

# Each answer is parsed in one thread after the other: more at once would only wait for each other.
POLLED_AT_ONCE: Final = 16
# Flask gives the path decoded: a `#` of an ephemeral topic would end it.
SAFE: Final = "/:@!$&'()*+,;=~"


class Site:
    """One web admin. Raises: StartupError if certificates or the token cannot be read.

    apart: runs a call that blocks its thread so that the other requests go on.
    """

    def __init__(self, options: AdminOptions, apart: Callable[[Callable[[], Any]], Any] = lambda call: call()) -> None:
        self.options = options
        self.apart = apart
        self.policy = Policy(options)
        new_upstream = partial(
            Upstream,
            timeout_s=options.http_client_request_timeout_ns / SECOND_NS,
            connect_timeout_s=options.http_client_connect_timeout_ns / SECOND_NS,
            new_context=context_maker(options),
            token=read_token(options.http_client_token_file),
            # Flags of TLS for requests to brokers keep the token from going in clear.
            is_token_secure=bool(
                options.http_client_tls_root_ca_file
                or options.http_client_tls_cert
                or options.http_client_tls_insecure_skip_verify
            ),
            trusted=trusted_by(options),
            may_be_local=any(is_local(address) for address in options.lookupd_http_address),
        )
        self.upstream = new_upstream()
        self.cluster = Cluster(self.upstream, options.lookupd_http_address, options.nsqd_http_address)
        # A poll of many brokers must not keep pages waiting.
        polled = Cluster(
            new_upstream(worker_count=POLLED_AT_ONCE), options.lookupd_http_address, options.nsqd_http_address
        )
        self.poller = ClusterPoller(polled)
        self.is_closing = False
        self._findings: tuple[int, list[Finding]] = (0, [])
        self.notifier = Notifier(options.notification_http_endpoint, options.http_client_request_timeout_ns / SECOND_NS)

    def close(self) -> None:
        """Stop polling, send waiting notifications, and close connections."""
        self.is_closing = True
        self.poller.stop()
        self.notifier.close()
        self.poller.cluster.upstream.close()
        self.upstream.close()

    @property
    def user(self) -> User:
        user: User = g.user
        return user

    def caller(self) -> Caller:
        """Return the sender of the current request."""
        scheme = "https" if request.is_secure or request.headers.get("X-Scheme") == "https" else "http"
        address = f"{request.remote_addr}:{request.environ.get('REMOTE_PORT', 0)}"
        url = f"{scheme}://{request.host}{address_here()}"
        # A proxy has checked the name of basic authentication.
        name = self.user.name or basic_credentials(request)[0]
        return Caller(name, address, request.headers.get("User-Agent", ""), url)

    def notify(self, action: str, **place: str) -> None:
        """Log and notify an action of the current request. place: topic, channel, node and details, if it has them."""
        self.notifier.notify(action, self.caller(), **place)

    def audit(self, action: str, **place: str) -> None:
        """Log an action of the current request. place: as for `notify`."""
        self.notifier.audit(action, self.caller(), **place)

    def may(self, role: UserRole, topic: str | None = None) -> bool:
        """Return whether the user of this request has a role for a topic. topic: None for no topic, or for all."""
        return self.user.may(role, topic)

    def require(self, role: UserRole, topic: str | None = None) -> None:
        """Refuse the current request if its user does not have a role. Raises: Forbidden."""
        if not self.may(role, topic):
            raise Forbidden

    def sees_all(self) -> bool:
        """Return whether the user of the current request may see all topics, and so the sums over them."""
        return "*" in self.user.topics

    def findings(self) -> list[Finding]:
        """Return what is wrong by the newest poll, as far as the user of the current request may see it.

        Each page tells the number: the findings are the same until the next poll.
        """
        number, found = self._findings
        if number != self.poller.snapshot.number:
            number = self.poller.snapshot.number
            found = findings_of(self.poller)
            self._findings = (number, found)
        return [each for each in found if not each.topic or self.may(UserRole.VIEW, each.topic)]

    def is_broker(self, address: str) -> bool:
        """Return whether a broker of the cluster has an HTTP address.

        Requests carry the token for the brokers, so that none may go to an address that a user makes up.
        """
        if any(node.http_address == address for node in self.poller.snapshot.nodes):
            return True
        with contextlib.suppress(UpstreamError):
            return any(node.http_address == address for node in self.cluster.nodes().value)
        return False

    def change_options(self, **changed: Any) -> None:
        """Replace options until the process ends."""
        self.options = dataclasses.replace(self.options, **changed)

    def change_lookupds(self, addresses: tuple[str, ...]) -> None:
        """Replace the lookup daemons until the process ends."""
        self.change_options(lookupd_http_address=addresses)
        self.cluster.lookupds = self.poller.cluster.lookupds = addresses

    def ask_graphite(self, target: str, forwarded_for: str = "") -> tuple[int, str, bytes]:
        """Send a GET to Graphite and return status, content type and body. Raises: OSError, ValueError.

        target: path and query.
        """
        parts = urlsplit(self.options.graphite_url)
        headers = {"X-Forwarded-For": forwarded_for} if forwarded_for else {}
        origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        private = {}
        if parts.username is not None:
            credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            private["Authorization"] = f"Basic {base64.b64encode(credentials.encode()).decode()}"
        timeout_s = self.options.http_client_request_timeout_ns / SECOND_NS
        try:
            reply = fetch(f"{origin}{target}", headers=headers, private=private, timeout_s=timeout_s)
        except http.client.HTTPException as error:
            raise OSError(f"the answer of {origin} is not HTTP: {error!r}") from error
        return reply.status, reply.headers.get("content-type", ""), reply.body


def context_maker(options: AdminOptions) -> Callable[[], ssl.SSLContext]:
    """Return a function that returns the TLS context of requests to brokers. Raises: StartupError."""
    authorities = options.http_client_tls_root_ca_file
    try:
        context = ssl.create_default_context(cafile=authorities or None)
    except (OSError, ssl.SSLError) as error:
        raise StartupError(f"failed to read TLS root CA file {authorities} - {error}") from None
    if options.http_client_tls_insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate, key = options.http_client_tls_cert, options.http_client_tls_key
    if certificate:
        try:
            # An empty password keeps OpenSSL from asking for one on the terminal.
            context.load_cert_chain(certificate, key, password=lambda: b"")
        except (OSError, ssl.SSLError) as error:
            raise StartupError(f"failed to LoadX509KeyPair {certificate}, {key} - {error}") from None
    return lambda: context


def trusted_by(options: AdminOptions) -> TrustedBrokers:
    """Return the addresses that the operator names. Raises: StartupError."""
    try:
        return TrustedBrokers((*options.lookupd_http_address, *options.nsqd_http_address, *options.trusted_broker))
    except SettingError as error:
        raise StartupError(f"failed to parse --trusted-broker - {error}") from None


def is_local(address: str) -> bool:
    """Return whether host:port, or a URL, is of this machine."""
    host = parse_http_address(address).host
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_token(path: str) -> str:
    """Return the token in a file; empty without a file. Raises: StartupError."""
    if not path:
        return ""
    token = secret_in(path, "http-client-token-file", Path.read_text)
    if not token or not token.isascii() or not token.isprintable():
        raise StartupError(f"failed to read --http-client-token-file - {path} holds no token: one line of ASCII")
    return token


def secret_in(path: str, flag: str, read: Callable[[Path], AnyStr]) -> AnyStr:
    """Return the secret in the file that a flag names. Raises: StartupError."""
    try:
        return read(Path(path)).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"failed to read --{flag} - {error}") from None


def path_here() -> str:
    return quote(f"{request.script_root}{request.path}", safe=SAFE)


def address_here() -> str:
    query = request.query_string.decode("latin-1")
    return f"{path_here()}?{query}" if query else path_here()
