"""Address of the current request, in the form that a link or a redirect needs."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from flask import request

# Flask gives the path decoded: a `#` of an ephemeral topic would end it.
SAFE: Final = "/:@!$&'()*+,;=~"


def path_here() -> str:
    """Return the path of the current request."""
    return quote(f"{request.script_root}{request.path}", safe=SAFE)


def address_here() -> str:
    """Return path and query of the current request."""
    query = request.query_string.decode("latin-1")
    return f"{path_here()}?{query}" if query else path_here()
