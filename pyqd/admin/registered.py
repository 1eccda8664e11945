"""Check of the addresses that lookup daemons tell, before a request goes there on behalf of a page.

Every process that reaches a lookup daemon may register an address, and the answer from there is shown. So services that
answer to local requests only, such as those with the credentials of a machine in a cloud, are not asked.
"""

from __future__ import annotations

import contextlib
import ipaddress

from pyqd.client.errors import NotConnectedError


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


def check_registered(address: str, host: str, *, may_be_local: bool) -> None:
    """Check the host of an address that a lookup daemon tells. Raises: NotConnectedError if no broker is asked there.

    may_be_local: whether the host may be this machine.
    """
    problem = problem_of(host, may_be_local=may_be_local)
    if problem:
        raise NotConnectedError(
            f"{address} is registered as a broker, and not asked: {problem}; --trusted-broker allows it"
        )
