"""Tables of a series for people: as plain text and as Markdown."""

from collections.abc import Sequence
from typing import Any

from bench.report import Row, Spread, all_counting_rows, all_rows, problems
from bench.series import Series
from bench.workloads import Workload

Cells = list[list[str]]


def ratio_digits(value: float) -> str:
    if value < 0.1:
        return f"{value:.2g}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def show_ratios(spread: Spread) -> str:
    if spread.count == 1:
        return ratio_digits(spread.median)
    return f"{ratio_digits(spread.median)} ({ratio_digits(spread.least)} .. {ratio_digits(spread.most)})"


def describe(workload: Workload) -> str:
    """Return the description of a workload, with its size if it is not the full one."""
    return workload.what if workload.scale == 1 else f"{workload.what}; at {workload.scale:g} of its full size"


def show_aim(row: Row) -> str:
    """Return the ratios wanted, in the order of the targets, or the limit; "" without a goal."""
    if row.limit is not None:
        return f"at most {row.figure.show(row.limit)}"
    wanted = " / ".join("-" if found.goal is None else f"{found.goal:g}" for found in row.versus.values())
    if not wanted.strip("- /"):
        return ""
    return f"{'at least' if row.figure.better == 'more' else 'at most'} {wanted}"


def workload_cells(series: Series, workload: Workload) -> Cells:
    """Return a row per figure, a column per target, and a ratio for each target but the first."""
    first, *others = series.core_counts()
    rows = [["median (min .. max)", first, *others, *(f"{first} / {name}" for name in others)]]
    for row in all_rows(series, workload):
        spreads = [row.spreads[name].show(row.figure) if name in row.spreads else "-" for name in (first, *others)]
        ratios = [show_ratios(row.versus[name].ratios) if name in row.versus else "" for name in others]
        rows.append([row.figure.label, *spreads, *ratios])
    return rows


def failures(series: Series, workload: Workload) -> list[str]:
    return [f"FAILED {target}: {problem}" for target, problem in problems(series, workload)]


def workload_table(series: Series, workload: Workload) -> str:
    """Return the lines of one workload."""
    lines = [f"{workload.name}: {describe(workload)}", *format_columns(workload_cells(series, workload))]
    lines += [f"  {line}" for line in failures(series, workload)]
    return "\n".join(lines)


def summary_cells(series: Series, rows: Sequence[Row]) -> Cells:
    """Return a row per deciding figure: the targets, the ratio to each but the first, and the goal."""
    first, *others = series.core_counts()
    cells = [["workload", "figure", first, *others, *(f"/ {name}" for name in others), "aim", "reached"]]
    for row in rows:
        line = [row.workload.name, row.figure.label]
        line += [row.spreads[name].show(row.figure) if name in row.spreads else "-" for name in (first, *others)]
        line += [show_ratios(row.versus[name].ratios) if name in row.versus else "-" for name in others]
        cells.append([*line, show_aim(row), row.verdict()])
    return cells


def summary_table(series: Series) -> str:
    """Return one table of all workloads, followed by machine and settings."""
    rows = all_counting_rows(series)
    lines = ["medians (min .. max), ratios are medians of those of neighbouring runs"]
    lines += format_columns(summary_cells(series, rows), left=2)
    lines += [f"  FAILED {name} {text}" for name, text in all_failures(series)]
    return "\n".join([*lines, "", *conditions(series)])


def all_failures(series: Series) -> list[tuple[str, str]]:
    return [(name, line) for name, workload in series.workloads.items() for line in failures(series, workload)]


def conditions(series: Series) -> list[str]:
    """Return lines with time, machine and settings of the runs, each once."""
    lines: list[str] = []
    for session in series.sessions:
        lines += [describe_machine(session["machine"]), *map(describe_target, session["targets"])]
        # Series of earlier versions do not say it.
        if "data" in session:
            lines.append(f"data directories on {session['data']['file_system'] or 'an unknown file system'}")
    flags = " ".join(series.sessions[-1]["server_flags"])
    lines += [f"flags of every server: {flags}"] if flags else []
    dates = [session["made_at"] for session in series.sessions]
    commits = ", ".join(dict.fromkeys(session["commit"] for session in series.sessions if session["commit"]))
    made = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}, in {len(dates)} sessions"
    lines.append(f"made {made}" + (f", at commit {commits}" if commits else ""))
    return list(dict.fromkeys(lines))


def describe_machine(machine: dict[str, Any]) -> str:
    memory = f"{machine['memory_bytes'] / 2**30:.0f} GiB"
    return f"{machine['cpu']}, {machine['cores']} cores, {memory}; {machine['kernel']}; Python {machine['python']}"


def describe_target(target: dict[str, Any]) -> str:
    version = f", {target['version']}" if target["version"] else ""
    if not target["cores"]:
        return f"{target['name']}: not pinned{version}"
    cores = " and ".join(map(str, target["cores"]))
    shared = ", the second of which it shares with the generator" if len(target["cores"]) > 1 else ""
    return f"{target['name']}: on {'core' if len(target['cores']) == 1 else 'cores'} {cores}{shared}{version}"


def format_columns(rows: Cells, left: int = 1) -> list[str]:
    """Return the rows as lines; the first columns, left of them, are flush left, the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(("  " + "  ".join(cells)).rstrip())
    return lines


def markdown_table(rows: Cells, left: int = 1) -> list[str]:
    header, *body = [[cell.strip().replace("|", "\\|") for cell in row] for row in rows]
    marks = ["---" if column < left else "---:" for column in range(len(header))]
    return ["| " + " | ".join(row) + " |" for row in (header, marks, *body)]


def markdown(series: Series, plot_name: str = "") -> str:
    """Return everything as a page of Markdown; plot_name: the file with the plot beside the page, if there is one."""
    rows = all_counting_rows(series)
    lines = ["# Benchmark", "", *(f"- {line}" for line in conditions(series)), ""]
    lines += ["Medians (min .. max); ratios are medians of those of neighbouring runs.", ""]
    lines += markdown_table(summary_cells(series, rows), left=2)
    lines += ["", *(f"- {name} {text}" for name, text in all_failures(series))]
    if plot_name:
        lines += ["", f"![ratios]({plot_name})"]
    lines += ["", "## All figures"]
    for workload in series.workloads.values():
        lines += ["", f"### {workload.name}", "", f"{describe(workload)}.", ""]
        lines += markdown_table(workload_cells(series, workload))
    return "\n".join(lines) + "\n"
