"""Steady load on a running server, for profilers that observe it from outside."""

import time
from dataclasses import dataclass, replace

from bench.workloads import Workload, find
from pyqd.hot.tools.loadgen import Load
from pyqd.tools.bench.connections import Address, Connections, Handshake
from pyqd.tools.bench.outcome import LoadReport

TOPIC = "bench-load"
# Short enough to come near the requested time, long enough that opening connections does not show.
ROUND_MESSAGES = 400_000
OPEN_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Carried:
    """Messages carried. problem: of the last round, "" if each message came once."""

    messages: int = 0
    problem: str = ""


def run_round(address: Address, workload: Workload) -> LoadReport:
    """Send the messages of a workload through the server."""
    subscribed = Handshake(topic=TOPIC, channel=TOPIC)
    load = Load(messages=workload.messages, body_bytes=workload.body_bytes)
    with (
        Connections.open(address, workload.consumers, subscribed, timeout_s=OPEN_TIMEOUT_S) as consumers,
        Connections.open(address, workload.publishers, Handshake(), timeout_s=OPEN_TIMEOUT_S) as publishers,
    ):
        load.add_consumers(consumers.fds(), rdy=workload.rdy)
        load.add_publishers(publishers.fds(), topic=TOPIC, batch=workload.batch, outstanding=workload.outstanding)
        return load.run(workload.deadline_s)


def problem_of(report: LoadReport) -> str:
    """Return the problem of a round, "" if each message came once."""
    losses = report.messages - report.unique
    if not (report.timed_out or losses or report.duplicates or report.foreign):
        return ""
    late = f"not complete after {report.elapsed_s:.1f} s: " if report.timed_out else ""
    counts = f"{losses} lost, {report.duplicates} twice, {report.foreign} never published"
    return f"{late}{counts}, where what an interrupted load has left in topic {TOPIC} counts as well"


def keep_loaded(address: Address, seconds: float, workload: Workload | None = None) -> Carried:
    """Repeat rounds of the workload (default: e2e) for about that long, at the latest until one has a problem.

    Raises: LoadError, HandshakeError, OSError when the server fails or goes away.
    """
    chosen = workload or replace(find("e2e"), messages=ROUND_MESSAGES)
    end_s = time.monotonic() + seconds
    carried = Carried()
    while time.monotonic() < end_s and not carried.problem:
        report = run_round(address, chosen)
        carried = Carried(messages=carried.messages + report.unique, problem=problem_of(report))
    return carried
