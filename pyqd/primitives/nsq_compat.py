"""Versions and names for NSQ's clients, tools and admin pages, which compare them; forms of NSQ's answers over HTTP."""

import json
from http import HTTPStatus
from typing import Any, Final

from pyqd.primitives.addresses import PORT_MAX

# The nsqd release whose protocol and HTTP API pyqd speaks; clients and admin pages choose features by it.
NSQ_VERSION: Final = "1.3.0"

# In the responses of nsqd's and nsqlookupd's HTTP APIs.
API_VERSION_HEADER: Final = ("X-Nsq-Content-Type", "nsq; version=1.0")

_NAMES = """
auth-http-address auth-http-request-method broadcast-address broadcast-http-port broadcast-tcp-port config data-path
deflate e2e-processing-latency-percentile e2e-processing-latency-window-time enable-experiment http-address
http-client-connect-timeout http-client-request-timeout https-address log-level log-prefix lookupd-tcp-address
max-body-size max-bytes-per-file max-channel-consumers max-deflate-level max-heartbeat-interval max-msg-size
max-msg-timeout max-output-buffer-size max-output-buffer-timeout max-rdy-count max-req-timeout mem-queue-size
min-output-buffer-timeout msg-timeout node-id output-buffer-timeout queue-scan-selection-count
queue-scan-worker-pool-max snappy statsd-address statsd-exclude-ephemeral statsd-interval statsd-mem-stats
statsd-prefix statsd-udp-packet-size sync-every sync-timeout tcp-address tls-cert tls-client-auth-policy tls-key
tls-min-version tls-required tls-root-ca-file topology-region topology-zone verbose version worker-id
"""
# The flags in nsqd's --help.
NSQD_FLAGS: Final = frozenset(_NAMES.split())


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
