"""Checks that protect an HTTP server from web pages of other sites.

A browser sends requests for any page, also to servers that only its own machine can reach. Two checks find these:

1. A browser marks a request of another site's page in `Origin`, and over HTTPS or loopback in `Sec-Fetch-Site`. Other
   programs send neither.
2. With DNS rebinding a page has its own name resolved to the server's address. To the browser the server then is the
   page's own site, and only `Host` tells. So `Host` must be one of the server's names, or one that no public site has.

Source: Fetch Metadata Request Headers, W3C; RFC 6454, section 7; RFC 6762, appendix G.
"""

import contextlib
import re
import socket
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from pyqd.primitives.addresses import is_ip_address

RESOLVER_FILE: Final = "/etc/resolv.conf"
ALL: Final = "*"
OWN_SITE: Final = ("same-origin", "none")
# Last labels of names in private networks, which no public site has; `svc` is that of Kubernetes.
PRIVATE: Final = frozenset(
    ("localhost", "local", "internal", "intranet", "private", "corp", "home", "lan", "localdomain", "svc")
)
# Of the domain `arpa` this alone: holders of IP addresses may put any name below the others.
PRIVATE_DOMAIN: Final = ".home.arpa"

_HOST = re.compile(r"\*|(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?", re.ASCII | re.IGNORECASE)
_ORIGIN = re.compile(r"\*|https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?", re.ASCII | re.IGNORECASE)


def parse_host(text: str) -> str:
    """Return a host name, or a pattern `*.domain` or `*`, in lower case. Raises: ValueError."""
    if not _HOST.fullmatch(text):
        raise ValueError("must be a host name without scheme and port, such as queue.example.org, or *.example.org")
    return text.lower().rstrip(".")


def parse_origin(text: str) -> str:
    """Return an origin, or `*`, in lower case. Raises: ValueError."""
    if not _ORIGIN.fullmatch(text):
        raise ValueError("must be an origin such as https://tool.example.org, with the port if it is not the usual one")
    return text.lower()


def name_in(host: str) -> str:
    """Return the name or address in a value of `Host`, without port and brackets, in lower case."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".")


def is_private(name: str) -> bool:
    """Return whether no public site has a name: an address, a name without a dot, or one of a private network."""
    label = name.rpartition(".")[2]
    is_local = label in PRIVATE or name.endswith(PRIVATE_DOMAIN)
    return "." not in name or label.isdigit() or is_local or is_ip_address(name)


def names_of_machine(path: str = RESOLVER_FILE) -> list[str]:
    """Return the host name of this machine, and its full names in the domains that the resolver searches."""
    host = socket.gethostname()
    domains: list[str] = []
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for words in map(str.split, file):
            if words and words[0] in ("domain", "search"):
                domains += words[1:]
    return [host, *(f"{host}.{domain}" for domain in domains)]


class Sites:
    """Hosts and origins that one server accepts.

    address: its broadcast address. hosts, origins: further ones, as `parse_host` and `parse_origin` return them.
    """

    def __init__(self, address: str, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self._names = {name_in(name) for name in (address, *names_of_machine())}
        self._patterns = tuple(hosts)
        self._origins = frozenset(origins)

    def accepts(self, host: str) -> bool:
        name = name_in(host)
        return is_private(name) or name in self._names or any(fnmatchcase(name, pattern) for pattern in self._patterns)

    def host_problem(self, host: str) -> str:
        """Return the reason why a value of `Host` is refused; empty if it is accepted."""
        if self.accepts(host):
            return ""
        name = name_in(host)
        return f"{name} is no name of this server; --http-allow-host={name} accepts it"

    def origin_problem(self, site: str | None, origin: str | None, host: str) -> str:
        """Return the reason why a request is refused as one of another site; empty if it is accepted.

        site, origin: values of `Sec-Fetch-Site` and `Origin`, None without them. host: value of `Host`.
        """
        if ALL in self._origins or (origin is not None and origin.lower() in self._origins):
            return ""
        if site is None:
            own = origin is None or origin.lower().partition("://")[2] == host.strip().lower()
        else:
            own = site.strip().lower() in OWN_SITE
        if own:
            return ""
        known = origin if origin is not None and _ORIGIN.fullmatch(origin) else ""
        return f"a page of {known or 'another site'} sent this request; --http-allow-origin={known or ALL} accepts it"
