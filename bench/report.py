"""Figures of runs put together: medians, ranges, ratios of neighbours, and the goals they are held against."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from bench.figures import FIGURES, Figure, figure_of
from bench.goals import Goal, goals_of
from bench.series import Run, Series
from bench.workloads import Workload

SIZED = ("idle", "memory", "start")
# Deciding figure of a workload without goals: the first of these that was measured.
COUNTING = (("rate_per_s",), ("message_anonymous_bytes",), ("private_bytes", "cpu_percent"), ("start_s",))


@dataclass(frozen=True)
class Spread:
    """Median and range of one figure over the good runs of a target."""

    median: float
    least: float
    most: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(median=median(values), least=min(values), most=max(values), count=len(values))

    def show(self, figure: Figure) -> str:
        if self.least == self.most:
            return figure.show(self.median)
        return f"{figure.show(self.median)} ({figure.show(self.least)} .. {figure.show(self.most)})"


@dataclass(frozen=True)
class Versus:
    """Comparison of the first target with another one; reached: the goal, None if there is none."""

    ratios: Spread
    goal: float | None
    reached: bool | None


@dataclass(frozen=True)
class Row:
    """One figure of one workload over all targets.

    spreads, versus: by target.    limit, within: a goal of the first target alone, and whether it is reached
    """

    workload: Workload
    figure: Figure
    spreads: dict[str, Spread]
    versus: dict[str, Versus]
    limit: float | None = None
    within: bool | None = None

    def verdict(self) -> str:
        """Return yes, no, or the targets against which the goal is reached; "" without a goal.

        If the goal is for a certain size, other sizes do not decide it.
        """
        if self.workload.scale != 1 and self.workload.kind in SIZED:
            return "not at full size"
        reached = {name: found.reached for name, found in self.versus.items() if found.reached is not None}
        if self.within is not None:
            reached["the limit"] = self.within
        if len(set(reached.values())) > 1:
            return "only " + "; ".join(name for name, yes in reached.items() if yes)
        return "" if not reached else "yes" if all(reached.values()) else "no"


def spread_of(runs: Iterable[Run], target: str, key: str) -> Spread | None:
    """Return median and range over the good runs, None if there is none.

    A run that measured several times itself gives its own range beside its median, by KEY_least and KEY_most.
    """
    found = [run.result.figures for run in runs if run.result.target == target and not run.result.problem]
    found = [figures for figures in found if key in figures]
    if not found:
        return None
    return Spread(
        median=median(figures[key] for figures in found),
        least=min(figures.get(f"{key}_least", figures[key]) for figures in found),
        most=max(figures.get(f"{key}_most", figures[key]) for figures in found),
        count=len(found),
    )


def pair_ratios(runs: Iterable[Run], first: str, second: str, key: str) -> list[float]:
    """Return first / second target for each pair in which both runs are good.

    The runs of a pair stand next to each other in time, so their ratio is quieter than that of two medians.
    """
    pairs: dict[tuple[int, int], dict[str, float]] = {}
    for run in runs:
        if not run.result.problem and key in run.result.figures:
            pairs.setdefault((run.session, run.pair), {})[run.result.target] = run.result.figures[key]
    return [pair[first] / pair[second] for pair in pairs.values() if first in pair and pair.get(second)]


def compare(runs: Sequence[Run], first: str, second: str, figure: Figure, goal: float | None) -> Versus | None:
    ratios = pair_ratios(runs, first, second, figure.key)
    if not ratios:
        return None
    spread = Spread.of(ratios)
    if goal is None:
        return Versus(ratios=spread, goal=None, reached=None)
    reached = spread.median >= goal if figure.better == "more" else spread.median <= goal
    return Versus(ratios=spread, goal=goal, reached=reached)


def make_row(series: Series, workload: Workload, figure: Figure, goal: Goal | None = None) -> Row:
    runs = series.runs[workload.name]
    cores, programs = series.core_counts(), series.programs()
    first, *others = cores
    spreads = {name: spread_of(runs, name, figure.key) for name in cores}
    versus = {}
    if figure.better:
        for name in others:
            # Goals are ratios to nsqd; a sink, or another pyqd, is only shown for comparison.
            wanted = goal.ratio(cores[name]) if goal and programs[name] == "nsqd" else None
            versus[name] = compare(runs, first, name, figure, wanted)
    limit = goal.limit if goal else None
    own = spreads[first]
    return Row(
        workload=workload,
        figure=figure,
        spreads={name: spread for name, spread in spreads.items() if spread is not None},
        versus={name: found for name, found in versus.items() if found is not None},
        limit=limit,
        within=None if limit is None or own is None else own.median <= limit,
    )


def counting_rows(series: Series, workload: Workload) -> list[Row]:
    """Return the deciding rows of a workload: the figures of its goals, or the main figures of its kind."""
    goals = goals_of(workload.name)
    if goals:
        return [make_row(series, workload, figure_of(goal.key), goal) for goal in goals]
    for keys in COUNTING:
        rows = [make_row(series, workload, figure_of(key)) for key in keys]
        if any(row.spreads for row in rows):
            return rows
    return [make_row(series, workload, figure_of(COUNTING[0][0]))]


def all_counting_rows(series: Series) -> list[Row]:
    return [row for workload in series.workloads.values() for row in counting_rows(series, workload)]


def all_rows(series: Series, workload: Workload) -> list[Row]:
    """Return every figure of a workload that was measured."""
    rows = [make_row(series, workload, figure) for figure in FIGURES]
    return [row for row in rows if row.spreads]


def problems(series: Series, workload: Workload) -> list[tuple[str, str]]:
    """Return target and problem of each run that failed."""
    return [(run.result.target, run.result.problem) for run in series.runs[workload.name] if run.result.problem]
