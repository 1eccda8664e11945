"""Run of one workload against a fresh server, and its figures."""

import shutil
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from statistics import median

from bench import accounts, upgraded
from bench.server import Figures, RunError, Server, ServerError, Target, running
from bench.setting import Meter, Setting, metered, read_memory, settle
from bench.workloads import Workload
from pyqd.client.errors import ClientError
from pyqd.hot.tools.histogram import LatencyHistogram
from pyqd.hot.tools.loadgen import Load
from pyqd.tools.bench.connections import Address, Connections, Handshake, LoadHandshakeError
from pyqd.tools.bench.outcome import LoadReport
from pyqd.tools.bench.process import read_cpu_time

TOPIC = "bench"
CHANNEL = "bench-0"
OPEN_TIMEOUT_S = 30.0
# Publishers have little to do beside the deliveries of many channels.
PUBLISH_S = 10e-6
CONSUME_S = 50e-6
SIGNALS_S = 0.1
START_COUNT = 5
START_DEADLINE_S = 120.0
# Resolution of the time of a start.
START_POLL_S = 0.001


class HttpHandshake(Handshake):
    """Beginning of a connection for HTTP: nothing is sent before a request."""

    def preamble(self) -> bytes:
        return b""


def create_channel(address: Address, topic: str, channel: str, *, timeout_s: float) -> None:
    """Create topic and channel as a consumer does: subscribe and leave."""
    Connections.open(address, 1, Handshake(topic=topic, channel=channel), timeout_s=timeout_s).close()


def run_load(load: Load, deadline_s: float, *, spin: bool = False) -> LoadReport:
    """Run a load until it is complete, at the latest until deadline_s seconds have passed. Raises: LoadError.

    A load of idle connections alone always lasts deadline_s, and that is no time-out.
    """
    load.start(spin=spin)
    end_s = time.monotonic() + deadline_s
    # Signals are handled between two calls.
    while (left_s := end_s - time.monotonic()) > 0 and not load.advance(min(SIGNALS_S, left_s)):
        pass
    return load.report()


def load_figures(report: LoadReport, meter: Meter, seconds: float) -> Figures:
    messages = max(report.messages, 1)
    return {
        "rate_per_s": report.messages / seconds if seconds else 0.0,
        "cpu_ns": meter.server.total_s * 1e9 / messages,
        "user_ns": meter.server.user_s * 1e9 / messages,
        "system_ns": meter.server.system_s * 1e9 / messages,
        "loop_faults": meter.faults / messages,
        "loop_switches": meter.switches / messages,
        "seconds": seconds,
        "server_busy_percent": 100 * meter.server.total_s / meter.elapsed_s,
        "generator_busy_percent": 100 * report.worked_s / meter.elapsed_s,
        "others_percent": 100 * meter.others_s / meter.elapsed_s,
        **latency_values("answer", report.answers),
        **latency_values("latency", report.deliveries),
        **latency_values("behind", report.behind),
    }


def latency_values(prefix: str, latency: LatencyHistogram) -> Figures:
    """Return the figures of one kind of latency, none when nothing was recorded."""
    if not latency.count:
        return {}
    return {
        f"{prefix}_p50_us": latency.quantile(0.5) / 1e3,
        f"{prefix}_p99_us": latency.quantile(0.99) / 1e3,
        f"{prefix}_p999_us": latency.quantile(0.999) / 1e3,
        f"{prefix}_max_us": latency.most / 1e3,
    }


def carry(
    workload: Workload, server: Server, setting: Setting, *, publish: bool = True, consume: bool = True
) -> tuple[LoadReport, Meter]:
    """Run a load with the publishers of a workload, its consumers, or both at once from one loop."""
    load = new_load(workload, workload.channels)
    publishing = new_load(workload) if workload.unconsumed else load
    with ExitStack() as opened:
        if consume:
            for index in range(workload.channels):
                fds = [each.fileno() for each in open_consumers(workload, server, f"bench-{index}", opened)]
                load.add_consumers(fds, rdy=workload.rdy, channel=index)
        if publish:
            open_publishers(workload, server, publishing, opened)
        with metered(server) as meter:
            if workload.unconsumed:
                report = run_bounded(publishing, load, workload.unconsumed, workload.deadline_s)
            else:
                report = run_load(load, workload.deadline_s, spin=setting.spin and not workload.upgrade)
    return report, meter


def new_load(workload: Workload, channels: int = 1) -> Load:
    filler = workload.filler.encode()
    return Load(messages=workload.messages, body_bytes=workload.body_bytes, filler=filler, channels=channels)


def open_consumers(workload: Workload, server: Server, channel: str, opened: ExitStack) -> list[socket.socket]:
    if workload.upgrade:
        return [
            opened.enter_context(upgraded.subscribed(server.tcp_address, workload.upgrade, TOPIC, channel))
            for _ in range(workload.consumers)
        ]
    handshake = Handshake(identify=workload.identify, topic=TOPIC, channel=channel)
    consumers = Connections.open(server.tcp_address, workload.consumers, handshake, timeout_s=OPEN_TIMEOUT_S)
    return opened.enter_context(consumers).sockets


def open_publishers(workload: Workload, server: Server, load: Load, opened: ExitStack) -> None:
    is_http = workload.kind == "http_publish"
    address: Address = server.http_address if is_http else server.tcp_address
    connections = Connections.open(
        address, workload.publishers, HttpHandshake() if is_http else Handshake(), timeout_s=OPEN_TIMEOUT_S
    )
    fds = opened.enter_context(connections).fds()
    if is_http:
        load.add_http_publishers(
            fds, topic=TOPIC, batch=workload.batch, outstanding=workload.outstanding, lines=workload.lines
        )
    else:
        load.add_publishers(
            fds,
            topic=TOPIC,
            batch=workload.batch,
            outstanding=workload.outstanding,
            rate_per_s=workload.rate_per_s,
            defer_ms=workload.defer_ms,
        )


def run_bounded(publishing: Load, consuming: Load, unconsumed: int, deadline_s: float) -> LoadReport:
    """Run two loads of the same messages in turns; the publishers wait for the slowest channel.

    Returns: the counts of both; there are no latencies of deliveries. Raises: LoadError.
    """
    end_s = time.monotonic() + deadline_s
    publishing.start(spin=True)
    consuming.start(spin=True)
    published = consumed = False
    while not (published and consumed) and time.monotonic() < end_s:
        slowest = min(channel.unique for channel in consuming.report().channels)
        if not published and publishing.counts().sent - slowest < unconsumed:
            published = publishing.advance(PUBLISH_S)
        if not consumed:
            consumed = consuming.advance(CONSUME_S)
    sent = publishing.report()
    received = consuming.report()
    return replace(
        received,
        confirmed=sent.confirmed,
        published_s=sent.published_s,
        sent_s=sent.sent_s,
        answers=sent.answers,
        worked_s=sent.worked_s + received.worked_s,
        timed_out=not (published and consumed),
    )


def run_publish(workload: Workload, server: Server, setting: Setting) -> Figures:
    """Publish into a topic without channels, or with a channel without consumers."""
    if workload.existing:
        create_channel(server.tcp_address, TOPIC, CHANNEL, timeout_s=OPEN_TIMEOUT_S)
    report, meter = carry(workload, server, setting, consume=False)
    if report.confirmed != report.messages:
        raise RunError(f"{report.messages - report.confirmed} not confirmed after {report.elapsed_s:.1f} s")
    # A sink has nothing beyond its answers.
    if server.target.program != "sink":
        accounts.require_published(server, TOPIC, report.messages, deferred=workload.defer_ms > 0)
    return load_figures(report, meter, report.published_s)


def require_whole(server: Server, report: LoadReport) -> None:
    """Check that each channel got each message once, and that the server has none left. Raises: RunError."""
    wrong = [
        f"channel {index}: {report.messages - count.unique} lost, {count.duplicates} twice, {count.foreign} foreign"
        for index, count in enumerate(report.channels)
        if (count.unique, count.duplicates, count.foreign) != (report.messages, 0, 0)
    ]
    if report.timed_out:
        wrong.insert(0, f"not complete after {report.elapsed_s:.1f} s")
    if wrong:
        raise RunError("; ".join(wrong))
    if server.target.program != "sink":
        accounts.require_consumed(server, TOPIC, report.messages)


def fill(workload: Workload, server: Server, setting: Setting) -> None:
    """Publish into an existing channel and let the server come to rest."""
    run_publish(replace(workload, existing=True), server, setting)
    settle(server)


def run_consume(workload: Workload, server: Server, setting: Setting) -> Figures:
    """Consume a filled channel; it is filled by plain connections."""
    fill(workload, server, setting)
    report, meter = carry(workload, server, setting, publish=False)
    require_whole(server, report)
    return load_figures(report, meter, report.consumed_s)


def run_end_to_end(workload: Workload, server: Server, setting: Setting) -> Figures:
    """Publish and consume at once. With a rate, the rate of the figures is that which the generator reached."""
    report, meter = carry(workload, server, setting)
    require_whole(server, report)
    figures = load_figures(report, meter, report.sent_s if workload.rate_per_s else report.consumed_s)
    if workload.channels > 1:
        figures["delivered_per_s"] = report.unique / report.consumed_s
    if workload.rate_per_s:
        figures = {**latency_values("latency", report.deliveries), **figures}
    return {**figures, "published_s": report.published_s}


def run_idle(workload: Workload, server: Server, _setting: Setting) -> Figures:
    """Open many subscribed connections and only answer heartbeats."""
    create_channel(server.tcp_address, TOPIC, CHANNEL, timeout_s=OPEN_TIMEOUT_S)
    settle(server)
    before = read_memory(server.pid)
    load = Load(messages=0, body_bytes=workload.body_bytes)
    handshake = Handshake(topic=TOPIC, channel=CHANNEL)
    with Connections.open(server.tcp_address, workload.idlers, handshake, timeout_s=OPEN_TIMEOUT_S) as connections:
        taken = read_memory(server.pid) - before
        load.add_idlers(connections.fds())
        with metered(server) as meter:
            run_load(load, workload.duration_s)
    return {
        **{key: value / workload.idlers for key, value in vars(taken).items()},
        "cpu_percent": 100 * meter.server.total_s / meter.elapsed_s,
        "others_percent": 100 * meter.others_s / meter.elapsed_s,
    }


def run_memory(workload: Workload, server: Server, setting: Setting) -> Figures:
    """Queue messages in a channel and read the memory they added."""
    create_channel(server.tcp_address, TOPIC, CHANNEL, timeout_s=OPEN_TIMEOUT_S)
    settle(server)
    before = read_memory(server.pid)
    fill(workload, server, setting)
    taken = read_memory(server.pid) - before
    # The kernel may write and drop pages of the server's own files, which are private too.
    names = ("anonymous_bytes", "private_bytes", "rss_bytes")
    return {name: getattr(taken, name) / workload.messages for name in names}


def wait_for(server: Server, answers: Callable[[], bool], what: str) -> None:
    """Ask until the answer is yes. Raises: ServerError at the deadline, or when the server has ended."""
    end_s = time.monotonic() + START_DEADLINE_S
    while True:
        try:
            if answers():
                return
        except (OSError, LoadHandshakeError, ClientError, RunError):
            pass
        server.require_alive()
        if time.monotonic() > end_s:
            raise ServerError(f"{what} not within {START_DEADLINE_S:.0f} s\n{server.log_tail()}")
        time.sleep(START_POLL_S)


def identify(server: Server) -> bool:
    """Return whether IDENTIFY is answered OK. Raises: OSError, LoadHandshakeError."""
    Connections.open(server.tcp_address, 1, Handshake(identify={"client_id": "bench"}), timeout_s=5.0).close()
    return True


def ping(server: Server) -> bool:
    """Return whether /ping is answered OK. Raises: OSError."""
    # No HTTP library: its own work would be part of the time.
    with socket.create_connection(server.http_address, timeout=5.0) as connection:
        connection.sendall(b"GET /ping HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")
        return connection.recv(4096).startswith(b"HTTP/1.1 200")


def timed_start(workload: Workload, server: Server) -> Figures:
    """Start the stopped server and return the seconds until it answers, and until its depth is right."""
    start_s = time.monotonic()
    server.start()
    wait_for(server, lambda: identify(server), "IDENTIFY answered")
    identify_s = time.monotonic() - start_s
    wait_for(server, lambda: ping(server), "/ping answered")
    ping_s = time.monotonic() - start_s
    if workload.messages:
        what = f"depth {workload.messages:,} after the start"
        wait_for(server, lambda: accounts.read_stock(server, TOPIC).channel_depth == workload.messages, what)
    ready_s = time.monotonic() - start_s
    cpu_s = read_cpu_time(server.pid).total_s
    return {"start_s": ready_s, "identify_s": identify_s, "ping_s": ping_s, "start_cpu_s": cpu_s}


def run_start(workload: Workload, server: Server, setting: Setting) -> Figures:
    """Fill a channel, or leave the server empty, then stop it and time its start; return medians of several starts."""
    if workload.messages:
        fill(workload, server, setting)
    starts = []
    for _ in range(START_COUNT):
        stopping_s = time.monotonic()
        server.stop()
        stop_s = time.monotonic() - stopping_s
        if not workload.messages:
            shutil.rmtree(server.data_path)
            server.data_path.mkdir()
        starts.append({**timed_start(workload, server), "stop_s": stop_s})
    return {key: median(start[key] for start in starts) for key in starts[0]}


KINDS = {
    "publish": run_publish,
    "http_publish": run_publish,
    "consume": run_consume,
    "end_to_end": run_end_to_end,
    "idle": run_idle,
    "memory": run_memory,
    "start": run_start,
}


def run_once(workload: Workload, target: Target, setting: Setting) -> Figures:
    """Start target afresh, put workload on it, stop it. Raises: one of bench.study.FAILURES."""
    flags = (*setting.flags, *workload.flags_of(target.program), *upgraded.server_flags(workload.upgrade))
    cores = setting.cores.of(target)
    with running(target, cores=cores, data_root=setting.data_root, flags=flags) as server:
        try:
            return KINDS[workload.kind](workload, server, setting.of(target))
        except Exception:
            # A dead server explains more than the connection that it took along.
            server.require_alive()
            raise


def measurable(workload: Workload, target: Target) -> bool:
    """Return whether target can take the workload: a sink speaks no HTTP, upgrades nothing, and keeps nothing."""
    lacking = ("http_publish", "idle", "memory", "start")
    return target.program != "sink" or not (workload.upgrade or workload.kind in lacking)
