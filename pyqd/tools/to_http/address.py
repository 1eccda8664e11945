"""Addresses of HTTP requests: where a URL leads, and the first lines of a request.

Source: RFC 3986 and RFC 9110.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, quote_plus, unquote, urljoin, urlsplit

from pyqd.primitives.http_client import PORTS, HttpAddress

# Characters of a path or query that stay as they are; "%" begins an escape.
PLAIN: Final = "!#$%&'()*+,/:;=?@[]~"
PLACEHOLDER: Final = "%s"


class AddressError(ValueError):
    """A URL cannot be requested."""


@dataclass(frozen=True, slots=True)
class Address:
    """URL, taken apart. host and credentials: for the headers Host and Authorization. target: path and query."""

    url: str
    origin: HttpAddress
    host: str
    target: str
    credentials: str = ""

    @classmethod
    def of(cls, url: str) -> Address:
        """Return the parts of a URL. Raises: AddressError."""
        try:
            parts = urlsplit(url)
            port = parts.port
            host = (parts.hostname or "").encode("idna").decode() if not url.isascii() else parts.hostname or ""
        except ValueError as error:
            raise AddressError(f"{url}: {error}") from None
        if parts.scheme not in PORTS:
            raise AddressError(f"{url}: expected a URL that begins with http:// or https://")
        if not host:
            raise AddressError(f"{url}: no host in the URL")
        target = quote(parts.path or "/", PLAIN) + (f"?{quote(parts.query, PLAIN)}" if parts.query else "")
        shown = f"[{host}]" if ":" in host else host
        return cls(
            url,
            HttpAddress(host, port or PORTS[parts.scheme], parts.scheme == "https"),
            shown if port is None else f"{shown}:{port}",
            target,
            _credentials_of(parts.username, parts.password),
        )

    def joined(self, location: str) -> Address:
        """Return the address that a Location header names. Raises: AddressError."""
        return Address.of(urljoin(self.url, location))


def _credentials_of(user: str | None, password: str | None) -> str:
    if user is None:
        return ""
    pair = f"{unquote(user)}:{unquote(password or '')}"
    return "Basic " + base64.b64encode(pair.encode()).decode()


class Template:
    """URL with one %s for the message, which is escaped for a query. %% stands for %. Raises: AddressError."""

    def __init__(self, text: str) -> None:
        pieces = text.split("%%")
        found = sum(piece.count(PLACEHOLDER) for piece in pieces)
        if found != 1:
            raise AddressError("invalid GET address - must be a printf string")
        number = next(index for index, piece in enumerate(pieces) if PLACEHOLDER in piece)
        head, _, tail = pieces[number].partition(PLACEHOLDER)
        self._head = "%".join([*pieces[:number], head])
        self._tail = "%".join([tail, *pieces[number + 1 :]])
        self.filled(b"x")

    def filled(self, body: bytes) -> Address:
        """Return the address for a message. Raises: AddressError."""
        return Address.of(f"{self._head}{quote_plus(body)}{self._tail}")
