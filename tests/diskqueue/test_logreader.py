"""Tests of pyqd.hot.diskqueue.logreader."""

import random
from pathlib import Path

import pytest

from pyqd.fallback import records
from pyqd.hot.diskqueue.log import Log
from pyqd.hot.diskqueue.logreader import WALK_BYTES_PER_SLICE, LogReader
from tests.support.storage import EagerJobs, FullFiles, body_of

SEGMENT_BYTES = 64 << 10


def log_of(count, size_bytes=100, *, directory=None, segment_bytes=SEGMENT_BYTES, epoch=0, files=None):
    log = Log(files or FullFiles(), None if directory is None else str(directory), segment_bytes, epoch)
    append(log, count, size_bytes)
    return log


def append(log, count, size_bytes=100):
    for _ in range(count):
        log.append_message(log.end + 1, body_of(log.end, size_bytes), 10 * log.end)


def positions_in(data):
    return [record.position for record in records.decode(data)]


@pytest.mark.parametrize("bytes_max", [1, 200, 10_000, 1 << 22])
def test_pages_hold_every_record_once_and_in_order(bytes_max):
    log = log_of(3000)
    reader = LogReader(log)
    found, at = [], 0
    while at < log.end:
        data, count, behind = reader.read_raw(at, log.end, bytes_max)
        page = list(records.decode(data))
        assert len(page) == count > 0
        assert len(data) <= max(bytes_max, 152)
        found += page
        at = behind
    assert [record.position for record in found] == list(range(3000))
    assert all(record.body == body_of(record.position, 100) for record in found)
    assert reader.read_raw(log.end, log.end, bytes_max) == (b"", 0, log.end)


@pytest.mark.slow
def test_any_range_can_be_read_whatever_was_read_before():
    log = log_of(2000, segment_bytes=1 << 18)
    reader = LogReader(log)
    chance = random.Random(1)
    for _ in range(300):
        start, end = sorted(chance.sample(range(2001), 2))
        data, count, behind = reader.read_raw(start, end, 1 << 22)
        assert positions_in(data) == list(range(start, end))
        assert (count, behind) == (end - start, end)


def test_an_index_follows_a_segment_that_grows():
    log = log_of(1, segment_bytes=1 << 22)
    reader = LogReader(log)
    for _ in range(60):
        append(log, 97)
        start = log.end - 3
        assert positions_in(reader.read_raw(start, log.end, 1 << 20)[0]) == list(range(start, log.end))


@pytest.mark.slow
def test_a_large_segment_is_walked_in_parts():
    log = log_of(0, segment_bytes=16 << 20)
    log.pool.jobs = EagerJobs()
    while log.active.capacity_bytes < 16 << 20:
        append(log, 1, 60_000)
    append(log, 150, 60_000)
    reader = LogReader(log)
    walks = 1
    while not reader.prepare(log.end - 1):
        walks += 1
    assert walks >= 150 * 60_000 // WALK_BYTES_PER_SLICE
    assert reader.prepare(log.end - 1)
    assert positions_in(reader.read_raw(log.end - 1, log.end, 1)[0]) == [log.end - 1]


@pytest.mark.slow
def test_a_trimmed_and_recycled_segment_is_not_mistaken_for_its_former_self():
    log = log_of(2000)
    reader = LogReader(log)
    for start in range(0, 2000, 50):
        reader.read_raw(start, log.end, 1)
    for _ in range(20):
        log.trim_below(log.end - 100)
        append(log, 500, 90)
        first = log.first.first_ordinal
        assert positions_in(reader.read_raw(first, log.end, 1 << 22)[0]) == list(range(first, log.end))
        assert positions_in(reader.read_raw(log.end - 7, log.end, 1 << 22)[0]) == list(range(log.end - 7, log.end))
    assert positions_in(reader.read_raw(0, log.end, 1)[0]) == [log.first.first_ordinal]


def removed_segments_mapped(directory):
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if f"{directory}/" in line and line.endswith("(deleted)")]


def test_a_removed_segment_is_unmapped_though_it_was_read_by_position(tmp_path):
    log = log_of(20_000, directory=tmp_path)
    reader = LogReader(log)
    for start in range(0, log.end, 500):
        reader.read_raw(start + 1, log.end, 1)
        reader.ordinal_at(10 * start)
        reader.ordinal_of_guid(start + 2)
    before = len(list(tmp_path.glob("*.seg")))
    log.trim_below(log.end)
    assert len(list(tmp_path.glob("*.seg"))) < before - 10
    assert removed_segments_mapped(tmp_path) == []
    assert reader.read_raw(0, log.end, 1)[2] > log.first.first_ordinal


def test_a_removed_segment_that_someone_holds_keeps_no_other_one_mapped(tmp_path):
    log = log_of(20_000, directory=tmp_path)
    # The first ones are kept as spares.
    held = log.first
    for _ in range(8):
        held = held.next
    log.trim_below(log.end)
    assert len(removed_segments_mapped(tmp_path)) == 1
    held = log.first
    log.abandon()
    assert [line for line in Path("/proc/self/maps").read_text().splitlines() if f"{tmp_path}/" in line][1:] == []
    assert held.next is None


def test_positions_are_in_order_over_epochs(tmp_path):
    log_of(100, directory=tmp_path)
    log = log_of(100, directory=tmp_path, epoch=2)
    reader = LogReader(log)
    epoch = 2 << 48
    assert positions_in(reader.read_raw(90, 110, 1 << 20)[0]) == [*range(90, 100), *range(epoch + 100, epoch + 110)]
    assert [reader.position_of(ordinal) for ordinal in (0, 99, 100, 200)] == [0, 99, epoch + 100, epoch + 200]
    for position, ordinal in [(0, 0), (99, 99), (100, 100), (150, 100), (1 << 48, 100), (epoch + 10, 100)]:
        assert reader.ordinal_of(position) == ordinal
    for position, ordinal in [(epoch + 150, 150), (epoch + 200, 200), (epoch + 201, 200), (3 << 48, 200)]:
        assert reader.ordinal_of(position) == ordinal


def test_a_missing_segment_is_passed_over(tmp_path):
    log = log_of(1500, directory=tmp_path)
    missing = log.first.next
    start, end = missing.first_ordinal, missing.next.first_ordinal
    path = missing.mapping.path
    del log, missing
    (tmp_path / path).unlink()
    log = log_of(0, directory=tmp_path)
    reader = LogReader(log)
    assert positions_in(reader.read_raw(0, log.end, 1 << 22)[0]) == [*range(start), *range(end, 1500)]
    assert reader.ordinal_of(start + 5) == end
    assert reader.position_of(start + 5) == end
    assert positions_in(reader.read_raw(start + 5, end + 2, 1 << 22)[0]) == [end, end + 1]
    assert reader.read_raw(start + 5, start + 9, 1 << 22) == (b"", 0, end)
    assert reader.timestamp_of(start + 5) == 10 * end


def test_a_time_maps_to_its_first_record():
    log = log_of(3000)
    reader = LogReader(log)
    for time_ns, ordinal in [(-5, 0), (0, 0), (1, 1), (10, 1), (11, 2), (20_005, 2001), (29_990, 2999), (29_991, 3000)]:
        assert reader.ordinal_at(time_ns) == ordinal
    for ordinal in range(0, 3000, 7):
        assert reader.ordinal_at(10 * ordinal) == ordinal
        assert reader.timestamp_of(ordinal) == 10 * ordinal
    assert reader.timestamp_of(3000) is None


def test_in_a_log_without_records_every_time_is_its_end():
    log = log_of(0)
    reader = LogReader(log)
    assert reader.prepare_time(5)
    assert (reader.ordinal_at(5), reader.timestamp_of(0), reader.position_of(0)) == (0, None, 0)
    append(log, 3)
    log.trim_below(3)
    assert reader.ordinal_at(5) == 1


def test_after_a_clock_step_back_a_time_maps_to_its_first_crossing():
    log = log_of(0)
    times = [*range(1000), *range(500, 1500)]
    for time_ns in times:
        log.append_message(log.end + 1, body_of(1, 100), time_ns)
    reader = LogReader(log)
    for time_ns in range(1, 1500):
        ordinal = reader.ordinal_at(time_ns)
        assert times[ordinal] >= time_ns > times[ordinal - 1]
    assert reader.ordinal_at(700) == 700


def test_segments_are_listed_with_positions_times_and_sizes():
    log = log_of(1500)
    rows = LogReader(log).segments()
    assert len(rows) > 2
    assert [row[0] for row in rows] == [sum(row[1] for row in rows[:index]) for index in range(len(rows))]
    assert sum(row[1] for row in rows) == 1500
    assert sum(row[2] for row in rows) == 1500 * 152
    assert [row[4] for row in rows] == [10 * row[0] for row in rows]


def test_damage_ends_a_segment_and_not_the_reading(tmp_path):
    log = log_of(1500, directory=tmp_path)
    second = log.first.next
    first_ordinal, end, path = second.first_ordinal, second.next.first_ordinal, second.mapping.path
    with open(path, "r+b") as file:
        file.seek(128 + 152 * 10)
        sound = file.read(30)
        file.seek(128 + 152 * 10)
        file.write(b"\xff" * 30)
    reader = LogReader(log)
    expected = [*range(first_ordinal + 10), *range(end, 1500)]
    assert positions_in(reader.read_raw(0, log.end, 1 << 22)[0]) == expected
    assert positions_in(reader.read_raw(first_ordinal + 20, log.end, 1 << 22)[0]) == [*range(end, 1500)]
    assert reader.prepare(end - 1)
    assert reader.ordinal_at(10 * (first_ordinal + 20)) == end
    with open(path, "r+b") as file:
        file.seek(128 + 152 * 10)
        file.write(sound)
    assert positions_in(reader.read_raw(0, log.end, 1 << 22)[0]) == [*range(1500)]
