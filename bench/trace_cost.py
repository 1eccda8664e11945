"""Cost of tracing: the same load with every message traced and with none, in alternating runs.

    python -m bench.trace_cost --repeat 15 --scale 0.25

Each pair of runs gives a ratio of throughput and one of the daemon's CPU time per message; the table has the medians.
On a machine with other work, many short pairs are better than few long ones, and CPU time is steadier than throughput.
"""

import statistics
import sys
from dataclasses import replace

from bench.cli import choose_cores
from bench.runner import pin_generator, run_once
from bench.server import Target
from bench.setting import Setting, warm_memory
from bench.shape import at_least_one
from bench.workloads import Workload, find
from pyqd.primitives.command_line import CommandParser
from pyqd.primitives.progress import Progress

# More than the messages and events of a run take.
WARM_BYTES = 2 << 30
WORKLOADS = ("mpub", "pub", "consume-4", "e2e", "fanout-16")
FLAGS: dict[str, tuple[str, ...]] = {"untraced": (), "traced": ("--trace-topic=*",)}
HEAD = (
    "| load | untraced, k/s | traced, k/s | ratio | untraced, CPU ns | traced, CPU ns | ratio |",
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
)


def run(workload: Workload, flags: tuple[str, ...], setting: Setting) -> tuple[float, float]:
    """Return messages per second, and CPU time per message in ns. Raises: SystemExit for a run with a problem."""
    result = run_once(workload, Target.parse("pyqd"), replace(setting, flags=flags))
    if result.problem:
        sys.exit(f"{workload.name} {' '.join(flags)}: {result.problem}")
    return result.figures["rate_per_s"], result.figures["cpu_ns"]


def row(workload: Workload, repeat: int, setting: Setting, progress: Progress) -> str:
    """Return the row of a load: medians of the pairs."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in FLAGS}
    for pair in range(repeat):
        # Each comes first in every other pair.
        for name, flags in sorted(FLAGS.items(), reverse=pair % 2 == 1):
            progress.describe(f"{workload.name} {name}")
            warm_memory(WARM_BYTES)
            found[name].append(run(workload, flags, setting))
        progress.advance()
    rates, cpus = ([[values[index] for values in found[name]] for name in FLAGS] for index in (0, 1))
    rate_ratio, cpu_ratio = (
        statistics.median(traced / untraced for untraced, traced in zip(*values, strict=True))
        for values in (rates, cpus)
    )
    without, with_it = map(statistics.median, rates)
    without_ns, with_it_ns = map(statistics.median, cpus)
    return (
        f"| {workload.name} | {without / 1e3:,.0f} | {with_it / 1e3:,.0f} | {rate_ratio:.2f} "
        f"| {without_ns:,.0f} | {with_it_ns:,.0f} | {cpu_ratio:.2f} |"
    )


def main() -> None:
    """Print the table."""
    parser = CommandParser(prog="python -m bench.trace_cost", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-w", "--workload", action="append", choices=WORKLOADS, help="this one only; may be repeated")
    parser.add_argument("--repeat", type=at_least_one, default=15, help="pairs of runs of each load (15)")
    parser.add_argument("--scale", type=float, default=0.25, help="factor on the messages (0.25)")
    parser.add_argument("--server-core", type=int, default=None)
    parser.add_argument("--generator-core", type=int, default=None)
    parser.add_argument("--unpinned", action="store_true", help="leave the cores to the kernel")
    given = parser.parse_args()
    setting = Setting(cores=choose_cores(given))
    pin_generator(setting.cores)
    names = given.workload or list(WORKLOADS)
    print("\n".join(HEAD), flush=True)
    with Progress(total=given.repeat * len(names), unit="pairs") as progress:
        for name in names:
            progress.say(row(find(name).scaled(given.scale), given.repeat, setting, progress), sys.stdout)


if __name__ == "__main__":
    main()
