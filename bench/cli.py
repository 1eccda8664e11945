"""Command line: `run` one server, `compare` several in alternation, `report` on runs, and their helpers."""

import argparse
import math
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench import runner, shape, steady, tables
from bench.progress import Progress
from bench.series import Series, SeriesError, describe_session
from bench.server import Target
from bench.setting import Cores, Setting
from bench.workloads import WORKLOADS, Workload, find
from pyqd.hot.tools.loadgen import LoadError
from pyqd.primitives.command_line import CommandParser
from pyqd.tools.bench.connections import Address, HandshakeError

# Workloads that are there for the disk. In memory they measure something else.
OF_THE_DISK = ("disk-", "pub-sync-")
IN_MEMORY = ("tmpfs", "ramfs")
RESULTS_DIRECTORY = Path(__file__).resolve().parent / "results"
INTERRUPTED = 130


def positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"a number above 0 is needed: {text}")
    return value


def address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(f"HOST:PORT is needed, with a port of 1 to 65535: {text}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def add_common(parser: argparse.ArgumentParser) -> None:
    names = [workload.name for workload in WORKLOADS]
    parser.add_argument(
        "-w",
        "--workload",
        action="append",
        choices=names,
        metavar="NAME",
        help="run this one only; may be repeated (default: all of `list`)",
    )
    parser.add_argument(
        "--scale", type=positive, default=1.0, help="factor on messages, idle connections and idle time"
    )
    parser.add_argument("--data-root", type=Path, help="where the data directories are made (default: TMPDIR)")
    parser.add_argument("--server-core", type=int, help="core of the server (default: the first this process may use)")
    parser.add_argument("--generator-core", type=int, help="core of the generator (default: the second)")
    parser.add_argument("--unpinned", action="store_true", help="leave both to the kernel; figures are then rough")
    parser.add_argument(
        "--server-flag", action="append", default=[], metavar="FLAG", help="one more flag for every server: -name=value"
    )
    parser.add_argument("--results", type=Path, default=RESULTS_DIRECTORY, help="where the files go")
    parser.add_argument("--into", type=Path, metavar="FILE.json", help="add the runs to those that are there already")
    parser.add_argument(
        "--resume", action="store_true", help="with --into: make only the runs that are still missing there"
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="begin no further pair after that time; for --resume later"
    )


def make_parser() -> argparse.ArgumentParser:
    others = "python -m bench --durable: brokers whose OK means stable storage; it has options of its own"
    parser = CommandParser(prog="python -m bench", description=__doc__, epilog=others)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure one server")
    run.add_argument(
        "--target", default="pyqd", help="pyqd (default), sink, sink-store, sink-sync, or an nsqd or a pyqd by its path"
    )
    run.add_argument("--repeat", type=int, default=1, help="runs of each workload, each on a fresh server")
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
        help="one more server in turn: sink, sink-store, sink-sync, or the path of an nsqd or a pyqd; may be repeated",
    )
    compare.add_argument("--pairs", type=int, default=5, help="runs of each server and workload (default: 5)")
    compare.add_argument("--one-core", action="store_true", help="leave out the nsqd on two cores")
    for command in (run, compare):
        add_common(command)
        shape.add_options(command)
    report = commands.add_parser("report", help="print the tables of a series again, write its page and its plot")
    report.add_argument("file", type=Path, metavar="FILE.json")
    load = commands.add_parser("load", help="keep a server that runs already under end-to-end load, measure nothing")
    load.add_argument("--nsqd-tcp-address", type=address, required=True, metavar="HOST:PORT")
    load.add_argument("--seconds", type=positive, default=10.0)
    commands.add_parser("list", help="list the workloads")
    return parser


def choose_cores(arguments: argparse.Namespace) -> Cores:
    """Return the cores named on the command line. Raises: ValueError for one that this process may not use."""
    if arguments.unpinned:
        return Cores()
    chosen = Cores.choose()
    cores = Cores(
        server=chosen.server if arguments.server_core is None else arguments.server_core,
        generator=chosen.generator if arguments.generator_core is None else arguments.generator_core,
    )
    cores.require_allowed()
    return cores


def choose_workloads(arguments: argparse.Namespace) -> list[Workload]:
    """Return the workloads named on the command line, in the given sizes. Raises: ValueError."""
    chosen = [find(name) for name in arguments.workload] if arguments.workload else list(WORKLOADS)
    fields = shape.wanted(arguments)
    if fields and len(chosen) != 1:
        raise ValueError("another shape is that of one workload: name it by -w")
    if fields:
        chosen = [shape.reshaped(chosen[0], fields)]
    return [workload.scaled(arguments.scale) for workload in chosen]


def choose_targets(arguments: argparse.Namespace) -> tuple[list[Target], int]:
    """Return the targets and how often each is to run. Raises: ValueError."""
    count: int = arguments.repeat if arguments.command == "run" else arguments.pairs
    if count < 1:
        raise ValueError(f"{count} runs: at least one is needed")
    if arguments.command == "run":
        return [Target.parse(arguments.target)], count
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
    return targets, count


def require_places(setting: Setting, results: Path) -> None:
    """Check that data directories and files of results can be made. Raises: ValueError."""
    try:
        tempfile.TemporaryDirectory(prefix="bench-", dir=setting.data_root).cleanup()
    except OSError as error:
        raise ValueError(f"no data directory can be made (--data-root): {error}") from error
    try:
        results.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=results).close()
    except OSError as error:
        raise ValueError(f"no results can be written (--results, --into): {error}") from error


def warn_of_memory(workloads: Sequence[Workload], data: Mapping[str, str]) -> None:
    """Name on standard error the workloads that are meaningless if the data are in memory."""
    names = [workload.name for workload in workloads if workload.name.startswith(OF_THE_DISK)]
    if names and data["file_system"] in IN_MEMORY:
        print(
            f"warning: {data['path']} is {data['file_system']}, which is memory: {', '.join(names)} will not meet a"
            " disk; --data-root names a directory on one",
            file=sys.stderr,
        )


def list_workloads() -> None:
    for workload in WORKLOADS:
        print(f"{workload.name:17}  {workload.what}")


class Session:
    """One invocation: measures its workloads into a series that is written after each run."""

    def __init__(self, arguments: argparse.Namespace, targets: Sequence[Target], count: int, command: str) -> None:
        """Choose cores, workloads and pairs.

        Raises: SeriesError if existing results do not fit; ValueError for targets that cannot run.
        """
        self.arguments = arguments
        self.targets = targets
        self.setting = Setting(
            cores=choose_cores(arguments), data_root=arguments.data_root, flags=tuple(arguments.server_flag)
        )
        self.path: Path = arguments.into or arguments.results / time.strftime("%Y%m%d-%H%M%S.json")
        require_places(self.setting, self.path.parent)
        self.series = Series.read(self.path) if self.path.exists() else Series()
        workloads = choose_workloads(arguments)
        self.pairs = [(workload, self.pairs_of(workload, count)) for workload in workloads]
        if not any(map(self.targets_of, workloads)):
            raise ValueError(f"{targets[0].name} can take none of these workloads")
        described = describe_session(targets, self.setting, command)
        self.series.begin(described, workloads)
        self.data = described["data"]
        warn_of_memory(workloads, self.data)
        self.failed = False
        self.end_s = time.monotonic() + 60 * arguments.minutes

    def targets_of(self, workload: Workload) -> list[Target]:
        return [target for target in self.targets if runner.measurable(workload, target)]

    def pairs_of(self, workload: Workload, count: int) -> int:
        """Return how many pairs of a workload to run, less those that are there already when resuming."""
        targets = self.targets_of(workload)
        if not targets:
            print(f"{workload.name}: left out, {self.targets[0].name} cannot take it")
            return 0
        wanted = workload.runs(count)
        if not self.arguments.resume:
            return wanted
        return max(0, wanted - min(self.series.good(workload.name, target.name) for target in targets))

    def plan(self, workload: Workload, pairs: int) -> Iterator[tuple[int, Target]]:
        """Yield that many pairs of runs until the time is over; a pair that has begun is made whole."""
        targets = self.targets_of(workload)
        for pair, target in runner.alternate(targets, pairs):
            if target is targets[0] and time.monotonic() > self.end_s:
                return
            yield pair, target

    def run(self, progress: Progress) -> None:
        for workload, pairs in self.pairs:
            for pair, target in self.plan(workload, pairs):
                progress.begin(workload.name, target.name)
                result = runner.run_once(workload, target, self.setting)
                self.failed |= bool(result.problem)
                self.series.add(pair, result)
                self.series.write(self.path)
                progress.end(result)
            if self.series.runs[workload.name]:
                progress.print(tables.workload_table(self.series, workload) + "\n")

    def measure(self) -> int:
        """Run all, print the tables, write the files; return the exit status."""
        if not self.setting.cores.apart:
            print("Server and generator have no core of their own each: they disturb each other.")
        print(f"data directories: in {self.data['path']}, {self.data['file_system'] or 'of an unknown file system'}")
        runner.pin_generator(self.setting.cores)
        interrupted = False
        total = sum(pairs * len(self.targets_of(workload)) for workload, pairs in self.pairs)
        with Progress(total) as progress:
            try:
                self.run(progress)
            except KeyboardInterrupt:
                interrupted = True
        print(tables.summary_table(self.series))
        self.series.write(self.path)
        write_page(self.series, self.path)
        return INTERRUPTED if interrupted else int(self.failed)


def write_page(series: Series, path: Path) -> None:
    """Write the page and the plot beside the JSON of that path, and print their paths."""
    # Only here, as it takes most of a second, and memory that a generator need not have.
    from bench import plot

    picture = path.with_suffix(".png")
    drawn = plot.draw(series, picture)
    page = path.with_suffix(".md")
    page.write_text(tables.markdown(series, picture.name if drawn else ""))
    print("\nwritten:", *([path, page] + ([picture] if drawn else [])))


def report(path: Path) -> None:
    """Print and write the report of a series. Raises: SeriesError."""
    series = Series.read(path)
    for workload in series.workloads.values():
        if series.runs[workload.name]:
            print(tables.workload_table(series, workload), end="\n\n")
    print(tables.summary_table(series))
    write_page(series, path)


def keep_loaded(address: Address, seconds: float) -> int:
    """Keep a server loaded; return the exit status: 2 if it is not reached, 1 if a message was lost or came twice."""
    try:
        carried = steady.keep_loaded(address, seconds)
    except (OSError, HandshakeError, LoadError) as error:
        print(f"python -m bench load: {address[0]}:{address[1]}: {error}", file=sys.stderr)
        return 1 if isinstance(error, LoadError) else 2
    print(f"{carried.messages:,} messages went through")
    if carried.problem:
        print(f"FAILED: {carried.problem}", file=sys.stderr)
    return int(bool(carried.problem))


def with_command(given: Sequence[str]) -> list[str]:
    """Return the command line, with `compare` if no command is named."""
    named = bool(given) and (not given[0].startswith("-") or given[0] in ("-h", "--help"))
    return list(given) if named else ["compare", *given]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line argv; without a command it is `compare`.

    Returns: 1 if a run failed, lost a message or delivered one twice, 2 for a run that is impossible (`load`: if the
    server is not reached), 130 if interrupted, else 0.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if "--durable" in words:
        # bench.durable has a command line of its own, which uses parts of this one.
        from bench import durable

        return durable.main([word for word in words if word != "--durable"])
    given = with_command(words)
    parser = make_parser()
    arguments = parser.parse_args(given)
    if arguments.command == "list":
        list_workloads()
        return 0
    if arguments.command == "load":
        return keep_loaded(arguments.nsqd_tcp_address, arguments.seconds)
    try:
        if arguments.command == "report":
            report(arguments.file)
            return 0
        if arguments.resume and arguments.into is None:
            raise ValueError("--resume needs --into FILE.json, the series to be completed")
        targets, count = choose_targets(arguments)
        session = Session(arguments, targets, count, shlex.join(["python", "-m", "bench", *given]))
    except (ValueError, SeriesError) as error:
        parser.error(str(error))
    return session.measure()
