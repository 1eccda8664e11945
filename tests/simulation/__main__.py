"""`make simulate`: play the schedule of each seed until stopped; shrink one that fails and print it as a line."""

from __future__ import annotations

import gc
import multiprocessing
import sys
import time
from collections.abc import Iterator
from multiprocessing.pool import IMapIterator
from typing import NamedTuple

from pyqd.primitives.command_line import CommandParser
from pyqd.primitives.progress import Progress
from tests.simulation.model import Violation
from tests.simulation.process import Failures
from tests.simulation.schedule import Schedule, as_line, made_from, play, quiet, shrink

LINE_S = 2.0
SEEDS_PER_TASK = 50
# One world in 200 is never freed, as a greenlet of a dead process waits on, and its files keep their descriptors: a
# process would reach its limit of these.
TASKS_PER_PROCESS = 100
# A task takes some seconds. The pool waits for ever for the task of a process that has died.
SILENCE_S = 300.0


class Done(NamedTuple):
    """Outcome of some seeds. failed: the first that fails; failure: its error."""

    schedules: int
    operations: int
    faults: int
    failed: int | None = None
    failure: str = ""


def play_seeds(seeds: range) -> Done:
    """Play the schedules of some seeds, up to the first that fails."""
    operations = faults = 0
    with quiet() as failures:
        for count, seed in enumerate(seeds, 1):
            result = play(made_from(seed), failures)
            operations += result.operations
            faults += result.faults
            if result.failure is not None:
                return Done(count, operations, faults, seed, str(result.failure))
    return Done(len(seeds), operations, faults)


def report(seed: int) -> None:
    """Shrink the schedule of a seed that fails, and print it."""
    with quiet() as failures:
        failure = play(made_from(seed), failures).failure
        assert failure is not None
        print(f"\nseed {seed}: {failure}\nshrinking ...", flush=True)
        schedule = shrink(made_from(seed), lambda tried: is_alike(tried, failures, failure))
        found = play(schedule, failures).failure
        assert found is not None
    print(as_line(schedule, str(found)))


def kind_of(failure: Violation) -> str:
    """Return the text that failures of one kind share: the words without names and numbers."""
    return " ".join(word for word in str(failure).split() if word.isalpha())


def is_alike(schedule: Schedule, failures: Failures, failure: Violation) -> bool:
    """Return whether a schedule fails in the same way."""
    found = play(schedule, failures).failure
    return found is not None and kind_of(found) == kind_of(failure)


def tasks(first: int, count: int | None) -> Iterator[range]:
    """Yield ranges of seeds."""
    end = None if count is None else first + count
    while end is None or first < end:
        stop = first + SEEDS_PER_TASK if end is None else min(first + SEEDS_PER_TASK, end)
        yield range(first, stop)
        first = stop


def next_of(results: IMapIterator[Done]) -> Done | None:
    """Return the next result; None: there is no other. Raises: multiprocessing.TimeoutError."""
    try:
        return results.next(SILENCE_S)
    except StopIteration:
        return None


def main() -> int:
    """Run until stopped, or until a schedule fails. Returns: the exit code."""
    parser = CommandParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="first seed; a new one each time if not given")
    parser.add_argument("--schedules", type=int, default=None, help="number of schedules; endless if not given")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count(), help="number of processes")
    parser.add_argument("--keep-going", action="store_true", help="go on after a failure, and count")
    args = parser.parse_args()
    first = int(time.time()) % 10**8 * 1000 if args.seed is None else args.seed
    print(f"seeds from {first} on", flush=True)
    started_s = time.monotonic()
    total = Done(0, 0, 0)
    failed: list[int] = []
    gc.collect()
    gc.freeze()
    with (
        multiprocessing.get_context("fork").Pool(args.jobs, maxtasksperchild=TASKS_PER_PROCESS) as pool,
        Progress(total=args.schedules, unit="schedules", stream=sys.stdout, line_s=LINE_S) as progress,
    ):
        try:
            results = pool.imap_unordered(play_seeds, tasks(first, args.schedules))
            while (done := next_of(results)) is not None:
                total = Done(
                    total.schedules + done.schedules,
                    total.operations + done.operations,
                    total.faults + done.faults,
                )
                if done.failed is not None:
                    failed.append(done.failed)
                    progress.say(f"seed {done.failed}: {done.failure}")
                    if not args.keep_going:
                        break
                note = f"{total.operations:,} operations, {total.faults:,} faults, {len(failed)} failures"
                progress.move_to(total.schedules, note)
        except KeyboardInterrupt:
            print()
        except multiprocessing.TimeoutError:
            pool.terminate()
            sys.exit(f"no schedule has ended for {SILENCE_S:g} s: one hangs, or its process has died (see dmesg)")
        pool.terminate()
    show(total, time.monotonic() - started_s, failed)
    for seed in failed[:1]:
        report(seed)
    return 1 if failed else 0


def show(total: Done, seconds: float, failed: list[int]) -> None:
    """Print the outcome."""
    print(
        f"{total.schedules} schedules, {total.operations} operations, {total.faults} faults,"
        f" {total.schedules / max(seconds, 1e-9):.0f} schedules per second, {len(failed)} failures",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
