"""The command line: `run` one server, `compare` two in turn, `load` one that runs already, `list` the workloads."""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import report, runner
from bench.runner import Cores, Result, Setting
from bench.server import Target
from bench.steady import keep_loaded
from bench.workloads import WORKLOADS, Workload, find

RESULTS_DIRECTORY = Path(__file__).resolve().parent / "results"


def add_common(parser: argparse.ArgumentParser) -> None:
    names = [workload.name for workload in WORKLOADS]
    parser.add_argument(
        "-w", "--workload", action="append", choices=names, help="run this one only; may be repeated (default: all)"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="factor on messages, idle connections and idle time")
    parser.add_argument("--data-root", type=Path, help="where the data directories are made (default: TMPDIR)")
    parser.add_argument("--server-core", type=int, help="core of the server (default: the first this process may use)")
    parser.add_argument("--generator-core", type=int, help="core of the generator (default: the second)")
    parser.add_argument("--unpinned", action="store_true", help="leave both to the kernel; figures are then rough")
    parser.add_argument(
        "--server-flag", action="append", default=[], metavar="FLAG", help="one more flag for every server: -name=value"
    )
    parser.add_argument("--results", type=Path, default=RESULTS_DIRECTORY, help="where the JSON goes")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure one server")
    run.add_argument("--target", default="pyqd", help="pyqd (default), sink, or the path of an nsqd")
    run.add_argument("--repeat", type=int, default=1, help="runs of each workload, each on a fresh server")
    compare = commands.add_parser("compare", help="measure pyqd and an nsqd in turn")
    compare.add_argument(
        "--nsqd",
        default=os.environ.get("NSQD") or None,
        help="path of the nsqd (default: the environment variable NSQD); without it pyqd is measured alone",
    )
    compare.add_argument("--pairs", type=int, default=5, help="runs of each server and workload")
    for command in (run, compare):
        add_common(command)
    load = commands.add_parser("load", help="keep a server that runs already under end-to-end load, measure nothing")
    load.add_argument("--nsqd-tcp-address", required=True, metavar="HOST:PORT")
    load.add_argument("--seconds", type=float, default=10.0)
    commands.add_parser("list", help="list the workloads")
    return parser


def choose_cores(arguments: argparse.Namespace) -> Cores:
    if arguments.unpinned:
        return Cores()
    chosen = Cores.choose()
    return Cores(
        server=chosen.server if arguments.server_core is None else arguments.server_core,
        generator=chosen.generator if arguments.generator_core is None else arguments.generator_core,
    )


def choose_workloads(arguments: argparse.Namespace) -> list[Workload]:
    chosen = [find(name) for name in arguments.workload] if arguments.workload else list(WORKLOADS)
    return [workload.scaled(arguments.scale) for workload in chosen]


def choose_targets(arguments: argparse.Namespace) -> tuple[list[Target], int]:
    """Return the targets and how often each is to run."""
    if arguments.command == "run":
        return [Target.parse(arguments.target)], arguments.repeat
    if arguments.nsqd is None:
        print("No nsqd was given (--nsqd PATH): pyqd runs alone, there is nothing to compare it with.")
        return [Target.parse("pyqd")], arguments.pairs
    return [Target.parse("pyqd"), Target.parse(arguments.nsqd)], arguments.pairs


def measure(workload: Workload, targets: Sequence[Target], count: int, setting: Setting) -> list[Result]:
    results = []
    for result in runner.alternate(workload, targets, count, setting):
        results.append(result)
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return results


def list_workloads() -> None:
    for workload in WORKLOADS:
        print(f"{workload.name:16}  {workload.what}")


def measure_all(arguments: argparse.Namespace, targets: Sequence[Target], count: int, command: str) -> int:
    """Run all chosen workloads, print their tables, write the JSON; return 1 when a run had a problem."""
    setting = Setting(cores=choose_cores(arguments), data_root=arguments.data_root, flags=tuple(arguments.server_flag))
    if setting.cores.server is None or setting.cores.generator is None:
        print("Server and generator have no core of their own each: they disturb each other.")
    runner.pin_generator(setting.cores)
    runs = []
    for workload in choose_workloads(arguments):
        results = measure(workload, targets, count, setting)
        runs.append((workload, results))
        print(report.workload_table(workload, results), end="\n\n", flush=True)
    path = report.write_json(report.as_document(runs, setting, command), arguments.results)
    print(f"written: {path}")
    return int(any(result.problem for _, results in runs for result in results))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line argv, `compare` when it is empty.

    Returns: 1 when a run failed, lost a message or delivered one twice, else 0.
    """
    given = list(sys.argv[1:] if argv is None else argv) or ["compare"]
    parser = make_parser()
    arguments = parser.parse_args(given)
    if arguments.command == "list":
        list_workloads()
        return 0
    if arguments.command == "load":
        host, _, port = arguments.nsqd_tcp_address.rpartition(":")
        print(f"{keep_loaded((host, int(port)), arguments.seconds):,} messages went through")
        return 0
    try:
        targets, count = choose_targets(arguments)
    except ValueError as error:
        parser.error(str(error))
    return measure_all(arguments, targets, count, shlex.join(["python", "-m", "bench", *given]))
