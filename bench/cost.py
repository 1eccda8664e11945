"""Cost of a message in the daemon: user and system CPU time, and instructions. `python -m bench.cost`.

Both are measured for whole runs, start and stop included, at two sizes of the load. The difference in cost divided by
the difference in messages is the cost of one. If a channel is filled first, the cost of filling is subtracted.

CPU time is read with getrusage after the daemon has ended, in microseconds. Instructions are counted by the processor
if `perf stat` may, else by valgrind's callgrind. Under callgrind the daemon is some fifty times as slow: more arrives
in a pass, and the figure is that of a busy daemon. Instructions of the kernel are not counted.

Sources: getrusage(2), RUSAGE_CHILDREN; perf-stat(1); the manual of callgrind.
"""

import argparse
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from bench import runner
from bench.cli import choose_cores
from bench.server import Target
from bench.setting import Setting
from bench.shape import at_least_one
from bench.workloads import Workload, find
from pyqd.primitives.command_line import CommandParser
from pyqd.primitives.progress import Progress
from pyqd.tools.bench.process import CpuTime

# Each with the messages of the smaller of the two loads whose instructions are counted.
COUNTED_MESSAGES = {"mpub": 100_000, "pub": 20_000, "consume-4": 50_000, "e2e": 50_000, "http-pub": 10_000}
# The larger of two loads has so many times as many messages more.
ADDED = 4
EVENT = "instructions:u"
DAEMON = (sys.executable, "-m", "pyqd.apps.daemon")
# Under callgrind.
SLOWNESS = 30.0
COUNT_DEADLINE_S = 300.0
PERF_WRITES_WITHIN_S = 10.0
POLL_S = 0.05
# perf opens its counters before the shell becomes the daemon, so that no instruction of the daemon is missed.
COUNTED_BY_PERF = (
    'perf stat -x, -e "$1" -o "$0" -p $$ & '
    'until find /proc/$!/fd -lname "*perf_event*" | grep -q .; do kill -0 $! || exit 1; sleep 0.01; done; '
    'shift; exec "$@"'
)

_PERF_LINE = re.compile(r"^(\d+),[^,]*,", re.MULTILINE)
_CALLGRIND_LINE = re.compile(r"^(?:summary|totals): (\d+)", re.MULTILINE)


class CostError(Exception):
    """A figure cannot be measured; str() of it is the reason."""


@dataclass(frozen=True)
class Counter:
    """Counter of instructions. name: "perf" or "callgrind"."""

    name: str
    event: str = EVENT

    def target(self, counted: Path) -> Target:
        """Return the daemon as a target with a counter. counted: the file that holds the figure after its end."""
        environment = (("PYTHONHASHSEED", "0"),)
        if self.name == "perf":
            command: tuple[str, ...] = ("sh", "-c", COUNTED_BY_PERF, str(counted), self.event, *DAEMON)
            return Target(name="pyqd", command=command, environment=environment)
        command = ("valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={counted}", *DAEMON)
        return Target(name="pyqd", command=command, environment=environment, slowness=SLOWNESS)

    def read(self, counted: Path) -> int:
        """Return the figure of a daemon that has ended. Raises: CostError."""
        line = _PERF_LINE if self.name == "perf" else _CALLGRIND_LINE
        end_s = time.monotonic() + PERF_WRITES_WITHIN_S
        while True:
            # perf notices a little later that the process is gone.
            found = line.search(counted.read_text()) if counted.exists() else None
            if found is not None:
                return int(found[1])
            if time.monotonic() > end_s:
                raise CostError(f"{self.name} has left no count")
            time.sleep(POLL_S)


def find_counter() -> Counter:
    """Return this machine's counter of instructions. Raises: CostError."""
    if shutil.which("perf"):
        tried = subprocess.run(
            ["perf", "stat", "-x,", "-e", EVENT, "true"], capture_output=True, text=True, check=False
        )
        if tried.returncode == 0 and _PERF_LINE.search(tried.stderr):
            return Counter("perf")
    if shutil.which("valgrind"):
        return Counter("callgrind")
    raise CostError(
        "nothing counts instructions here: perf is not installed or has no such counter, as in most virtual machines, "
        "and valgrind is not installed (on Debian: apt-get install valgrind)"
    )


def run_whole(workload: Workload, target: Target, setting: Setting) -> None:
    """Run the workload on a fresh daemon, and return after it has ended. Raises: CostError."""
    result = runner.run_once(workload, target, setting)
    if result.problem:
        raise CostError(result.problem)


def cpu_of_run(workload: Workload, setting: Setting) -> CpuTime:
    """Return the CPU time of the daemon from fork to end. Raises: CostError."""
    # The sum over all ended children; no other child ends during the measurement.
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run_whole(workload, Target.parse("pyqd"), setting)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return CpuTime(user_s=after.ru_utime - before.ru_utime, system_s=after.ru_stime - before.ru_stime)


def count_run(workload: Workload, counter: Counter, setting: Setting) -> int:
    """Return the instructions of one run. Raises: CostError."""
    with tempfile.TemporaryDirectory(prefix="bench-cost-") as directory:
        counted = Path(directory) / "counted"
        try:
            run_whole(replace(workload, deadline_s=COUNT_DEADLINE_S), counter.target(counted), setting)
        except CostError as error:
            raise CostError(f"under {counter.name}: {error}") from None
        return counter.read(counted)


def of_one_more(workload: Workload, fewer: float, measure: Callable[[Workload], Sequence[float]]) -> list[float]:
    """Return the cost of one more message, for each figure that measure returns of a whole run. Raises: CostError.

    fewer: messages of the smaller load, rounded to a multiple of the batch.
    """
    few_messages = workload.batch * max(1, round(fewer / workload.batch))
    added_messages = few_messages * ADDED
    few = measure(replace(workload, messages=few_messages))
    many = measure(replace(workload, messages=few_messages + added_messages))
    figures = [(more - less) / added_messages for less, more in zip(few, many, strict=True)]
    if workload.kind != "consume":
        return figures
    filling = of_one_more(replace(workload, kind="publish", existing=True), fewer, measure)
    return [both - fill for both, fill in zip(figures, filling, strict=True)]


def instructions_per_message(workload: Workload, counter: Counter, setting: Setting, scale: float = 1.0) -> float:
    """Return the instructions of one more message. scale: of the two loads. Raises: CostError."""
    fewer = COUNTED_MESSAGES[workload.name] * scale
    return of_one_more(workload, fewer, lambda load: (count_run(load, counter, setting),))[0]


def cpu_per_message(
    workload: Workload, setting: Setting, repeat: int, scale: float = 1.0
) -> tuple[float, float, float]:
    """Return the medians of the CPU, user and system time of one more message in ns. Raises: CostError."""

    def measure(load: Workload) -> tuple[float, float, float]:
        spent = cpu_of_run(load, setting)
        return spent.total_s * 1e9, spent.user_s * 1e9, spent.system_s * 1e9

    fewer = workload.messages * scale / (1 + ADDED)
    totals, users, systems = zip(*(of_one_more(workload, fewer, measure) for _ in range(repeat)), strict=True)
    return median(totals), median(users), median(systems)


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="python -m bench.cost", description=(__doc__ or "").partition("\n")[0])
    names = list(COUNTED_MESSAGES)
    parser.add_argument("-w", "--workload", action="append", choices=names, help="this one only; may be repeated")
    parser.add_argument("--repeat", type=at_least_one, default=3, help="runs of which the medians are taken (3)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the messages")
    parser.add_argument(
        "--count",
        choices=("auto", "only", "no"),
        default="auto",
        help="instructions: beside CPU time, where something counts them (auto); alone; or not",
    )
    parser.add_argument("--server-core", type=int, help="core of the daemon (default: the first this process may use)")
    parser.add_argument("--generator-core", type=int, help="core of the generator (default: the second)")
    parser.add_argument("--unpinned", action="store_true", help="leave both to the kernel; figures are then rough")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Print a row for each workload.

    Returns: 1 if a run failed, or if only instructions were requested and no counter exists, else 0.
    """
    arguments = make_parser().parse_args(argv)
    setting = Setting(cores=choose_cores(arguments))
    runner.pin_generator(setting.cores)
    counter: Counter | None = None
    uncounted = ""
    if arguments.count != "no":
        try:
            counter = find_counter()
        except CostError as error:
            uncounted = f"no instructions: {error}"
    failed = print_table(arguments, counter, setting) if counter or arguments.count != "only" else True
    if uncounted:
        print(uncounted, file=sys.stderr)
    return int(failed)


def print_table(arguments: argparse.Namespace, counter: Counter | None, setting: Setting) -> bool:
    """Print the rows; return whether a run failed."""
    by = f"instructions by {counter.name}" if counter else ""
    print(f"{'per message':12} {'CPU, ns':>9} {'user, ns':>9} {'system, ns':>11} {by}".rstrip(), flush=True)
    names = list(arguments.workload or COUNTED_MESSAGES)
    with Progress(total=len(names), unit="benchmarks") as progress:
        return print_rows(names, arguments, counter, setting, progress)


def print_rows(
    names: Sequence[str],
    arguments: argparse.Namespace,
    counter: Counter | None,
    setting: Setting,
    progress: Progress,
) -> bool:
    """Print a row for each workload; return whether a run failed."""
    failed = False
    for name in names:
        progress.describe(name)
        workload = find(name)
        times = count = problem = ""
        try:
            if arguments.count != "only":
                cpu, user, system = cpu_per_message(workload, setting, arguments.repeat, arguments.scale)
                times = f"{cpu:9,.0f} {user:9,.0f} {system:11,.0f}"
            if counter:
                count = f"{instructions_per_message(workload, counter, setting, arguments.scale):,.0f}"
        except CostError as error:
            problem = f"{name:12} failed: {error}"
            failed = True
        if times or count:
            progress.say(f"{name:12} {times:31} {count}".rstrip(), sys.stdout)
        if problem:
            progress.say(problem, sys.stdout)
        progress.advance()
    return failed


if __name__ == "__main__":
    sys.exit(main())
