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
import resource
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench import runner
from bench.cli import RESULTS_DIRECTORY, add_cores, at_least_one, choose_cores, positive
from bench.counters import Counter, CounterError, find_call_counter, find_instruction_counter
from bench.server import Figures, Target
from bench.setting import Setting
from bench.study import Figure, Study, measure
from bench.workloads import Workload
from bench.workloads import find as find_workload
from pyqd.primitives.command_line import CommandParser

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


FIGURES = {
    name: Figure(name, digits, better="less")
    for name, digits in (
        *(("CPU, ns", 0), ("user, ns", 0), ("system, ns", 0), ("faults/page", 3), ("switches", 3)),
        *((f"calls, {name}", 3) for name in ("perf", "strace")),
        *((f"instructions, {name}", 0) for name in ("perf", "callgrind")),
    )
}
TIMED = tuple(FIGURES)[:5]


@dataclass(frozen=True)
class Spent:
    """Cost of one run. whole: from the start of the daemon to its end, loaded: during the load alone."""

    whole: tuple[float, ...] = ()
    loaded: tuple[float, ...] = ()


def find(name: str) -> Workload:
    """Return the workload of that name as it is measured here. Raises: KeyError."""
    workload = find_workload(name)
    return replace(workload, unconsumed=UNCONSUMED) if workload.channels > 1 else workload


def log_pages(workload: Workload) -> float:
    """Return the pages of the log that one message fills."""
    padded = -(-workload.body_bytes // RECORD_ALIGN_BYTES) * RECORD_ALIGN_BYTES
    return (RECORD_HEADER_BYTES + padded) / PAGE_BYTES


def time_run(target: Target, setting: Setting, workload: Workload) -> Spent:
    """Return the CPU time of one run in ns, all, user and system; its faults per page, and switches. Raises: RunError.

    The faults are divided by the pages of one message, so that their cost per message becomes that of a page.
    """
    # The sum over all ended children; no other child ends during the measurement.
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    figures = runner.run_once(workload, target, setting)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    user_ns, system_ns = (1e9 * (after[index] - before[index]) for index in (0, 1))
    faults, switches = (workload.messages * figures[key] for key in ("loop_faults", "loop_switches"))
    return Spent((user_ns + system_ns, user_ns, system_ns), (faults / log_pages(workload), switches))


def count_run(counter: Counter, target: Target, setting: Setting, workload: Workload) -> Spent:
    """Return the events of one run. Raises: RunError."""
    with tempfile.TemporaryDirectory(prefix="bench-cost-") as directory:
        counted = Path(directory) / "counted"
        runner.run_once(replace(workload, deadline_s=COUNT_DEADLINE_S), counter.around(target, counted), setting)
        return Spent((counter.read(counted),))


def of_one_more(workload: Workload, few: float, run: Callable[[Workload], Spent]) -> list[float]:
    """Return the cost of one more message, for each figure that `run` returns. Raises: RunError.

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


def find_counters() -> tuple[list[tuple[str, Counter]], list[str]]:
    """Return the counters of system calls and of instructions, and the reasons why one is missing."""
    found, reasons = [], []
    for kind, find_counter in (("calls", find_call_counter), ("instructions", find_instruction_counter)):
        try:
            counter = find_counter()
            found.append((f"{kind}, {counter.name}", counter))
        except CounterError as error:
            reasons.append(str(error))
    return found, reasons


def study(names: Sequence[str], targets: Sequence[Target], setting: Setting, scale: float, count: str) -> Study:
    """Return the study. count: "no", "only", or "auto" for system calls and instructions beside CPU time."""
    counters, reasons = find_counters() if count != "no" else ([], [])
    for reason in reasons:
        print(reason, file=sys.stderr)
    if count == "only" and not counters:
        raise ValueError("nothing counts system calls or instructions here")
    counted: set[tuple[str, str]] = set()
    contenders = dict(zip(("this", "base"), targets, strict=False))

    def run(row: str, contender: str) -> Figures:
        workload, target = find(row), contenders[contender]
        few = workload.messages * scale / (1 + ADDED)
        figures: Figures = {}
        if count != "only":
            figures |= zip(TIMED, of_one_more(workload, few, partial(time_run, target, setting)), strict=True)
        for name, counter in counters:
            # Under callgrind a run is long, and hardly two counts differ by more than 1 %.
            is_slow = name.startswith("instructions")
            if is_slow and (row, contender) in counted:
                continue
            counted_few = COUNTED_MESSAGES[row] * scale if is_slow else few
            [figures[name]] = of_one_more(workload, counted_few, partial(count_run, counter, target, setting))
        counted.add((row, contender))
        return figures

    return Study(rows={name: find(name).what for name in names}, contenders=list(contenders), run=run, figures=FIGURES)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table.

    Returns: 1 if a run failed, 2 for an unusable base, or if only counts were requested and no counter exists, else 0.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    arguments = make_parser().parse_args(given)
    setting = Setting(cores=choose_cores(arguments))
    try:
        targets = [Target.parse("pyqd"), *([Target.of_checkout(arguments.base)] if arguments.base else [])]
        names = arguments.workload or list(COUNTED_MESSAGES)
        made = study(names, targets, setting, arguments.scale, arguments.count)
    except ValueError as error:
        print(f"python -m bench.cost: {error}", file=sys.stderr)
        return 2
    return measure(
        made, arguments.repeat, setting, RESULTS_DIRECTORY, shlex.join(["python", "-m", "bench.cost", *given])
    )


if __name__ == "__main__":
    sys.exit(main())
