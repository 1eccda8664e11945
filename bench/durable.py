"""Brokers whose OK means "on stable storage", in turns on one disk: `python -m bench durable`.

Requests are built before the load and sent in a cycle, and answers are counted by a regular expression, so one
generator serves brokers of any protocol with short answers. Before a server is measured in a row, strace counts its
flushes.
"""

import atexit
import os
import re
import select
import shutil
import socket
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.brokers import PROTOCOLS, Client, Nsq, ask, connect, find_brokers
from bench.runner import latency_values
from bench.server import Figures, RunError, Server, Target, running
from bench.setting import Setting, warm_memory
from bench.study import Study
from pyqd.hot.tools.histogram import LatencyHistogram

BODY = b"x" * 200
# Topics are made in it, and segments and pages of the first messages.
WARM_S = 1.0
WARM_BYTES = 512 << 20
MEASURED_S = 3.0
FREE_BYTES_MIN = 24 << 30
TRACED_S = 0.5
TRACE_WITHIN_S = 10.0
POLL_S = 0.02
FLUSHES = ("fsync", "fdatasync", "msync", "syncfs", "pwritev2", "sync_file_range")
FLUSH_TIME = re.compile(rf"^\d+ +([\d.]+) (?:{'|'.join(FLUSHES)})\(", re.MULTILINE)
DRAIN_S = 20.0
CHUNK_BYTES = 1 << 16
# A server without a broker: the same bytes written to a file whose blocks are reserved, as pyqd's journal does, with
# fdatasync(2) after each.
DISK = "bare overwrite"
DISK_BYTES = 16 << 20
# Of NSQ, Redis and NATS, beanstalkd, JetStream.
ERROR = re.compile(rb'\0\0..\0\0\0\x01|-|[A-Z_]+\r\n|MSG [^\r]*\r\n\{"error', re.DOTALL)


@dataclass(frozen=True)
class Row:
    """A load. outstanding: open requests of a connection.

    If there are more topics than connections, each connection cycles through several.
    """

    what: str
    connections: int
    outstanding: int
    batch: int = 1
    topics: int = 1

    def names(self) -> tuple[str, ...]:
        return tuple(f"t{number:03}" for number in range(self.topics))

    def clients(self) -> list[Client]:
        names = self.names()
        return [
            Client(number, names if self.topics > self.connections else (names[number % self.topics],))
            for number in range(self.connections)
        ]


ROWS = {
    "1x1": Row("1 connection, 1 outstanding", 1, 1),
    "1x64": Row("1 connection, 64 outstanding", 1, 64),
    "50x1": Row("50 connections, 1 outstanding each", 50, 1),
    "100x16": Row("100 connections, 16 outstanding each", 100, 16),
    "batches": Row("1 connection, 4 batches of 200 outstanding", 1, 4, batch=200),
    "topics": Row("100 connections to 100 topics, 16 outstanding each", 100, 16, topics=100),
    "in-turn": Row("1 connection to 100 topics in turn, 64 outstanding", 1, 64, topics=100),
}


class Asker:
    """One connection of a load: its requests in a cycle, and when those that are open were sent."""

    def __init__(self, protocol: Nsq, row: Row, connection: socket.socket, client: Client) -> None:
        self.connection = connection
        self.answers_each = 1 if protocol.is_batched else row.batch
        requests = [protocol.request(topic, BODY, row.batch, client) for topic in client.topics]
        # Any `outstanding` requests are contiguous in the output. All requests of a connection have the same size.
        self.size, self.cycle, self.next = len(requests[0]), len(requests), 0
        count = self.cycle + row.outstanding
        self.output = memoryview(b"".join(requests[index % self.cycle] for index in range(count)))
        self.unsent = self.output[:0]
        self.wanted = 0
        # Time and number of open requests, in the order of their answers.
        self.begun: deque[list[int]] = deque()
        self.received, self.answers = b"", 0
        self.answer, self.idle = re.compile(protocol.answer), re.compile(protocol.idle)

    def ask(self, count: int) -> None:
        """Send more requests, behind those that the socket did not accept yet."""
        self.wanted += count
        while self.unsent or self.wanted:
            if not self.unsent:
                start = self.next * self.size
                self.unsent = self.output[start : start + self.wanted * self.size]
                self.next = (self.next + self.wanted) % self.cycle
                self.begun.append([time.monotonic_ns(), self.wanted])
                self.wanted = 0
            try:
                self.unsent = self.unsent[self.connection.send(self.unsent) :]
            except BlockingIOError:
                return

    def hear(self, histogram: LatencyHistogram) -> int:
        """Read what has come; return the number of requests that are answered whole. Raises: RunError."""
        data = self.connection.recv(CHUNK_BYTES)
        if not data:
            raise RunError("the server closed a connection")
        self.received, count = self.answer.subn(b"", self.received + data)
        if self.received:
            self.received = self.idle.sub(b"", self.received)
        if ERROR.match(self.received):
            raise RunError(f"an answer that is no OK: {self.received[:200]!r}")
        self.answers += count
        done = self.answers // self.answers_each
        self.answers -= done * self.answers_each
        now_ns, left = time.monotonic_ns(), done
        while left:
            first = self.begun[0]
            part = min(left, first[1])
            for _ in range(part):
                histogram.add(now_ns - first[0])
            first[1] -= part
            left -= part
            if not first[1]:
                self.begun.popleft()
        return done


class DurableLoad:
    """Requests on connections for a given time."""

    def __init__(self, row: Row, askers: Sequence[Asker]) -> None:
        self.row = row
        self.askers = {asker.connection.fileno(): asker for asker in askers}
        self.poll = select.epoll()
        for fd in self.askers:
            self.poll.register(fd, select.EPOLLIN)
        self.answered = 0
        self.histogram = LatencyHistogram()

    def run_until(self, end_s: float, spin: bool, is_closing: bool = False) -> None:
        """Serve answers until a time; closing, until none is missing. Raises: RunError."""
        while time.monotonic() < end_s:
            for fd, event in self.poll.poll(0 if spin else max(0.0, end_s - time.monotonic())):
                asker = self.askers[fd]
                done = asker.hear(self.histogram) if event & select.EPOLLIN else 0
                self.answered += done
                asker.ask(0 if is_closing else done)
                self.poll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if asker.unsent else 0))
            if is_closing and not any(asker.begun for asker in self.askers.values()):
                return
        if is_closing:
            raise RunError("answers were missing long after the load had ended")

    def run(self, seconds: float, warm_s: float = 0.0, spin: bool = False) -> Figures:
        """Load for warm_s, then for the measured seconds, and wait for the rest of the answers. Raises: RunError."""
        for asker in self.askers.values():
            asker.ask(self.row.outstanding)
        self.run_until(time.monotonic() + warm_s, spin)
        self.histogram, before, begun_s = LatencyHistogram(), self.answered, time.monotonic()
        self.run_until(begun_s + seconds, spin)
        rate = (self.answered - before) * self.row.batch / (time.monotonic() - begun_s)
        latencies = latency_values("answer", self.histogram)
        self.run_until(time.monotonic() + DRAIN_S, spin=False, is_closing=True)
        return {"rate_per_s": rate, **latencies}


@contextmanager
def loaded(target: Target, row: Row, setting: Setting) -> Iterator[tuple[Server, DurableLoad]]:
    """Run a fresh server, and connect the clients of a row."""
    protocol, root = PROTOCOLS.get(target.program, Nsq()), setting.data_root
    cores = setting.cores.of(target)
    with (
        running(target, cores=cores, data_root=root, flags=setting.flags, keeps=root is not None) as server,
        ExitStack() as stack,
    ):
        protocol.prepare(server.tcp_address, row.names())
        askers = []
        for client in row.clients():
            connection = stack.enter_context(connect(server.tcp_address))
            ask(connection, protocol.hello(client), protocol.hello_end)
            connection.setblocking(False)
            askers.append(Asker(protocol, row, connection, client))
        load = DurableLoad(row, askers)
        stack.callback(load.poll.close)
        yield server, load


def make_room(root: Path | None) -> None:
    """Remove the data of earlier runs if the disk has little space left."""
    if root is not None and shutil.disk_usage(root).free < FREE_BYTES_MIN:
        for directory in root.glob("bench-*"):
            shutil.rmtree(directory)
        os.sync()


def measure(target: Target, row: Row, setting: Setting) -> Figures:
    """Return the figures of one run on a fresh server."""
    make_room(setting.data_root)
    warm_memory(WARM_BYTES)
    with loaded(target, row, setting) as (server, load):
        figures = load.run(MEASURED_S, WARM_S, setting.cores.apart)
        server.require_alive()
    return figures


def trace(target: Target, row: Row, setting: Setting) -> Figures:
    """Return the flushes per message, as strace sees them in the second half of a load. Raises: RunError."""
    with tempfile.TemporaryDirectory(prefix="bench-trace-") as directory:
        path = Path(directory) / "trace"
        # -D: the server stays the child of this process.
        options = ("-D", "-f", "-ttt", "--seccomp-bpf", "-s", "0", "-o", str(path), "-e", f"trace={','.join(FLUSHES)}")
        with loaded(replace(target, command=("strace", *options, *target.command)), row, setting) as (server, load):
            # The first flushes of a topic are for its name, too.
            begin_s = time.time() + TRACED_S
            figures = load.run(TRACED_S, warm_s=TRACED_S)
        # strace ends a little later than the process it followed.
        end_s = time.monotonic() + TRACE_WITHIN_S
        while not re.search(rf"^{server.pid} .*\+\+\+", text := path.read_text(), re.MULTILINE):
            if time.monotonic() > end_s:
                raise RunError("strace has not ended with the server")
            time.sleep(POLL_S)
    times = map(float, FLUSH_TIME.findall(text))
    count = sum(begin_s <= at_s <= begin_s + TRACED_S for at_s in times)
    return {"flushes_per_message": count / max(figures["rate_per_s"] * TRACED_S, 1)}


def measure_disk(setting: Setting) -> Figures:
    """Return the figures of writing BODY again and again, with fdatasync(2) after each."""
    histogram, count = LatencyHistogram(), 0
    with tempfile.TemporaryFile(dir=setting.data_root) as file:
        file.write(bytes(DISK_BYTES))
        file.flush()
        os.fsync(file.fileno())
        end_ns = time.monotonic_ns() + int(MEASURED_S * 1e9)
        while (before_ns := time.monotonic_ns()) < end_ns:
            os.pwrite(file.fileno(), BODY, count * len(BODY) % (DISK_BYTES - len(BODY)))
            os.fdatasync(file.fileno())
            histogram.add(time.monotonic_ns() - before_ns)
            count += 1
    return {"rate_per_s": count / MEASURED_S, **latency_values("answer", histogram)}


def study(setting: Setting, _scale: float) -> Study:
    """Return the study. Its data stays until the process ends: see `running`."""
    root = tempfile.mkdtemp(prefix="bench-", dir=setting.data_root)
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    setting = replace(setting, data_root=Path(root))
    targets = {target.name: target for target in find_brokers()}
    is_traced = shutil.which("strace") is not None
    if not is_traced:
        print("strace is not installed: flushes are not counted")
    done: set[tuple[str, str]] = set()

    def run(row: str, contender: str) -> Figures:
        if contender == DISK:
            return measure_disk(setting)
        found: Figures = {}
        if is_traced and (row, contender) not in done:
            done.add((row, contender))
            found = trace(targets[contender], ROWS[row], setting)
        return {**measure(targets[contender], ROWS[row], setting), **found}

    return Study(
        rows={name: row.what for name, row in ROWS.items()},
        contenders=[*targets, DISK],
        run=run,
        can=lambda row, contender: contender != DISK or row == "1x1",
    )
