"""AUTH: permissions of one client, requested from the auth servers, and requested again when they have expired.

Source: docs/nsq/tcp-protocol.md, "AUTH", "Authorisation".
"""

import json
import logging
from typing import TYPE_CHECKING, Any

from pyqd.net.admission import ip_of
from pyqd.net.tls import common_name_of
from pyqd.primitives.errors import CommandError
from pyqd.primitives.goquote import go_quote
from pyqd.tcp.authd import AuthError, AuthServers
from pyqd.tcp.permissions import PUBLISH, SUBSCRIBE, Permissions

if TYPE_CHECKING:
    from OpenSSL import SSL

logger = logging.getLogger(__name__)


class Authorizer:
    """Permissions of one client. tls: set when the connection is encrypted; queries to the auth servers say so."""

    __slots__ = ("_permissions", "_remote_address", "_secret", "_servers", "needed", "tls")

    def __init__(self, servers: AuthServers, remote_address: str) -> None:
        self.needed = servers.enabled
        self.tls: SSL.Connection | None = None
        self._servers = servers
        self._remote_address = remote_address
        self._secret = b""
        self._permissions: Permissions | None = None

    def auth(self, secret: bytes) -> bytes:
        """AUTH. Returns: the answer. Raises: CommandError. Switches: yes."""
        if self._permissions is not None and self._permissions.authorizations:
            raise CommandError("E_INVALID", "AUTH already set")
        if not self.needed:
            raise CommandError("E_AUTH_DISABLED", "AUTH disabled")
        self._secret = secret
        permissions = self._ask()
        if not permissions.authorizations:
            raise CommandError("E_UNAUTHORIZED", "AUTH no authorizations found")
        answer = {
            "identity": permissions.identity,
            "identity_url": permissions.identity_url,
            "permission_count": len(permissions.authorizations),
        }
        return json.dumps(answer, separators=(",", ":")).encode()

    def renew(self, command: bytes) -> None:
        """Ask again if the permissions have expired. Raises: CommandError. Switches: yes."""
        permissions = self._permissions
        if permissions is None:
            raise CommandError("E_AUTH_FIRST", b"AUTH required before " + command)
        if permissions.expired():
            self._ask()

    def require_subscribe(self, topic: bytes, channel: bytes) -> None:
        """Check a SUB. Raises: CommandError. Switches: if the permissions have expired."""
        if self.needed:
            self.renew(b"SUB")
            self._require(b"SUB", SUBSCRIBE, topic, channel)

    def publish_until(self, command: bytes, topic: bytes) -> int:
        """Return the end, monotonic ns, of the permission to publish to a topic; 0: renew it. Raises: CommandError."""
        permissions = self._permissions
        if permissions is None or permissions.expired():
            return 0
        self._require(command, PUBLISH, topic, b"")
        return permissions.expires_ns

    def stats(self) -> dict[str, Any]:
        """Return the permissions' part of the client's entry in /stats, without empty values, as nsqd does."""
        permissions = self._permissions
        if permissions is None:
            return {}
        shown = {
            "authed": bool(permissions.authorizations),
            "auth_identity": permissions.identity,
            "auth_identity_url": permissions.identity_url,
        }
        return {key: value for key, value in shown.items() if value}

    def _require(self, command: bytes, permission: str, topic: bytes, channel: bytes) -> None:
        permissions = self._permissions
        if permissions is None or not permissions.allows(permission, topic.decode("ascii"), channel.decode("ascii")):
            names = go_quote(topic) + b" " + go_quote(channel)
            raise CommandError("E_UNAUTHORIZED", b"AUTH failed for " + command + b" on " + names)

    def _ask(self) -> Permissions:
        """Query the auth servers. Raises: CommandError, whose text does not give the client the reason."""
        try:
            permissions = self._servers.ask(
                self._secret,
                ip_of(self._remote_address),
                tls=self.tls is not None,
                common_name="" if self.tls is None else common_name_of(self.tls),
            )
        except AuthError as error:
            logger.warning("PROTOCOL(V2): [%s] AUTH failed %s", self._remote_address, error)
            raise CommandError("E_AUTH_FAILED", "AUTH failed") from None
        self._permissions = permissions
        return permissions
