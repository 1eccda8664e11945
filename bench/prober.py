"""Prober of a server's longest silence: a process of its own that requests /ping repeatedly.

It sends a request every two milliseconds, but has at most one open at a time. A silence of a second is one request that
took a second, and counts like all the requests that were due in that second. Beside the time of an answer the prober
reports the CPU time that the server's first thread used until then. On a machine with other users, the difference is
the time that the server waited for its core.

Source: /proc/PID/task/TID/schedstat, in the kernel's documentation "Scheduler Statistics".
"""

import contextlib
import multiprocessing
import os
import socket
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from bench.server import Figures, Server
from pyqd.tools.bench.connections import Address

INTERVAL_S = 0.002
ANSWER_WITHIN_S = 120.0
ANSWER_BYTES_MAX = 4096
P999 = 0.999

Sample = tuple[float, float]


def silence(samples: Sequence[Sample]) -> Figures:
    """Return the figures of samples of (seconds until the answer, CPU time of the server in ns)."""
    waits = sorted(due_s for wait_s, _ in samples for due_s in waits_due(wait_s))
    at = min(len(waits) - 1, int(P999 * len(waits)))
    return {
        "max_ms": waits[-1] * 1e3,
        "p999_ms": waits[at] * 1e3,
        "cpu_max_ms": max(cpu_ns for _, cpu_ns in samples) / 1e6,
    }


def waits_due(wait_s: float) -> Iterator[float]:
    """Yield how long each question would have waited that was due until an answer came: that of the first, and so on.

    Source: Gil Tene, "How NOT to Measure Latency", coordinated omission; HdrHistogram corrects for it likewise.
    """
    yield wait_s
    while (wait_s := wait_s - INTERVAL_S) > 0:
        yield wait_s


def cpu_ns(pid: int) -> int:
    """Return the CPU time of a process's first thread."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0])


def probe(address: Address, pid: int, core: int | None, told: Connection, ends: bool) -> None:
    """Probe until the parent stops it, or (ends) until the server stops, then send the samples: the process's main."""
    if core is not None:
        os.sched_setaffinity(0, {core})
    with contextlib.suppress(PermissionError):
        # The prober shares a core with the load; its wait for that core would count as the server's silence.
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    samples: list[Sample] = []
    with socket.create_connection(address, timeout=ANSWER_WITHIN_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ask(connection)
        told.send(None)
        due_s = time.monotonic()
        while not samples or not told.poll():
            # Counted from the answer on. If passes of the loop take longer than the interval, probes that came due
            # meanwhile would queue up, and the last would count the length of the queue as silence.
            due_s = max(due_s + INTERVAL_S, time.monotonic())
            time.sleep(max(0.0, due_s - time.monotonic()))
            asked_s = time.monotonic()
            try:
                cpu_before_ns = cpu_ns(pid)
                ask(connection)
                samples.append((time.monotonic() - asked_s, cpu_ns(pid) - cpu_before_ns))
            except (OSError, IndexError):
                # The server was stopped and no longer listens: /proc has no line of a process that has ended.
                if not ends:
                    raise
                told.recv()
                break
    told.send(samples)


def ask(connection: socket.socket) -> None:
    """Ask once, and return when the answer is there. No HTTP library: its own work would be part of the time."""
    connection.sendall(b"GET /ping HTTP/1.1\r\nHost: bench\r\n\r\n")
    answer = b""
    while not answer.endswith(b"\r\n\r\nOK"):
        piece = connection.recv(ANSWER_BYTES_MAX)
        if not piece:
            raise ConnectionError("the server closed the connection of the prober")
        answer += piece


@contextlib.contextmanager
def probing(server: Server, core: int | None, found: Figures, *, ends: bool = False) -> Iterator[None]:
    """Probe the server for the length of the context, and add the figures to `found`.

    ends: the server may stop before the context ends.
    """
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=probe, args=(server.http_address, server.pid, core, theirs, ends), daemon=True
    )
    process.start()
    theirs.close()
    try:
        ours.recv()
        yield
        ours.send(None)
        found.update(silence(ours.recv()))
    finally:
        process.kill()
        process.join()
        ours.close()
