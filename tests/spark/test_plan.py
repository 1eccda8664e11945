"""Tests of pyqd_spark.plan, on a log after a power failure.

Epoch 0 goes to ordinal 149, then it is epoch 1; ordinals 40 to 59 are lost.
"""

import pytest

from pyqd_spark.brokers import LogSegment, Positions
from pyqd_spark.plan import (
    LogRange,
    count_between,
    ordinal_at,
    partitions_of,
    position_after,
    position_at,
    shares,
    slice_queue_of,
    split,
)

EPOCH = 1 << 48
SEGMENTS = (LogSegment(10, 30, 1), LogSegment(60, 40, 1), LogSegment(100, 50, 1), LogSegment(EPOCH + 150, 50, 1))
END = EPOCH + 200
FOUND = Positions("t", "n", 1, "a:1", 10, END, None, SEGMENTS)


def log_range(first, stop, topic="t"):
    return LogRange(topic, "n", 0, "a:1", 1, first, stop)


@pytest.mark.parametrize(
    ("position", "ordinal"),
    [
        (0, 0),
        (10, 10),
        (39, 39),
        (45, 45),
        (149, 149),
        (150, 150),
        (180, 150),
        (EPOCH - 1, 150),
        (EPOCH + 150, 150),
        (EPOCH + 199, 199),
        (END, 200),
        (2 * EPOCH, 200),
    ],
)
def test_a_position_has_the_ordinal_of_the_first_record_from_there_on(position, ordinal):
    assert ordinal_at(position, SEGMENTS, END) == ordinal


@pytest.mark.parametrize(
    ("ordinal", "position"), [(10, 10), (45, 45), (149, 149), (150, EPOCH + 150), (199, EPOCH + 199), (200, END)]
)
def test_an_ordinal_has_the_epoch_of_its_segment(ordinal, position):
    assert position_at(ordinal, SEGMENTS, END) == position


def test_records_are_counted_over_epochs():
    assert count_between(10, END, FOUND) == 190
    assert count_between(180, END, FOUND) == 50
    assert count_between(140, 180, FOUND) == 10
    assert count_between(EPOCH + 160, EPOCH + 160, FOUND) == 0


def test_a_count_of_records_behind_a_position_ends_within_the_range():
    assert position_after(140, 10, END, FOUND) == EPOCH + 150
    assert position_after(140, 15, END, FOUND) == EPOCH + 155
    assert position_after(180, 15, END, FOUND) == EPOCH + 165
    assert position_after(140, 1000, END, FOUND) == END
    assert position_after(10, 5, 12, FOUND) == 12


def test_an_empty_log_has_nothing_to_count():
    empty = Positions("t", "n", 1, "a:1", EPOCH + 5, EPOCH + 5, None, ())
    assert count_between(EPOCH + 5, EPOCH + 5, empty) == 0
    assert position_after(EPOCH + 5, 10, EPOCH + 5, empty) == EPOCH + 5


@pytest.mark.parametrize(
    ("counts", "limit", "found"),
    [
        ([10, 20], 30, [10, 20]),
        ([100, 300], 100, [25, 75]),
        ([1, 10_000], 100, [1, 99]),
        ([0, 10], 5, [0, 5]),
        ([10, 10, 10], 1, [1, 1, 1]),
        ([], 5, []),
    ],
)
def test_a_limit_is_shared_in_proportion_and_starves_no_range(counts, limit, found):
    assert shares(counts, limit) == found


@pytest.mark.parametrize(
    ("count", "total", "partitions_min", "records_max", "pieces"),
    [
        (100, 100, None, None, 1),
        (100, 100, 4, None, 4),
        (75, 100, 4, None, 3),
        (1, 100, 4, None, 1),
        (2, 2, 10, None, 2),
        (100, 100, None, 30, 4),
        (100, 100, 2, 30, 4),
        (0, 0, 4, 30, 1),
    ],
)
def test_ranges_are_cut_as_their_size_asks_for(count, total, partitions_min, records_max, pieces):
    assert slice_queue_of(count, total, partitions_min, records_max) == pieces


def test_pieces_lie_one_behind_the_other():
    pieces = split(log_range(12, END), 4, FOUND)
    assert [piece.first for piece in pieces[1:]] == [piece.stop for piece in pieces[:-1]]
    assert (pieces[0].first, pieces[-1].stop) == (12, END)
    assert [count_between(piece.first, piece.stop, FOUND) for piece in pieces] == [47, 47, 47, 47]


def test_empty_ranges_have_no_partition():
    found = {("t", "n"): FOUND, ("u", "n"): FOUND}
    ranges = [log_range(10, 10), log_range(10, 20, "u")]
    assert partitions_of(ranges, found) == [ranges[1]]
    assert len(partitions_of(ranges, found, partitions_min=5)) == 5
    assert len(partitions_of(ranges, found, records_max=3)) == 4


def test_no_more_partitions_than_requested_are_made():
    found = {("t", "n"): FOUND, ("u", "n"): FOUND}
    ranges = [log_range(10, END), log_range(10, 20, "u")]
    assert partitions_of(ranges, found, partitions_min=2) == ranges
