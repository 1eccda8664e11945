"""Runs of tasks, noted in a file, so that runs of killed workers count too."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from tests.support.server import wait_until

# Variable of the environment: path of the file.
RUNS = "TEST_RUNS"
WAIT_S = 30.0


class Run(NamedTuple):
    """One run of a task: its number, the time it was due, and the time it ran."""

    number: int
    due_s: float
    ran_s: float


def note(number: int, due_s: float) -> None:
    """Append a run to the file. A line is one write, which no other process can interrupt."""
    file = os.open(os.environ[RUNS], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{number} {due_s!r} {time.time()!r}\n".encode())
    finally:
        os.close(file)


def runs_in(path: Path) -> list[Run]:
    if not path.exists():
        return []
    rows = [line.split() for line in path.read_text().splitlines()]
    return [Run(int(number), float(due_s), float(ran_s)) for number, due_s, ran_s in rows]


def wait_for_runs(path: Path, count: int, wait_s: float = WAIT_S) -> list[Run]:
    """Wait until so many different tasks have run; return all runs."""
    found: list[Run] = []

    def enough() -> bool:
        found[:] = runs_in(path)
        return len({run.number for run in found}) >= count

    wait_until(enough, f"{count} tasks have run", wait_s)
    return found


def assert_complete(runs: list[Run], count: int) -> None:
    """Assert that every task has run, and none before it was due."""
    assert {run.number for run in runs} == set(range(count))
    assert [run for run in runs if run.ran_s < run.due_s] == []


def report(runs: list[Run], count: int, began_s: float, published_s: float) -> str:
    late_s = sorted(run.ran_s - run.due_s for run in runs)
    return (
        f"{count} tasks published in {published_s:.1f} s, {len(runs)} runs, {len(runs) - count} of them repeated; "
        f"ran after being due: median {late_s[len(late_s) // 2] * 1000:.0f} ms, longest {late_s[-1]:.1f} s; "
        f"all in {time.time() - began_s:.0f} s"
    )
