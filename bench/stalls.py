"""Longest time that the daemon does not answer while a command or background job has much to do. `python -m
bench.stalls`.

Each situation is set up in a fresh daemon; while it runs, a prober requests /ping every two milliseconds. The figures
of a row are medians over the repetitions. Nothing is subtracted: the first row is an idle daemon, for comparison.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.cli import choose_cores
from bench.prober import Silence, probing
from bench.runner import pin_generator
from bench.server import Target, running
from bench.setting import Cores
from bench.situations import SITUATIONS, Bench, Situation
from pyqd.primitives.command_line import CommandParser
from pyqd.primitives.progress import Progress

SMOKE_SCALE = 0.002
HEADING = ("| while | longest, ms | p99.9, ms | CPU of the longest, ms |", "| --- | ---: | ---: | ---: |")


def measure(situation: Situation, cores: Cores, scale: float, data_root: Path | None = None) -> Silence:
    """Run one situation once on a fresh daemon."""
    found: list[Silence] = []
    target = Target.parse("pyqd")
    with (
        running(target, cores=cores.of(target), data_root=data_root, flags=situation.all_flags()) as server,
        ExitStack() as stack,
    ):
        steps = situation.steps(Bench(server, scale, stack))
        next(steps)
        with probing(server, cores.generator, found, ends=situation.ends):
            next(steps, None)
        if not situation.ends:
            server.require_alive()
    [silence] = found
    return silence


def row(situation: Situation, silence: Silence) -> str:
    """Return a line of the table."""
    return f"| {situation.what} | {silence.max_ms:.1f} | {silence.p999_ms:.1f} | {silence.cpu_max_ms:.1f} |"


def chosen(words: Sequence[str]) -> list[Situation]:
    """Return the situations whose function or text contains one of the words; all if there are none."""
    return [
        each
        for each in SITUATIONS
        if not words or any(word in each.what or word in each.steps.__name__ for word in words)
    ]


@contextmanager
def generating_on(cores: Cores) -> Iterator[None]:
    """Keep the load off the server's core: the daemon's wait for its own core would count as a silence."""
    before = os.sched_getaffinity(0)
    pin_generator(cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="python -m bench.stalls", description=__doc__)
    parser.add_argument(
        "-w", "--with", dest="words", action="append", default=[], help="situations with this word only"
    )
    parser.add_argument("--repeat", type=int, default=3, help="runs of each situation (default: 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all sizes")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, once: whether measuring works")
    parser.add_argument("--data-root", type=Path, default=Path(tempfile.gettempdir()), help="where data goes")
    parser.add_argument("--server-core", type=int)
    parser.add_argument("--generator-core", type=int)
    parser.add_argument("--unpinned", action="store_true", help="leave the cores to the kernel")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Measure the chosen situations and print the table, a row at a time."""
    arguments = make_parser().parse_args(words)
    scale, repeat = (SMOKE_SCALE, 1) if arguments.smoke else (arguments.scale, arguments.repeat)
    cores = choose_cores(arguments)
    situations = chosen(arguments.words)
    print("\n".join(HEADING), flush=True)
    with generating_on(cores), Progress(total=len(situations) * repeat, unit="runs") as progress:
        for situation in situations:
            progress.describe(situation.what)
            silences = []
            for _ in range(repeat):
                silences.append(measure(situation, cores, scale, arguments.data_root))
                progress.advance()
            progress.say(row(situation, Silence.median_of(silences)), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
