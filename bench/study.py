"""Runner of all benchmarks: contenders in turns, medians with their ranges, and ratios of neighbouring runs."""

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench.server import REPOSITORY, Figures, RunError
from bench.setting import Cores, Setting, read_file_system
from pyqd.client.errors import ClientError
from pyqd.hot.tools.loadgen import LoadError
from pyqd.primitives.progress import Progress
from pyqd.tools.bench.connections import LoadHandshakeError

FAILURES = (RunError, LoadError, LoadHandshakeError, ClientError, OSError, subprocess.SubprocessError)
INTERRUPTED = 130


@dataclass(frozen=True)
class Figure:
    """A measured quantity as people see it.

    better: the better direction, "more" or "less"; "" if neither is. Ratios are shown only with a direction.
    """

    label: str
    digits: int = 1
    factor: float = 1.0
    better: str = ""

    def show(self, value: float) -> str:
        return f"{value * self.factor:,.{self.digits}f}"


def latency_labels(prefix: str, label: str, better: str) -> dict[str, Figure]:
    """Return the figures of a latency, by the names that bench.runner.latency_values gives them."""
    parts = (("p50", "p50"), ("p99", "p99"), ("p999", "p99.9"), ("max", "max"))
    return {f"{prefix}_{part}_us": Figure(f"{label}, {name}, us", better=better) for part, name in parts}


# Figures are shown in the order in which a run names them; one that is not listed here has its own name.
FIGURES: dict[str, Figure] = {
    "rate_per_s": Figure("messages, k/s", factor=1e-3, better="more"),
    "seconds": Figure("time of the load, s", 2),
    "cpu_ns": Figure("server CPU, ns/message", 0, better="less"),
    "user_ns": Figure("  of it user", 0, better="less"),
    "system_ns": Figure("  of it system", 0, better="less"),
    "loop_faults": Figure("page faults of the main thread/message", 3, better="less"),
    "loop_switches": Figure("its context switches/message", 3, better="less"),
    "server_busy_percent": Figure("server busy, %", 0),
    "generator_busy_percent": Figure("generator busy, %", 0),
    "others_percent": Figure("others on its cores, %", 0),
    "delivered_per_s": Figure("delivered over all channels, k/s", factor=1e-3, better="more"),
    **latency_labels("answer", "answer to a command", "less"),
    **latency_labels("latency", "from sending to delivery", "less"),
    **latency_labels("behind", "generator behind its plan", ""),
    "published_s": Figure("all published after, s", 2),
    "private_bytes": Figure("private, B each", better="less"),
    "anonymous_bytes": Figure("outside files, B each", better="less"),
    "rss_bytes": Figure("RSS, B each"),
    "cpu_percent": Figure("CPU, % of a core", 2, better="less"),
    "flushes_per_message": Figure("flushes/message", 4, better="less"),
    "client_cpu_us": Figure("CPU of the client, us/message", 1, better="less"),
    "max_ms": Figure("longest, ms"),
    "p999_ms": Figure("p99.9, ms"),
    "cpu_max_ms": Figure("CPU of the longest, ms"),
    "memory_mb": Figure("resident memory, MB", 0, better="less"),
    **{
        f"{key}_s": Figure(f"{label}, s", 3, better="less")
        for key, label in (
            ("start", "start"),
            ("start_cpu", "  its CPU time"),
            ("identify", "  IDENTIFY answered after"),
            ("ping", "  /ping answered after"),
            ("stop", "stop"),
            ("creation", "creation"),
            ("creation_cpu", "  its CPU time"),
            ("took", "time"),
        )
    },
}


@dataclass(frozen=True)
class Study:
    """A benchmark: rows, by name with their descriptions, and the contenders that take each row in turns.

    run: measures a contender in a row once; the first contender is compared with the others. can: whether it can take
    the row at all. pairs_max: runs of each contender at most in a row. figures: further ones, as `FIGURES`.
    """

    rows: Mapping[str, str]
    contenders: Sequence[str]
    run: Callable[[str, str], Figures]
    can: Callable[[str, str], bool] = lambda _row, _contender: True
    pairs_max: Mapping[str, int] = field(default_factory=dict)
    conditions: Sequence[str] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)

    def turns(self, row: str, pairs: int) -> Iterator[tuple[int, str]]:
        """Yield pair and contender as A B A B ..., so that slow drifts of the machine meet all contenders alike."""
        for pair in range(min(pairs, self.pairs_max.get(row, pairs))):
            for contender in self.contenders:
                if self.can(row, contender):
                    yield pair, contender


@dataclass(frozen=True)
class Run:
    """One run in its place. problem: why it failed, "" if it did not."""

    row: str
    contender: str
    pair: int
    figures: Figures
    problem: str = ""


def spread(values: Sequence[float], show: Callable[[float], str]) -> str:
    """Return median (least .. most), "-" for nothing."""
    if not values:
        return "-"
    middle, least, most = map(show, (median(values), min(values), max(values)))
    return middle if least == most else f"{middle} ({least} .. {most})"


def show_ratio(value: float) -> str:
    return f"{value:.2g}" if value < 0.1 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


@dataclass
class Results:
    """The runs of a study."""

    study: Study
    runs: list[Run] = field(default_factory=list)

    def values(self, row: str, contender: str, key: str) -> dict[int, float]:
        """Return a figure of the good runs, by pair."""
        return {
            run.pair: run.figures[key]
            for run in self.runs
            if (run.row, run.contender) == (row, contender) and key in run.figures
        }

    def ratios(self, row: str, other: str, key: str) -> list[float]:
        """Return the first contender's figure / the other's for each pair: quieter than the ratio of two medians."""
        own, theirs = self.values(row, self.study.contenders[0], key), self.values(row, other, key)
        return [value / theirs[pair] for pair, value in own.items() if theirs.get(pair)]

    def head(self) -> list[str]:
        first, *others = self.study.contenders
        columns = ["load", "figure", first, *others, *(f"{first} / {other}" for other in others)]
        return [f"| {' | '.join(columns)} |", f"| --- | --- |{' ---: |' * (len(columns) - 2)}"]

    def lines(self, row: str, most: int | None = None) -> list[str]:
        """Return the lines of a row, a figure each. most: the first figures only."""
        keys = list(dict.fromkeys(key for run in self.runs if run.row == row for key in run.figures))
        first, *others = self.study.contenders
        lines = []
        for key in keys[:most]:
            figure = {**FIGURES, **self.study.figures}.get(key, Figure(key))
            cells = [spread(list(self.values(row, each, key).values()), figure.show) for each in (first, *others)]
            cells += [spread(self.ratios(row, each, key), show_ratio) if figure.better else "" for each in others]
            lines.append(f"| {row} | {figure.label} | {' | '.join(cells)} |")
        return lines

    def failures(self) -> list[str]:
        return [f"FAILED {run.row}, {run.contender}: {run.problem}" for run in self.runs if run.problem]

    def take(self, row: str, contender: str, pair: int) -> Run:
        """Measure a contender once. A failure is a run with a problem, so that the others go on."""
        try:
            self.runs.append(Run(row, contender, pair, self.study.run(row, contender)))
        except FAILURES as error:
            self.runs.append(Run(row, contender, pair, {}, f"{type(error).__name__}: {error}"))
        return self.runs[-1]

    def measure(self, pairs: int) -> None:
        """Run all rows and print the lines of each. Raises: KeyboardInterrupt."""
        turns = {row: list(self.study.turns(row, pairs)) for row in self.study.rows}
        print("\n".join(self.head()), flush=True)
        with Progress(total=sum(map(len, turns.values())), unit="runs") as progress:
            for row, planned in turns.items():
                for pair, contender in planned:
                    progress.describe(f"{row} {contender}")
                    run = self.take(row, contender, pair)
                    progress.advance()
                    if run.problem:
                        progress.say(f"FAILED {row}, {contender}: {run.problem}")
                    elif not progress.on_terminal:
                        progress.say(f"run {progress.done}: {row} {contender}, pair {pair + 1}")
                for line in self.lines(row):
                    progress.say(line, sys.stdout)

    def write(self, directory: Path, command: str, setting: Setting) -> None:
        """Write the tables as Markdown, and every run beside them as JSON; print their paths."""
        directory.mkdir(parents=True, exist_ok=True)
        conditions = [command, *machine(setting), *self.study.conditions]
        lines = [*(f"- {each}" for each in (*conditions, *self.failures())), "", *self.head()]
        page = directory / time.strftime("%Y%m%d-%H%M%S.md")
        rows = [f"- {row}: {what}" for row, what in self.study.rows.items()]
        page.write_text(
            "\n".join([*lines, *(line for row in self.study.rows for line in self.lines(row)), "", *rows, ""])
        )
        document = {"conditions": conditions, "runs": [vars(run) for run in self.runs]}
        page.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
        print("\nwritten:", page, page.with_suffix(".json"))


def machine(setting: Setting) -> list[str]:
    """Return lines on machine, checkout and place of the data."""
    cpus = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in cpus if line.startswith("model name")), "unknown")
    git = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--tags"]
    has_git = shutil.which("git") is not None
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() if has_git else ""
    place = setting.data_path()
    return [
        f"{model}, {os.cpu_count()} cores, {platform.platform()}, Python {platform.python_version()}",
        f"server on core {setting.cores.server}, generator on core {setting.cores.generator}",
        f"data in {place}, {read_file_system(place) or 'of an unknown file system'}",
        f"commit {commit}, {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}",
    ]


def measure(study: Study, pairs: int, setting: Setting, results: Path, command: str) -> int:
    """Run a study, print and write its tables. Returns: 1 if a run failed, 130 if interrupted, else 0."""
    if setting.cores == Cores():
        print("Server and generator have no core of their own each: they disturb each other.")
    setting.cores.pin_generator()
    found, status = Results(study), 0
    try:
        found.measure(pairs)
    except KeyboardInterrupt:
        status = INTERRUPTED
    if len(study.rows) > 1:
        print("\n".join(["", *found.head(), *(line for row in study.rows for line in found.lines(row, 1))]))
    for line in found.failures():
        print(line)
    found.write(results, command, setting)
    return status or int(bool(found.failures()))
