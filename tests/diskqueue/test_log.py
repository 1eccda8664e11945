"""Tests of pyqd.hot.diskqueue.log."""

import os
import shutil
import struct
from pathlib import Path

import pytest

from pyqd.diskqueue.files import Files
from pyqd.hot.diskqueue import arena
from pyqd.hot.diskqueue.log import Log
from pyqd.hot.wire.record import span_bytes
from pyqd.primitives.errors import StorageError
from tests.support.storage import RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, EagerJobs, NotedJobs, body_of

SEGMENT_BYTES = 64 << 10
MIB = 1 << 20


def new_log(directory=None, files=None, epoch=0):
    return Log(files or Files(), None if directory is None else str(directory), SEGMENT_BYTES, epoch)


def contents(log, start=None):
    return [(ordinal, body) for ordinal, *_, body in log.records(start)]


def fill(log, count, size_bytes=16):
    for _ in range(count):
        log.append_message(log.end + 1, body_of(log.end, size_bytes))


def expected(start, end, size_bytes=16):
    return [(ordinal, body_of(ordinal, size_bytes)) for ordinal in range(start, end)]


def overwrite(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


@pytest.mark.parametrize("kept", [False, True])
def test_an_appended_record_is_read_back_with_all_its_fields(tmp_path, kept):
    log = new_log(tmp_path if kept else None)
    assert log.append_message(11, b"a", 1, 2) == 0
    assert log.append_message(12, b"b" * 1000, 4, 5) == 1
    assert list(log.records()) == [(0, 11, 1, 2, b"a"), (1, 12, 4, 5, b"b" * 1000)]
    log.check()


def test_an_empty_body_is_refused():
    log = new_log()
    with pytest.raises(ValueError, match="at least one byte"):
        log.append_message(1, b"")
    with pytest.raises(ValueError, match="at least one byte"):
        log.append_batch([(1, b"x"), (2, b"")])
    assert log.end == 0


@pytest.mark.parametrize("spare", [0, 8, 56])
def test_a_segment_is_filled_to_its_last_byte_before_the_next_one(spare):
    log = new_log()
    room = SEGMENT_BYTES - SEGMENT_HEADER_BYTES - RECORD_HEADER_BYTES - spare
    log.append_message(1, b"x" * room)
    assert log.active.capacity_bytes - log.active.tail == spare
    log.append_message(2, b"y" * 8)
    assert (log.first is log.active) == (spare == 56)
    assert contents(log) == [(0, b"x" * room), (1, b"y" * 8)]
    log.check()


def test_a_batch_lies_in_one_segment(tmp_path):
    log = new_log(tmp_path)
    fill(log, 1, 60_000)
    log.append_batch([(guid, bytes([guid]) * 3000) for guid in range(1, 4)])
    assert (log.active.first_ordinal, log.active.count) == (1, 3)
    assert [body for _, body in contents(log, 1)] == [bytes([guid]) * 3000 for guid in range(1, 4)]
    assert contents(new_log(tmp_path)) == contents(log)


def test_segments_double_up_to_the_limit():
    log = Log(Files(), None, 1 << 18)
    sizes: set[int] = set()
    while len(sizes) < 3:
        fill(log, 1, 10_000)
        sizes.add(log.active.capacity_bytes)
    fill(log, 100, 10_000)
    assert sizes == {1 << 16, 1 << 17, 1 << 18}
    assert log.active.capacity_bytes == 1 << 18


def test_trimming_gives_up_whole_segments_below_the_floor_only(tmp_path):
    log = new_log(tmp_path)
    fill(log, 500, 500)
    boundary = log.first.next.first_ordinal
    log.trim_below(boundary - 1)
    assert log.first.first_ordinal == 0
    log.trim_below(boundary)
    assert log.first.first_ordinal == boundary
    log.trim_below(log.end + 10)
    assert log.first is log.active
    assert contents(log) == expected(log.active.first_ordinal, 500, 500)
    log.check()
    assert contents(new_log(tmp_path)) == contents(log)


def test_two_trimmed_segments_are_recycled_and_the_others_are_removed(tmp_path):
    log = new_log(tmp_path)
    log.pool.jobs = jobs = NotedJobs(prepares_ahead=False)
    fill(log, 500, 500)
    log.trim_below(log.end)
    assert len(log.pool.spares) == 2
    assert len(jobs.removed) >= 2
    count = len(list(tmp_path.iterdir()))
    fill(log, 220, 500)
    assert len(log.pool.spares) == 0
    assert len(list(tmp_path.iterdir())) == count


@pytest.mark.slow
@pytest.mark.parametrize("size_bytes", [16, 500, 900])
def test_stale_records_of_a_recycled_segment_never_come_back(tmp_path, size_bytes):
    log = new_log(tmp_path)
    for _ in range(6):
        fill(log, 150, size_bytes)
        log.trim_below(log.end)
        for count in range(3):
            log = new_log(tmp_path)
            assert contents(log) == expected(log.first.first_ordinal, log.end, size_bytes)
            fill(log, count, size_bytes)


def test_a_spare_is_asked_for_once_per_segment_and_then_used():
    log = new_log()
    log.pool.jobs = jobs = NotedJobs()
    asked = jobs.asked
    fill(log, 1, 40_000)
    assert asked == [1 << 16]
    fill(log, 1, 20_000)
    assert len(asked) == 1
    spare = log.pool.new_segment(asked[0])
    log.pool.offer_spare(spare)
    fill(log, 1, 20_000)
    assert log.active is spare
    fill(log, 1, 20_000)
    assert len(asked) == 2
    log.pool.offer_spare(None)
    fill(log, 4, 20_000)
    assert len(asked) == 3


def test_a_writer_whose_segments_are_drained_in_time_asks_for_no_more_of_them(tmp_path):
    log = new_log(tmp_path)
    fill(log, 500, 500)
    log.trim_below(log.end)
    log.pool.jobs = jobs = NotedJobs()
    asked = jobs.asked
    files = sorted(tmp_path.iterdir())
    for _ in range(100):
        fill(log, 30, 500)
        log.trim_below(log.end)
    assert asked == []
    assert sorted(tmp_path.iterdir()) == files
    assert len(log.pool.spares) >= 1


@pytest.mark.parametrize("batched", [False, True])
def test_spares_of_an_earlier_run_are_filled_to_their_end_and_no_further(tmp_path, batched):
    log = new_log(tmp_path)
    fill(log, 500, 500)
    log.trim_below(log.end)
    assert log.pool.spares
    del log
    log = new_log(tmp_path)
    assert log.pool.spares
    log.pool.jobs = NotedJobs()
    first = log.end
    while len(list(log.records(first))) < 400:
        if batched:
            log.append_batch([(log.end + 1 + index, body_of(log.end + index, 500)) for index in range(20)])
        else:
            fill(log, 20, 500)
        assert log.active.tail <= log.active.limit_bytes <= log.active.file_bytes
    assert contents(log, first) == expected(first, log.end, 500)
    log.check()


def test_a_writer_with_a_backlog_asks_for_the_next_segment_as_soon_as_one_begins():
    log = new_log()
    log.pool.jobs = jobs = NotedJobs()
    asked = jobs.asked
    for count in range(1, 5):
        fill(log, 1, 60_000)
        log.pool.offer_spare(log.pool.new_segment(asked[-1]))
        assert len(asked) == count


def new_large_log():
    log = Log(Files(), None, 32 * MIB)
    log.pool.jobs = EagerJobs()
    return log


def pass_through(log, count, size_bytes):
    """Append records, each of which is finished at once; return the sizes of the segments."""
    sizes = set()
    for _ in range(count):
        fill(log, 1, size_bytes)
        log.trim_below(log.end)
        sizes.add(log.active.capacity_bytes)
    return sizes


def test_segments_stay_small_and_are_reused_if_readers_keep_up():
    log = new_large_log()
    pass_through(log, 20, MIB)
    log.pool.jobs = jobs = NotedJobs()
    assert pass_through(log, 20, MIB) == {8 * MIB}
    assert (jobs.asked, jobs.made) == ([], [])
    assert len(log.pool.spares) <= 6


def test_a_writer_that_quickly_fills_small_segments_gets_larger_ones():
    log = Log(Files(), None, 32 * MIB)
    log.pool.jobs = jobs = NotedJobs()
    asked = jobs.asked
    # The second spare comes when a segment of its size was made on the spot: the two could be used in turn for ever.
    for segments, size_bytes in ((1, 2 * SEGMENT_BYTES), (3, 4 * SEGMENT_BYTES)):
        while log.active.number < segments or not asked:
            pass_through(log, 1, 4000)
        assert asked.pop() == size_bytes
        log.pool.offer_spare(log.pool.new_segment(size_bytes))
    assert log.active.capacity_bytes == size_bytes
    pass_through(log, 4000, 4000)
    log.pool.jobs = EagerJobs()
    pass_through(log, 4000, 4000)
    assert log.active.capacity_bytes == 8 * MIB


@pytest.mark.slow
def test_segments_grow_while_much_waits_and_are_small_again_once_it_is_gone():
    log = new_large_log()
    fill(log, 100, MIB)
    large = log.active
    assert large.capacity_bytes > 8 * MIB
    log.trim_below(log.end)
    pass_through(log, 3 * large.capacity_bytes // MIB, MIB)
    assert pass_through(log, 10, MIB) == {8 * MIB}
    assert {spare.capacity_bytes for spare in log.pool.spares} == {8 * MIB}


@pytest.mark.slow
def test_segments_that_readers_keep_up_with_hold_several_of_the_largest_records():
    log = new_large_log()
    pass_through(log, 10, 5 * MIB)
    assert pass_through(log, 7, 5 * MIB) == {log.active.capacity_bytes}
    assert log.active.capacity_bytes >= 20 * MIB
    assert len(log.pool.spares) >= 1


def test_a_spare_from_when_segments_were_smaller_is_given_up(tmp_path):
    log = Log(Files(), str(tmp_path), 1 << 18)
    log.pool.jobs = jobs = NotedJobs()
    small, large = log.pool.new_segment(1 << 16), log.pool.new_segment(1 << 18)
    log.pool.add_spare(small)
    log.pool.add_spare(large)
    fill(log, 2, 60_000)
    assert log.active is large
    fill(log, 3, 60_000)
    assert jobs.removed == [small]
    assert log.pool.spares == []


def test_file_names_are_not_given_again_after_the_directory_was_removed(tmp_path):
    directory = tmp_path / "log"
    names: set[str] = set()
    for _ in range(5):
        log = new_log(directory)
        fill(log, 5, 30_000)
        found = set(os.listdir(directory))
        assert not names & found
        names |= found
        shutil.rmtree(directory)


def test_a_full_disk_leaves_no_file_behind(tmp_path):
    class NoRoom(Files):
        def rename(self, source, target):
            raise StorageError("rename", source, 28, "no room")

    with pytest.raises(StorageError):
        NoRoom().new_mapped(str(tmp_path / "new"), 4096, True)
    assert list(tmp_path.iterdir()) == []


def small_log(directory):
    """Make a log of five records of different sizes; return its bodies, the offset of each record, and the end."""
    log = new_log(directory)
    bodies = [bytes([65 + index]) * size for index, size in enumerate((1, 8, 20, 3, 15))]
    offsets = [SEGMENT_HEADER_BYTES]
    for index, body in enumerate(bodies):
        log.append_message(index + 1, body)
        offsets.append(offsets[-1] + span_bytes(len(body)))
    assert offsets[-1] == log.active.tail
    return bodies, offsets


def whole_before(offsets, cut):
    return sum(end <= cut for end in offsets[1:])


def recovered(directory, bodies, least):
    """Open a damaged log: it holds the first of the bodies, at least so many, and can be written to."""
    log = new_log(directory)
    found = [body for _, body in contents(log)]
    assert found == bodies[: len(found)]
    assert len(found) >= least
    log.append_message(99, b"fresh")
    log.append_message(100, b"another")
    log.check()
    again = new_log(directory)
    assert [body for _, body in contents(again)] == [*found, b"fresh", b"another"]
    return found


@pytest.mark.slow
def test_a_file_cut_at_any_byte_leaves_the_records_before_it(tmp_path):
    bodies, offsets = small_log(tmp_path / "origin")
    for cut in range(SEGMENT_HEADER_BYTES + 1, offsets[-1] + 1):
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / "origin", copy)
        (path,) = copy.iterdir()
        os.truncate(path, cut)
        # Zeros at the end of a body are padding and may be lost without harm to the record only when they are there.
        found = recovered(copy, bodies, whole_before(offsets, cut))
        assert len(found) == whole_before(offsets, cut)
        shutil.rmtree(copy)


@pytest.mark.slow
def test_one_wrong_bit_anywhere_never_gives_a_wrong_body(tmp_path):
    bodies, offsets = small_log(tmp_path / "origin")
    (origin,) = (tmp_path / "origin").iterdir()
    content = origin.read_bytes()
    for at in range(SEGMENT_HEADER_BYTES, offsets[-1]):
        copy = tmp_path / "copy"
        copy.mkdir()
        (copy / origin.name).write_bytes(content)
        overwrite(copy / origin.name, at, bytes([content[at] ^ 1 << at % 8]))
        hit = whole_before(offsets, at)
        found = [body for _, body in contents(new_log(copy))]
        assert found in (bodies[:hit] + bodies[hit + 1 :], bodies)
        shutil.rmtree(copy)


@pytest.mark.parametrize("refill", [8, 16, 24, 200])
def test_no_record_of_a_torn_batch_reappears_when_the_log_continues(tmp_path, refill):
    log = new_log(tmp_path)
    fill(log, 2)
    at = log.active.tail
    path = log.active.mapping.path
    log.append_batch([(guid, bytes([guid]) * 16) for guid in range(50, 60)])
    # A kill before the commit: all of the batch is there but the word that makes its first record valid.
    overwrite(path, at, bytes(8))
    log = new_log(tmp_path)
    assert contents(log) == expected(0, 2)
    log.append_message(3, b"r" * refill)
    log = new_log(tmp_path)
    assert contents(log) == [*expected(0, 2), (2, b"r" * refill)]


def test_a_batch_of_one_does_not_bring_back_the_rest_of_a_torn_batch(tmp_path):
    log = new_log(tmp_path)
    fill(log, 2)
    at = log.active.tail
    log.append_batch([(guid, bytes([guid]) * 16) for guid in range(50, 60)])
    overwrite(log.active.mapping.path, at, bytes(8))
    new_log(tmp_path).append_batch([(3, b"r" * 16)])
    assert contents(new_log(tmp_path)) == [*expected(0, 2), (2, b"r" * 16)]


def test_a_segment_that_a_kill_left_half_made_is_removed(tmp_path):
    fill(new_log(tmp_path), 3)
    left = tmp_path / "7.seg.making"
    left.write_bytes(b"")
    assert contents(new_log(tmp_path)) == expected(0, 3)
    assert not left.exists()


def test_a_record_forged_inside_a_former_body_is_not_taken_for_one(tmp_path):
    donor = new_log()
    fill(donor, 200)
    record = bytes(donor.active.mapping.view())[SEGMENT_HEADER_BYTES:]
    log = new_log(tmp_path)
    span = span_bytes(16)
    for ordinal in range(3):
        log.append_message(ordinal + 1, record[span * (ordinal + 1) : span * (ordinal + 100)])
        path, tail = log.active.mapping.path, log.active.tail
    overwrite(path, SEGMENT_HEADER_BYTES, bytes(8))
    log = new_log(tmp_path)
    assert log.end == 0
    assert tail > SEGMENT_HEADER_BYTES
    for ordinal in range(20):
        log.append_message(ordinal + 1, b"q" * 16)
        log = new_log(tmp_path)
        assert contents(log) == [(each, b"q" * 16) for each in range(ordinal + 1)]


def test_a_later_epoch_begins_a_new_segment_and_keeps_ordinals_dense(tmp_path):
    for epoch in range(4):
        fill(new_log(tmp_path, epoch=epoch), epoch % 2)
    log = new_log(tmp_path, epoch=3)
    fill(log, 2)
    assert contents(log) == expected(0, 4)
    assert log.epoch == 3
    path = log.active.mapping.path
    with open(path, "rb") as file:
        (seq,) = struct.unpack_from("<Q", file.read(1000), SEGMENT_HEADER_BYTES + 8)
    assert seq == 3 << 48 | log.active.first_ordinal
    assert new_log(tmp_path).epoch == 3


def test_a_missing_segment_is_a_hole_and_the_rest_is_read(tmp_path):
    log = new_log(tmp_path)
    fill(log, 300, 500)
    gone = log.first.next
    span = (gone.first_ordinal, gone.first_ordinal + gone.count)
    os.unlink(gone.mapping.path)
    log = new_log(tmp_path)
    assert log.holes == [span]
    assert contents(log) == expected(0, span[0], 500) + expected(span[1], 300, 500)
    assert log.locate(span[0]).ordinal in (span[0], span[1])
    assert log.locate(span[0] + 1).ordinal == span[1]


def test_of_two_segments_with_the_same_records_one_is_set_aside(tmp_path):
    log = new_log(tmp_path / "log")
    fill(log, 1)
    shutil.copy(log.active.mapping.path, tmp_path / "log" / "5.seg")
    log = new_log(tmp_path / "log")
    assert contents(log) == expected(0, 1)
    assert log.damage.found_count == 1
    assert len(list((tmp_path / "damaged").iterdir())) == 1


def test_a_kill_between_sealing_and_the_next_segment_is_harmless(tmp_path):
    log = new_log(tmp_path)
    fill(log, 3)
    # sealed_count and sealed_bytes, as a roll stores them.
    overwrite(log.active.mapping.path, 40, struct.pack("<QQ", 3, log.active.tail))
    log = new_log(tmp_path)
    fill(log, 2)
    assert contents(new_log(tmp_path)) == expected(0, 5)


def test_positions_lead_to_their_records():
    log = new_log()
    fill(log, 400, 500)
    for ordinal in (0, 1, 129, 130, 131, 399):
        position = log.locate(ordinal)
        assert position.ordinal == ordinal
        assert contents(log, ordinal)[0] == (ordinal, body_of(ordinal, 500))
        noted = log.position_at(position.segment.number, position.offset, ordinal)
        assert (noted.segment, noted.offset, noted.ordinal) == (position.segment, position.offset, ordinal)
        here = position.segment.number
        for number, offset in [(1, 0), (here, position.offset + 8), (9, position.offset), (2, 1 << 40), (here, 1)]:
            noted = log.position_at(number, offset, ordinal)
            assert (noted.segment, noted.offset, noted.ordinal) == (position.segment, position.offset, ordinal)
    end = log.end_position()
    for position in (log.locate(400), log.locate(10_000), log.position_at(1, 2, 400)):
        assert (position.segment, position.offset, position.ordinal) == (end.segment, end.offset, 400)


def test_a_noted_position_that_lies_in_a_body_is_not_believed_whatever_the_body_has_there():
    log = new_log()
    log.append_message(1, bytes(4096), 0)
    number = log.first.number
    start = log.locate(0).offset
    for offset in range(start + 48, start + 4096, 8):
        assert log.position_at(number, offset, 0).offset == start


def test_dirty_ranges_are_the_records_appended_since_the_last_sync(tmp_path):
    log = new_log(tmp_path)
    fill(log, 200, 500)
    ranges, end = log.dirty_ranges()
    assert end == 200
    assert [(start, start + length) for _, start, length in ranges] == [(0, log.first.tail), (0, log.active.tail)]
    log.mark_synced(ranges, end)
    assert log.synced_end == 200
    assert log.dirty_ranges() == ([], 200)
    before = log.active.tail
    fill(log, 1, 500)
    ((segment, start, length),), end = log.dirty_ranges()
    assert segment is log.active
    assert start % 4096 == 0
    assert start <= before
    assert start + length == log.active.tail


def test_a_segment_recycled_during_a_sync_is_dirty_again(tmp_path):
    log = new_log(tmp_path)
    fill(log, 130, 500)
    ranges, end = log.dirty_ranges()
    former = log.first
    log.trim_below(log.end)
    fill(log, 130, 500)
    log.trim_below(log.end - 1)
    while log.active is not former:
        fill(log, 1, 500)
        log.trim_below(log.end - 1)
    log.mark_synced(ranges, end)
    assert former in [segment for segment, _, _ in log.dirty_ranges()[0]]


def test_the_size_counts_segments_and_spares():
    log = new_log()
    log.pool.add_spare(log.pool.new_segment(1 << 17))
    assert log.size_bytes() == (1 << 16) + (1 << 17)


def has_read_ahead(mapping):
    """Return whether the kernel reads ahead in a mapping. Source: proc(5), VmFlags: `rr` is MADV_RANDOM."""
    flags = None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.startswith(f"{mapping.address:x}-"):
            flags = ""
        elif flags == "" and line.startswith("VmFlags:"):
            flags = line
    assert flags, "it is mapped"
    return " rr" not in flags


@pytest.mark.slow
def test_the_active_segment_is_not_read_ahead_and_a_full_one_is(tmp_path):
    log = Log(Files(), str(tmp_path), MIB)
    small = log.active.mapping
    while log.active.file_bytes < MIB:
        fill(log, 1, 50_000)
    large = log.active
    assert has_read_ahead(small)
    assert not has_read_ahead(large.mapping)
    while log.active is large:
        fill(log, 1, 50_000)
    assert has_read_ahead(large.mapping)
    assert not has_read_ahead(log.active.mapping)
    log.check()


@pytest.mark.slow
def test_nothing_is_read_ahead_at_the_end_of_a_log_that_a_start_has_found(tmp_path):
    log = Log(Files(), str(tmp_path), MIB)
    while log.active.file_bytes < MIB:
        fill(log, 1, 50_000)
    number = log.active.number
    del log
    found = Log(Files(), str(tmp_path), MIB)
    assert found.active.number == number
    assert not has_read_ahead(found.active.mapping)
    assert has_read_ahead(found.first.mapping)
    while found.active.number == number:
        fill(found, 1, 50_000)
    found.check()
    assert not has_read_ahead(found.active.mapping)


@pytest.mark.slow
def test_nothing_is_read_ahead_at_the_end_of_a_log_that_was_idle(tmp_path):
    before = arena.mapped_max()
    log = Log(Files(), str(tmp_path / "log"), MIB)
    while log.active.file_bytes < MIB:
        fill(log, 1, 50_000)
    idle = log.active.mapping
    remapped = arena.remapped_count()
    try:
        # The fewest that may be mapped: many others are used until this one is unmapped.
        arena.configure(0)
        others = [Files().new_mapped(str(tmp_path / str(number)), 1 << 16, False) for number in range(200)]
        assert str(idle.path) not in Path("/proc/self/maps").read_text()
        fill(log, 1)
        assert arena.remapped_count() > remapped
        assert not has_read_ahead(idle)
    finally:
        arena.configure(before)
    del others
