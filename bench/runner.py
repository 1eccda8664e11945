"""Run of one workload against a fresh server, and the figures of its result."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

from bench import accounts, bounded, stock, upgraded
from bench.accounts import Account
from bench.deliveries import Deliveries
from bench.procfs import Memory, read_memory
from bench.server import Server, ServerError, Target, running
from bench.setting import Cores, Meter, Result, Setting, metered, settle
from bench.workloads import Workload
from pyqd.hot.tools.loadgen import Load, LoadError
from pyqd.tools.bench.connections import Connections, Handshake, HandshakeError, create_channel
from pyqd.tools.bench.outcome import Latency, LoadReport

TOPIC = "bench"
CHANNEL = "bench"
OPEN_TIMEOUT_S = 30.0


def load_figures(report: LoadReport, meter: Meter, seconds: float) -> dict[str, float]:
    messages = max(report.messages, 1)
    return {
        "rate_per_s": report.messages / seconds if seconds else 0.0,
        "seconds": seconds,
        "cpu_ns": meter.server.total_s * 1e9 / messages,
        "user_ns": meter.server.user_s * 1e9 / messages,
        "system_ns": meter.server.system_s * 1e9 / messages,
        "loop_faults": meter.loop.faults / messages,
        "loop_switches": meter.loop.switches / messages,
        "server_busy_percent": 100 * meter.server.total_s / meter.elapsed_s,
        "generator_busy_percent": 100 * report.worked_s / meter.elapsed_s,
        "others_percent": 100 * meter.others_s / meter.elapsed_s,
        **latency_values("answer", report.answers),
        **latency_values("latency", report.deliveries),
        **latency_values("behind", report.behind),
    }


def latency_values(prefix: str, latency: Latency) -> dict[str, float]:
    """Return the figures of one kind of latency, none when nothing was recorded."""
    if not latency.count:
        return {}
    return {
        f"{prefix}_p50_us": latency.p50_ns / 1e3,
        f"{prefix}_p99_us": latency.p99_ns / 1e3,
        f"{prefix}_p999_us": latency.p999_ns / 1e3,
        f"{prefix}_max_us": latency.max_ns / 1e3,
    }


def channel_problems(report: LoadReport) -> list[str]:
    """Name the channels that did not get each message once."""
    return [
        f"channel {index}: {report.messages - count.unique} lost, {count.duplicates} twice, {count.foreign} foreign"
        for index, count in enumerate(report.channels)
        if count.unique != report.messages or count.duplicates or count.foreign
    ]


def consumption_account(target: Target, server: Server, report: LoadReport) -> Account:
    """Compare the server's remaining messages. A sink does not report them; its undelivered messages are known."""
    if target.program == "sink" or report.timed_out:
        return Account()
    return accounts.of_consumption(server, TOPIC, report.messages)


def consumption_result(
    workload: Workload, target: Target, report: LoadReport, account: Account, figures: dict[str, float]
) -> Result:
    losses = report.messages * len(report.channels) - report.unique
    duplicates = report.duplicates + account.duplicates
    wrong = []
    if report.timed_out:
        wrong.append(f"not complete after {report.elapsed_s:.1f} s")
    if losses or duplicates or report.foreign:
        wrong.append(f"{losses} lost, {duplicates} twice, {report.foreign} never published")
    if len(report.channels) > 1:
        wrong += channel_problems(report)
    if account.problem:
        wrong.append(account.problem)
    return Result(
        workload=workload.name,
        target=target.name,
        messages=report.messages,
        losses=losses,
        duplicates=duplicates,
        foreign=report.foreign,
        problem="; ".join(wrong),
        figures={**figures, "lost_count": float(losses), "twice_count": float(duplicates)},
    )


def add_publishers(load: Load, workload: Workload, connections: Connections) -> None:
    load.add_publishers(
        connections.fds(),
        topic=TOPIC,
        batch=workload.batch,
        outstanding=workload.outstanding,
        rate_per_s=workload.rate_per_s,
        defer_ms=workload.defer_ms,
    )


def new_load(workload: Workload) -> Load:
    return Load(messages=workload.messages, body_bytes=workload.body_bytes, filler=workload.filler.encode())


def open_publishers(workload: Workload, server: Server) -> Connections:
    return Connections.open(server.tcp_address, workload.publishers, Handshake(), timeout_s=OPEN_TIMEOUT_S)


def open_subscribers(workload: Workload, server: Server, count: int, channel: str = CHANNEL) -> Connections:
    handshake = Handshake(identify=workload.identify, topic=TOPIC, channel=channel)
    return Connections.open(server.tcp_address, count, handshake, timeout_s=OPEN_TIMEOUT_S)


def publish(workload: Workload, server: Server, setting: Setting) -> tuple[LoadReport, Meter]:
    load = new_load(workload)
    with open_publishers(workload, server) as connections:
        add_publishers(load, workload, connections)
        with metered(server) as meter:
            report = load.run(workload.deadline_s, spin=setting.cores.generator is not None)
    return report, meter


def run_publish(workload: Workload, target: Target, server: Server, setting: Setting) -> Result:
    """Publish into a topic without channels, or with a channel without consumers."""
    if workload.existing:
        create_channel(server.tcp_address, TOPIC, CHANNEL, timeout_s=OPEN_TIMEOUT_S)
    report, meter = publish(workload, server, setting)
    return publication_result(workload, target, server, report, meter)


def fill(workload: Workload, target: Target, server: Server, setting: Setting) -> tuple[Result, float]:
    """Publish into an existing channel and let the server come to rest; return the seconds of that too."""
    create_channel(server.tcp_address, TOPIC, CHANNEL, timeout_s=OPEN_TIMEOUT_S)
    report, meter = publish(workload, server, setting)
    settled_s = settle(server)
    return publication_result(workload, target, server, report, meter), settled_s


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
        with metered(server) as meter:
            report = load.run(workload.deadline_s, spin=setting.cores.generator is not None)
    return publication_result(workload, target, server, report, meter)


def publication_account(workload: Workload, target: Target, server: Server, report: LoadReport) -> Account:
    """Compare the server's counts after all of a load was answered; a sink has nothing beyond its answers."""
    unconfirmed = report.messages - report.confirmed
    if unconfirmed:
        return Account(losses=unconfirmed, problem=f"{unconfirmed} not confirmed after {report.elapsed_s:.1f} s")
    if target.program == "sink":
        return Account()
    return accounts.of_publication(server, TOPIC, report.messages, deferred=workload.defer_ms > 0)


def publication_result(workload: Workload, target: Target, server: Server, report: LoadReport, meter: Meter) -> Result:
    account = publication_account(workload, target, server, report)
    figures = load_figures(report, meter, report.published_s)
    figures["lost_count"] = float(account.losses)
    # A sink does not count duplicates.
    if target.program != "sink":
        figures["twice_count"] = float(account.duplicates)
    return Result(
        workload=workload.name,
        target=target.name,
        messages=report.messages,
        losses=account.losses,
        duplicates=account.duplicates,
        problem=account.problem,
        figures=figures,
    )


def run_consume(workload: Workload, target: Target, server: Server, setting: Setting) -> Result:
    """Fill an existing channel, let the server come to rest, and consume it."""
    filled, settled_s = fill(workload, target, server, setting)
    if filled.problem:
        return filled
    load = Load(messages=workload.messages, body_bytes=workload.body_bytes)
    with open_subscribers(workload, server, workload.consumers) as connections:
        load.add_consumers(connections.fds(), rdy=workload.rdy)
        with metered(server) as meter:
            report = load.run(workload.deadline_s, spin=setting.cores.generator is not None)
    figures = load_figures(report, meter, report.consumed_s)
    account = consumption_account(target, server, report)
    return consumption_result(workload, target, report, account, {**figures, "settled_s": settled_s})


def run_consume_upgraded(workload: Workload, target: Target, server: Server, setting: Setting) -> Result:
    """Run as run_consume, on connections that are encrypted or compressed; the channel is filled by plain ones."""
    filled, settled_s = fill(workload, target, server, setting)
    if filled.problem:
        return filled
    deliveries = Deliveries(workload.messages)
    consumers = upgraded.subscribe(
        server.tcp_address, workload.upgrade, workload.consumers, TOPIC, CHANNEL, deliveries, OPEN_TIMEOUT_S
    )
    try:
        with metered(server) as meter:
            report = upgraded.consume(consumers, deliveries, workload.messages, workload.rdy, workload.deadline_s)
    finally:
        upgraded.close(consumers)
    figures = load_figures(report, meter, report.consumed_s)
    account = consumption_account(target, server, report)
    return consumption_result(workload, target, report, account, {**figures, "settled_s": settled_s})


def run_end_to_end(workload: Workload, target: Target, server: Server, setting: Setting) -> Result:
    """Publish and consume at once, from one loop.

    With a rate, its figure is the rate that the generator reached.
    """
    load = Load(messages=workload.messages, body_bytes=workload.body_bytes)
    with (
        open_subscribers(workload, server, workload.consumers) as consumers,
        open_publishers(workload, server) as publishers,
    ):
        load.add_consumers(consumers.fds(), rdy=workload.rdy)
        add_publishers(load, workload, publishers)
        with metered(server) as meter:
            report = load.run(workload.deadline_s, spin=setting.cores.generator is not None)
    figures = load_figures(report, meter, report.sent_s if workload.rate_per_s else report.consumed_s)
    account = consumption_account(target, server, report)
    return consumption_result(workload, target, report, account, {**figures, "published_s": report.published_s})


def run_fan_out(workload: Workload, target: Target, server: Server, setting: Setting) -> Result:
    """Publish into a topic and consume each of its channels at once; each has consumers of its own."""
    load = Load(messages=workload.messages, body_bytes=workload.body_bytes, channels=workload.channels)
    publishing = new_load(workload) if workload.unconsumed else load
    with ExitStack() as opened:
        for index in range(workload.channels):
            consumers = open_subscribers(workload, server, workload.consumers, f"{CHANNEL}-{index}")
            load.add_consumers(opened.enter_context(consumers).fds(), rdy=workload.rdy, channel=index)
        publishers = opened.enter_context(open_publishers(workload, server))
        add_publishers(publishing, workload, publishers)
        with metered(server) as meter:
            if workload.unconsumed:
                report = bounded.run(publishing, load, workload.unconsumed, workload.deadline_s)
            else:
                report = load.run(workload.deadline_s, spin=setting.cores.generator is not None)
    figures = load_figures(report, meter, report.consumed_s)
    if report.published_s and report.consumed_s:
        figures["published_per_s"] = report.messages / report.published_s
        figures["delivered_per_s"] = report.unique / report.consumed_s
    account = consumption_account(target, server, report)
    return consumption_result(workload, target, report, account, {**figures, "published_s": report.published_s})


def run_deferred(workload: Workload, target: Target, server: Server, setting: Setting) -> Result:
    """Publish deferred messages at a rate and take the time from their due time to their delivery."""
    load = Load(messages=workload.messages, body_bytes=workload.body_bytes)
    if workload.age_s:
        create_channel(server.tcp_address, TOPIC, CHANNEL, timeout_s=OPEN_TIMEOUT_S)
        time.sleep(workload.age_s)
    with (
        open_subscribers(workload, server, workload.consumers) as consumers,
        open_publishers(workload, server) as publishers,
    ):
        load.add_consumers(consumers.fds(), rdy=workload.rdy)
        add_publishers(load, workload, publishers)
        with metered(server) as meter:
            report = load.run(workload.deadline_s, spin=setting.cores.generator is not None)
    figures = load_figures(replace(report, deliveries=Latency()), meter, report.sent_s)
    lateness = latency_values("lateness", report.deliveries)
    account = consumption_account(target, server, report)
    return consumption_result(
        workload, target, report, account, {**figures, **lateness, "early_count": float(report.early)}
    )


def idle_figures(before: Memory, after: Memory, count: int) -> dict[str, float]:
    return {
        "private_bytes": (after.private_bytes - before.private_bytes) / count,
        "anonymous_bytes": (after.anonymous_bytes - before.anonymous_bytes) / count,
        "rss_bytes": (after.rss_bytes - before.rss_bytes) / count,
    }


def run_idle(workload: Workload, target: Target, server: Server, _setting: Setting) -> Result:
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
        with metered(server) as meter:
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
    "fan_out": run_fan_out,
    "deferred": run_deferred,
    "idle": run_idle,
    **stock.KINDS,
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
        flags = (*setting.flags, *workload.flags_of(target.program), *upgraded.server_flags(workload.upgrade))
        cores = setting.cores.of(target)
        with running(target, cores=cores, data_root=setting.data_root, flags=flags) as server:
            try:
                return KINDS[workload.kind](workload, target, server, setting.of(target))
            except (LoadError, HandshakeError, OSError) as error:
                # A dead server explains more than the connection that it took along.
                server.require_alive()
                return failure(workload, target, error)
    except (ServerError, OSError) as error:
        return failure(workload, target, error)


def measurable(workload: Workload, target: Target) -> bool:
    """Return whether target can take the workload at all: a sink upgrades nothing, keeps nothing, has no statistics."""
    return target.program != "sink" or not (workload.upgrade or workload.kind in stock.KINDS)


def failure(workload: Workload, target: Target, error: Exception) -> Result:
    problem = f"{type(error).__name__}: {error}"
    return Result(workload=workload.name, target=target.name, messages=workload.messages, problem=problem)


def alternate(targets: Sequence[Target], pairs: int) -> Iterator[tuple[int, Target]]:
    """Yield pair and target in the order A B A B ..., so that slow drifts of the machine meet all targets alike."""
    for pair in range(pairs):
        for target in targets:
            yield pair, target
