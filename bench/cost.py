"""What a message costs the daemon: CPU time, of user and system apart, and instructions. `python -m bench.cost`.

CPU time is that of `/proc/PID/stat` over the load, see bench/README.md. Instructions are those of a whole run, start
and stop included, at two sizes of the load; what the larger one has more, by the messages that it has more, is the cost
of one. They are counted by the processor where `perf stat` may, else by valgrind's callgrind, under which the daemon is
some fifty times as slow: more arrives in a pass, and the figure is that of a busy daemon. Those of the kernel are not
counted.

Sources: perf-stat(1); the manual of callgrind.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from bench import runner
from bench.cli import choose_cores
from bench.server import Target
from bench.setting import Setting
from bench.workloads import Workload, find

# Each with the messages that the smaller of two counted loads has; the larger has ADDED times as many more.
COUNTED_MESSAGES = {"mpub": 100_000, "pub": 20_000, "consume-4": 50_000, "e2e": 50_000, "http-pub": 10_000}
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
    """Why there is no figure."""


@dataclass(frozen=True)
class Counter:
    """What counts instructions. name: "perf" or "callgrind"."""

    name: str
    event: str = EVENT

    def target(self, counted: Path) -> Target:
        """Return the daemon as a target that is counted. counted: the file that holds the figure when it has ended."""
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
    """Return what counts instructions on this machine. Raises: CostError."""
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


def count_run(workload: Workload, counter: Counter, setting: Setting) -> int:
    """Return the instructions of one run. Raises: CostError."""
    with tempfile.TemporaryDirectory(prefix="bench-cost-") as directory:
        counted = Path(directory) / "counted"
        result = runner.run_once(replace(workload, deadline_s=COUNT_DEADLINE_S), counter.target(counted), setting)
        if result.problem:
            raise CostError(f"{workload.name} under {counter.name}: {result.problem}")
        return counter.read(counted)


def instructions_per_message(workload: Workload, counter: Counter, setting: Setting, scale: float = 1.0) -> float:
    """Return what one more message takes. scale: of the two loads. Raises: CostError."""
    fewer = workload.batch * max(1, round(COUNTED_MESSAGES[workload.name] * scale / workload.batch))
    more = fewer * (1 + ADDED)
    few = count_run(replace(workload, messages=fewer), counter, setting)
    many = count_run(replace(workload, messages=more), counter, setting)
    return (many - few) / (more - fewer)


def cpu_row(workload: Workload, repeat: int, setting: Setting) -> tuple[float, float, float]:
    """Return the medians of CPU, user and system time, ns per message. Raises: CostError."""
    results = [runner.run_once(workload, Target.parse("pyqd"), setting) for _ in range(repeat)]
    for result in results:
        if result.problem:
            raise CostError(f"{workload.name}: {result.problem}")
    total, user, system = (
        median(result.figures[key] for result in results) for key in ("cpu_ns", "user_ns", "system_ns")
    )
    return total, user, system


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.cost", description=(__doc__ or "").partition("\n")[0])
    names = list(COUNTED_MESSAGES)
    parser.add_argument("-w", "--workload", action="append", choices=names, help="this one only; may be repeated")
    parser.add_argument("--repeat", type=int, default=3, help="runs of which the medians are taken (3)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the messages")
    parser.add_argument("--count", choices=("auto", "only", "no"), default="auto", help="instructions (auto: both)")
    parser.add_argument("--server-core", type=int, help="core of the daemon (default: the first this process may use)")
    parser.add_argument("--generator-core", type=int, help="core of the generator (default: the second)")
    parser.add_argument("--unpinned", action="store_true", help="leave both to the kernel; figures are then rough")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Print a row for each workload. Returns: 1 when a run failed or there is nothing to count with, else 0."""
    arguments = make_parser().parse_args(argv)
    setting = Setting(cores=choose_cores(arguments))
    runner.pin_generator(setting.cores)
    counter: Counter | None = None
    failed = False
    if arguments.count != "no":
        try:
            counter = find_counter()
        except CostError as error:
            print(f"no instructions: {error}", file=sys.stderr)
            failed = True
    by = f"instructions by {counter.name}" if counter else ""
    print(f"{'per message':12} {'CPU, ns':>9} {'user, ns':>9} {'system, ns':>11} {by}", flush=True)
    for name in arguments.workload or COUNTED_MESSAGES:
        workload = find(name)
        try:
            times = "" if arguments.count == "only" else cpu_cells(workload, arguments, setting)
            count = counter and f"{instructions_per_message(workload, counter, setting, arguments.scale):,.0f}"
            print(f"{name:12} {times:31} {count or '':>{len(by)}}", flush=True)
        except CostError as error:
            print(f"{name:12} failed: {error}", flush=True)
            failed = True
    return int(failed)


def cpu_cells(workload: Workload, arguments: argparse.Namespace, setting: Setting) -> str:
    total, user, system = cpu_row(workload.scaled(arguments.scale), arguments.repeat, setting)
    return f"{total:9,.0f} {user:9,.0f} {system:11,.0f}"


if __name__ == "__main__":
    sys.exit(main())
