"""Limits of an HTTP connection: time for each of its parts, and bytes of headers."""

import dataclasses
import math

from pyqd.config.options import Options
from pyqd.primitives.durations import SECOND_NS


@dataclasses.dataclass(frozen=True, slots=True)
class HttpLimits:
    """Seconds to wait for a peer: between requests, for a request's headers, for its body, until it reads an answer.

    A body gets one more second for each BODY_BYTES_PER_S received. header_bytes_max: of one request.
    """

    idle_s: float = 300.0
    header_s: float = 30.0
    body_s: float = 60.0
    write_s: float = 60.0
    header_bytes_max: int = 64 * 1024


BODY_BYTES_PER_S = 1024
DEFAULT_LIMITS = HttpLimits()


def http_limits(options: Options) -> HttpLimits:
    """Return the limits that the flags set; a flag of 0 means no time limit."""
    return HttpLimits(
        idle_s=seconds(options.http_idle_timeout_ns),
        header_s=seconds(options.http_header_timeout_ns),
        body_s=seconds(options.http_body_timeout_ns),
        write_s=seconds(options.http_write_timeout_ns),
        header_bytes_max=options.max_http_header_size,
    )


def seconds(time_ns: int) -> float:
    """Return a duration in seconds; 0 becomes infinity."""
    return time_ns / SECOND_NS if time_ns else math.inf
