"""Every flag of nsqd 1.3 is a flag here, whatever it does."""

import re
import subprocess

import pytest

from pyqd.config import options

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
NSQD_FLAGS = frozenset(_NAMES.split())


def test_every_flag_of_nsqd_is_a_flag_here(request: pytest.FixtureRequest) -> None:
    nsqd = request.config.getoption("--nsqd")
    if nsqd:
        usage = subprocess.run([nsqd, "--help"], capture_output=True, text=True, timeout=20, check=False).stderr
        assert set(re.findall(r"^  -([a-z0-9-]+)", usage, re.MULTILINE)) == NSQD_FLAGS
    assert NSQD_FLAGS - {flag.name for flag in options.FLAGS} == set()
