"""Cost of a stock of queued messages: memory for each, and time at the next start."""

import json
import shutil
import socket
import time
import urllib.request
from collections.abc import Callable
from statistics import median
from typing import Any

from bench.procfs import read_memory
from bench.server import Server, ServerError, Target
from bench.setting import Result, Setting, settle
from bench.workloads import Workload
from pyqd.hot.tools.loadgen import Load
from pyqd.tools.bench.connections import Connections, Handshake, HandshakeError, create_channel
from pyqd.tools.bench.process import read_cpu_time

TOPIC = "bench"
CHANNEL = "bench"
OPEN_TIMEOUT_S = 30.0
ANSWER_TIMEOUT_S = 5.0
START_DEADLINE_S = 120.0
# Resolution of the time of a start.
START_POLL_S = 0.001
# Statistics cost the server something: a server that moves messages into the channel is asked rarely.
FILL_POLL_S = 0.25


def channel_depth(server: Server) -> int:
    """Return the messages that wait in the channel. Raises: OSError, ValueError when the server does not say."""
    host, port = server.http_address
    url = f"http://{host}:{port}/stats?format=json&topic={TOPIC}&channel={CHANNEL}&include_clients=false"
    with urllib.request.urlopen(url, timeout=ANSWER_TIMEOUT_S) as reply:
        stats: dict[str, Any] = json.load(reply)
    return sum(channel["depth"] for topic in stats["topics"] for channel in topic["channels"])


def wait_for(server: Server, answers: Callable[[], bool], deadline_s: float, poll_s: float, what: str) -> None:
    """Ask until the answer is yes. Raises: ServerError at the deadline, or when the server has ended."""
    end_s = time.monotonic() + deadline_s
    while True:
        try:
            if answers():
                return
        except (OSError, HandshakeError, ValueError):
            pass
        server.require_alive()
        if time.monotonic() > end_s:
            raise ServerError(f"{what} not within {deadline_s:.0f} s\n{server.log_tail()}")
        time.sleep(poll_s)


def fill(workload: Workload, server: Server, setting: Setting) -> str:
    """Publish the messages and wait until all are in the channel; return the problem, "" if there is none."""
    handshake = Handshake()
    load = Load(messages=workload.messages, body_bytes=workload.body_bytes, filler=workload.filler.encode())
    with Connections.open(server.tcp_address, workload.publishers, handshake, timeout_s=OPEN_TIMEOUT_S) as connections:
        load.add_publishers(connections.fds(), topic=TOPIC, batch=workload.batch, outstanding=workload.outstanding)
        report = load.run(workload.deadline_s, spin=setting.cores.generator is not None)
    losses = report.messages - report.confirmed
    if losses:
        return f"{losses} not confirmed after {report.elapsed_s:.1f} s"
    wait_for(
        server,
        lambda: channel_depth(server) == workload.messages,
        workload.deadline_s,
        FILL_POLL_S,
        f"depth {workload.messages:,} after the fill",
    )
    return ""


def run_memory(workload: Workload, target: Target, server: Server, setting: Setting) -> Result:
    """Queue messages in a channel and read the memory they added.

    "anonymous" is memory without a file; pages of the server's own files, which the kernel may write out and drop, are
    in "private" and RSS only.
    """
    create_channel(server.tcp_address, TOPIC, CHANNEL, timeout_s=OPEN_TIMEOUT_S)
    settle(server)
    before = read_memory(server.pid)
    start_s = time.monotonic()
    problem = fill(workload, server, setting)
    filled_s = time.monotonic() - start_s
    settle(server)
    after = read_memory(server.pid)
    figures = {
        "message_anonymous_bytes": (after.anonymous_bytes - before.anonymous_bytes) / workload.messages,
        "message_private_bytes": (after.private_bytes - before.private_bytes) / workload.messages,
        "message_rss_bytes": (after.rss_bytes - before.rss_bytes) / workload.messages,
        "filled_s": filled_s,
    }
    return Result(workload.name, target.name, workload.messages, problem=problem, figures=figures)


def identify(server: Server) -> bool:
    """Return whether IDENTIFY is answered OK. Raises: OSError, HandshakeError."""
    handshake = Handshake(identify={"client_id": "bench"})
    Connections.open(server.tcp_address, 1, handshake, timeout_s=ANSWER_TIMEOUT_S).close()
    return True


def ping(server: Server) -> bool:
    """Return whether /ping is answered OK. Raises: OSError."""
    host, port = server.http_address
    # No HTTP library: its own work would be part of the time.
    with socket.create_connection((host, port), timeout=ANSWER_TIMEOUT_S) as connection:
        connection.sendall(b"GET /ping HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")
        return connection.recv(4096).startswith(b"HTTP/1.1 200")


def timed_start(workload: Workload, server: Server) -> dict[str, float]:
    """Start the stopped server and return the seconds until it answers, and until its depth is right."""
    start_s = time.monotonic()
    server.start()
    wait_for(server, lambda: identify(server), START_DEADLINE_S, START_POLL_S, "IDENTIFY answered")
    identify_s = time.monotonic() - start_s
    wait_for(server, lambda: ping(server), START_DEADLINE_S, START_POLL_S, "/ping answered")
    ping_s = time.monotonic() - start_s
    if workload.messages:
        wait_for(
            server,
            lambda: channel_depth(server) == workload.messages,
            START_DEADLINE_S,
            START_POLL_S,
            f"depth {workload.messages:,} after the start",
        )
    ready_s = time.monotonic() - start_s
    cpu_s = read_cpu_time(server.pid).total_s
    return {"start_s": ready_s, "identify_s": identify_s, "ping_s": ping_s, "start_cpu_s": cpu_s}


def run_start(workload: Workload, target: Target, server: Server, setting: Setting) -> Result:
    """Fill a channel, or leave the server empty, then stop it and time its start, several times over.

    The figures are medians of these starts; start_s_least and start_s_most are their range.
    """
    figures = {}
    if workload.messages:
        create_channel(server.tcp_address, TOPIC, CHANNEL, timeout_s=OPEN_TIMEOUT_S)
        filling_s = time.monotonic()
        problem = fill(workload, server, setting)
        if problem:
            return Result(workload.name, target.name, workload.messages, problem=problem)
        figures["filled_s"] = time.monotonic() - filling_s
    starts, stops = [], []
    for _ in range(workload.restarts):
        stopping_s = time.monotonic()
        server.stop()
        stops.append(time.monotonic() - stopping_s)
        if not workload.messages:
            shutil.rmtree(server.data_path)
            server.data_path.mkdir()
        starts.append(timed_start(workload, server))
    figures |= {key: median(start[key] for start in starts) for key in starts[0]}
    figures["start_s_least"] = min(start["start_s"] for start in starts)
    figures["start_s_most"] = max(start["start_s"] for start in starts)
    figures["stopped_s"] = median(stops)
    return Result(workload.name, target.name, workload.messages, figures=figures)


KINDS = {"memory": run_memory, "start": run_start}
