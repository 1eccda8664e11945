"""HTTP clients of one broker and of one lookup daemon, with the errors of pyqctl."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyqd.client.core.tls import TlsNames
from pyqd.client.errors import ClientError, NotConnectedError, ProtocolError, TlsError
from pyqd.client.http import HttpClient, Reply, message_of
from pyqd.primitives.addresses import TcpAddress
from pyqd.primitives.nsq_compat import https_port_in, unwrapped_answer
from pyqd.tools.ctl.contexts import CtlTarget
from pyqd.tools.ctl.exits import UnsupportedError

SUCCESS: Final = 200
# Of a path that the other side does not know. A missing topic, channel or message has a code of its own.
UNKNOWN_PATHS: Final = ("NOT_FOUND", "METHOD_NOT_ALLOWED")


class AskedNode(HttpClient):
    """One daemon. Each call sends one request and repeats none."""

    kind = "daemon"
    names = TlsNames(
        ca="--ca",
        certificate="--cert",
        key="--key",
        port="is it the one of HTTPS? Without TLS, write http:// before the address",
    )

    def __init__(self, address: str, target: CtlTarget, token: str | None, timeout_s: float, *, tls: bool) -> None:
        super().__init__(
            address, tls=tls, new_context=target.tls_context, token=token, timeout_s=timeout_s, retry_timeout_s=0
        )

    def send(self, method: str, path: str, query: Mapping[str, object], body: bytes | None = None) -> Reply:
        """Return the answer to a request if it is a success. Raises: ClientError.

        query: parameters; those that are None are left out.
        """
        given = {name: value for name, value in query.items() if value is not None}
        reply = self.request(method, path, given, body, retry=False)
        if reply.status != SUCCESS:
            raise self.refusal(f"{method} {path}", given, reply)
        return reply

    def get(self, path: str, **query: object) -> dict[str, Any]:
        """Return the JSON object of a GET. Raises: ClientError."""
        return self._object(path, self.send("GET", path, query))

    def post(self, path: str, **query: object) -> dict[str, Any]:
        """Return the JSON object of a POST; an empty one if the answer is empty. Raises: ClientError."""
        reply = self.send("POST", path, query)
        return self._object(path, reply) if reply.body else {}

    def _object(self, path: str, reply: Reply) -> dict[str, Any]:
        found = self.parsed(path, reply)
        if not isinstance(found, dict):
            raise ProtocolError(f"{self.address}: {path}: not the answer of {self.kind}")
        return unwrapped_answer(found)

    def refusal(self, path: str, query: Mapping[str, object], reply: Reply) -> ClientError:
        code = message_of(reply)
        if code in UNKNOWN_PATHS:
            return UnsupportedError(
                f"{self.address}: {path}: {self.kind} has no such call: it is NSQ's, or an older one"
            )
        if code == "TLS_REQUIRED":
            port = https_port_in(reply.body)
            return TlsError(f"{self.address}: {path}: only HTTPS is allowed: give https://{self.place.host}:{port}")
        return super().refusal(path, query, reply)


class AskedBroker(AskedNode):
    """One broker, pyqd or nsqd."""

    kind = "the broker"


class AskedLookupDaemon(AskedNode):
    """One lookup daemon, pyqlookupd or nsqlookupd."""

    kind = "the lookup daemon"


def https_address(place: TcpAddress, timeout_s: float) -> str:
    """Return the HTTPS address of a broker by its HTTP port. Sends no token. Raises: ClientError.

    A broker names its HTTPS port only where it refuses HTTP.
    """
    address = f"http://{place}"
    with HttpClient(address, timeout_s=timeout_s) as client:
        reply = client.request("GET", "/ping", retry=False)
        secure = https_port_in(reply.body) if message_of(reply) == "TLS_REQUIRED" else 0
        if not secure:
            raise NotConnectedError(
                f"{address}: the lookup daemon names its port for HTTP only, and --ca or --cert asks for HTTPS;"
                " give the address of the broker by --nsqd-http-address"
            )
        return f"https://{TcpAddress(place.host, secure)}"
