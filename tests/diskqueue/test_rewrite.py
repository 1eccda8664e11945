"""Tests of pyqd.hot.diskqueue.rewrite, and of logs with rewritten segments."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyqd.diskqueue.files import Files
from pyqd.diskqueue.reliable_sync import ReliableSync
from pyqd.hot.diskqueue.log import Log
from pyqd.hot.diskqueue.logreader import LogReader
from pyqd.hot.diskqueue.rewrite import Rewrite
from pyqd.primitives.errors import CorruptionError, StorageError
from tests.support.examples import examples
from tests.support.rewritten import chain, gap, path_of, rewritten
from tests.support.storage import SEGMENT_HEADER_BYTES, body_of
from tests.support.structures import need

BODY_BYTES = 8 << 10
PER_SEGMENT = 7
KEPT = {2, 3, 5}


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "log"


def opened(directory, **options):
    return Log(Files(), str(directory), 1 << 16, **options)


def filled(directory, segments=3):
    log = opened(directory)
    for number in range(segments * PER_SEGMENT):
        log.append_message(number + 1, body_of(number, BODY_BYTES))
    return log


def content_of(segment):
    return Path(path_of(segment)).read_bytes()


def put(directory, log, count, kept, name="9.seg"):
    """Write a file that stands for the first segments of a log. Returns: its content."""
    content = rewritten([content_of(segment) for segment in chain(log)[:count]], kept)
    (directory / name).write_bytes(content)
    return content


def numbers_in(log, start=None):
    return [record[0] for record in log.records(start)]


@pytest.mark.parametrize("count", [1, 2])
def test_a_start_takes_the_rewritten_file_and_removes_those_that_it_stands_for(directory, count):
    log = filled(directory)
    replaced = [path_of(segment) for segment in chain(log)[:count]]
    put(directory, log, count, KEPT)
    for _ in range(2):
        log = opened(directory)
        assert (log.first.number, log.first.first_number, log.first.rewrites) == (count, 1, 1)
        assert (log.end, len(chain(log)), log.damage.found_count) == (21, 4 - count, 0)
        assert numbers_in(log) == [*sorted(KEPT), *range(count * PER_SEGMENT, 21)]
        assert [record[4] for record in log.records()][:3] == [body_of(number, BODY_BYTES) for number in sorted(KEPT)]
        assert not any(map(os.path.exists, replaced))
        log.check()


def test_a_start_whose_sync_fails_keeps_the_old_file_and_does_not_read_it(directory, monkeypatch):
    log = filled(directory)
    put(directory, log, 1, KEPT)
    former = path_of(log.first)

    def refuse(_self, path):
        raise OSError(5, "refused", path)

    with monkeypatch.context() as patched:
        patched.setattr(Files, "remove", refuse)
        with pytest.raises(OSError, match="refused"):
            opened(directory)
    assert numbers_in(opened(directory)) == [2, 3, 5, *range(7, 21)]
    assert not os.path.exists(former)


def test_a_place_inside_a_gap_is_that_of_the_gap(directory):
    log = filled(directory)
    put(directory, log, 1, KEPT)
    log = opened(directory)
    for ordinal in range(8):
        position = log.locate(ordinal)
        assert position.ordinal == ordinal
        assert numbers_in(log, ordinal)[0] == min(number for number in [2, 3, 5, 7] if number >= ordinal)
    assert log.locate(1).offset == log.locate(0).offset == SEGMENT_HEADER_BYTES
    assert log.locate(3).offset - log.locate(2).offset == BODY_BYTES + 48
    assert list(log.gaps(0)) == [(0, 2), (4, 5), (6, 7)]
    assert list(log.gaps(7)) == []


def test_readers_by_position_begin_behind_the_gaps(directory):
    log = filled(directory)
    put(directory, log, 1, KEPT)
    log = opened(directory)
    reader = LogReader(log)
    assert log.earliest == PER_SEGMENT
    assert [row[1] for row in reader.segments(log.earliest)] == [PER_SEGMENT, PER_SEGMENT]
    assert [reader.ordinal_of_guid(guid) for guid in range(1, 9)] == [None, None, 2, 3, None, 5, None, 7]
    assert [reader.ordinal_after_guid(guid) for guid in (3, 4, 6)] == [3, 5, 7]
    assert reader.ordinal_at(0) == 2
    data, count, following = reader.read_raw(5, 9, 1 << 20)
    assert (count, following) == (4, 9)
    assert gap(6, 1) in data


@pytest.mark.parametrize("which", ["a gap", "a record", "the last gap", "all"])
def test_damage_in_a_rewritten_segment_loses_no_other_record_and_moves_no_ordinal(directory, which):
    log = filled(directory)
    content = bytearray(put(directory, log, 1, KEPT))
    second = SEGMENT_HEADER_BYTES + 56
    ranges = {
        "a gap": (SEGMENT_HEADER_BYTES + 20, 4),
        "a record": (second + 100, 50),
        "the last gap": (second + 3 * (BODY_BYTES + 48) + 56 + 20, 4),
        "all": (SEGMENT_HEADER_BYTES, 3 * (BODY_BYTES + 48) + 3 * 56),
    }
    start, length = ranges[which]
    for offset in range(start, start + length):
        content[offset] ^= 0x55
    (directory / "9.seg").write_bytes(content)
    left = {"a record": [3, 5], "all": []}.get(which, [2, 3, 5])
    for _ in range(2):
        log = opened(directory)
        log.ready(log.first)
        assert numbers_in(log) == [*left, *range(7, 21)]
        assert log.end == 21
        assert [log.locate(ordinal).ordinal for ordinal in range(21)] == list(range(21))
        log.check()


@pytest.mark.parametrize("offset", [64, 72, 88])
def test_the_new_fields_of_a_header_are_in_its_checksum(directory, offset):
    log = filled(directory)
    content = bytearray(put(directory, log, 1, KEPT))
    os.remove(path_of(log.first))
    content[offset] ^= 1
    (directory / "9.seg").write_bytes(content)
    log = opened(directory)
    assert log.damage.found_count == 1
    assert numbers_in(log) == list(range(7, 21))


def test_a_count_that_is_damaged_is_found_by_the_next_segment(directory):
    log = filled(directory)
    content = bytearray(put(directory, log, 1, KEPT))
    content[44] = 1
    (directory / "9.seg").write_bytes(content)
    log = opened(directory)
    assert log.end == 21
    assert numbers_in(log) == [2, 3, 5, *range(7, 21)]


def test_a_log_whose_last_segment_is_rewritten_goes_on_in_another(directory):
    log = filled(directory, 2)
    put(directory, log, 1, KEPT)
    os.remove(path_of(chain(log)[1]))
    for number in range(7, 10):
        log = opened(directory)
        assert (log.end, log.earliest) == (number, 7)
        assert log.append_message(100, body_of(number, 1000)) == number
        assert log.earliest == 7
    log = opened(directory)
    assert numbers_in(log) == [2, 3, 5, 7, 8, 9]
    for number in range(10, 20):
        log.append_message(100, body_of(number, 1000))
    log.trim_below(20)
    # It is no spare: the others are larger.
    assert not any(spare.rewrites or spare.file_bytes < 1 << 16 for spare in log.pool.spares)
    assert numbers_in(opened(directory))[-1] == 19


# Rewriting.


def rewrite(log, segments, kept=()):
    """Return the rewriting of segments, done but for its last step."""
    rewrite = Rewrite(log, segments)
    for ordinal in kept:
        if rewrite.start <= ordinal < rewrite.end:
            need(rewrite, ordinal)
    rewrite.make(ReliableSync(log.files, "/nowhere"))
    return rewrite


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("kept", [set(), {0}, {20}, KEPT, {0, 6, 7, 13, 14}, set(range(21))])
def test_the_file_is_the_one_that_the_manual_describes(directory, count, kept):
    log = filled(directory, 4)
    expected = rewritten([content_of(segment) for segment in chain(log)[:count]], kept)
    replaced = [path_of(segment) for segment in chain(log)[:count]]
    made = rewrite(log, chain(log)[:count], kept)
    # Until then a kill finds nothing of it.
    assert numbers_in(opened(shutil.copytree(directory, directory.parent / "copy"))) == list(range(28))
    made.take_place()
    assert log.replaced_files == replaced
    assert content_of(log.first) == expected
    log.check()
    behind = count * PER_SEGMENT
    left = [*sorted(ordinal for ordinal in kept if ordinal < behind), *range(behind, 28)]
    assert numbers_in(log) == left
    assert numbers_in(opened(directory)) == left


def test_a_segment_is_rewritten_again_and_neighbours_become_one(directory):
    log = filled(directory, 4)
    first, second, *_ = chain(log)
    rewrite(log, [first], KEPT).take_place()
    rewrite(log, [second], {8}).take_place()
    first, second, *_ = chain(log)
    assert (first.rewrites, second.rewrites) == (1, 1)
    expected = rewritten([content_of(first), content_of(second)], {3}, 2)
    rewrite(log, [first, second], {3}).take_place()
    assert content_of(log.first) == expected
    assert (log.first.number, log.first.first_number, log.first.count) == (2, 1, 14)
    log.check()
    log = opened(directory)
    assert numbers_in(log) == [3, *range(14, 28)]
    log.trim_below(28)
    log.check()


def test_a_log_in_memory_is_rewritten_too():
    log = Log(Files(), None, 1 << 16)
    for number in range(3 * PER_SEGMENT):
        log.append_message(number + 1, body_of(number, BODY_BYTES))
    rewrite(log, chain(log)[1:2], {8, 9}).take_place()
    assert log.replaced_files == []
    assert numbers_in(log) == [*range(7), 8, 9, *range(14, 21)]
    log.check()


def test_a_record_larger_than_what_is_read_at_once(directory):
    log = opened(directory)
    for number, size in enumerate([100, 3 << 20, 1 << 20, 100, 2 << 20, 8]):
        log.append_message(number + 1, body_of(number, size))
    log.shrink()
    for segment in chain(log)[:-1]:
        rewrite(log, [segment], {0, 1, 4}).take_place()
    assert [(record[0], record[4]) for record in log.records()] == [
        (0, body_of(0, 100)),
        (1, body_of(1, 3 << 20)),
        (4, body_of(4, 2 << 20)),
    ]


@pytest.mark.parametrize("kept", [set(), {1}])
def test_a_damaged_record_ends_it_whether_it_is_finished_or_not(directory, kept):
    log = filled(directory)
    with open(path_of(log.first), "r+b") as file:
        file.seek(SEGMENT_HEADER_BYTES + BODY_BYTES + 48 + 100)
        file.write(b"damage")
    with pytest.raises(CorruptionError, match="a record is damaged"):
        rewrite(log, [log.first], kept)
    assert len(list(directory.iterdir())) == 3
    assert numbers_in(log) == list(range(21))


@pytest.mark.parametrize("failing", ["new_mapped", "sync", "rename", "read_range"])
def test_a_disk_that_fails_leaves_the_log_as_it_is(directory, monkeypatch, failing):
    log = filled(directory)
    before = sorted(directory.iterdir())

    def refuse(*_args):
        raise StorageError(failing, "file", 5, "Input/output error")

    made = Rewrite(log, [log.first])
    with monkeypatch.context() as patched:
        patched.setattr(Files, failing, refuse)
        with pytest.raises(StorageError):
            finish(made)
    made.discard()
    assert sorted(path for path in directory.iterdir() if path.suffix == ".seg") == before
    assert numbers_in(log) == list(range(21))
    log.check()


def finish(rewrite):
    rewrite.make(ReliableSync(rewrite.log.files, "/nowhere"))
    rewrite.take_place()


def test_it_is_not_current_once_a_segment_is_trimmed_or_damaged(directory):
    log = filled(directory, 4)
    made = rewrite(log, [log.first])
    assert made.is_current()
    log.trim_below(PER_SEGMENT)
    assert not made.is_current()
    made.discard()
    made = rewrite(log, [log.first])
    log.abandon()
    assert not made.is_current()


@settings(max_examples=examples(60))
@given(
    sizes=st.lists(st.integers(8, 9000), min_size=20, max_size=60),
    kept=st.sets(st.integers(0, 59)),
    fewer=st.sets(st.integers(0, 59)),
    start=st.integers(0, 3),
    count=st.integers(1, 4),
    lost=st.integers(0, 40_000),
)
def test_what_is_kept_is_there_and_nothing_else(sizes, kept, fewer, start, count, lost):
    with tempfile.TemporaryDirectory() as root:
        log = opened(Path(root) / "log")
        for number, size in enumerate(sizes):
            log.append_message(number + 1, body_of(number, size))
        left = set(range(len(sizes)))
        for wanted in (kept, kept & fewer):
            segments = [segment for segment in chain(log)[start : start + count] if segment.next is not None]
            if segments:
                made = rewrite(log, segments, wanted)
                made.take_place()
                left -= set(range(made.start, made.end)) - wanted
        bodies = [(number, body_of(number, sizes[number])) for number in sorted(left)]
        for each in (log, opened(Path(root) / "log")):
            each.check()
            assert each.end == len(sizes)
            assert [(record[0], record[4]) for record in each.records()] == bodies
            assert [each.locate(ordinal).ordinal for ordinal in range(len(sizes))] == list(range(len(sizes)))
            gone = {ordinal for low, high in each.gaps(0) for ordinal in range(low, high)}
            assert gone == set(range(len(sizes))) - left
        # Damage moves no ordinal, and brings nothing back.
        view = log.first.mapping.view()
        view[lost % log.first.tail : lost % log.first.tail + 3] = b"\0\0\0"
        # Damage of the log's last record would be its end.
        if lost % log.first.tail >= SEGMENT_HEADER_BYTES and log.first.next is not None:
            log = opened(Path(root) / "log")
            log.ready(log.first)
            assert log.end == len(sizes)
            assert {record[0] for record in log.records()} <= left
            assert len(left - {record[0] for record in log.records()}) <= 2
