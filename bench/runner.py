"""Run one workload once against a fresh server and turn what happened into figures."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench import upgraded
from bench.connections import Connections, Handshake, HandshakeError, create_channel
from bench.deliveries import Deliveries
from bench.loadgen import Load, LoadError
from bench.outcome import LoadReport
from bench.procfs import CpuTime, Memory, read_core_time_s, read_cpu_time, read_memory
from bench.server import Server, ServerError, Target, running
from bench.workloads import Workload

TOPIC = "bench"
CHANNEL = "bench"
OPEN_TIMEOUT_S = 30.0
# A server counts as settled when it used less than this share of a core over one interval.
SETTLED_SHARE = 0.05
SETTLE_INTERVAL_S = 0.25
SETTLE_DEADLINE_S = 60.0


@dataclass(frozen=True)
class Cores:
    """Where server and generator run; None: wherever the kernel puts them."""

    server: int | None = None
    generator: int | None = None

    @classmethod
    def choose(cls) -> "Cores":
        """Take two of the cores this process may use, or none when there is only one."""
        allowed = sorted(os.sched_getaffinity(0))
        return cls(server=allowed[0], generator=allowed[1]) if len(allowed) > 1 else cls()


@dataclass(frozen=True)
class Setting:
    """What is the same for all runs of a session. flags: further flags, given to every server."""

    cores: Cores = field(default_factory=Cores)
    data_root: Path | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """One run.

    losses: messages not confirmed (publish), or published but never delivered (the others).
    problem: why the run counts as failed; "" when it does not.
    figures: by the names in bench.report.FIGURES.
    """

    workload: str
    target: str
    messages: int
    losses: int = 0
    duplicates: int = 0
    foreign: int = 0
    problem: str = ""
    figures: dict[str, float] = field(default_factory=dict)


@dataclass
class Meter:
    """What the body of `metered` cost the server, and what its core spent on others meanwhile."""

    server: CpuTime = field(default_factory=lambda: CpuTime(0.0, 0.0))
    others_s: float = 0.0
    elapsed_s: float = 0.0


@contextmanager
def metered(server: Server, cores: Cores) -> Iterator[Meter]:
    """Measure over the body; others_s stays 0 when the server is not pinned."""

    def core_time_s() -> float:
        return 0.0 if cores.server is None else read_core_time_s(cores.server)

    meter = Meter()
    cpu_before, core_before_s, start_s = read_cpu_time(server.pid), core_time_s(), time.monotonic()
    yield meter
    meter.elapsed_s = time.monotonic() - start_s
    server.require_alive()
    meter.server = read_cpu_time(server.pid) - cpu_before
    # Two roundings to ticks can leave less than nothing.
    meter.others_s = max(0.0, core_time_s() - core_before_s - meter.server.total_s)


def settle(server: Server) -> float:
    """Wait, bounded, until the server has nothing left to do; return the seconds waited."""
    start_s = time.monotonic()
    before = read_cpu_time(server.pid)
    while time.monotonic() - start_s < SETTLE_DEADLINE_S:
        time.sleep(SETTLE_INTERVAL_S)
        server.require_alive()
        now = read_cpu_time(server.pid)
        if (now - before).total_s < SETTLED_SHARE * SETTLE_INTERVAL_S:
            break
        before = now
    return time.monotonic() - start_s


def load_figures(report: LoadReport, meter: Meter, seconds: float) -> dict[str, float]:
    messages = max(report.messages, 1)
    return {
        "rate_per_s": report.messages / seconds if seconds else 0.0,
        "seconds": seconds,
        "cpu_ns": meter.server.total_s * 1e9 / messages,
        "user_ns": meter.server.user_s * 1e9 / messages,
        "system_ns": meter.server.system_s * 1e9 / messages,
        "server_busy_percent": 100 * meter.server.total_s / meter.elapsed_s,
        "generator_busy_percent": 100 * report.worked_s / meter.elapsed_s,
        "others_percent": 100 * meter.others_s / meter.elapsed_s,
    }


def consumption_result(workload: Workload, target: Target, report: LoadReport, figures: dict[str, float]) -> Result:
    losses = report.messages - report.unique
    wrong = []
    if report.timed_out:
        wrong.append(f"not complete after {report.elapsed_s:.1f} s")
    if losses or report.duplicates or report.foreign:
        wrong.append(f"{losses} lost, {report.duplicates} twice, {report.foreign} never published")
    return Result(
        workload=workload.name,
        target=target.name,
        messages=report.messages,
        losses=losses,
        duplicates=report.duplicates,
        foreign=report.foreign,
        problem="; ".join(wrong),
        figures=figures,
    )


def add_publishers(load: Load, workload: Workload, connections: Connections) -> None:
    load.add_publishers(connections.fds(), topic=TOPIC, batch=workload.batch, outstanding=workload.outstanding)


def new_load(workload: Workload) -> Load:
    return Load(messages=workload.messages, body_bytes=workload.body_bytes, filler=workload.filler.encode())


def open_publishers(workload: Workload, server: Server) -> Connections:
    return Connections.open(server.tcp_address, workload.publishers, Handshake(), timeout_s=OPEN_TIMEOUT_S)


def open_subscribers(workload: Workload, server: Server, count: int) -> Connections:
    handshake = Handshake(identify=workload.identify, topic=TOPIC, channel=CHANNEL)
    return Connections.open(server.tcp_address, count, handshake, timeout_s=OPEN_TIMEOUT_S)


def run_publish(workload: Workload, target: Target, server: Server, setting: Setting) -> Result:
    """Publish into a topic without channels."""
    load = new_load(workload)
    with open_publishers(workload, server) as connections:
        add_publishers(load, workload, connections)
        with metered(server, setting.cores) as meter:
            report = load.run(workload.deadline_s, spin=setting.cores.generator is not None)
    return publication_result(workload, target, report, load_figures(report, meter, report.published_s))


def run_http_publish(workload: Workload, target: Target, server: Server, setting: Setting) -> Result:
    """Publish over HTTP into a topic without channels, on connections that are kept."""
    load = new_load(workload)
    handshake = Handshake(silent=True)
    with Connections.open(server.http_address, workload.publishers, handshake, timeout_s=OPEN_TIMEOUT_S) as connections:
        load.add_http_publishers(
            connections.fds(),
            topic=TOPIC,
            batch=workload.batch,
            outstanding=workload.outstanding,
            lines=workload.lines,
        )
        with metered(server, setting.cores) as meter:
            report = load.run(workload.deadline_s, spin=setting.cores.generator is not None)
    return publication_result(workload, target, report, load_figures(report, meter, report.published_s))


def publication_result(workload: Workload, target: Target, report: LoadReport, figures: dict[str, float]) -> Result:
    losses = report.messages - report.confirmed
    return Result(
        workload=workload.name,
        target=target.name,
        messages=report.messages,
        losses=losses,
        problem=f"{losses} not confirmed after {report.elapsed_s:.1f} s" if losses else "",
        figures=figures,
    )


def run_consume(workload: Workload, target: Target, server: Server, setting: Setting) -> Result:
    """Fill a channel that exists already, let the server come to rest, and consume it."""
    create_channel(server.tcp_address, TOPIC, CHANNEL, timeout_s=OPEN_TIMEOUT_S)
    filled = run_publish(workload, target, server, setting)
    if filled.problem:
        return filled
    settled_s = settle(server)
    load = Load(messages=workload.messages, body_bytes=workload.body_bytes)
    with open_subscribers(workload, server, workload.consumers) as connections:
        load.add_consumers(connections.fds(), rdy=workload.rdy)
        with metered(server, setting.cores) as meter:
            report = load.run(workload.deadline_s, spin=setting.cores.generator is not None)
    figures = load_figures(report, meter, report.consumed_s)
    return consumption_result(workload, target, report, {**figures, "settled_s": settled_s})


def run_consume_upgraded(workload: Workload, target: Target, server: Server, setting: Setting) -> Result:
    """As run_consume, on connections that are encrypted or compressed; the channel is filled by plain ones."""
    create_channel(server.tcp_address, TOPIC, CHANNEL, timeout_s=OPEN_TIMEOUT_S)
    filled = run_publish(workload, target, server, setting)
    if filled.problem:
        return filled
    settled_s = settle(server)
    deliveries = Deliveries(workload.messages)
    consumers = upgraded.subscribe(
        server.tcp_address, workload.upgrade, workload.consumers, TOPIC, CHANNEL, deliveries, OPEN_TIMEOUT_S
    )
    try:
        with metered(server, setting.cores) as meter:
            report = upgraded.consume(consumers, deliveries, workload.messages, workload.rdy, workload.deadline_s)
    finally:
        upgraded.close(consumers)
    figures = load_figures(report, meter, report.consumed_s)
    return consumption_result(workload, target, report, {**figures, "settled_s": settled_s})


def run_end_to_end(workload: Workload, target: Target, server: Server, setting: Setting) -> Result:
    """Publish and consume at once, from one loop."""
    load = Load(messages=workload.messages, body_bytes=workload.body_bytes)
    with (
        open_subscribers(workload, server, workload.consumers) as consumers,
        open_publishers(workload, server) as publishers,
    ):
        load.add_consumers(consumers.fds(), rdy=workload.rdy)
        add_publishers(load, workload, publishers)
        with metered(server, setting.cores) as meter:
            report = load.run(workload.deadline_s, spin=setting.cores.generator is not None)
    figures = load_figures(report, meter, report.consumed_s)
    return consumption_result(workload, target, report, {**figures, "published_s": report.published_s})


def idle_figures(before: Memory, after: Memory, count: int) -> dict[str, float]:
    return {
        "private_bytes": (after.private_bytes - before.private_bytes) / count,
        "anonymous_bytes": (after.anonymous_bytes - before.anonymous_bytes) / count,
        "rss_bytes": (after.rss_bytes - before.rss_bytes) / count,
    }


def run_idle(workload: Workload, target: Target, server: Server, setting: Setting) -> Result:
    """Open many subscribed connections and only answer heartbeats."""
    create_channel(server.tcp_address, TOPIC, CHANNEL, timeout_s=OPEN_TIMEOUT_S)
    settle(server)
    before = read_memory(server.pid)
    load = Load(messages=0, body_bytes=workload.body_bytes)
    start_s = time.monotonic()
    with open_subscribers(workload, server, workload.idlers) as connections:
        opened_s = time.monotonic() - start_s
        after = read_memory(server.pid)
        load.add_idlers(connections.fds())
        with metered(server, setting.cores) as meter:
            report = load.run(workload.duration_s)
    figures = {
        **idle_figures(before, after, workload.idlers),
        "opened_s": opened_s,
        "cpu_percent": 100 * meter.server.total_s / meter.elapsed_s,
        "others_percent": 100 * meter.others_s / meter.elapsed_s,
        "heartbeats": float(report.heartbeats),
    }
    return Result(workload=workload.name, target=target.name, messages=0, figures=figures)


KINDS = {
    "publish": run_publish,
    "http_publish": run_http_publish,
    "consume": run_consume,
    "consume_upgraded": run_consume_upgraded,
    "end_to_end": run_end_to_end,
    "idle": run_idle,
}


def pin_generator(cores: Cores) -> None:
    """Bind this process, which generates the load, to its core."""
    if cores.generator is not None:
        os.sched_setaffinity(0, {cores.generator})


def run_once(workload: Workload, target: Target, setting: Setting) -> Result:
    """Start target afresh, put workload on it, stop it.

    A failure of the server or of the protocol is a result with a problem, so that the other runs go on.
    """
    try:
        flags = (*setting.flags, *workload.flags, *upgraded.server_flags(workload.upgrade))
        with running(target, core=setting.cores.server, data_root=setting.data_root, flags=flags) as server:
            try:
                return KINDS[workload.kind](workload, target, server, setting)
            except (LoadError, HandshakeError, OSError) as error:
                # A dead server explains more than the connection that it took along.
                server.require_alive()
                return failure(workload, target, error)
    except ServerError as error:
        return failure(workload, target, error)


def failure(workload: Workload, target: Target, error: Exception) -> Result:
    problem = f"{type(error).__name__}: {error}"
    return Result(workload=workload.name, target=target.name, messages=workload.messages, problem=problem)


def alternate(workload: Workload, targets: Sequence[Target], pairs: int, setting: Setting) -> Iterator[Result]:
    """Yield the results of A B A B ..., so that slow drifts of the machine meet all targets alike."""
    for _ in range(pairs):
        for target in targets:
            yield run_once(workload, target, setting)
