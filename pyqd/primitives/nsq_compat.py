"""Versions and names for NSQ's clients, tools and admin pages, which compare them."""

from typing import Final

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
