"""Compare `pyq_bench` with the benchmarks: the same loads, in turns, each run on a fresh server.

    python -m bench.pyq_bench --repeat 5 --nsqd PATH

Both stand on one generator. The ratio shows whether anything around it costs pyq_bench something.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence

from bench.cli import choose_cores
from bench.runner import pin_generator, run_once
from bench.server import REPOSITORY, Server, Target, running
from bench.setting import Setting
from bench.workloads import Workload, find
from pyqd.primitives.command_line import CommandParser

NAMES = ("mpub", "pub", "consume-4")
RUN_S = 300.0


def arguments_of(workload: Workload, server: Server) -> list[str]:
    """Return the command line of pyq_bench for a workload."""
    tcp, http = ("{}:{}".format(*address) for address in (server.tcp_address, server.http_address))
    shape = [f"--count={workload.messages}", f"--size={workload.body_bytes}"]
    if workload.kind == "publish":
        shape += [f"--connections={workload.publishers}", f"--batch-size={workload.batch}"]
        shape += [f"--outstanding={workload.outstanding}"]
    else:
        shape += [f"--connections={workload.consumers}", f"--rdy={workload.rdy}"]
    command = "publish" if workload.kind == "publish" else "consume"
    return [command, f"--nsqd-tcp-address={tcp}", f"--nsqd-http-address={http}", "--json", "--quiet", *shape]


def rate_of_pyq_bench(workload: Workload, target: Target, setting: Setting) -> float:
    """Run pyq_bench on a fresh server; return its messages per second. Raises: SystemExit if it fails."""
    flags = workload.flags_of(target.program)
    core = setting.cores.generator
    with running(target, cores=setting.cores.of(target), data_root=setting.data_root, flags=flags) as server:
        command = [sys.executable, "-m", "pyqd.tools.pyq_bench", *arguments_of(workload, server)]
        # As the benchmarks: a generator with a core of its own polls.
        command += [] if core is None else ["--spin"]
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(
            command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=RUN_S, check=False
        )
    if done.returncode:
        sys.exit(f"pyq_bench, {workload.name}, {target.name}: {done.stderr[-500:]}")
    rate: float = json.loads(done.stdout)["messages_per_s"]
    return rate


def rate_of_bench(workload: Workload, target: Target, setting: Setting) -> float:
    """Run the workload as the benchmarks do; return its messages per second. Raises: SystemExit if it fails."""
    result = run_once(workload, target, setting)
    if result.problem:
        sys.exit(f"{workload.name}, {target.name}: {result.problem}")
    return result.figures["rate_per_s"]


def measure(workload: Workload, target: Target, setting: Setting, repeat: int) -> str:
    """Return the line of a table: medians, and the median of the ratios of pairs with their range."""
    pairs = []
    for _ in range(repeat):
        bench = rate_of_bench(workload, target, setting)
        pairs.append((bench, rate_of_pyq_bench(workload, target, setting)))
    ratios = [ours / bench for bench, ours in pairs]
    bench, ours = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} .. {max(ratios):.2f})"
    return f"| {workload.name} | {target.name} | {bench:,.0f} | {ours:,.0f} | {ratio} |"


def main(argv: Sequence[str] | None = None) -> None:
    """Print the rates as a table."""
    parser = CommandParser(prog="python -m bench.pyq_bench", description=__doc__.partition("\n")[0])
    parser.add_argument("--nsqd", help="measure against this nsqd too")
    parser.add_argument("--load", action="append", choices=NAMES, help="only these workloads")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of the messages of the workloads")
    parser.add_argument("--server-core", type=int, default=None)
    parser.add_argument("--generator-core", type=int, default=None)
    parser.add_argument("--unpinned", action="store_true", help="leave the cores to the kernel")
    given = parser.parse_args(argv)
    setting = Setting(cores=choose_cores(given))
    pin_generator(setting.cores)
    print("| load | broker | bench, messages/s | pyq_bench, messages/s | ratio |\n| --- | --- | ---: | ---: | ---: |")
    for target in [Target.parse(name) for name in ("pyqd", given.nsqd) if name]:
        for name in given.load or NAMES:
            print(measure(find(name).scaled(given.scale), target, setting, given.repeat), flush=True)


if __name__ == "__main__":
    main()
