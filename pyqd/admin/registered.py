"""Check of the addresses that lookup daemons tell, before a request goes there on behalf of a page.

Every process that reaches a lookup daemon may register an address, and the answer from there is shown. So services that
answer to local requests only, such as those with the credentials of a machine in a cloud, are not asked.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
from typing import Any

from pyqd.client.errors import NotConnectedError
from pyqd.client.http import HttpClient


def problem_of(host: str, *, may_be_local: bool) -> str:
    """Return why no broker is asked at an IP address; empty for other addresses and for names."""
    with contextlib.suppress(ValueError):
        ip = ipaddress.ip_address(host)
        ip = getattr(ip, "ipv4_mapped", None) or ip
        if ip.is_link_local or ip.is_multicast or ip.is_unspecified or (ip.is_reserved and not ip.is_loopback):
            return "no broker listens there for other machines"
        if ip.is_loopback and not may_be_local:
            return "it is this machine, where no lookup daemon is"
    return ""


class RegisteredClient(HttpClient):
    """HTTP client of a broker that a lookup daemon tells. may_be_local: whether it may be on this machine."""

    def __init__(self, address: str, *, may_be_local: bool, **options: Any) -> None:
        super().__init__(address, **options)
        self._may_be_local = may_be_local

    def _connect(self, connection: http.client.HTTPConnection) -> None:
        self._check(self.place.host)
        super()._connect(connection)
        # A name may lead anywhere, and elsewhere each time that it is resolved.
        self._check(connection.sock.getpeername()[0])

    def _check(self, host: str) -> None:
        """Raise NotConnectedError for an address where no broker is asked."""
        problem = problem_of(host, may_be_local=self._may_be_local)
        if problem:
            raise NotConnectedError(
                f"{self.address} is registered as a broker, and not asked: {problem}; --trusted-broker allows it"
            )
