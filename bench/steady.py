"""Keep a server that runs already under load, for profilers that look at it from outside."""

import time

from bench.connections import Address, Connections, Handshake
from bench.loadgen import Load
from bench.workloads import Workload, find

TOPIC = "bench-load"
# Short enough to come near the time asked for, long enough that opening connections does not show.
ROUND_MESSAGES = 400_000
OPEN_TIMEOUT_S = 10.0


def run_round(address: Address, workload: Workload) -> int:
    """Send ROUND_MESSAGES through the server and return how many came back."""
    subscribed = Handshake(topic=TOPIC, channel=TOPIC)
    load = Load(messages=ROUND_MESSAGES, body_bytes=workload.body_bytes)
    with (
        Connections.open(address, workload.consumers, subscribed, timeout_s=OPEN_TIMEOUT_S) as consumers,
        Connections.open(address, workload.publishers, Handshake(), timeout_s=OPEN_TIMEOUT_S) as publishers,
    ):
        load.add_consumers(consumers.fds(), rdy=workload.rdy)
        load.add_publishers(publishers.fds(), topic=TOPIC, batch=workload.batch, outstanding=workload.outstanding)
        return load.run(workload.deadline_s).unique


def keep_loaded(address: Address, seconds: float) -> int:
    """Repeat rounds of the workload e2e for about that long; return the number of messages that went through.

    Raises: LoadError, HandshakeError, OSError when the server fails or goes away.
    """
    workload = find("e2e")
    end_s = time.monotonic() + seconds
    count = 0
    while time.monotonic() < end_s:
        count += run_round(address, workload)
    return count
