"""Report of a drain, as JSON and as a table for people."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pyqd.primitives.quantities import aligned, format_size
from pyqd_spark.jobs.plan import Gap, LogSource, Plan
from pyqd_spark.jobs.ranges import describe


@dataclass
class SourceReport:
    """One topic at one node. bytes: of bodies; file_bytes: of files. seconds: of all tasks together.

    first, next: positions between which the run read, None if it read nothing. lost: number of missing messages, None
    if unknown.
    """

    topic: str
    node: str
    first: int | None = None
    next: int | None = None
    ranges: int = 0
    rows: int = 0
    bytes: int = 0
    files: int = 0
    file_bytes: int = 0
    seconds: float = 0.0
    lost: int | None = 0


@dataclass
class Report:
    """One run. started: Unix seconds; seconds: from the start of this attempt to the commit.

    left: ranges for the next run, because their broker was unreachable. notes: for people.
    """

    run: int
    started: float
    seconds: float
    rows: int = 0
    bytes: int = 0
    files: int = 0
    file_bytes: int = 0
    left: int = 0
    sources: list[SourceReport] = field(default_factory=list)
    gaps: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Return whether the table has all records that it should have."""
        return not (self.left or self.gaps or self.notes)


def report_of(
    plan: Plan, done: Sequence[tuple[int, dict[str, Any]]], left: Sequence[int], started_s: float, notes: Sequence[str]
) -> Report:
    """Return the report of a run. done: landed ranges, by place in the plan."""
    seconds = max(time.time() - started_s, 1e-3)
    report = Report(plan.run, started_s, round(seconds, 3), left=len(left), notes=list(notes))
    by_source: dict[LogSource, SourceReport] = {}
    gaps = list(plan.gaps)
    for number, landed in sorted(done):
        part = plan.ranges[number]
        source = by_source.setdefault(LogSource(part.topic, part.node), SourceReport(part.topic, part.node))
        source.first = part.first if source.first is None else min(source.first, part.first)
        source.next = max(source.next or 0, part.stop)
        source.ranges += 1
        source.rows += landed["rows"]
        source.bytes += landed["bytes"]
        source.files += len(landed["files"])
        source.file_bytes += sum(file["bytes"] for file in landed["files"])
        source.seconds = round(source.seconds + landed["seconds"], 3)
        gaps += [Gap(**gap) for gap in landed["gaps"]]
    for gap in gaps:
        source = by_source.setdefault(LogSource(gap.topic, gap.node), SourceReport(gap.topic, gap.node))
        source.lost = None if gap.records is None or source.lost is None else source.lost + gap.records
        report.gaps.append(asdict(gap))
    report.sources = [each for _, each in sorted(by_source.items())]
    for name in ("rows", "bytes", "files", "file_bytes"):
        setattr(report, name, sum(getattr(source, name) for source in report.sources))
    return report


# Columns that are no numbers, in all tables of jobs.
NAMES = (0, 1)
COLUMNS = ("topic", "node", "positions", "rows", "bodies", "files", "on disk", "task s", "rows/s", "lost")


def as_text(report: Report) -> str:
    """Return a report as a table for people, followed by the missing messages."""
    if not report.sources and not report.left:
        lines = ["nothing new"]
    else:
        lines = aligned([COLUMNS, *(row_of(source) for source in report.sources)], NAMES)
        rate = report.rows / max(report.seconds, 1e-3)
        lines.append(
            f"run {report.run}: {report.rows:,} rows, {format_size(report.bytes)} of bodies, {report.files} files with "
            f"{format_size(report.file_bytes)}, in {report.seconds:.1f} s: {rate:,.0f} rows/s"
        )
    lines += [f"missing: {describe(Gap(**gap))}" for gap in report.gaps]
    if report.left:
        lines.append(f"left for the next run: {report.left} ranges")
    lines += [f"note: {note}" for note in report.notes]
    return "\n".join(lines)


def row_of(source: SourceReport) -> tuple[str, ...]:
    rate = source.rows / source.seconds if source.seconds else 0
    return (
        source.topic,
        source.node[:12],
        "-" if source.first is None else f"{source.first}-{source.next}",
        f"{source.rows:,}",
        format_size(source.bytes),
        str(source.files),
        format_size(source.file_bytes),
        f"{source.seconds:.1f}",
        f"{rate:,.0f}",
        "?" if source.lost is None else f"{source.lost:,}",
    )
