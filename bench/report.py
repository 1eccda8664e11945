"""Summaries of results: a table for people, JSON for everything else."""

import json
import platform
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import median

from bench.procfs import read_cpu_model
from bench.runner import Result, Setting
from bench.workloads import Workload


@dataclass(frozen=True)
class Figure:
    """A measured quantity: its key in Result.figures, its name for people, the factor and digits to print it with."""

    key: str
    label: str
    factor: float = 1.0
    digits: int = 1


FIGURES = (
    Figure("rate_per_s", "messages, k/s", 1e-3),
    Figure("seconds", "time of the load, s", digits=2),
    Figure("cpu_ns", "server CPU, ns/message", digits=0),
    Figure("user_ns", "  of it user", digits=0),
    Figure("system_ns", "  of it system", digits=0),
    Figure("server_busy_percent", "server busy, %", digits=0),
    Figure("generator_busy_percent", "generator busy, %", digits=0),
    Figure("others_percent", "others on its core, %", digits=0),
    Figure("settled_s", "rest after the fill, s"),
    Figure("published_s", "all published after, s", digits=2),
    Figure("private_bytes", "private, B/connection", digits=0),
    Figure("anonymous_bytes", "anonymous, B/connection", digits=0),
    Figure("rss_bytes", "RSS, B/connection", digits=0),
    Figure("opened_s", "all opened after, s", digits=2),
    Figure("cpu_percent", "CPU, % of a core", digits=2),
    Figure("heartbeats", "heartbeats answered", digits=0),
)
# Seconds, shares and counts say how a run went; of these, a ratio of two servers would say nothing.
RATIO_KEYS = {"rate_per_s", "cpu_ns", "user_ns", "system_ns", "private_bytes", "anonymous_bytes", "cpu_percent"}


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


def figure_values(results: Iterable[Result], target: str, key: str) -> list[float]:
    return [
        result.figures[key]
        for result in results
        if result.target == target and not result.problem and key in result.figures
    ]


def pair_ratios(results: Sequence[Result], targets: Sequence[str], key: str) -> list[float]:
    """Return first / second target for each pair of runs in which both are good.

    The two runs of a pair stand next to each other in time, so their ratio is quieter than that of two medians.
    """
    first = [result for result in results if result.target == targets[0]]
    second = [result for result in results if result.target == targets[1]]
    return [
        one.figures[key] / other.figures[key]
        for one, other in zip(first, second, strict=False)
        if not one.problem and not other.problem and key in one.figures and other.figures.get(key)
    ]


def target_names(results: Iterable[Result]) -> list[str]:
    return list(dict.fromkeys(result.target for result in results))


def show(figure: Figure, spread: Spread) -> str:
    def number(value: float) -> str:
        return f"{value * figure.factor:,.{figure.digits}f}"

    return f"{number(spread.median)} ({number(spread.least)} .. {number(spread.most)})"


def workload_table(workload: Workload, results: Sequence[Result]) -> str:
    """Return the lines of one workload: a row per figure, a column per target, the ratio when there are two."""
    names = target_names(results)
    rows = [["median (min .. max)", *names] + ([f"{names[0]} / {names[1]}"] if len(names) == 2 else [])]
    for figure in FIGURES:
        values = [figure_values(results, name, figure.key) for name in names]
        if not any(values):
            continue
        row = [figure.label, *(show(figure, Spread.of(found)) if found else "-" for found in values)]
        if len(names) == 2 and figure.key in RATIO_KEYS:
            ratios = pair_ratios(results, names, figure.key)
            row.append(f"{median(ratios):.2f}" if ratios else "-")
        rows.append(row)
    lines = [f"{workload.name}: {workload.what}", *format_columns(rows)]
    lines += [f"  FAILED {result.target}: {result.problem}" for result in results if result.problem]
    return "\n".join(lines)


def format_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows if column < len(row)) for column in range(max(map(len, rows)))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines


def as_document(runs: Sequence[tuple[Workload, Sequence[Result]]], setting: Setting, command: str) -> dict[str, object]:
    """Return everything measured as what json can write."""
    return {
        "format": 1,
        "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": command,
        "machine": {
            "cpu": read_cpu_model(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "server_core": setting.cores.server,
            "generator_core": setting.cores.generator,
        },
        "server_flags": list(setting.flags),
        "workloads": [
            {
                "workload": asdict(workload),
                "runs": [asdict(result) for result in results],
                "summary": summary(results),
            }
            for workload, results in runs
        ],
    }


def summary(results: Sequence[Result]) -> dict[str, object]:
    names = target_names(results)
    targets: dict[str, dict[str, dict[str, float]]] = {name: {} for name in names}
    for name, figure in product(names, FIGURES):
        values = figure_values(results, name, figure.key)
        if values:
            targets[name][figure.key] = asdict(Spread.of(values))
    found: dict[str, object] = {"targets": targets}
    if len(names) == 2:
        ratios = {key: pair_ratios(results, names, key) for key in sorted(RATIO_KEYS)}
        found["ratios"] = {key: asdict(Spread.of(values)) for key, values in ratios.items() if values}
    return found


def write_json(document: dict[str, object], directory: Path) -> Path:
    """Write document to a new file named after the time and return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / time.strftime("%Y%m%d-%H%M%S.json")
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path
