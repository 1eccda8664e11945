"""Measure the price of `--sync-fin`: consuming a filled channel with and without it, in alternating runs.

    python -m bench.fin_price --repeat 3

With `--sync-fin` a FIN counts against its consumer's RDY until it is on stable storage, so the rate is bounded by RDY,
the number of consumers and the disk. Both run with `--sync-every=1`, whose publishers fill the channel.
"""

import statistics
import sys
from dataclasses import replace

from bench.cli import choose_cores
from bench.runner import pin_generator, run_once
from bench.server import Target
from bench.setting import Setting
from bench.workloads import Workload, find
from pyqd.primitives.command_line import CommandParser

FLAGS = {"without": ("--sync-every=1",), "with": ("--sync-every=1", "--sync-fin")}
# Consumers, RDY, and the messages to consume: enough for some tenths of a second without the flag.
LOADS = ((1, 1, 3_000), (1, 100, 100_000), (50, 10, 200_000), (4, 2500, 1_000_000))


def workload_of(consumers: int, rdy: int, messages: int) -> Workload:
    """Return the load: publish all of it, then consume."""
    what = f"{consumers} consumer{'s' if consumers > 1 else ''}, RDY {rdy}"
    return replace(find("consume-4"), name="fin-price", what=what, messages=messages, consumers=consumers, rdy=rdy)


def measure(repeat: int, setting: Setting) -> list[str]:
    """Return the table, line by line. Raises: SystemExit for a run with a problem."""
    lines = ["| load | without, messages/s | with --sync-fin | ratio |", "| --- | ---: | ---: | ---: |"]
    for consumers, rdy, messages in LOADS:
        workload = workload_of(consumers, rdy, messages)
        rates: dict[str, list[float]] = {name: [] for name in FLAGS}
        for _ in range(repeat):
            for name, flags in FLAGS.items():
                result = run_once(workload, Target.parse("pyqd"), replace(setting, flags=flags))
                if result.problem:
                    sys.exit(f"{workload.what}, {name} --sync-fin: {result.problem}")
                rates[name].append(result.figures["rate_per_s"])
        without, with_it = (statistics.median(rates[name]) for name in FLAGS)
        lines.append(f"| {workload.what} | {without:,.0f} | {with_it:,.0f} | {with_it / without:.3f} |")
    return lines


def main() -> None:
    """Print the medians as a table."""
    parser = CommandParser(prog="python -m bench.fin_price", description=__doc__.partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=3, help="runs of each load, with and without")
    parser.add_argument("--server-core", type=int, default=None)
    parser.add_argument("--generator-core", type=int, default=None)
    parser.add_argument("--unpinned", action="store_true", help="leave the cores to the kernel")
    given = parser.parse_args()
    setting = Setting(cores=choose_cores(given))
    pin_generator(setting.cores)
    print("\n".join(measure(given.repeat, setting)))


if __name__ == "__main__":
    main()
