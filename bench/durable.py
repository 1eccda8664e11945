"""Brokers whose OK means "on stable storage", alternating in one run on one disk: `python -m bench --durable`.

pyqd runs with `--sync-every=1`. REDIS, BEANSTALKD and NATS in the environment are paths of other brokers to compare
with. Before any measurement, strace shows for each broker that no OK is sent before its flush has returned; `--verify`
does only that.
"""

import argparse
import json
import os
import shlex
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench import durable_servers, durable_trace, tables
from bench.cli import RESULTS_DIRECTORY, choose_cores, positive, require_places
from bench.durable_load import DurableLoad
from bench.durable_protocols import Client, ProtocolError, connect
from bench.durable_servers import Broker
from bench.durable_trace import FLUSHES, PROVING, TraceError, Verdict
from bench.procfs import read_cpu_model, read_file_system
from bench.runner import pin_generator
from bench.series import read_commit
from bench.server import Server, ServerError, Target
from bench.setting import Setting, warm_memory
from pyqd.hot.tools.histogram import LatencyHistogram
from pyqd.hot.tools.loadgen import LoadError
from pyqd.primitives.command_line import CommandParser
from pyqd.primitives.progress import Progress
from pyqd.tools.bench.outcome import DurableReport, Latency

BODY = b"x" * 200
# Topics are made in it, and segments and pages of the first messages.
WARM_S = 1.0
WARM_BYTES = 512 << 20
FREE_BYTES_MIN = 24 << 30
TRACED_S = 0.5
SMALL_CONNECTIONS = 4
# Two ways to use the disk without a broker. One appends to a file, so that each flush also writes the new size. The
# other writes to a file with all blocks reserved, as pyqd's journal does.
APPEND = "bare append"
OVERWRITE = "bare overwrite"
DISK_BYTES = 16 << 20
FAILURES = (LoadError, ServerError, ProtocolError, TraceError, OSError)
Figures = dict[str, float]


@dataclass(frozen=True)
class Row:
    """A load. outstanding: open requests of a connection.

    If there are more topics than connections, each connection cycles through several.
    """

    name: str
    what: str
    connections: int
    outstanding: int
    batch: int = 1
    topics: int = 1

    def clients(self) -> list[Client]:
        names = tuple(f"t{number:03}" for number in range(self.topics))
        if self.topics > self.connections:
            return [Client(number, names) for number in range(self.connections)]
        return [Client(number, (names[number % self.topics],)) for number in range(self.connections)]

    def small(self) -> "Row":
        """Return the same with few connections, for a trace."""
        connections = min(self.connections, SMALL_CONNECTIONS)
        topics = self.topics if self.topics > self.connections else min(self.topics, connections)
        return replace(self, connections=connections, topics=topics)


ROWS = (
    Row("1x1", "1 connection, 1 outstanding", 1, 1),
    Row("1x64", "1 connection, 64 outstanding", 1, 64),
    Row("50x1", "50 connections, 1 outstanding each", 50, 1),
    Row("100x16", "100 connections, 16 outstanding each", 100, 16),
    Row("batches", "1 connection, 4 batches of 200 outstanding", 1, 4, batch=200),
    Row("topics", "100 connections to 100 topics, 16 outstanding each", 100, 16, topics=100),
    Row("in-turn", "1 connection to 100 topics in turn, 64 outstanding", 1, 64, topics=100),
)


@dataclass
class Opened:
    """A load that is ready to run. request_bytes: of each request that has an answer; hello_bytes: before them."""

    load: DurableLoad
    request_bytes: int
    hello_bytes: int
    messages_of_answer: int


@contextmanager
def opened(server: Server, broker: Broker, row: Row) -> Iterator[Opened]:
    """Connect the clients of a row and make their requests."""
    protocol, clients = broker.protocol, row.clients()
    protocol.prepare(server.tcp_address, sorted({topic for client in clients for topic in client.topics}))
    connections = []
    try:
        for client in clients:
            connections.append(connect(server.tcp_address))
            protocol.greet(connections[-1], protocol.hello(client))
            connections[-1].setblocking(False)
        requests = [[protocol.request(topic, BODY, row.batch, client) for topic in client.topics] for client in clients]
        answers = protocol.answers(row.batch)
        load = DurableLoad(
            [connection.fileno() for connection in connections],
            requests,
            outstanding=row.outstanding,
            answers=answers,
            lines=protocol.lines(clients[0]),
        )
        hello_bytes = len(protocol.hello(clients[0]))
        yield Opened(load, len(requests[0][0]) // answers, hello_bytes, row.batch // answers)
    finally:
        for connection in connections:
            connection.close()


def latency_figures(latency: Latency) -> Figures:
    return {"p50_us": latency.p50_ns / 1e3, "p99_us": latency.p99_ns / 1e3}


def make_room(data_root: Path | None) -> None:
    """Remove the data of earlier runs if the disk has little space left."""
    if data_root is not None and shutil.disk_usage(data_root).free < FREE_BYTES_MIN:
        for directory in data_root.glob("bench-*"):
            shutil.rmtree(directory)
        os.sync()


def measure(broker: Broker, row: Row, setting: Setting, seconds: float) -> Figures:
    """Return the figures of one run on a fresh server."""
    make_room(setting.data_root)
    with (
        durable_servers.running(broker, server_cores(setting), setting.data_root) as server,
        opened(server, broker, row) as ready,
    ):
        report = ready.load.run(seconds=seconds, warm_s=WARM_S, spin=setting.cores.apart)
        server.require_alive()
    rate = report.measured * ready.messages_of_answer / report.seconds
    return {"rate_per_s": rate, **latency_figures(report.latency), "generator_busy_percent": 100 * report.busy}


def measure_disk(kind: str, setting: Setting, seconds: float) -> Figures:
    """Return the figures of writing BODY again and again, with fdatasync(2) after each. kind: APPEND or OVERWRITE."""
    histogram, place, count = LatencyHistogram(), 0, 0
    with tempfile.TemporaryFile(dir=setting.data_root) as file:
        if kind == OVERWRITE:
            file.write(bytes(DISK_BYTES))
            file.flush()
        os.fsync(file.fileno())
        begun_ns = now_ns = time.monotonic_ns()
        while now_ns < begun_ns + seconds * 1e9:
            before_ns = now_ns
            os.pwrite(file.fileno(), BODY, place)
            os.fdatasync(file.fileno())
            now_ns = time.monotonic_ns()
            histogram.add(now_ns - before_ns)
            place += len(BODY)
            if place + len(BODY) > DISK_BYTES and kind == OVERWRITE:
                place = 0
            count += 1
    return {"rate_per_s": count / seconds, **latency_figures(histogram.latency()), "flushes_per_message": 1.0}


def server_cores(setting: Setting) -> tuple[int, ...]:
    return () if setting.cores.server is None else (setting.cores.server,)


@dataclass
class Traced:
    """A short load under strace. begin_s, end_s: of its measured part, since 1970."""

    lines: list[str]
    report: DurableReport
    opened: Opened
    begin_s: float
    end_s: float


def trace(
    broker: Broker, row: Row, setting: Setting, calls: Sequence[str], seconds: float, warm_s: float = 0.0
) -> Traced:
    """Run a load on a fresh server under strace. warm_s: time before its measured part."""
    with tempfile.TemporaryDirectory(prefix="bench-trace-") as directory:
        path = Path(directory) / "trace"
        words = durable_trace.tracer(path, calls)
        with (
            durable_servers.running(broker, server_cores(setting), setting.data_root, words) as server,
            opened(server, broker, row) as ready,
        ):
            begin_s = time.time() + warm_s
            report = ready.load.run(seconds=seconds, warm_s=warm_s)
        return Traced(durable_trace.read_trace(path, server.pid), report, ready, begin_s, begin_s + report.seconds)


def count_flushes(broker: Broker, row: Row, setting: Setting, seconds: float) -> Figures:
    """Return the flush calls of the server per message. Raises: TraceError if no message was answered."""
    # The first flushes of a topic are for its name, too.
    traced = trace(broker, row, setting, FLUSHES, seconds, WARM_S)
    if not traced.report.measured:
        raise TraceError(f"no answer in {seconds:g} s under strace")
    flushes = durable_trace.count_flushes(traced.lines, traced.begin_s, traced.end_s)
    return {"flushes_per_message": flushes / (traced.report.measured * traced.opened.messages_of_answer)}


def verify(broker: Broker, row: Row, setting: Setting, seconds: float) -> Verdict:
    """Return the verdict of a trace on the OKs of a row. Raises: TraceError if it does not show each of them."""
    traced = trace(broker, row, setting, PROVING, seconds)
    ready = traced.opened
    verdict = durable_trace.prove(
        traced.lines,
        answer=broker.protocol.answer,
        request_bytes=ready.request_bytes,
        hello_bytes=ready.hello_bytes,
    )
    seen = verdict.proven + len(verdict.violations)
    if seen != traced.report.answered:
        raise TraceError(f"the trace shows {seen} of {traced.report.answered} answers")
    return verdict


@dataclass
class Durable:
    """One invocation. runs: for each row and server the figures of its runs, in their order."""

    brokers: Sequence[Broker]
    rows: Sequence[Row]
    setting: Setting
    runs: dict[tuple[str, str], list[Figures]] = field(default_factory=dict)
    proofs: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    shown: Progress = field(default_factory=Progress)

    def attempt(self, what: str, step: Any, *arguments: Any) -> Any:
        """Return the result of step; on failure log it and return None."""
        self.shown.describe(what)
        if not self.shown.on_terminal:
            self.shown.say(what)
        try:
            return step(*arguments)
        except FAILURES as error:
            self.failures.append(f"{what}: {type(error).__name__}: {error}")
            self.shown.say(f"FAILED {self.failures[-1]}")
            return None
        finally:
            self.shown.advance()

    def traceable(self) -> list[Broker]:
        return [broker for broker in self.brokers if broker.durable] if shutil.which("strace") else []

    def step_count(self, repeat: int) -> int:
        """Return the number of attempts in `verify` and, unless repeat is 0, in `measure`."""
        traced = len(self.rows) * len(self.traceable())
        if not repeat:
            return traced
        disks = 2 * (ROWS[0] in self.rows)
        return 2 * traced + repeat * (len(self.rows) * len(self.brokers) + disks)

    def verify(self) -> None:
        """Prove of each server and row that no OK is early."""
        for broker in self.traceable():
            verdicts: list[Verdict] = []
            for row in self.rows:
                arguments = (broker, row.small(), self.setting, TRACED_S)
                verdict = self.attempt(f"verify {row.name} {broker.name}", verify, *arguments)
                verdicts += [verdict] if verdict else []
            early = [violation for verdict in verdicts for violation in verdict.violations]
            proven = sum(verdict.proven for verdict in verdicts)
            text = f"{broker.name}: {proven} OKs left after a flush begun after their request was received, "
            self.proofs.append(text + f"{len(early)} did not")
            self.shown.say(self.proofs[-1], sys.stdout)
            if early:
                self.failures.append(f"{broker.name}: {early[0].text}")

    def measure(self, repeat: int, seconds: float) -> None:
        """Measure each row on each server; flushes are counted in separate runs."""
        for row in self.rows:
            for number in range(repeat):
                for broker in self.brokers:
                    warm_memory(WARM_BYTES)
                    what = f"{row.name} {broker.name}, run {number + 1} of {repeat}"
                    self.add(row, broker.name, self.attempt(what, measure, broker, row, self.setting, seconds))
                if row is ROWS[0]:
                    for kind in (APPEND, OVERWRITE):
                        what = f"{row.name} {kind}"
                        self.add(row, kind, self.attempt(what, measure_disk, kind, self.setting, seconds))
            for broker in self.traceable():
                what = f"flushes {row.name} {broker.name}"
                self.add(row, broker.name, self.attempt(what, count_flushes, broker, row, self.setting, TRACED_S))

    def add(self, row: Row, name: str, figures: Figures | None) -> None:
        if figures is not None:
            self.runs.setdefault((row.name, name), []).append(figures)

    def cell(self, row: Row, name: str, key: str, digits: int) -> str:
        """Return median (min .. max) of a figure, "-" if there is none."""
        values = [figures[key] for figures in self.runs.get((row.name, name), []) if key in figures]
        if not values:
            return "-"
        shown = [f"{value:,.{digits}f}" for value in (statistics.median(values), min(values), max(values))]
        return shown[0] if len(values) == 1 else f"{shown[0]} ({shown[1]} .. {shown[2]})"

    def cells(self) -> tables.Cells:
        names = [broker.name for broker in self.brokers] + [APPEND, OVERWRITE] * (ROWS[0] in self.rows)
        cells = [["load", "figure", *names]]
        for row in self.rows:
            for key, label, digits in SHOWN:
                cells.append([row.what, label, *(self.cell(row, name, key, digits) for name in names)])
        return cells

    def conditions(self) -> list[str]:
        """Return lines that describe machine, settings and procedure of the runs."""
        place = self.setting.data_path()
        return [
            f"{read_cpu_model()}, {os.cpu_count()} cores; {os.uname().sysname} {os.uname().release}; "
            f"{read_file_system(place)}; bodies of {len(BODY)} B",
            *(f"{broker.name}: {broker.version()}, {broker.setting}" for broker in self.brokers if broker.durable),
            f"made {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}, at commit {read_commit()}",
            f"{APPEND}: pwrite(2) of a body behind the last and fdatasync(2), in a file that grows; "
            f"{OVERWRITE}: the same in a file whose blocks were written before",
            f"flushes: calls of {', '.join(FLUSHES)} (pwritev2 and io_submit with RWF_DSYNC or RWF_SYNC only) in "
            f"{TRACED_S} s of a load under strace, after {WARM_S} s of it, apart from the other figures",
            *self.proofs,
            *(f"FAILED {failure}" for failure in self.failures),
        ]

    def markdown(self) -> str:
        lines = ["# Durable mode", "", *(f"- {line}" for line in self.conditions()), ""]
        lines += ["Medians (min .. max).", "", *tables.markdown_table(self.cells(), left=2)]
        return "\n".join(lines) + "\n"

    def write(self, results: Path, command: str) -> None:
        """Write the page, and every run beside it as JSON; print their paths."""
        page = results / time.strftime("durable-%Y%m%d-%H%M%S.md")
        page.write_text(self.markdown())
        runs = [{"row": row, "server": name, "figures": figures} for (row, name), figures in self.runs.items()]
        document = {"command": command, "conditions": self.conditions(), "runs": runs}
        page.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
        print("\nwritten:", page, page.with_suffix(".json"))


SHOWN = (
    ("rate_per_s", "messages/s", 0),
    ("p50_us", "answer, p50, us", 0),
    ("p99_us", "answer, p99, us", 0),
    ("flushes_per_message", "flushes/message", 4),
    ("generator_busy_percent", "generator busy, %", 0),
)


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="python -m bench --durable", description=__doc__)
    parser.add_argument("--row", action="append", choices=[row.name for row in ROWS], help="this one only; repeatable")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each server and row (default: 5)")
    parser.add_argument("--seconds", type=positive, default=3.0, help="measured time of a run (default: 3)")
    parser.add_argument(
        "--with", dest="others", action="append", default=[], metavar="TARGET", help="another pyqd, by its path; sink"
    )
    parser.add_argument("--verify", action="store_true", help="only look in traces whether an OK leaves too early")
    parser.add_argument("--data-root", type=Path, help="where the data directories are made (default: TMPDIR)")
    parser.add_argument("--results", type=Path, default=RESULTS_DIRECTORY, help="where the files go")
    parser.add_argument("--server-core", type=int)
    parser.add_argument("--generator-core", type=int)
    parser.add_argument("--unpinned", action="store_true", help="leave the cores to the kernel")
    return parser


def choose_brokers(others: Sequence[str]) -> list[Broker]:
    """Return pyqd, the named brokers, and those of the environment. Raises: ValueError."""
    brokers = [durable_servers.of_target(Target.parse(text)) for text in ("pyqd", *others)]
    for name, variable, *_ in durable_servers.OTHERS:
        found = durable_servers.of_environment(name)
        if found is None:
            print(f"{name} is left out: {variable} does not name a program")
        else:
            brokers.append(found)
    return brokers


def main(given: Sequence[str]) -> int:
    """Run the command line. Returns: 1 if a run failed or an OK was sent too early, else 0."""
    parser = make_parser()
    arguments = parser.parse_args(given)
    try:
        setting = Setting(cores=choose_cores(arguments), data_root=arguments.data_root)
        require_places(setting, arguments.results)
        brokers = choose_brokers(arguments.others)
    except ValueError as error:
        parser.error(str(error))
    rows = [row for row in ROWS if not arguments.row or row.name in arguments.row]
    pin_generator(setting.cores)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=setting.data_root) as root:
        durable = Durable(brokers, rows, replace(setting, data_root=Path(root)))
        if not durable.traceable():
            print("strace is not installed: flushes are neither counted nor looked at")
        steps = durable.step_count(0 if arguments.verify else arguments.repeat)
        with Progress(total=steps, unit="steps") as durable.shown:
            durable.verify()
            if not arguments.verify:
                durable.measure(arguments.repeat, arguments.seconds)
    if not arguments.verify:
        print("\n".join(tables.format_columns(durable.cells(), left=2)))
        durable.write(arguments.results, shlex.join(["python", "-m", "bench", "--durable", *given]))
    return int(bool(durable.failures))
