"""Cost of a message in the daemon: CPU time, page faults, context switches, system calls, instructions.

`python -m bench.cost`, or `make cpu-cost`. A base is another checkout: its daemon and that of this tree are measured in
turns, and a line of ratios follows theirs.

Every figure is measured at two sizes of the load. The difference in cost divided by the difference in messages is the
cost of one published message.

CPU time, system calls and instructions are those of whole runs, start and stop included. If a channel is filled first,
the cost of filling is subtracted. CPU time is read with getrusage after the daemon has ended, in microseconds. Page
faults and context switches are those of the main thread, which runs the event loop, during the load alone. Page faults
are given for each page of the log, 4 KiB, that the load writes or reads.

Sources: getrusage(2), RUSAGE_CHILDREN; proc(5).
"""

import argparse
import math
import resource
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

from bench import runner
from bench.cli import add_cores, at_least_one, choose_cores, positive
from bench.counters import Counter, CounterError, find_call_counter, find_instruction_counter
from bench.server import Figures, Target
from bench.setting import Setting
from bench.study import FAILURES
from bench.workloads import Workload
from bench.workloads import find as find_workload
from pyqd.primitives.command_line import CommandParser
from pyqd.primitives.progress import Progress

# Each with the messages of the smaller of the two loads whose instructions are counted.
COUNTED_MESSAGES = {
    "mpub": 100_000,
    "pub": 20_000,
    "pub-1x1": 5_000,
    "pub-1x1024": 20_000,
    "dpub-64": 20_000,
    "consume-4": 50_000,
    "e2e": 50_000,
    "e2e-1x1": 20_000,
    "e2e-50": 20_000,
    "fanout-16": 10_000,
    "http-pub": 10_000,
}
# The larger of two loads has so many times as many messages more.
ADDED = 4
# Without a limit the cost of a fan-out is that of its backlog, which depends on the speed of the publishers.
UNCONSUMED = 20_000
COUNT_DEADLINE_S = 300.0
# Of a record in the log: pyqd/hot/wire/record.pxd.
RECORD_HEADER_BYTES = 48
RECORD_ALIGN_BYTES = 8
PAGE_BYTES = 4096


class CostError(Exception):
    """A figure cannot be measured; str() of it is the reason."""


@dataclass(frozen=True)
class Column:
    """A column of the table."""

    head: str
    digits: int = 0
    width: int = 11

    def show(self, value: float, is_ratio: bool = False) -> str:
        shown = "-" if math.isnan(value) else f"{value:,.{RATIO_DIGITS if is_ratio else self.digits}f}"
        return shown.rjust(self.width)


RATIO_DIGITS = 2
# With a base; without one there is the first line only.
LINES = ("this", "base", "this/base")
CPU = (Column("CPU, ns"), Column("user, ns"), Column("system, ns"))
EVENTS = (Column("faults/page", 3), Column("switches", 3))


@dataclass(frozen=True)
class Spent:
    """Cost of one run. whole: from the start of the daemon to its end, loaded: during the load alone."""

    whole: tuple[float, ...] = ()
    loaded: tuple[float, ...] = ()


@dataclass(frozen=True)
class Measure:
    """A kind of run and the figures that it yields. few: messages of the smaller load. repeat: number of pairs."""

    columns: tuple[Column, ...]
    run: Callable[[Target, Setting, Workload], Spent]
    few: Callable[[Workload], float]
    repeat: int


def find(name: str) -> Workload:
    """Return the workload of that name as it is measured here. Raises: KeyError."""
    workload = find_workload(name)
    return replace(workload, unconsumed=UNCONSUMED) if workload.channels > 1 else workload


def run_whole(workload: Workload, target: Target, setting: Setting) -> Figures:
    """Run the workload on a fresh daemon, and return after it has ended. Raises: CostError."""
    try:
        return runner.run_once(workload, target, setting)
    except FAILURES as error:
        raise CostError(f"{type(error).__name__}: {error}") from error


def log_pages(workload: Workload) -> float:
    """Return the pages of the log that one message fills."""
    padded = -(-workload.body_bytes // RECORD_ALIGN_BYTES) * RECORD_ALIGN_BYTES
    return (RECORD_HEADER_BYTES + padded) / PAGE_BYTES


def time_run(target: Target, setting: Setting, workload: Workload) -> Spent:
    """Return the CPU time of one run in ns, all, user and system; its faults per page, and switches. Raises: CostError.

    The faults are divided by the pages of one message, so that their cost per message becomes that of a page.
    """
    # The sum over all ended children; no other child ends during the measurement.
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    figures = run_whole(workload, target, setting)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    user_ns, system_ns = (1e9 * (after[index] - before[index]) for index in (0, 1))
    faults, switches = (workload.messages * figures[key] for key in ("loop_faults", "loop_switches"))
    return Spent((user_ns + system_ns, user_ns, system_ns), (faults / log_pages(workload), switches))


def count_run(counter: Counter, target: Target, setting: Setting, workload: Workload) -> Spent:
    """Return the events of one run. Raises: CostError."""
    with tempfile.TemporaryDirectory(prefix="bench-cost-") as directory:
        counted = Path(directory) / "counted"
        try:
            run_whole(replace(workload, deadline_s=COUNT_DEADLINE_S), counter.around(target, counted), setting)
            return Spent((counter.read(counted),))
        except (CostError, CounterError) as error:
            raise CostError(f"under {counter.name}: {error}") from None


def of_one_more(workload: Workload, few: float, run: Callable[[Workload], Spent]) -> list[float]:
    """Return the cost of one more message, for each figure that `run` returns. Raises: CostError.

    few: messages of the smaller load, rounded to a multiple of the batch.
    """
    few_messages = workload.batch * max(1, round(few / workload.batch))
    added_messages = few_messages * ADDED
    less = run(replace(workload, messages=few_messages))
    more = run(replace(workload, messages=few_messages + added_messages))

    def divided(fewer: Sequence[float], all_of_them: Sequence[float]) -> list[float]:
        return [(much - little) / added_messages for little, much in zip(fewer, all_of_them, strict=True)]

    whole, loaded = divided(less.whole, more.whole), divided(less.loaded, more.loaded)
    if workload.kind == "consume":
        filling = of_one_more(replace(workload, kind="publish", existing=True), few, run)
        whole = [both - fill for both, fill in zip(whole, filling, strict=False)]
    return whole + loaded


def ratio(this: float, base: float) -> float:
    return this / base if base else math.nan


def medians(measure: Measure, workload: Workload, targets: Sequence[Target], setting: Setting) -> list[list[float]]:
    """Return the medians of each target's figures, and with a base those of the ratios in each turn. Raises: CostError.

    targets: this tree's daemon, then the base if there is one. They are run in turns.
    """
    found: list[list[list[float]]] = [[] for _ in targets]
    for _ in range(measure.repeat):
        for target, turns in zip(targets, found, strict=True):
            run = partial(measure.run, target, setting)
            turns.append(of_one_more(workload, measure.few(workload), run))
    if len(targets) > 1:
        found.append([list(map(ratio, *both)) for both in zip(*found, strict=True)])
    return [[median(values) for values in zip(*turns, strict=True)] for turns in found]


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="python -m bench.cost", description=(__doc__ or "").partition("\n")[0])
    names = list(COUNTED_MESSAGES)
    parser.add_argument("-w", "--workload", action="append", choices=names, help="this one only; may be repeated")
    parser.add_argument("--base", type=Path, help="another checkout, built, whose daemon is measured in turns")
    parser.add_argument("--repeat", type=at_least_one, default=3, help="runs of which the medians are taken (3)")
    parser.add_argument("--scale", type=positive, default=1.0, help="factor on the messages")
    parser.add_argument(
        "--count",
        choices=("auto", "only", "no"),
        default="auto",
        help="instructions and system calls: beside CPU time, if something counts them (auto); alone; or not",
    )
    add_cores(parser)
    return parser


def choose_measures(arguments: argparse.Namespace) -> tuple[list[Measure], list[str]]:
    """Return the measures, and the reasons why others are left out."""
    measures, reasons = [], []

    def few(workload: Workload) -> float:
        return workload.messages * float(arguments.scale) / (1 + ADDED)

    if arguments.count != "only":
        measures.append(Measure((*CPU, *EVENTS), time_run, few, arguments.repeat))
    if arguments.count != "no":
        try:
            counter = find_call_counter()
            column = Column(f"calls, {counter.name}", 3, 13)
            measures.append(Measure((column,), partial(count_run, counter), few, arguments.repeat))
        except CounterError as error:
            reasons.append(str(error))
        try:
            counter = find_instruction_counter()
            column = Column(f"instructions, {counter.name}", 0, 24)
            counted = {name: count * arguments.scale for name, count in COUNTED_MESSAGES.items()}
            # Hardly two counts differ by more than 1 %.
            measures.append(Measure((column,), partial(count_run, counter), lambda load: counted[load.name], 1))
        except CounterError as error:
            reasons.append(str(error))
    return measures, reasons


def main(argv: Sequence[str] | None = None) -> int:
    """Print the lines of each workload.

    Returns: 1 if a run failed, or if only counts were requested and no counter exists, 2 for an unusable base, else 0.
    """
    arguments = make_parser().parse_args(argv)
    setting = Setting(cores=choose_cores(arguments))
    targets = [Target.parse("pyqd")]
    try:
        if arguments.base:
            targets.append(Target.of_checkout(arguments.base))
    except ValueError as error:
        print(f"--base: {error}", file=sys.stderr)
        return 2
    setting.cores.pin_generator()
    measures, reasons = choose_measures(arguments)
    failed = print_table(arguments.workload or list(COUNTED_MESSAGES), measures, targets, setting) if measures else True
    for reason in reasons:
        print(reason, file=sys.stderr)
    return int(failed)


def print_table(names: Sequence[str], measures: Sequence[Measure], targets: Sequence[Target], setting: Setting) -> bool:
    """Print the lines of each workload; return whether a run failed."""
    columns = [column for measure in measures for column in measure.columns]
    print(line_of("per message", [column.head.rjust(column.width) for column in columns], targets), flush=True)
    failed = False
    with Progress(total=len(names), unit="benchmarks") as progress:
        for name in names:
            progress.describe(name)
            lines, problem = measured_lines(find(name), measures, targets, setting)
            for line in lines:
                progress.say(line, sys.stdout)
            if problem:
                progress.say(f"{name:12} failed: {problem}", sys.stdout)
                failed = True
            progress.advance()
    return failed


def measured_lines(
    workload: Workload, measures: Sequence[Measure], targets: Sequence[Target], setting: Setting
) -> tuple[list[str], str]:
    """Return the lines of a workload as far as its runs succeed, and why one failed."""
    whose = LINES[: 2 * len(targets) - 1]
    cells: dict[str, list[str]] = {name: [] for name in whose}
    problem = ""
    try:
        for measure in measures:
            for name, values in zip(whose, medians(measure, workload, targets, setting), strict=True):
                shown = zip(measure.columns, values, strict=True)
                cells[name] += [column.show(value, name == "this/base") for column, value in shown]
    except CostError as error:
        problem = str(error)
    lines = [line_of(workload.name, cells[name], targets, name) for name in whose if cells[name]]
    return lines, problem


def line_of(name: str, cells: Sequence[str], targets: Sequence[Target], whose: str = "") -> str:
    """Return a line of the table. whose: shown if there is a base."""
    return " ".join([f"{name:12}", *([f"{whose:9}"] if len(targets) > 1 else []), *cells]).rstrip()


if __name__ == "__main__":
    sys.exit(main())
