"""Plan of a drain's run: ranges of topics' logs, fixed before the first one is read.

A range is [first, stop) of one topic at one node. The ranges of a plan are adjacent: every position from the end of the
run before to the end of the log at planning time is in exactly one of them. A range yields the same rows however often
it is read, so its files have the same names and the same content.

Positions are `epoch << 48 | ordinal`, and ordinals are dense (docs/storage.md). So the number of records missing
between two segments is known when the plan is made; records missing inside a range show when it is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pyqd_spark.brokers import LogSegment, Positions, epoch_of, ordinal_of
from pyqd_spark.landing import escape

# Largest estimated size of a file's bodies, by the mean size in its segment.
BYTES_PER_FILE: Final = 1 << 30
# A range is not cut smaller than this only to keep more tasks busy.
ROWS_PER_FILE_MIN: Final = 50_000

RETENTION: Final = "retention"
DAMAGE: Final = "damage"
RESET: Final = "reset"


class LogSource(NamedTuple):
    """One topic at one node, which has positions of its own."""

    topic: str
    node: str


@dataclass(frozen=True)
class Gap:
    """Messages that are missing from a table. records: their number, None if it cannot be known.

    reason: RETENTION, removed before they were read; DAMAGE, lost on the broker's disk; RESET, the topic was deleted.
    """

    topic: str
    node: str
    first: int
    stop: int
    records: int | None
    reason: str


@dataclass(frozen=True)
class PlannedRange:
    """A stretch of a topic's log at a node. records: the number that the plan expects.

    created: creation time of the topic, ns since 1970; positions are valid for one life of a topic only.
    """

    topic: str
    node: str
    created: int
    first: int
    stop: int
    records: int

    @property
    def name(self) -> str:
        """Name of the range's files, without suffix: topic, node, the topic's age, first and last position.

        The name does not begin with the topic, because readers skip files whose names begin with certain characters.
        """
        source = f"{short(escape(self.topic), 100)}-{short(escape(self.node), 64)}-{self.created:x}"
        return f"log-{source}-{self.first:019d}-{max(self.first, self.stop - 1):019d}"


@dataclass(frozen=True)
class SourceProgress:
    """Progress of reading a source. next: the position to read on from. created: of the topic at that time."""

    next: int
    created: int


@dataclass
class Plan:
    """Plan of one run of a drain: the ranges to read.

    after: progress of each source once all ranges are in the table. started: time of planning, Unix seconds. gaps:
    missing positions known before reading. carried: number of ranges at the front that an earlier run could not read.
    """

    run: int
    started: float
    ranges: list[PlannedRange]
    after: dict[LogSource, SourceProgress]
    gaps: list[Gap] = field(default_factory=list)
    carried: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "started": self.started,
            "ranges": [vars(each) for each in self.ranges],
            "after": progress_rows(self.after),
            "gaps": [vars(each) for each in self.gaps],
            "carried": self.carried,
        }

    @classmethod
    def from_json(cls, shown: Mapping[str, Any]) -> Plan:
        """Return the plan in the content of plan.json. Raises: KeyError, TypeError if it is invalid."""
        return cls(
            run=shown["run"],
            started=shown["started"],
            ranges=[PlannedRange(**each) for each in shown["ranges"]],
            after=progress_from(shown["after"]),
            gaps=[Gap(**each) for each in shown["gaps"]],
            carried=shown["carried"],
        )


def progress_rows(progress: Mapping[LogSource, SourceProgress]) -> list[dict[str, Any]]:
    return [{**source._asdict(), **vars(each)} for source, each in sorted(progress.items())]


def progress_from(rows: Iterable[Mapping[str, Any]]) -> dict[LogSource, SourceProgress]:
    return {LogSource(row["topic"], row["node"]): SourceProgress(row["next"], row["created"]) for row in rows}


def short(text: str, length: int) -> str:
    """Return the text; if it is too long, its beginning and a digest of the whole."""
    if len(text) <= length:
        return text
    return f"{text[: length - 17]}~{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def cut(positions: Positions, first: int, rows_max: int) -> tuple[list[PlannedRange], list[Gap]]:
    """Cut the records of a source from `first` on into ranges of at most rows_max rows, without leaving out a position.

    Returns: the ranges in order, and the gaps between segments.
    """
    source = LogSource(positions.topic, positions.node)
    life = (*source, positions.created)
    ranges: list[PlannedRange] = []
    gaps: list[Gap] = []
    start, count, size = first, 0, 0
    behind = first
    for segment in stretches(positions, first):
        if missing := between(behind, segment.first):
            gaps.append(Gap(*source, behind, segment.first, missing, DAMAGE))
        row_bytes = max(1, segment.bytes // segment.records)
        at, left = segment.first, segment.records
        behind = at + left
        while left:
            room = min(rows_max - count, max(1, (BYTES_PER_FILE - size) // row_bytes)) if count else rows_max
            taken = max(1, min(left, room, max(1, BYTES_PER_FILE // row_bytes)))
            at, left, count, size = at + taken, left - taken, count + taken, size + taken * row_bytes
            if count >= rows_max or size >= BYTES_PER_FILE:
                ranges.append(PlannedRange(*life, start, at, count))
                start, count, size = at, 0, 0
    if start < positions.next and count:
        ranges.append(PlannedRange(*life, start, positions.next, count))
    elif ranges:
        last = ranges[-1]
        ranges[-1] = PlannedRange(*life, last.first, positions.next, last.records)
    if missing := between(behind, positions.next):
        gaps.append(Gap(*source, behind, positions.next, missing, DAMAGE))
    return ranges, gaps


def stretches(positions: Positions, first: int) -> Iterator[LogSegment]:
    """Yield the segments from `first` on, clipped to the readable range."""
    for segment in positions.segments:
        behind = min(segment.first + segment.records, max(segment.first, positions.next))
        if epoch_of(positions.next) > epoch_of(segment.first):
            behind = segment.first + segment.records
        start = max(segment.first, first)
        if start < behind and segment.records:
            mean = segment.bytes // segment.records
            yield LogSegment(start, behind - start, mean * (behind - start))


def between(behind: int, first: int) -> int:
    """Return the number of records missing between a position after a record and the next record's position.

    A new epoch may reuse ordinals: records that a power failure removed were never durable.
    """
    return max(0, ordinal_of(first) - ordinal_of(behind))


def rows_per_file(total: int, tasks: int, rows_max: int) -> int:
    """Return the number of rows per file with which equal tasks keep all cores busy."""
    even = -(-total // max(1, tasks))
    return max(1, min(rows_max, max(even, ROWS_PER_FILE_MIN)))
