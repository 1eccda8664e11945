"""Command line of the benchmarks: `run` one server, `compare` several in turns, or one of the other studies."""

import argparse
import importlib
import math
import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench import runner
from bench.server import Target
from bench.setting import IN_MEMORY, Cores, Setting, read_file_system
from bench.study import Study, measure
from bench.workloads import WORKLOADS
from pyqd.primitives.command_line import CommandParser

RESULTS_DIRECTORY = Path(__file__).resolve().parent / "results"
# Module, and what it measures. Each has `study(setting, scale)`.
STUDIES = {
    "durable": "brokers whose OK means stable storage; REDIS, BEANSTALKD and NATS name others (also --durable)",
    "stalls": "the longest time that the daemon does not answer, as `make stalls`",
    "clients": "Python clients against one pyqd",
    "tools": "command-line tools; NSQ_TOOLS names the directory of NSQ's, NSQD one more broker",
    "lookup": "lookup daemons; NSQLOOKUPD names another",
    "trace_ship": "events of traces into databases",
    "spark_read": 'Spark: format("pyqd") and a Python client',
    "spark_drain": "Spark: `pyq_spark drain` and Spark's own Parquet sink",
}


def positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"a number above 0 is needed: {text}")
    return value


def at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1 on is needed: {text}")
    return value


def add_cores(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--server-core", type=int, help="core of the server (default: the first this process may use)")
    parser.add_argument("--generator-core", type=int, help="core of the generator (default: the second)")
    parser.add_argument("--unpinned", action="store_true", help="leave both to the kernel; figures are then rough")


def choose_cores(arguments: argparse.Namespace) -> Cores:
    """Return the cores named on the command line. Raises: ValueError for one that this process may not use."""
    return Cores() if arguments.unpinned else Cores.choose(arguments.server_core, arguments.generator_core)


def add_common(parser: argparse.ArgumentParser, pairs: str, default: int) -> None:
    parser.add_argument(
        "-w", "--workload", action="append", metavar="NAME", help="this row only; may be repeated (default: all)"
    )
    parser.add_argument("--scale", type=positive, default=1.0, help="factor on all sizes")
    parser.add_argument(
        pairs, dest="pairs", type=at_least_one, default=default, help="runs of each contender (default: %(default)s)"
    )
    parser.add_argument("--data-root", type=Path, help="where the data directories are made (default: TMPDIR)")
    parser.add_argument("--results", type=Path, default=RESULTS_DIRECTORY, help="where the files go")
    parser.add_argument(
        "--server-flag", action="append", default=[], metavar="FLAG", help="one more flag for every server: -name=value"
    )
    add_cores(parser)


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure one server")
    run.add_argument(
        "--target", default="pyqd", help="pyqd (default), sink, sink-store, or an nsqd or a pyqd by its path"
    )
    add_common(run, "--repeat", 1)
    compare = commands.add_parser("compare", help="measure pyqd, and an nsqd on one core and on two, in turn")
    compare.add_argument(
        "--nsqd",
        default=os.environ.get("NSQD") or None,
        help="path of the nsqd, or its name in PATH (default: the environment variable NSQD); or that of another pyqd",
    )
    compare.add_argument(
        "--with",
        dest="others",
        action="append",
        default=[],
        metavar="TARGET",
        help="one more server in turn, with flags if it has some: sink-store, 'pyqd --sync-fin'; may be repeated",
    )
    compare.add_argument("--one-core", action="store_true", help="leave out the nsqd on two cores")
    add_common(compare, "--pairs", 5)
    for name, what in STUDIES.items():
        add_common(commands.add_parser(name.replace("_", "-"), help=what), "--repeat", 3)
    commands.add_parser("list", help="list the workloads of run and compare")
    return parser


def choose_targets(arguments: argparse.Namespace) -> list[Target]:
    """Return the servers of `run` or `compare`. Raises: ValueError."""
    if arguments.command == "run":
        return [Target.parse(arguments.target)]
    targets = [Target.parse("pyqd")]
    if arguments.nsqd is not None:
        targets.append(Target.parse(arguments.nsqd))
        if not arguments.one_core and targets[-1].program == "nsqd" and len(os.sched_getaffinity(0)) > 1:
            targets.append(Target.parse(arguments.nsqd, core_count=2))
    targets += [Target.parse(text) for text in arguments.others]
    names = [target.name for target in targets]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two servers are called {name}: their runs could not be told apart")
    if len(targets) == 1:
        print("No nsqd was given (NSQD=PATH or --nsqd PATH): pyqd runs alone, there is nothing to compare it with.")
    return targets


def broker_study(arguments: argparse.Namespace, setting: Setting) -> Study:
    """Return the study of the workloads. Raises: ValueError."""
    targets = {target.name: target for target in choose_targets(arguments)}
    workloads = {each.name: each.scaled(arguments.scale) for each in WORKLOADS}
    return Study(
        rows={name: workload.what for name, workload in workloads.items()},
        contenders=list(targets),
        run=lambda row, contender: runner.run_once(workloads[row], targets[contender], setting),
        can=lambda row, contender: runner.measurable(workloads[row], targets[contender]),
        pairs_max={name: each.runs_max for name, each in workloads.items() if each.runs_max},
        conditions=[f"{name}: {target.version()}" for name, target in targets.items()],
    )


def choose_rows(study: Study, names: Sequence[str] | None) -> Study:
    """Return the study with the named rows only. Raises: ValueError."""
    for name in names or ():
        if name not in study.rows:
            raise ValueError(f"no row {name}: there are {', '.join(study.rows)}")
    return replace(study, rows={name: what for name, what in study.rows.items() if not names or name in names})


def require_places(setting: Setting, results: Path) -> None:
    """Check that data directories and files of results can be made. Raises: ValueError."""
    try:
        tempfile.TemporaryDirectory(prefix="bench-", dir=setting.data_root).cleanup()
        results.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=results).close()
    except OSError as error:
        raise ValueError(f"no data directory or no results can be made (--data-root, --results): {error}") from error
    if read_file_system(setting.data_path()) in IN_MEMORY:
        print(f"warning: {setting.data_path()} is memory: --data-root names a directory on a disk", file=sys.stderr)


def choose_study(arguments: argparse.Namespace, setting: Setting) -> Study:
    """Return the study of a command, with the wanted rows. Raises: ValueError."""
    name = arguments.command.replace("-", "_")
    if name not in STUDIES:
        return choose_rows(broker_study(arguments, setting), arguments.workload)
    # Some need packages, or a compiled module, that the others do not.
    study: Study = importlib.import_module(f"bench.{name}").study(setting, arguments.scale)
    return choose_rows(study, arguments.workload)


def with_command(given: Sequence[str]) -> list[str]:
    """Return the command line, with `compare` if no command is named, and a command in place of --durable."""
    if "--durable" in given:
        return ["durable", *(word for word in given if word != "--durable")]
    named = bool(given) and (not given[0].startswith("-") or given[0] in ("-h", "--help"))
    return list(given) if named else ["compare", *given]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line argv; without a command it is `compare`.

    Returns: 1 if a run failed, lost a message or delivered one twice, 2 for a run that is impossible, 130 if
    interrupted, else 0.
    """
    given = with_command(list(sys.argv[1:] if argv is None else argv))
    parser = make_parser()
    arguments = parser.parse_args(given)
    if arguments.command == "list":
        for workload in WORKLOADS:
            print(f"{workload.name:17}  {workload.what}")
        return 0
    try:
        flags = tuple(arguments.server_flag)
        setting = Setting(cores=choose_cores(arguments), data_root=arguments.data_root, flags=flags)
        require_places(setting, arguments.results)
        study = choose_study(arguments, setting)
    except ValueError as error:
        parser.error(str(error))
    command = shlex.join(["python", "-m", "bench", *given])
    return measure(study, arguments.pairs, setting, arguments.results, command)
