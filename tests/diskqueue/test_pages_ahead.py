"""Tests of how pyqd.hot.diskqueue.segmentpool asks for the pages that its log will write to."""

from typing import Any

import pytest

from pyqd.diskqueue.files import Files
from pyqd.diskqueue.segment_jobs import SegmentJobs
from pyqd.hot.diskqueue.log import Log
from pyqd.primitives.errors import DiskFull

PIECE = 256 << 10


class Asked(SegmentJobs):
    """Note which pages a log's pool asks for, and give them at once unless they are to be late."""

    prepares_ahead = True

    def __init__(self, log):
        self.ranges = []
        self.late = False
        self.waiting: Any = None
        log.pool.jobs = self

    def prepare_spare(self, pool, size_bytes):
        pool.offer_spare(None)

    def prepare_pages(self, pool, segment, start_bytes, length_bytes):
        assert self.waiting is None, "one request at a time"
        self.ranges.append((segment.number, start_bytes, length_bytes))
        self.waiting = (pool, segment, start_bytes + length_bytes)
        if not self.late:
            self.arrive()

    def arrive(self):
        (pool, segment, end), self.waiting = self.waiting, None
        pool.note_pages(segment, end)


@pytest.fixture
def log(tmp_path):
    return Log(Files(), str(tmp_path), 4 << 20)


def fill_until(log, condition):
    while not condition():
        log.append_message(1, bytes(952))


def test_pages_are_prepared_one_piece_ahead_of_the_writes(log):
    asked = Asked(log)
    fill_until(log, lambda: log.active.number == 9)
    segments = {number: [r[1:] for r in asked.ranges if r[0] == number] for number in range(1, 9)}
    # Segments of 64, 128 and 256 KiB are too small to be asked for in pieces.
    assert [number for number, ranges in segments.items() if ranges] == [4, 5, 6, 7, 8]
    for number, ranges in segments.items():
        end = 4096
        for start, length in ranges:
            assert start == end
            end += length
            assert length <= PIECE
        assert not ranges or end == min(64 << (9 + number), 4 << 20)


def test_pages_are_there_before_they_are_written(log):
    Asked(log)
    fill_until(log, lambda: log.active.capacity_bytes > PIECE)
    while log.active.number < 7:
        assert log.active.prepared > log.active.tail
        log.append_message(1, bytes(952))


def test_late_pages_are_prepared_in_larger_pieces_after_the_written_end(log):
    asked = Asked(log)
    fill_until(log, lambda: log.active.capacity_bytes == 4 << 20)
    assert log.pool.pages_ahead == PIECE
    asked.late = True
    fill_until(log, lambda: asked.waiting is not None)
    tail = log.active.prepared + PIECE
    fill_until(log, lambda: log.active.tail > tail + 2 * PIECE)
    tail = log.active.tail
    asked.arrive()
    assert log.pool.pages_ahead == 2 * PIECE
    number, start, length = asked.ranges[-1]
    assert (number, length) == (log.active.number, 2 * PIECE)
    assert tail <= start < tail + 4096


def test_a_log_that_is_written_in_large_batches_asks_for_no_pages(log):
    asked = Asked(log)
    while log.active.number < 7:
        log.append_batch([(1, bytes(952))] * 20)
    assert asked.ranges == []
    assert not log.pool.populates


def test_a_log_goes_back_to_asking_once_messages_come_one_by_one(log):
    asked = Asked(log)
    while log.active.number < 7:
        log.append_batch([(1, bytes(952))] * 20)
    fill_until(log, lambda: log.active.number == 9)
    assert log.pool.populates
    assert asked.ranges


def test_reused_segments_need_no_pages(log):
    asked = Asked(log)
    for _ in range(20_000):
        log.append_message(1, bytes(952))
        log.trim_below(log.end)
    count = len(asked.ranges)
    for _ in range(20_000):
        log.append_message(1, bytes(952))
        log.trim_below(log.end)
    assert len(asked.ranges) == count


def test_records_stored_during_the_preparation_of_pages_stay(tmp_path):
    files = Files()
    mapping = files.new_mapped(str(tmp_path / "file"), 1 << 20, False)
    mapping.view()[5000:5010] = b"0123456789"
    files.populate(mapping, 4096, 1 << 19)
    assert bytes(mapping.view()[5000:5010]) == b"0123456789"
    assert bytes(mapping.view()[8192:16384]) == bytes(8192)


def test_nothing_is_asked_for_in_the_middle_of_a_batch(log):
    ends = []

    class Noticed(Asked):
        def prepare_pages(self, *wanted):
            ends.append(log.end)
            super().prepare_pages(*wanted)

    Noticed(log)
    fill_until(log, lambda: log.active.capacity_bytes == 4 << 20)
    ends.clear()
    before = log.end
    # Smaller than a write by pwrite(2), across the place at which the next pieces are requested.
    for _ in range(100):
        log.append_batch([(1, bytes(952))] * 7)
    assert len(ends) >= 2
    assert [end for end in ends if (end - before) % 7] == []


def test_a_batch_that_ends_beyond_the_pages_asked_for_does_not_count_as_too_late(log):
    asked = Asked(log)

    def ends_soon():
        active = log.active
        return active.prepared - active.tail < 200_000 and active.capacity_bytes - active.tail > 1 << 20

    fill_until(log, lambda: log.active.capacity_bytes == 4 << 20)
    for _ in range(4):
        asked.late = False
        fill_until(log, ends_soon)
        asked.late = True
        active = log.active
        log.append_batch([(1, bytes(952))] * 600)
        assert log.active is active
        asked.arrive()
        log.append_message(1, bytes(952))
        assert log.pool.pages_ahead == PIECE
        fill_until(log, lambda: asked.waiting is not None)
        asked.arrive()


def test_pages_after_a_reused_segment_are_requested_whole(tmp_path):
    log = Log(Files(), str(tmp_path), 64 << 10)
    for size in (30_000, 30_001, 30_002, 29_000, 28_500):
        log.append_message(1, bytes(size))
    log.trim_below(log.end - 1)
    assert log.pool.spares
    for spare in log.pool.spares:
        assert spare.prepared >= 57_500
        assert spare.prepared % 4096 == 0


def test_records_staged_by_a_failed_batch_do_not_count_as_staged(log, monkeypatch):
    fill_until(log, lambda: log.active.capacity_bytes == 1 << 20)
    real = log.files.open_for_writing
    monkeypatch.setattr(Files, "open_for_writing", lambda files, path: real("/dev/full"))
    active = log.active
    for _ in range(20):
        with pytest.raises(DiskFull):
            log.append_batch([(1, bytes(952))] * 600)
    assert log.active is active
    fill_until(log, lambda: log.active is not active)
    assert log.pool.populates
