"""Python clients side by side: pyqd.client, pyqd.client.aio, pynsq, gnsq and ansq. `python -m bench.client`.

One pyqd on one core, each client in a process of its own on the other core, in turns. Rows: publish awaited one by one,
publish pipelined, consume with FIN in a handler. Figures: messages per second, and CPU time of the client's process per
message. Every run is checked against the broker's own counts.
"""

import argparse
import json
import statistics
import subprocess
import sys
import urllib.request
from dataclasses import dataclass

from bench import accounts
from bench.cli import choose_cores
from bench.client_loads import BARE, BODY, CHANNEL, LOADS, MAX_IN_FLIGHT, OWN, ROUND, ROWS
from bench.server import REPOSITORY, Server, ServerError, Target, running
from bench.setting import Cores, settle
from pyqd.client import Producer
from pyqd.primitives.command_line import CommandParser
from pyqd.primitives.progress import Progress

WHAT = {
    "publish": "publish, awaited one by one",
    "pipelined": f"publish, {ROUND:,} pipelined",
    "consume": "consume, FIN in a handler",
}
RATE_GOAL = 3.0
CPU_GOAL = 0.5
# A first run of the consuming row finds the number of messages that take about the wanted time.
PROBE_COUNT = 5000
BATCH = 1000
DEADLINE_S = 60.0
MICRO = 1e6


class RunError(Exception):
    """A client failed, or the broker's counts differ from its own."""


@dataclass(frozen=True)
class Figures:
    """Figures of one run. cpu_us: CPU time of the client per message."""

    rate_per_s: float
    cpu_us: float


class Session:
    """Runs against one broker, each on a topic of its own."""

    def __init__(self, server: Server, cores: Cores, seconds: float) -> None:
        self._server = server
        self._cores = cores
        self._seconds = seconds
        self._number = 0
        self._counts: dict[str, int] = {}

    def run(self, client: str, row: str) -> Figures:
        """Measure one load. Raises: RunError, ServerError."""
        if row != "consume":
            return self._publish(client, row)
        if client not in self._counts:
            self._counts[client] = PROBE_COUNT
            probe = self._consume(client)
            wanted = round(probe.rate_per_s * self._seconds / BATCH) * BATCH
            self._counts[client] = max(BATCH, wanted)
        return self._consume(client)

    def _publish(self, client: str, row: str) -> Figures:
        topic = self._create_topic()
        found = self._load(client, row, topic, self._seconds)
        published = int(found["published"])
        account = accounts.of_publication(self._server, topic, published)
        return self._figures(client, row, topic, found, account.problem)

    def _consume(self, client: str) -> Figures:
        topic, count = self._create_topic(), self._counts[client]
        self._post("channel/create", topic, f"&channel={CHANNEL}")
        with Producer(self._address) as producer:
            for start in range(0, count, BATCH):
                producer.publish_many(topic, [BODY] * min(BATCH, count - start))
        settle(self._server)
        found = self._load(client, "consume", topic, count)
        account = accounts.of_consumption(self._server, topic, count)
        return self._figures(client, "consume", topic, found, account.problem)

    @property
    def _address(self) -> str:
        return "{}:{}".format(*self._server.tcp_address)

    def _create_topic(self) -> str:
        self._number += 1
        topic = f"client-{self._number}"
        self._post("topic/create", topic)
        return topic

    def _post(self, path: str, topic: str, more: str = "") -> None:
        host, port = self._server.http_address
        request = urllib.request.Request(f"http://{host}:{port}/{path}?topic={topic}{more}", data=b"", method="POST")
        # No proxy that the environment names stands between this machine and itself.
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=DEADLINE_S).close()

    def _load(self, client: str, row: str, topic: str, count: float) -> dict[str, float]:
        command = [sys.executable, "-m", "bench.client_loads", client, row, self._address, topic, str(count)]
        if self._cores.generator is not None:
            command += ["--core", str(self._cores.generator)]
        try:
            done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise RunError(f"{client}, {row}: not done within {DEADLINE_S:g} s") from None
        if done.returncode:
            raise RunError(f"{client}, {row}: status {done.returncode}\n{done.stderr[-2000:]}")
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found

    def _figures(self, client: str, row: str, topic: str, found: dict[str, float], problem: str) -> Figures:
        if problem:
            raise RunError(f"{client}, {row}: {problem}")
        self._post("topic/delete", topic)
        messages = found["messages"]
        return Figures(rate_per_s=messages / found["seconds"], cpu_us=found["cpu_s"] * MICRO / messages)


def measure(session: Session, clients: list[str], rows: list[str], repeat: int) -> dict[tuple[str, str], Figures]:
    """Run every client in every row, in turns; return the medians by row and client."""
    found: dict[tuple[str, str], list[Figures]] = {
        (row, client): [] for row in rows for client in clients if ROWS.index(row) < len(LOADS[client])
    }
    with Progress(total=repeat * len(found), unit="runs") as progress:
        for row in rows:
            for _ in range(repeat):
                for client in clients:
                    if (row, client) in found:
                        progress.describe(f"{row}, {client}")
                        found[row, client].append(session.run(client, row))
                        progress.advance()
    return {key: median(runs) for key, runs in found.items()}


def median(runs: list[Figures]) -> Figures:
    """Return the median of each figure."""
    return Figures(
        rate_per_s=statistics.median(run.rate_per_s for run in runs),
        cpu_us=statistics.median(run.cpu_us for run in runs),
    )


def tables(found: dict[tuple[str, str], Figures]) -> str:
    """Return the figures as Markdown, and the ratios of this project's clients to the best of the others."""
    rows = list(dict.fromkeys(row for row, _ in found))
    clients = list(dict.fromkeys(client for _, client in found))
    head = f"| {{}} | {' | '.join(clients)} |\n| --- |{' ---: |' * len(clients)}"
    lines = [head.format("messages/s")]
    for row in rows:
        lines.append(
            line(row, [f"{found[row, each].rate_per_s:,.0f}" if (row, each) in found else "" for each in clients])
        )
    lines += ["", head.format("CPU, us/message")]
    for row in rows:
        lines.append(line(row, [f"{found[row, each].cpu_us:.1f}" if (row, each) in found else "" for each in clients]))
    own = [client for client in clients if client in OWN]
    others = [client for client in clients if client not in (*OWN, BARE)]
    if own and others:
        lines += ["", *ratio_lines(found, rows, own, others)]
    return "\n".join(lines)


def line(row: str, cells: list[str]) -> str:
    """Return a row of a table."""
    return f"| {WHAT[row]} | {' | '.join(cells)} |"


def ratio_lines(found: dict[tuple[str, str], Figures], rows: list[str], own: list[str], others: list[str]) -> list[str]:
    """Return the table of ratios; the best of the others may be another one for the rate and for the CPU time."""
    lines = [
        f"| ratio to the best of the others | client | rate (goal: {RATE_GOAL:g}) | CPU (goal: {CPU_GOAL:g}) |",
        "| --- | --- | ---: | ---: |",
    ]
    for row in rows:
        best_rate = max(found[row, other].rate_per_s for other in others)
        best_cpu = min(found[row, other].cpu_us for other in others)
        for client in own:
            rate, cpu = found[row, client].rate_per_s / best_rate, found[row, client].cpu_us / best_cpu
            marks = "" if rate >= RATE_GOAL else " (below)", "" if cpu < CPU_GOAL else " (above)"
            lines.append(f"| {WHAT[row]} | {client} | {rate:.2f}{marks[0]} | {cpu:.2f}{marks[1]} |")
    return lines


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = CommandParser(prog="python -m bench.client", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--repeat", type=int, default=5, help="runs of each load, in turns (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="about so long is a run (default: %(default)s)")
    parser.add_argument("--client", action="append", choices=LOADS, help="a client; repeated for several; default: all")
    parser.add_argument("--row", action="append", choices=ROWS, help="a row; repeated for several; default: all")
    parser.add_argument("--server-core", type=int, default=None)
    parser.add_argument("--generator-core", type=int, default=None, help="core of the clients")
    parser.add_argument("--unpinned", action="store_true", help="leave the cores to the kernel")
    given = parser.parse_args(arguments)
    if given.repeat < 1 or given.seconds <= 0:
        parser.error("--repeat and --seconds: a number above 0 is needed")
    return given


def main(arguments: list[str] | None = None) -> int:
    """Measure and print the tables."""
    given = parse(arguments)
    clients = [client for client in LOADS if not given.client or client in given.client]
    rows = [row for row in ROWS if not given.row or row in given.row]
    try:
        cores = choose_cores(given)
        target = Target.parse("pyqd")
        with running(target, cores=cores.of(target)) as server:
            found = measure(Session(server, cores, given.seconds), clients, rows, given.repeat)
    except (RunError, ServerError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(tables(found))
    print(
        f"\nBodies of {len(BODY)} bytes; max_in_flight {MAX_IN_FLIGHT:,} of each consumer; medians of {given.repeat}."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
