"""Plan of a run: ranges that leave out no position and read none twice, under stable names."""

import pytest

from pyqd.fallback.records import ORDINAL_BITS
from pyqd_spark.brokers import LogSegment, Positions
from pyqd_spark.discovery import DataLossError
from pyqd_spark.jobs.drain import DrainOptions, FoundLogs, first_of, make_plan, start_ns
from pyqd_spark.jobs.plan import (
    BYTES_PER_FILE,
    DAMAGE,
    RESET,
    RETENTION,
    Gap,
    LogSource,
    Plan,
    PlannedRange,
    SourceProgress,
    cut,
    rows_per_file,
)
from pyqd_spark.jobs.table import RunCommit
from pyqd_spark.options import BrokerOptions

EPOCH = 1 << ORDINAL_BITS


def positions(
    *segments: LogSegment, following: int | None = None, created: int = 7, at: int | None = None
) -> Positions:
    end = segments[-1].first + segments[-1].records if following is None else following
    return Positions(
        topic="t",
        node="n",
        address="host:1",
        created=created,
        earliest=segments[0].first,
        next=end,
        at=at,
        segments=segments,
    )


def dense(records: int, first: int = 0, size: int = 100) -> LogSegment:
    return LogSegment(first, records, records * size)


def options(**fields: object) -> DrainOptions:
    return DrainOptions("/table", BrokerOptions(nsqd=("host:1",)), **fields)  # type: ignore[arg-type]


def bounds(ranges: list[PlannedRange]) -> list[tuple[int, int, int]]:
    return [(part.first, part.stop, part.records) for part in ranges]


def test_ranges_lie_side_by_side_from_the_first_position_to_the_end() -> None:
    ranges, gaps = cut(positions(dense(2500)), 100, 1000)
    assert bounds(ranges) == [(100, 1100, 1000), (1100, 2100, 1000), (2100, 2500, 400)]
    assert gaps == []


def test_a_range_spans_segments_until_it_is_full() -> None:
    ranges, gaps = cut(positions(dense(300), dense(300, 300), dense(300, 600)), 0, 500)
    assert bounds(ranges) == [(0, 500, 500), (500, 900, 400)]
    assert gaps == []


def test_large_messages_make_shorter_ranges() -> None:
    ranges, _ = cut(positions(dense(40, size=BYTES_PER_FILE // 8)), 0, 1000)
    assert [part.records for part in ranges] == [8] * 5


def test_a_message_larger_than_a_file_should_be_has_a_range_of_its_own() -> None:
    ranges, _ = cut(positions(dense(3, size=2 * BYTES_PER_FILE)), 0, 1000)
    assert bounds(ranges) == [(0, 1, 1), (1, 2, 1), (2, 3, 1)]


def test_a_missing_segment_is_a_gap_of_known_size_and_its_positions_are_in_a_range() -> None:
    ranges, gaps = cut(positions(dense(100), dense(100, 150)), 0, 1000)
    assert bounds(ranges) == [(0, 250, 200)]
    assert gaps == [Gap("t", "n", 100, 150, 50, DAMAGE)]


def test_a_later_epoch_continues_without_a_gap() -> None:
    ranges, gaps = cut(positions(dense(100), dense(100, EPOCH + 90)), 0, 150)
    assert bounds(ranges) == [(0, EPOCH + 140, 150), (EPOCH + 140, EPOCH + 190, 50)]
    assert gaps == []


def test_records_of_the_last_segment_that_are_not_shown_yet_are_not_read() -> None:
    ranges, _ = cut(positions(dense(100), following=60), 0, 1000)
    assert bounds(ranges) == [(0, 60, 60)]


def test_nothing_new_makes_no_range() -> None:
    assert cut(positions(dense(100)), 100, 1000) == ([], [])
    assert cut(positions(dense(0)), 0, 1000) == ([], [])


def test_work_is_shared_out_but_not_into_crumbs() -> None:
    assert rows_per_file(10_000_000, 4, 1_000_000) == 1_000_000
    assert rows_per_file(1_000_000, 4, 1_000_000) == 250_000
    assert rows_per_file(1000, 4, 1_000_000) == 50_000
    assert rows_per_file(1000, 4, 10) == 10


def test_the_name_of_a_range_is_unique_and_visible() -> None:
    one = PlannedRange(".hidden#ephemeral", "n", 255, 5, 10, 5)
    assert one.name == "log-.hidden%23ephemeral-n-ff-0000000000000000005-0000000000000000009"
    long = [PlannedRange("x" * 63 + end + "#ephemeral", "f" * 32, 1, 2**63 - 2, 2**63 - 1, 1).name for end in "ab"]
    assert long[0] != long[1]
    assert all(len(name) < 240 for name in long)


def test_a_plan_is_the_same_after_being_written_down() -> None:
    plan = make_plan(options(), RunCommit(3), FoundLogs({LogSource("t", "n"): positions(dense(2500))}), 2, 1.5)
    assert plan.ranges
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("start", "known", "first"),
    [("earliest", False, 10), ("latest", False, 110), ("-5m", False, 60), ("latest", True, 10), ("-5m", True, 10)],
)
def test_the_start_counts_for_new_topics_and_later_nodes_begin_at_their_earliest(
    start: str, known: bool, first: int
) -> None:
    seen = positions(dense(100, 10), at=60)
    assert first_of(options(start=start), None, known, seen, []) == first


def test_the_next_run_starts_at_the_end_of_the_last_one() -> None:
    gaps: list[Gap] = []
    assert first_of(options(start="latest"), SourceProgress(50, 7), True, positions(dense(100)), gaps) == 50
    assert gaps == []


def test_messages_removed_by_retention_are_a_gap_of_known_size() -> None:
    gaps: list[Gap] = []
    assert first_of(options(), SourceProgress(50, 7), True, positions(dense(100, 80)), gaps) == 80
    assert gaps == [Gap("t", "n", 50, 80, 30, RETENTION)]


@pytest.mark.parametrize("before", [SourceProgress(50, 6), SourceProgress(101, 7)])
def test_a_re_created_topic_is_read_from_its_beginning_and_noted(before: SourceProgress) -> None:
    gaps: list[Gap] = []
    assert first_of(options(), before, True, positions(dense(100)), gaps) == 0
    assert [(gap.reason, gap.records) for gap in gaps] == [(RESET, None)]


def test_a_gap_is_an_error_unless_losing_data_is_allowed() -> None:
    found = FoundLogs({LogSource("t", "n"): positions(dense(100, 80))})
    commit = RunCommit(1, {LogSource("t", "n"): SourceProgress(50, 7)})
    with pytest.raises(DataLossError, match=r"topic t, node n: 30 messages .* 50 to 80 were removed by retention"):
        make_plan(options(), commit, found, 1, 0.0)
    plan = make_plan(options(fail_on_data_loss=False), commit, found, 1, 0.0)
    assert bounds(plan.ranges) == [(80, 180, 100)]
    assert plan.after == {LogSource("t", "n"): SourceProgress(180, 7)}


def test_ranges_that_had_to_be_left_come_first_in_the_next_plan() -> None:
    left = PlannedRange("t", "other", 7, 0, 10, 10)
    commit = RunCommit(1, {LogSource("t", "n"): SourceProgress(50, 7)}, [left])
    plan = make_plan(options(), commit, FoundLogs({LogSource("t", "n"): positions(dense(100))}), 1, 0.0)
    assert plan.ranges == [left, PlannedRange("t", "n", 7, 50, 100, 50)]
    assert plan.carried == 1


def test_a_node_that_is_away_keeps_its_place() -> None:
    commit = RunCommit(1, {LogSource("t", "n"): SourceProgress(50, 7), LogSource("t", "away"): SourceProgress(5, 7)})
    plan = make_plan(options(), commit, FoundLogs({LogSource("t", "n"): positions(dense(100))}), 1, 0.0)
    assert plan.after[LogSource("t", "away")] == SourceProgress(5, 7)


@pytest.mark.parametrize("start", ["yesterday", "10", "", "2026-11-21"])
def test_a_start_that_is_no_place_is_refused_with_examples(start: str) -> None:
    with pytest.raises(ValueError, match="expected earliest, latest, a time such as"):
        start_ns(start)


def test_starts_are_words_and_times() -> None:
    assert start_ns("earliest") is start_ns("latest") is None
    assert start_ns("2026-11-21T00:00:00Z") == 1_795_219_200_000_000_000
