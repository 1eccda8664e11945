"""Due times of a topic's records: entries and their files, what a start finds, damage, and syncs."""

import bisect
import errno
import logging
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from pyqd.diskqueue.files import Files
from pyqd.diskqueue.space_limit import SpaceLimit
from pyqd.hot.diskqueue.dues import Dues
from pyqd.hot.diskqueue.log import Log
from pyqd.hot.primitives import crc32c
from pyqd.primitives.errors import DiskFull
from tests.persistence.stepping import states_of
from tests.support.due_log import EPOCH, DueLog, rows_of, walked
from tests.support.power import PowerFiles
from tests.support.rewritten import chain, path_of, rewritten
from tests.support.storage import SEGMENT_BYTES_MIN, FullFiles

ENTRY = struct.Struct("<IHBBQqQ")
HEADER = struct.Struct("<8sIIQQ32x")
FILE_BYTES_MIN = 64 << 10
FIRST_FILE_ENTRIES = (FILE_BYTES_MIN - HEADER.size) // ENTRY.size
LARGEST_FILE_ENTRIES = (16 * FILE_BYTES_MIN - HEADER.size) // ENTRY.size
# Behind this many, entries are in files of the largest size.
DOUBLED_ENTRIES = (15 * FILE_BYTES_MIN - 4 * HEADER.size) // ENTRY.size
PAGE_BYTES = 4096


def in_memory() -> Dues:
    return Dues(Files(), None, SpaceLimit())


def overwrite(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


@pytest.fixture
def topic(tmp_path: Path) -> DueLog:
    return DueLog(tmp_path / "topic")


@pytest.fixture(params=["files", "memory"])
def dues(request: pytest.FixtureRequest, tmp_path: Path) -> Dues:
    return in_memory() if request.param == "memory" else Dues(Files(), str(tmp_path / "dues"), SpaceLimit())


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_an_entry_has_the_sequence_number_the_due_time_and_the_place_of_its_record(topic):
    topic.publish()
    topic.publish(77)
    topic.publish(-5)
    content = (topic.path / "0").read_bytes()
    assert len(content) == FILE_BYTES_MIN
    magic, version, checksum, number, origin = HEADER.unpack_from(content)
    assert (magic, version, number, origin) == (b"PYQDDUE\0", 1, 0, 0)
    assert checksum == crc32c.value(memoryview(content)[16:32])
    offset = 128 + 56
    for index, due_ns in enumerate((77, -5)):
        at = HEADER.size + index * ENTRY.size
        seq = EPOCH << 48 | index + 1
        place = 1 << 32 | (offset + 56 * index) // 8
        assert ENTRY.unpack_from(content, at)[1:] == (0, 1, 0, seq, due_ns, place)
        assert ENTRY.unpack_from(content, at)[0] == crc32c.value(memoryview(content)[at + 4 : at + 24])
        assert topic.dues.rows()[index] == (seq, due_ns, 1, offset + 56 * index)
    assert not any(content[HEADER.size + 2 * ENTRY.size :])


def test_a_topic_without_due_times_has_no_directory_for_them(topic):
    topic.fill(3, every=5)
    assert topic.path.exists()
    other = DueLog(topic.directory.parent / "other")
    other.publish()
    other.reopen()
    assert not other.path.exists()
    assert other.dues.rows() == []


def test_files_double_and_entries_keep_their_indexes(dues):
    count = DOUBLED_ENTRIES + 2 * LARGEST_FILE_ENTRIES + 1
    assert [dues.add(3 * number, number + 1, number << 8) for number in range(count)] == list(range(count))
    dues.check()
    assert [row[:2] for row in dues.rows()] == [(3 * number, number + 1) for number in range(count)]
    assert dues.store.size_bytes == FILE_BYTES_MIN * (15 + 16 * 3)
    if dues.store.directory is not None:
        sizes = {int(name): os.stat(dues.store.path_of(int(name))).st_size for name in os.listdir(dues.store.directory)}
        assert sizes == {number: FILE_BYTES_MIN << min(number, 4) for number in range(7)}
    ordinals = [3 * number for number in range(count)]
    for ordinal in (0, 1, 2, 3, 6139, 3 * DOUBLED_ENTRIES - 1, 3 * DOUBLED_ENTRIES, 3 * count - 3, 3 * count - 2):
        assert dues.lower_bound(ordinal) == bisect.bisect_left(ordinals, ordinal)
    assert dues.lower_bound(2**48 - 1) == dues.end == count


def test_entries_whose_space_is_reserved_need_no_more(tmp_path):
    files = FullFiles()
    dues = Dues(files, str(tmp_path / "dues"), SpaceLimit())
    dues.reserve_files(4 * FIRST_FILE_ENTRIES)
    assert sorted(os.listdir(tmp_path / "dues")) == ["0", "1", "2"]
    files.room = 0
    for seq in range(4 * FIRST_FILE_ENTRIES):
        dues.add(seq, 1)
    dues.check()


def test_a_full_disk_refuses_space_and_changes_nothing(tmp_path):
    files = FullFiles()
    dues = Dues(files, str(tmp_path / "dues"), SpaceLimit())
    dues.add(5, 1)
    files.room = 1
    for _ in range(2):
        with pytest.raises(DiskFull):
            dues.reserve_files(20 * FIRST_FILE_ENTRIES)
    dues.check()
    assert dues.rows() == [(5, 1, 0, 0)]
    files.room = None
    dues.reserve_files(20 * FIRST_FILE_ENTRIES)
    assert dues.add(6, 2) == 1


def test_entries_that_are_taken_back_make_space_for_others(dues):
    dues.add(1, 1)
    dues.reserve_files(2 * FIRST_FILE_ENTRIES)
    for end in (FIRST_FILE_ENTRIES + 5, FIRST_FILE_ENTRIES, FIRST_FILE_ENTRIES - 1, 1, 0, 0):
        while dues.end < 2 * FIRST_FILE_ENTRIES:
            dues.add(dues.ordinal_end + 2, 7)
        kept = dues.rows()[:end]
        dues.take_back(end)
        dues.check()
        assert dues.rows() == kept
        assert dues.ordinal_end == (kept[-1][0] + 1 if kept else 0)
    assert dues.add(0, 9) == 0
    assert dues.rows() == [(0, 9, 0, 0)]


def test_entries_of_trimmed_records_go_with_their_file_and_the_last_file_stays(topic, caplog):
    topic.fill(3 * FIRST_FILE_ENTRIES)
    rows = rows_of(topic.dues)
    topic.log.trim_below(2 * FIRST_FILE_ENTRIES)
    assert FIRST_FILE_ENTRIES < topic.log.first.first_ordinal < 3 * FIRST_FILE_ENTRIES
    topic.dues.trim(topic.log.first.first_ordinal)
    topic.dues.check()
    assert topic.dues.first == FIRST_FILE_ENTRIES
    assert os.listdir(topic.path) == ["1"]
    assert rows_of(topic.dues) == rows[FIRST_FILE_ENTRIES:]
    assert topic.dues.lower_bound(0) == FIRST_FILE_ENTRIES
    topic.reopen()
    assert (topic.dues.first, rows_of(topic.dues)) == (FIRST_FILE_ENTRIES, rows[FIRST_FILE_ENTRIES:])
    topic.dues.trim(2**47)
    assert topic.dues.rows()
    topic.publish(5)
    topic.dues.check()
    assert warnings_in(caplog) == []


def test_a_file_whose_removal_a_power_failure_undid_is_removed_again(topic, caplog):
    topic.fill(4 * FIRST_FILE_ENTRIES + 50)
    topic.sync()
    shutil.copytree(topic.path, topic.directory / "before")
    rows = rows_of(topic.dues)
    topic.log.trim_below(topic.log.end)
    topic.dues.trim(topic.log.first.first_ordinal)
    first = topic.dues.first
    assert os.listdir(topic.path) == ["2"]
    shutil.copy(topic.directory / "before" / "0", topic.path / "0")
    topic.reopen(power_failed=True)
    assert os.listdir(topic.path) == ["2"]
    assert rows_of(topic.dues) == rows[first:]
    assert warnings_in(caplog) == []


@pytest.mark.parametrize("beyond", [1, 3, FIRST_FILE_ENTRIES])
def test_entries_of_records_that_did_not_become_valid_are_removed(topic, caplog, beyond):
    topic.fill(10, every=3)
    rows = rows_of(topic.dues)
    for number in range(beyond):
        topic.dues.add(topic.log.epoch << 48 | topic.log.end + number, 9)
    topic.reopen()
    assert rows_of(topic.dues) == rows
    topic.publish(4)
    topic.reopen()
    assert rows_of(topic.dues) == walked(topic.log)
    assert warnings_in(caplog) == []


def damage_entry(topic: DueLog) -> None:
    overwrite(topic.path / "0", HEADER.size + 7 * ENTRY.size + 17, b"\xff")


def damage_word(topic: DueLog) -> None:
    overwrite(topic.path / "1", HEADER.size + 7 * ENTRY.size, bytes(8))


def swap_entries(topic: DueLog) -> None:
    content = (topic.path / "0").read_bytes()
    overwrite(topic.path / "0", HEADER.size, content[96:128] + content[64:96])


def lose_end(topic: DueLog) -> None:
    at = HEADER.size + (topic.dues.end - FIRST_FILE_ENTRIES - 1) * ENTRY.size
    overwrite(topic.path / "1", at, bytes(ENTRY.size))


def lose_all(topic: DueLog) -> None:
    for path in topic.path.iterdir():
        path.unlink()


DAMAGES: dict[str, Callable[[DueLog], object]] = {
    "an entry": damage_entry,
    "a first word": damage_word,
    "order": swap_entries,
    "the last entry": lose_end,
    "a first page": lambda topic: overwrite(topic.path / "0", 0, bytes(PAGE_BYTES)),
    "a last first page": lambda topic: overwrite(topic.path / "1", 0, bytes(PAGE_BYTES)),
    "magic": lambda topic: overwrite(topic.path / "0", 0, b"X"),
    "version": lambda topic: overwrite(topic.path / "1", 8, b"\2"),
    "number": lambda topic: os.rename(topic.path / "1", topic.path / "2"),
    "origin": lambda topic: overwrite(topic.path / "1", 24, b"\1"),
    "size": lambda topic: os.truncate(topic.path / "1", FILE_BYTES_MIN),
    "all bytes": lambda topic: os.truncate(topic.path / "0", 0),
    "the first file": lambda topic: (topic.path / "0").unlink(),
    "the last file": lambda topic: (topic.path / "1").unlink(),
    "all files": lose_all,
    "the directory": lambda topic: shutil.rmtree(topic.path),
}


@pytest.mark.parametrize("power_failed", [False, True])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_if_files_are_damaged_all_entries_are_made_again_and_a_warning_tells_it(topic, caplog, damage, power_failed):
    topic.fill(FIRST_FILE_ENTRIES + 100)
    topic.sync()
    rows = topic.dues.rows()
    damage(topic)
    topic.reopen(power_failed)
    assert rows_of(topic.dues) == [row[:2] for row in rows]
    assert topic.log.damage.found_count == 0
    (warning,) = warnings_in(caplog)
    assert "made again from the records" in warning
    # The hints of `publish` are wrong for the first record of each segment but one.
    moved = sum(found != row for found, row in zip(topic.dues.rows(), rows, strict=True))
    assert moved == len(chain(topic.log)) - 1
    caplog.clear()
    topic.publish(3)
    topic.reopen()
    assert rows_of(topic.dues) == walked(topic.log)
    assert warnings_in(caplog) == []


def test_the_entries_of_records_that_the_log_has_lost_go(topic, caplog):
    topic.fill(30)
    topic.reopen()
    segment = chain(topic.log)[0]
    end = segment.tail
    overwrite(Path(path_of(segment)), end - 56 * 2, bytes(56 * 2))
    topic.reopen()
    assert topic.log.end == 28
    assert rows_of(topic.dues) == walked(topic.log)
    assert topic.dues.end == 28
    topic.publish(8)
    assert topic.dues.rows()[-1][0] >> 48 == topic.log.epoch
    topic.reopen()
    assert rows_of(topic.dues) == walked(topic.log)


def test_a_walk_passes_gaps_and_entries_of_records_in_gaps_may_stay(topic):
    topic.fill(3000, every=2)
    log_directory = topic.directory / "log"
    segments = chain(topic.log)[:2]
    end = segments[-1].first_ordinal + segments[-1].count
    kept = {10, 11, 12, end - 2}
    before = rows_of(topic.dues)
    content = rewritten([Path(path_of(segment)).read_bytes() for segment in segments], kept)
    for segment in segments:
        os.unlink(path_of(segment))
    (log_directory / "99.seg").write_bytes(content)
    topic.reopen()
    assert rows_of(topic.dues) == before
    shutil.rmtree(topic.path)
    topic.reopen()
    expected = [row for row in before if row[0] & 2**48 - 1 in kept or row[0] & 2**48 - 1 >= end]
    assert rows_of(topic.dues) == expected == walked(topic.log)
    topic.reopen()
    assert rows_of(topic.dues) == expected


def test_on_a_full_disk_missing_files_are_kept_in_memory_and_made_by_the_next_start(topic, caplog):
    topic.fill(100, every=3)
    rows = rows_of(topic.dues)
    shutil.rmtree(topic.path)
    topic.files = FullFiles()
    topic.files.room = 0
    topic.dues = topic.found()
    assert rows_of(topic.dues) == rows
    assert "kept in memory" in warnings_in(caplog)[-1]
    assert topic.dues.store.directory is None
    topic.publish(5)
    rows = rows_of(topic.dues)
    topic.files.room = None
    topic.reopen()
    assert rows_of(topic.dues) == rows
    assert os.listdir(topic.path) == ["0"]


def test_a_refused_directory_is_an_error_of_the_reservation(tmp_path):
    class Refusing(Files):
        def make_directory(self, path):
            raise DiskFull("create", path, errno.EDQUOT, "Disk quota exceeded")

    dues = Dues(Refusing(), str(tmp_path / "dues"), SpaceLimit())
    with pytest.raises(DiskFull):
        dues.reserve_files(1)
    assert (dues.end, dues.store.size_bytes) == (0, 0)


def dirty_numbers(dues: Dues) -> list[int]:
    return [file.number for file, _ in dues.store.dirty_files()]


def test_syncs_cover_the_entries_that_they_were_given(topic):
    assert dirty_numbers(topic.dues) == []
    topic.fill(10)
    gathered, change_count = topic.dues.store.dirty_files(), topic.dues.store.change_count
    topic.fill(1)
    topic.dues.store.note_synced(gathered, change_count)
    assert dirty_numbers(topic.dues) == [0]
    assert topic.dues.store.synced_change_count < topic.dues.store.change_count
    topic.fill(FIRST_FILE_ENTRIES)
    assert dirty_numbers(topic.dues) == [0, 1]
    topic.sync()
    assert dirty_numbers(topic.dues) == []
    topic.fill(1)
    assert dirty_numbers(topic.dues) == [1]
    topic.sync()
    assert topic.dues.store.synced_change_count == topic.dues.store.change_count


def test_files_of_entries_that_were_taken_back_are_synced(topic):
    topic.fill(FIRST_FILE_ENTRIES + 500)
    topic.sync()
    topic.dues.take_back(FIRST_FILE_ENTRIES + 400)
    assert dirty_numbers(topic.dues) == [1]
    gathered, change_count = topic.dues.store.dirty_files(), topic.dues.store.change_count
    topic.dues.take_back(FIRST_FILE_ENTRIES - 1)
    topic.dues.store.note_synced(gathered, change_count)
    assert dirty_numbers(topic.dues) == [0, 1]


def test_a_start_believes_what_an_earlier_run_has_synced_and_syncs_the_rest(topic):
    topic.fill(FIRST_FILE_ENTRIES + 10)
    topic.sync()
    topic.fill(10)
    topic.reopen()
    assert dirty_numbers(topic.dues) == [1]
    topic.sync()
    topic.reopen()
    assert dirty_numbers(topic.dues) == []


def test_the_next_file_is_made_ahead_once(tmp_path):
    asked: list[tuple[str, int]] = []
    directory = str(tmp_path / "dues")
    files = FullFiles()
    dues = Dues(files, directory, SpaceLimit(), lambda _store, *request: asked.append(request))
    assert dues.store.changed_directories() == []
    for seq in range(3 * FIRST_FILE_ENTRIES // 4 + 10):
        dues.add(seq, 1)
    ((path, size_bytes),) = asked
    assert size_bytes == 2 * FILE_BYTES_MIN
    dues.store.offer(files.new_mapped(path, size_bytes, True))
    files.room = 0
    for seq in range(dues.ordinal_end, 2 * FIRST_FILE_ENTRIES):
        dues.add(seq, 1)
    assert sorted(os.listdir(tmp_path / "dues")) == ["0", "1"]
    assert dues.store.changed_directories() == [directory, str(tmp_path)]
    assert len(asked) == 1
    dues.check()


def test_files_are_moved_with_their_topic_and_gone_with_it(topic):
    topic.fill(FIRST_FILE_ENTRIES + 1)
    moved = topic.directory.parent / "moved"
    os.rename(topic.path, moved)
    topic.dues.store.files_moved(str(moved))
    topic.dues.reserve_files(3 * FIRST_FILE_ENTRIES)
    assert sorted(os.listdir(moved)) == ["0", "1", "2"]
    end = topic.dues.end
    topic.dues.abandon()
    shutil.rmtree(moved)
    topic.dues.check()
    assert topic.dues.rows() == []
    assert topic.dues.store.size_bytes == 0
    assert topic.dues.add(2**40, 1) >= end
    topic.dues.check()


@pytest.mark.parametrize("seed", range(12))
def test_after_a_power_failure_the_entries_are_those_of_the_records_that_are_left(tmp_path, seed, caplog):
    chosen = random.Random(seed)
    (tmp_path / "disk").mkdir()
    files = PowerFiles(tmp_path / "disk", "boot", seed, chosen.choice([0.0, 0.3, 0.9]))
    topic = DueLog(tmp_path / "disk" / "t", files)
    files.sync_directory(str(tmp_path / "disk"))
    due_below_synced = 0
    for step in range(25):
        act = chosen.randrange(6)
        if act == 0:
            topic.sync()
            due_below_synced = topic.due_below
        elif act == 1:
            files.write_back()
        elif act == 2:
            # A batch that was dropped.
            end = topic.dues.end
            for number in range(chosen.choice([1, 50, 1500])):
                topic.dues.add(topic.log.epoch << 48 | topic.log.end + number, 5)
            topic.dues.take_back(end)
        else:
            for _ in range(chosen.choice([1, 30, 900])):
                topic.publish(chosen.choice([0, 100 + step]), bytes(chosen.randrange(1, 60)))
        if act != 0 and step % 5 == 4:
            copy = tmp_path / f"cut{step}"
            files.cut(copy)
            left = DueLog.__new__(DueLog)
            left.files, left.directory = Files(), copy / "t"
            left.synced_below = topic.synced_below
            left.due_below = chosen.choice([due_below_synced, topic.due_below])
            left.reopen(power_failed=True)
            assert left.log.end >= topic.synced_below
            assert rows_of(left.dues) == walked(left.log)
            left.publish(3)
            left.reopen()
            assert rows_of(left.dues) == walked(left.log)
    assert [text for text in warnings_in(caplog) if "made again" in text] == []
    files.close()


STEPPED = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="single steps of x86-64"),
]


def publish_one(topic: DueLog) -> None:
    topic.publish(7)


def drop_a_batch(topic: DueLog) -> None:
    end = topic.dues.end
    for number in range(5):
        topic.dues.add(topic.log.epoch << 48 | topic.log.end + number, 9)
    topic.dues.take_back(end)


def reopen(topic: DueLog) -> None:
    topic.reopen()


def reopen_damaged(topic: DueLog) -> None:
    damage_entry(topic)
    topic.reopen()


@pytest.mark.parametrize(
    ("before", "operation"),
    [
        pytest.param(before, operation, id=f"{operation.__name__} behind {before}", marks=STEPPED)
        for operation, befores in (
            (publish_one, (0, 20, FIRST_FILE_ENTRIES)),
            (drop_a_batch, (0, 20, FIRST_FILE_ENTRIES - 2)),
            (reopen, (20,)),
            (reopen_damaged, (20,)),
        )
        for before in befores
    ],
)
def test_a_kill_at_any_store_leaves_all_entries_of_the_records(topic, caplog, before, operation):
    topic.fill(before)
    if operation is reopen:
        for number in range(5):
            topic.dues.add(topic.log.epoch << 48 | topic.log.end + number, 9)
    seen = 0
    for state in states_of(topic.directory, lambda: operation(topic)):
        left = DueLog.__new__(DueLog)
        left.files, left.directory, left.synced_below = Files(), state, 0
        left.log = Log(left.files, str(state / "log"), SEGMENT_BYTES_MIN)
        # The state of the topic has it once the record is valid.
        left.due_below = max(topic.due_below, left.log.end if left.log.end > before else 0)
        left.dues = left.found()
        assert rows_of(left.dues) == walked(left.log)
        seen += 1
    assert seen > 1
    assert operation is reopen_damaged or warnings_in(caplog) == []
