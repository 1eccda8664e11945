"""Settings that all connections of an HTTP server share: timeouts, the limit on headers, common response headers."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class HttpTimeouts:
    """Time for a peer's next request, for the headers of a request, for its body, and to read an answer.

    A body gets one more second for each BODY_BYTES_PER_S received.
    """

    idle_s: float = 300.0
    header_s: float = 30.0
    body_s: float = 60.0
    write_s: float = 60.0


BODY_BYTES_PER_S = 1024


@dataclasses.dataclass(frozen=True, slots=True)
class HttpSettings:
    """Settings of an HTTP server.

    header_bytes_max: of one request. common_headers: lines that the responses of routes and errors carry, each with its
    CR LF; redirects, answers to OPTIONS and routes with common_headers=False go without.
    """

    timeouts: HttpTimeouts = HttpTimeouts()
    header_bytes_max: int = 64 * 1024
    common_headers: str = ""


DEFAULT_SETTINGS = HttpSettings()
