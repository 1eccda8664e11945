"""Headers that protect browsers. Source: OWASP's "HTTP security response headers"."""

from __future__ import annotations

from typing import Final

from werkzeug.wrappers import Response

HEADERS: Final = {
    # All scripts, styles and pictures come from this process; none stands in a page.
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
HSTS: Final = "max-age=31536000"


def protect(response: Response, *, is_secure: bool) -> Response:
    """Add the headers to an answer."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    if is_secure:
        response.headers.setdefault("Strict-Transport-Security", HSTS)
    if response.mimetype == "text/html":
        response.headers.setdefault("Cache-Control", "no-store")
    return response
