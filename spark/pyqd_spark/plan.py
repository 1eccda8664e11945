"""Ranges of topic logs: their bounds, how they are cut into partitions, and how a limit is shared among them.

Positions are sequence numbers, `epoch << 48 | ordinal`. Ordinals are dense across epochs, and an epoch changes only
between segments. So counts and cuts use ordinals, and the segments give the epoch of each. A position that a power
failure removed has the ordinal of the first record after it.
"""

import itertools
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyqd.fallback.records import ORDINAL_BITS
from pyqd_spark.brokers import LogSegment, Positions, epoch_of, ordinal_of


@dataclass(frozen=True)
class LogRange:
    """Records of a topic at a node, from `first` to before `stop`. partition: of the node, an index. created: of the
    topic, as in Positions."""

    topic: str
    node: str
    partition: int
    address: str
    created: int
    first: int
    stop: int


def ordinal_at(position: int, segments: Sequence[LogSegment], end: int) -> int:
    """Return the ordinal of a position, or of the first record after it; at most that of `end`."""
    index = bisect_right(segments, position, key=lambda segment: segment.first)
    behind = ordinal_of(segments[index].first if index < len(segments) else end)
    if index > 0 and epoch_of(position) != epoch_of(segments[index - 1].first):
        return behind
    return min(ordinal_of(position), behind)


def position_at(ordinal: int, segments: Sequence[LogSegment], end: int) -> int:
    """Return the position of the record with that ordinal."""
    if ordinal >= ordinal_of(end):
        return end
    index = bisect_right(segments, ordinal, key=lambda segment: ordinal_of(segment.first)) - 1
    epoch = epoch_of(segments[max(index, 0)].first if segments else end)
    return epoch << ORDINAL_BITS | ordinal


def count_between(first: int, stop: int, found: Positions) -> int:
    """Return the number of records from one position to before another."""
    last = ordinal_at(stop, found.segments, found.next)
    return max(0, last - ordinal_at(first, found.segments, found.next)) if first < stop else 0


def position_after(first: int, count: int, stop: int, found: Positions) -> int:
    """Return the position `count` records after `first`, or `stop` if that comes before."""
    if count >= count_between(first, stop, found):
        return stop
    at = ordinal_at(first, found.segments, found.next) + count
    return min(stop, position_at(at, found.segments, found.next))


def shares(counts: Sequence[int], limit: int) -> list[int]:
    """Share a limit out in proportion to the counts. Every source with records gets at least one, so none is starved.
    So the sum may exceed the limit by the number of sources.
    """
    total = sum(counts)
    if total <= limit:
        return list(counts)
    return [min(count, max(1, count * limit // total)) if count else 0 for count in counts]


def slice_queue_of(count: int, total: int, partitions_min: int | None, records_max: int | None) -> int:
    """Return the number of pieces for a range with `count` of `total` records."""
    pieces = 1
    if partitions_min is not None and total > 0:
        pieces = max(pieces, -(-count * partitions_min // total))
    if records_max is not None:
        pieces = max(pieces, -(-count // records_max))
    return max(1, min(pieces, count))


def split(whole: LogRange, pieces: int, found: Positions) -> list[LogRange]:
    """Cut a range into pieces of nearly equal size, at most one record apart."""
    count = count_between(whole.first, whole.stop, found)
    cuts = [position_after(whole.first, count * piece // pieces, whole.stop, found) for piece in range(1, pieces)]
    edges = sorted({whole.first, *cuts, whole.stop})
    return [replace(whole, first=first, stop=stop) for first, stop in itertools.pairwise(edges)]


def partitions_of(
    ranges: Sequence[LogRange],
    found: Mapping[tuple[str, str], Positions],
    partitions_min: int | None = None,
    records_max: int | None = None,
) -> list[LogRange]:
    """Return one range per task: the non-empty ranges, cut if more partitions are wanted.

    found: by topic and node. partitions_min: a hint, as in the Kafka source. records_max: of a partition.
    """
    filled = [one for one in ranges if one.first < one.stop]
    if partitions_min is not None and len(filled) >= partitions_min:
        partitions_min = None
    counts = [count_between(one.first, one.stop, found[one.topic, one.node]) for one in filled]
    pieces = [slice_queue_of(count, sum(counts), partitions_min, records_max) for count in counts]
    return [
        piece
        for one, number in zip(filled, pieces, strict=True)
        for piece in split(one, number, found[one.topic, one.node])
    ]
