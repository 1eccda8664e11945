"""What a run of a drain reads: ranges of topics' logs, fixed before the first one is read.

A range is [first, stop) of one topic at one node. The ranges of a plan lie side by side: every position from where the
run before ended up to where the log ended at the time of planning is in one of them and in one only. A range is the
same rows however often it is read, so its files have the same names and the same content.

Positions are `epoch << 48 | ordinal`, and ordinals are dense (docs/storage.md). What is missing between two segments is
therefore known in records when the plan is made; what is missing inside a range shows when it is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pyqd_spark.brokers import Positions, Segment, epoch_of, ordinal_of
from pyqd_spark.landing import escape

# A file is not made larger than this by its rows' bodies, as far as the mean size in its segment tells.
BYTES_PER_FILE: Final = 1 << 30
# Nor is a range cut smaller than this only to keep more tasks busy.
ROWS_PER_FILE_MIN: Final = 50_000

RETENTION: Final = "retention"
DAMAGE: Final = "damage"
RESET: Final = "reset"


class Source(NamedTuple):
    """One topic at one node: what has positions of its own."""

    topic: str
    node: str


@dataclass(frozen=True)
class Gap:
    """Messages that are missing from a table. records: how many, None where that cannot be known.

    reason: RETENTION, removed before they were read; DAMAGE, lost on the broker's disk; RESET, the topic was deleted.
    """

    topic: str
    node: str
    first: int
    stop: int
    records: int | None
    reason: str


@dataclass(frozen=True)
class Range:
    """A stretch of a topic's log at a node. records: how many the plan expects.

    created: when the topic was made, ns since 1970; positions mean something for one life of a topic only.
    """

    topic: str
    node: str
    created: int
    first: int
    stop: int
    records: int

    @property
    def name(self) -> str:
        """How the range's files are called, without suffix: by topic, node, the topic's age, first and last position.

        A reader must see them whatever the topic is called, so the name does not begin with it.
        """
        source = f"{short(escape(self.topic), 100)}-{short(escape(self.node), 64)}-{self.created:x}"
        return f"log-{source}-{self.first:019d}-{max(self.first, self.stop - 1):019d}"


@dataclass(frozen=True)
class Progress:
    """How far a source has been read. next: the position to go on from. created: of which life of the topic."""

    next: int
    created: int


@dataclass
class Plan:
    """One run: the ranges, and how far each source has been read when all of them have landed.

    started: when it was made, Unix seconds. gaps: known before reading. carried: how many of the ranges, at the front,
    an earlier run had to leave.
    """

    run: int
    started: float
    ranges: list[Range]
    after: dict[Source, Progress]
    gaps: list[Gap] = field(default_factory=list)
    carried: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return what plan.json holds."""
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
        """Return the plan that plan.json holds. Raises: KeyError, TypeError where it is none."""
        return cls(
            run=shown["run"],
            started=shown["started"],
            ranges=[Range(**each) for each in shown["ranges"]],
            after=progress_from(shown["after"]),
            gaps=[Gap(**each) for each in shown["gaps"]],
            carried=shown["carried"],
        )


def progress_rows(progress: Mapping[Source, Progress]) -> list[dict[str, Any]]:
    """Return how far sources have been read, as JSON has it."""
    return [{**source._asdict(), **vars(each)} for source, each in sorted(progress.items())]


def progress_from(rows: Iterable[Mapping[str, Any]]) -> dict[Source, Progress]:
    """Return how far sources have been read, from JSON."""
    return {Source(row["topic"], row["node"]): Progress(row["next"], row["created"]) for row in rows}


def short(text: str, length: int) -> str:
    """Return the text, or where it is too long its beginning and a digest of all of it."""
    if len(text) <= length:
        return text
    return f"{text[: length - 17]}~{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def cut(positions: Positions, first: int, rows_max: int) -> tuple[list[Range], list[Gap]]:
    """Cut what a source has from `first` on into ranges of at most so many rows, which leave out no position.

    Returns: the ranges in order, and the gaps between segments.
    """
    source = Source(positions.topic, positions.node)
    life = (*source, positions.created)
    ranges: list[Range] = []
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
                ranges.append(Range(*life, start, at, count))
                start, count, size = at, 0, 0
    if start < positions.next and count:
        ranges.append(Range(*life, start, positions.next, count))
    elif ranges:
        last = ranges[-1]
        ranges[-1] = Range(*life, last.first, positions.next, last.records)
    if missing := between(behind, positions.next):
        gaps.append(Gap(*source, behind, positions.next, missing, DAMAGE))
    return ranges, gaps


def stretches(positions: Positions, first: int) -> Iterator[Segment]:
    """Yield the segments from `first` on, cut off there and at the end of what can be read."""
    for segment in positions.segments:
        behind = min(segment.first + segment.records, max(segment.first, positions.next))
        if epoch_of(positions.next) > epoch_of(segment.first):
            behind = segment.first + segment.records
        start = max(segment.first, first)
        if start < behind and segment.records:
            mean = segment.bytes // segment.records
            yield Segment(start, behind - start, mean * (behind - start))


def between(behind: int, first: int) -> int:
    """Return how many records are missing between a position behind a record and the next record's position.

    Where an epoch begins, numbers may be given out again: what a power failure took away was never to be kept.
    """
    return max(0, ordinal_of(first) - ordinal_of(behind))


def rows_per_file(total: int, tasks: int, rows_max: int) -> int:
    """Return how many rows to put into a file so that tasks of like size keep all cores busy."""
    even = -(-total // max(1, tasks))
    return max(1, min(rows_max, max(even, ROWS_PER_FILE_MIN)))
