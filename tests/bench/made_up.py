"""Invented runs, and series of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from bench import runner
from bench.series import Run, Series
from bench.server import Target
from bench.setting import Result, Setting
from bench.workloads import Workload

MACHINE = {
    "cpu": "a processor",
    "cores": 2,
    "memory_bytes": 2**33,
    "kernel": "Linux 6.1",
    "python": "3.11.0",
    "server_core": 0,
    "generator_core": 1,
}
CORES = {"pyqd": [0], "nsqd": [0], "nsqd, 2 cores": [0, 1], "sink": [0]}
TARGETS = ("pyqd", "nsqd", "nsqd, 2 cores")
# A run: its target, and its figures or its problem.
Made = tuple[str, Mapping[str, float] | str]


def workload(name: str) -> Workload:
    return Workload(name=name, kind="publish", what=f"what {name} does", messages=200)


def session(targets: Sequence[str] = TARGETS, flags: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "made_at": "2026-01-02T03:04:05Z",
        "command": "python -m bench compare",
        "commit": "abc1234",
        "machine": MACHINE,
        "targets": [
            {
                "name": name,
                "program": name[:4],
                "core_count": len(CORES[name]),
                "cores": CORES[name],
                "version": f"{name[:4]} v1",
            }
            for name in targets
        ],
        "server_flags": list(flags),
    }


def result(name: str, target: str, made: Mapping[str, float] | str) -> Result:
    if isinstance(made, str):
        return Result(workload=name, target=target, messages=200, problem=made)
    return Result(workload=name, target=target, messages=200, figures=dict(made))


def add_session(series: Series, name: str, pairs: Sequence[Sequence[Made]], targets: Sequence[str] = TARGETS) -> None:
    """Add a session with these pairs of runs of one workload."""
    series.begin(session(targets), [workload(name)])
    for pair, runs in enumerate(pairs):
        for target, made in runs:
            series.add(pair, result(name, target, made))


def series_of(name: str, pairs: Sequence[Sequence[Made]], targets: Sequence[str] = TARGETS) -> Series:
    series = Series()
    add_session(series, name, pairs, targets)
    return series


def rates(pyqd: float, nsqd: float, two: float) -> list[Made]:
    return [
        ("pyqd", {"rate_per_s": pyqd}),
        ("nsqd", {"rate_per_s": nsqd}),
        ("nsqd, 2 cores", {"rate_per_s": two}),
    ]


def runs_of(pairs: Sequence[Sequence[Made]]) -> list[Run]:
    return [Run(0, pair, result("w", *made)) for pair, runs in enumerate(pairs) for made in runs]


def made_up_run(monkeypatch: pytest.MonkeyPatch, problem: str = "") -> None:
    """Have runs return at once."""

    def run_once(workload: Workload, target: Target, setting: Setting) -> Result:
        return Result(
            workload=workload.name,
            target=target.name,
            messages=workload.messages,
            problem=problem,
            figures={"rate_per_s": 1000.0},
        )

    monkeypatch.setattr(runner, "run_once", run_once)
