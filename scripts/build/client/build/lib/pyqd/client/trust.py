"""Brokers that the operator names, as the only ones that a token may be sent to.

Lookup daemons take registrations from every process that reaches them. So an address that a lookup daemon tells gets a
token only if the operator has named the address, its host or its network.

Source: docs/security.md, "Web admin".
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from pyqd.client.errors import SettingError
from pyqd.client.http import parse_http_address

EXPECTED: Final = "expected host, host:port, *.domain or a network such as 10.0.0.0/8"


class TrustedBrokers:
    """Hosts, `host:port` pairs, patterns such as `*.example.org`, and networks. Raises: SettingError for other texts.

    A name matches as it is written: it is not resolved, because its owner may let it point anywhere.
    """

    def __init__(self, entries: Iterable[str] = ()) -> None:
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        # Without a port, the entry is for all ports.
        self._hosts: list[tuple[str, int | None]] = []
        for entry in entries:
            self._add(entry)

    def _add(self, entry: str) -> None:
        try:
            self._networks.append(ipaddress.ip_network(entry.strip("[]"), strict=False))
            return
        except ValueError:
            if "/" in entry.rpartition("://")[2]:
                raise SettingError(f"{entry!r} is no trusted broker: {EXPECTED}") from None
        has_port = entry.rpartition("]")[2].rpartition(":")[2].isdigit()
        try:
            place = parse_http_address(entry)
        except SettingError:
            raise SettingError(f"{entry!r} is no trusted broker: {EXPECTED}") from None
        self._hosts.append((place.host.lower().rstrip("."), place.port if has_port else None))

    def has(self, address: str) -> bool:
        """Return whether an address, `host:port` or a URL, is one of these brokers. Raises: SettingError."""
        place = parse_http_address(address)
        if place.path is not None:
            # Only the operator can name a unix socket.
            return True
        host = place.host.lower().rstrip(".")
        if any(fnmatchcase(host, name) and port in (None, place.port) for name, port in self._hosts):
            return True
        try:
            ip = ipaddress.ip_address(host)
        except ValueError:
            return False
        return any(ip in network for network in self._networks)
