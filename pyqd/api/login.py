"""Login over HTTP: looks up a bearer's secret and checks it against the right that the route requires.

The secret is looked up in the token file, or by the auth servers that also serve TCP clients. A client sends the secret
as `Authorization: Bearer <secret>`, or as the password of Basic with any user name. A known secret is never delayed. An
address may try FAILURES_AT_ONCE_MAX unknown secrets at once and one a second after that. Further ones are answered with
429, are not looked up by auth servers and are not logged.

Source: docs/security.md.
"""

import base64
import binascii
import hashlib
import logging
import time
from collections import OrderedDict
from ipaddress import ip_address
from typing import Final

from pyqd.api.rights import ADMIN, CONSUME, OPEN, PUBLISH, STATUS, TokenFile, TokenFileError, TokenGrant
from pyqd.config.options import PROGRAM, Options
from pyqd.http.messages import HttpError, Request, Response, Route, error_response
from pyqd.net.admission import ip_of
from pyqd.primitives.addresses import Address, TcpAddress
from pyqd.primitives.errors import StartupError
from pyqd.tcp import permissions
from pyqd.tcp.authd import AuthError, AuthServers
from pyqd.tcp.permissions import Permissions

FAILURES_AT_ONCE_MAX: Final = 10
FAILURES_PER_S: Final = 1.0
ADDRESSES_MAX: Final = 10_000
CACHED_MAX: Final = 10_000
CHALLENGE: Final = (("WWW-Authenticate", 'Bearer realm="pyqd"'), ("WWW-Authenticate", 'Basic realm="pyqd"'))

PERMISSION_OF: Final = {
    PUBLISH: permissions.PUBLISH,
    CONSUME: permissions.SUBSCRIBE,
    ADMIN: permissions.ADMIN,
}

logger = logging.getLogger(__name__)


class ServerGrant:
    """Permissions that the auth servers granted, with the method of a TokenGrant."""

    def __init__(self, granted: Permissions) -> None:
        self.granted = granted

    def allows(self, right: str, topics: tuple[str, ...], channel: str) -> bool:
        if right == STATUS:
            return bool(self.granted.authorizations)
        permission = PERMISSION_OF.get(right, "")
        # As over TCP, where a publish has an empty channel.
        in_channel = channel or ("" if right == PUBLISH else None)
        return all(self.granted.allows(permission, topic, in_channel) for topic in topics or (None,))


class FailureLimit:
    """Rate limit on failed logins per address. Holds the addresses with the latest failures."""

    def __init__(self) -> None:
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def remaining(self, address: str) -> float:
        """Return the number of failures that an address may still make."""
        count, at_s = self._left.get(address, (float(FAILURES_AT_ONCE_MAX), 0.0))
        return min(FAILURES_AT_ONCE_MAX, count + (time.monotonic() - at_s) * FAILURES_PER_S)

    def note(self, address: str) -> None:
        self._left[address] = (self.remaining(address) - 1, time.monotonic())
        self._left.move_to_end(address)
        if len(self._left) > ADDRESSES_MAX:
            self._left.popitem(last=False)


class Login:
    """Access control of the HTTP API. tokens: None without a token file. servers: None if auth servers are not used."""

    def __init__(self, tokens: TokenFile | None, servers: AuthServers | None) -> None:
        self.tokens = tokens
        self.servers = servers
        self.failures = FailureLimit()
        self._granted: OrderedDict[bytes, Permissions] = OrderedDict()

    def refusal(self, route: Route, request: Request, remote: str, *, tls: bool, common_name: str) -> Response | None:
        """Return the answer to a request for a route that is refused; None if the request is allowed.

        Raises: HttpError for a malformed query. Switches: if auth servers are asked.
        """
        if route.right == OPEN:
            return None
        secret = secret_of(request)
        grant: TokenGrant | ServerGrant | None
        if secret is None:
            grant = None if self.tokens is None else self.tokens.anonymous
        else:
            grant = self._grant(secret, remote, tls=tls, common_name=common_name)
            if grant is None:
                return self._failed(request, remote)
        if grant is None:
            return unauthorized()
        query = request.query()
        topics = tuple(filter(None, map(query.get, route.topics)))
        if grant.allows(route.right, topics, query.get(route.channel) or ""):
            return None
        if secret is None:
            return unauthorized()
        logger.warning("HTTP: login without the right to %s %s (%s)", request.method, request.path, remote)
        return error_response(HttpError(403, "FORBIDDEN"))

    def _grant(self, secret: bytes, remote: str, *, tls: bool, common_name: str) -> TokenGrant | ServerGrant | None:
        """Return the grant of a secret; None if it grants nothing. Switches: if auth servers are asked."""
        found = None if self.tokens is None else self.tokens.find(secret)
        if found is not None or self.servers is None or not secret:
            return found
        address = ip_of(remote)
        text = "\0".join((address, "tls" if tls else "", common_name)).encode()
        key = hashlib.sha256(hashlib.sha256(secret).digest() + text).digest()
        granted = self._granted.get(key)
        if granted is None or granted.expired():
            self._granted.pop(key, None)
            if self.failures.remaining(address) < 1:
                return None
            try:
                granted = self.servers.ask(secret, address, tls=tls, common_name=common_name)
            except AuthError as error:
                logger.warning("HTTP: (%s) AUTH failed %s", remote, error)
                return None
            self._granted[key] = granted
            if len(self._granted) > CACHED_MAX:
                self._granted.popitem(last=False)
        return ServerGrant(granted) if granted.authorizations else None

    def _failed(self, request: Request, remote: str) -> Response:
        address = ip_of(remote)
        if self.failures.remaining(address) < 1:
            return error_response(HttpError(429, "TOO_MANY_FAILED_LOGINS"), (("Retry-After", "1"),))
        self.failures.note(address)
        logger.warning("HTTP: login failed for %s %s (%s)", request.method, request.path, remote)
        return unauthorized()


def unauthorized() -> Response:
    return error_response(HttpError(401, "UNAUTHORIZED"), CHALLENGE)


def secret_of(request: Request) -> bytes | None:
    """Return the secret in a request; None if there is none, empty if the header is malformed."""
    header = request.headers.get(b"authorization")
    if header is None:
        return None
    scheme, _, text = header.strip().partition(b" ")
    text = text.strip()
    if scheme.lower() == b"bearer":
        return text
    if scheme.lower() == b"basic":
        try:
            return base64.b64decode(text, validate=True).partition(b":")[2]
        except binascii.Error:
            return b""
    return b""


def warn_if_open(name: str, address: Address) -> None:
    """Warn if other machines can reach an address that needs no login."""
    if isinstance(address, TcpAddress) and not ip_address(address.host).is_loopback:
        logger.warning(
            "%s: every client that reaches %s may publish, read and delete; see --http-auth-token-file, or listen on"
            " 127.0.0.1",
            name,
            address,
        )


def login_of(options: Options, servers: AuthServers) -> Login | None:
    """Return the login that the flags set up; None for no login. Raises: StartupError."""
    if options.http_auth and not servers.enabled:
        raise StartupError(f"failed to instantiate {PROGRAM} - --http-auth needs --auth-http-address")
    if not options.http_auth and not options.http_auth_token_file:
        return None
    return Login(tokens_of(options.http_auth_token_file, PROGRAM), servers if options.http_auth else None)


def tokens_of(path: str, program: str) -> TokenFile | None:
    """Return the tokens of a file; None if the path is empty. Raises: StartupError."""
    try:
        return TokenFile(path) if path else None
    except TokenFileError as error:
        raise StartupError(f"failed to instantiate {program} - failed to read tokens - {error}") from error
