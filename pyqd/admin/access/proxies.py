"""Proxies in front of the web admin: the client and the scheme that their headers name.

Source: docs/admin.md, "Behind a proxy".
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pyqd.admin.options import AdminOptions
from pyqd.primitives.addresses import is_ip_address

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
SCHEMES = ("HTTP_X_FORWARDED_PROTO", "HTTP_X_SCHEME")


def behind_proxy(inner: WSGIApplication, options: AdminOptions) -> WSGIApplication:
    """Return an application that takes the client's address and scheme from a trusted proxy.

    Without --trusted-proxy everybody may send the scheme: a client that makes it up only gets wrong URLs itself. With
    it, the scheme and the user's name count from these proxies only.
    """
    networks: list[Network] = [ipaddress.ip_network(text, strict=False) for text in options.trusted_proxy]
    user = "HTTP_" + options.acl_http_header.upper().replace("-", "_")

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if networks:
            if is_in(networks, environ.get("REMOTE_ADDR", "")):
                environ["REMOTE_ADDR"] = client_of(environ, networks)
            else:
                for name in (*SCHEMES, user):
                    environ.pop(name, None)
        told = next((environ[name] for name in SCHEMES if environ.get(name)), "").partition(",")[0]
        if told.strip() == "https":
            environ["wsgi.url_scheme"] = "https"
        return inner(environ, start_response)

    return application


def client_of(environ: WSGIEnvironment, networks: Sequence[Network]) -> str:
    """Return the address before that of the first proxy that is trusted; a client may have written those before it."""
    address = str(environ.get("REMOTE_ADDR", ""))
    for part in reversed(environ.get("HTTP_X_FORWARDED_FOR", "").split(",")):
        told = str(part).strip().strip("[]")
        if not is_ip_address(told):
            return address
        address = told
        if not is_in(networks, address):
            return address
    return address


def is_in(networks: Sequence[Network], text: str) -> bool:
    if not is_ip_address(text):
        return False
    ip = ipaddress.ip_address(text)
    return any((getattr(ip, "ipv4_mapped", None) or ip) in network for network in networks)
