"""Versions and names for NSQ's clients, tools and admin pages, which compare them; forms of NSQ's answers over HTTP."""

import json
from http import HTTPStatus
from typing import Any, Final

from pyqd import __version__
from pyqd.primitives.addresses import PORT_MAX

# The nsqd release whose protocol and HTTP API pyqd speaks; clients and admin pages choose features by it.
NSQ_VERSION: Final = "1.3.0"
# Both versions, for people.
VERSIONS: Final = f"v{__version__} (NSQ v{NSQ_VERSION})"
# Field of pyqd's own version in JSON, beside NSQ's field `version`, which has the release that pyqd speaks.
PYQD_VERSION: Final = "pyqd_version"

# In the responses of nsqd's and nsqlookupd's HTTP APIs.
API_VERSION_HEADER: Final = ("X-Nsq-Content-Type", "nsq; version=1.0")


def https_port_in(body: bytes) -> int:
    """Return the port of HTTPS that a daemon names when it refuses HTTP; 0 if the body of the answer names none."""
    try:
        port = json.loads(body)["https_port"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0
    return port if isinstance(port, int) and 0 < port <= PORT_MAX else 0


def unwrapped_answer(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the object in an answer; daemons before version 1.0 put it into {"status_code", "status_txt", "data"}."""
    found = answer.get("data") if "status_code" in answer else answer
    return found if isinstance(found, dict) else {}


def status_line(status: int) -> str:
    """Return status code and phrase, such as 403 Forbidden."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
