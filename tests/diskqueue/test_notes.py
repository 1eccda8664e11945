"""Notes of a channel: slots and their files, what a start finds, damage, and syncs."""

import errno
import os
from pathlib import Path

import pytest

from pyqd.diskqueue.files import Files
from pyqd.diskqueue.space_limit import SpaceLimit
from pyqd.hot.diskqueue.notes import KIND_DEFERRED, KIND_DELIVERED, Notes
from pyqd.primitives.errors import DiskFull
from tests.support.storage import FullFiles

NOTE_BYTES = 32
HEADER_BYTES = 64
FILE_BYTES_MIN = 64 << 10
FIRST_FILE_NOTES = (FILE_BYTES_MIN - HEADER_BYTES) // NOTE_BYTES


def notes_in(directory: Path | None, generation: int = 1, files: Files | None = None) -> Notes:
    if directory is not None:
        directory.mkdir(exist_ok=True)
    return Notes(files or Files(), None if directory is None else str(directory), SpaceLimit(), generation)


def found_in(directory: Path, generation: int = 1, power_failed: bool = False) -> tuple[Notes, list[str]]:
    """Return the notes that a start finds, and the damage."""
    notes = notes_in(directory, generation)
    problems = notes.load(power_failed)
    notes.check()
    return notes, problems


def overwrite(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


@pytest.fixture(params=["files", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "notes" if request.param == "files" else None


def test_a_note_is_stored_changed_and_removed(place):
    notes = notes_in(place)
    slot = notes.add(7, KIND_DEFERRED, 3, 1000, 99)
    assert notes.rows() == {slot: (7, KIND_DEFERRED, 3, 1000, 99)}
    notes.change(slot, KIND_DELIVERED, 4)
    assert notes.rows() == {slot: (7, KIND_DELIVERED, 4, 1000, 99)}
    notes.check()
    notes.free(slot)
    assert notes.rows() == {}
    assert notes.count == 0
    notes.check()
    assert notes.add(8, KIND_DELIVERED, 1) == slot


def test_files_double_and_slots_keep_their_numbers(place):
    notes = notes_in(place)
    slots = [notes.add(seq, KIND_DELIVERED, 1) for seq in range(33 * FIRST_FILE_NOTES)]
    assert len(set(slots)) == len(slots)
    assert 0 not in slots
    sizes = [FILE_BYTES_MIN << min(number, 4) for number in range(6)]
    assert notes.store.size_bytes == sum(sizes)
    if place is not None:
        assert sorted((int(path.name), path.stat().st_size) for path in place.iterdir()) == list(enumerate(sizes))
    notes.check()
    rows = notes.rows()
    assert all(rows[slot][0] == seq for seq, slot in enumerate(slots))


def test_a_file_without_notes_is_removed_and_its_number_used_again(tmp_path):
    directory = tmp_path / "notes"
    notes = notes_in(directory)
    slots = [notes.add(seq, KIND_DELIVERED, 1) for seq in range(2 * FIRST_FILE_NOTES)]
    assert sorted(os.listdir(directory)) == ["0", "1"]
    for slot in slots[:FIRST_FILE_NOTES]:
        notes.free(slot)
    assert os.listdir(directory) == ["1"]
    notes.check()
    again = [notes.add(seq, KIND_DELIVERED, 1) for seq in range(2 * FIRST_FILE_NOTES)]
    assert sorted(os.listdir(directory)) == ["0", "1"]
    assert not set(again) & set(slots[FIRST_FILE_NOTES:])
    notes.check()


def test_a_file_that_the_disk_does_not_remove_is_no_error_of_the_change(tmp_path):
    class Stubborn(Files):
        def remove(self, path):
            raise DiskFull("remove", path, errno.EDQUOT, "Disk quota exceeded")

    notes = notes_in(tmp_path / "notes", files=Stubborn())
    slots = [notes.add(seq, KIND_DELIVERED, 1) for seq in range(2 * FIRST_FILE_NOTES)]
    for slot in slots:
        notes.free(slot)
    assert notes.count == 0
    assert found_in(tmp_path / "notes")[0].rows() == {}


def test_a_full_disk_refuses_a_note_and_changes_nothing(tmp_path):
    files = FullFiles()
    notes = notes_in(tmp_path / "notes", files=files)
    slots = [notes.add(seq, KIND_DELIVERED, 1) for seq in range(FIRST_FILE_NOTES)]
    files.room = 0
    for _ in range(2):
        with pytest.raises(DiskFull):
            notes.add(1, KIND_DELIVERED, 1)
    notes.check()
    notes.free(slots[5])
    assert notes.add(1, KIND_DELIVERED, 1) == slots[5]


def test_a_start_finds_the_notes_in_any_order_of_questions(tmp_path):
    notes = notes_in(tmp_path / "notes")
    slots = {seq: notes.add(seq, KIND_DELIVERED, seq) for seq in range(999, 0, -1)}
    for seq in range(5, 1000, 5):
        notes.free(slots.pop(seq))
    notes, problems = found_in(tmp_path / "notes")
    assert problems == []
    assert notes.count == notes.found_count == len(slots)
    for seqs in (sorted(slots), sorted(slots, reverse=True), [2, 1, 5, 2, 0, 1000, 999]):
        assert [notes.find(seq) for seq in seqs] == [slots.get(seq, 0) for seq in seqs]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((KIND_DELIVERED, 2), (KIND_DEFERRED, 2), (KIND_DEFERRED, 2)),
        ((KIND_DEFERRED, 2), (KIND_DELIVERED, 2), (KIND_DEFERRED, 2)),
        ((KIND_DEFERRED, 2), (KIND_DELIVERED, 3), (KIND_DELIVERED, 3)),
        ((KIND_DELIVERED, 3), (KIND_DEFERRED, 2), (KIND_DELIVERED, 3)),
    ],
)
def test_of_two_notes_of_a_message_the_later_one_counts(tmp_path, first, second, expected):
    notes = notes_in(tmp_path / "notes")
    for seq in (4, 3):
        for kind, attempts in (first, second):
            notes.add(seq, kind, attempts, 50 if kind == KIND_DEFERRED else 0)
    notes, problems = found_in(tmp_path / "notes")
    assert problems == []
    assert sorted(row[:3] for row in notes.rows().values()) == [(3, *expected), (4, *expected)]


def test_notes_of_another_generation_do_not_count(tmp_path):
    directory = tmp_path / "notes"
    notes_in(directory, 3).add(1, KIND_DELIVERED, 1)
    notes, problems = found_in(directory, 4)
    assert (notes.rows(), problems, os.listdir(directory)) == ({}, [], [])


@pytest.mark.parametrize("power_failed", [False, True])
def test_a_damaged_note_is_dropped_and_told_unless_the_power_failed(tmp_path, power_failed):
    directory = tmp_path / "notes"
    notes = notes_in(directory)
    slots = [notes.add(seq, KIND_DELIVERED, 1) for seq in range(5)]
    overwrite(directory / "0", slots[2] * NOTE_BYTES + 9, b"\xff")
    overwrite(directory / "0", slots[3] * NOTE_BYTES + 5, b"\x09")
    notes, problems = found_in(directory, power_failed=power_failed)
    assert sorted(row[0] for row in notes.rows().values()) == [0, 1, 4]
    assert problems == ([] if power_failed else [f"{directory}/0: 2 notes are damaged"])
    assert found_in(directory)[1] == []


@pytest.mark.parametrize("content", [b"\0" * FILE_BYTES_MIN, b"\0" * 64 + b"\1" * (FILE_BYTES_MIN - 64)])
def test_a_file_without_a_header_has_no_notes(tmp_path, content):
    directory = tmp_path / "notes"
    directory.mkdir()
    (directory / "0").write_bytes(content)
    notes, problems = found_in(directory)
    assert (notes.rows(), problems, os.listdir(directory)) == ({}, [], [])


@pytest.mark.parametrize(
    ("offset", "content"), [(0, b"X"), (8, b"\2"), (12, b"\1"), (16, b"\7"), (24, b"\7"), (None, b"")]
)
def test_a_file_that_is_damaged_or_of_a_later_format_is_set_aside(tmp_path, offset, content):
    directory = tmp_path / "notes"
    notes = notes_in(directory)
    notes.add(1, KIND_DELIVERED, 1)
    if offset is None:
        os.truncate(directory / "0", 4096)
    else:
        overwrite(directory / "0", offset, content)
    notes, problems = found_in(directory)
    assert notes.rows() == {}
    assert len(problems) == 1
    assert os.listdir(directory) == ["0.bad"]
    notes.add(1, KIND_DELIVERED, 1)
    assert len(found_in(directory)[0].rows()) == 1


def test_the_next_file_is_made_ahead_once(tmp_path):
    asked: list[tuple[str, int]] = []
    directory = tmp_path / "notes"
    directory.mkdir()
    files = FullFiles()
    notes = Notes(files, str(directory), SpaceLimit(), 1, prepare=lambda _notes, *request: asked.append(request))
    slots = [notes.add(seq, KIND_DELIVERED, 1) for seq in range(3 * FIRST_FILE_NOTES // 4 + 10)]
    ((path, size_bytes),) = asked
    assert size_bytes == 2 * FILE_BYTES_MIN
    notes.store.offer(files.new_mapped(path, size_bytes, True))
    assert notes.store.size_bytes == 3 * FILE_BYTES_MIN
    files.room = 0
    slots += [notes.add(len(slots) + index, KIND_DELIVERED, 1) for index in range(FIRST_FILE_NOTES)]
    assert sorted(os.listdir(directory)) == ["0", "1"]
    notes.check()
    assert len(found_in(directory)[0].rows()) == len(slots)
    assert len(asked) == 1


def test_a_file_made_ahead_that_comes_late_is_of_no_use_or_the_next_one(tmp_path):
    asked: list[tuple[str, int]] = []
    directory = tmp_path / "notes"
    directory.mkdir()
    files = Files()
    notes = Notes(files, str(directory), SpaceLimit(), 1, prepare=lambda _notes, *request: asked.append(request))
    for seq in range(2 * FIRST_FILE_NOTES):
        notes.add(seq, KIND_DELIVERED, 1)
    notes.store.offer(files.new_mapped(*asked[0], True))
    for seq in range(2 * FIRST_FILE_NOTES):
        notes.add(seq, KIND_DELIVERED, 1)
    notes.check()
    assert sorted(os.listdir(directory)) == ["0", "1", "2"]
    notes.store.offer(None)


def test_another_generation_drops_all_notes_and_their_files_later(place):
    notes = notes_in(place, 1)
    dropped = [notes.add(seq, KIND_DELIVERED, 1) for seq in range(2 * FIRST_FILE_NOTES)]
    notes.begin_generation(2)
    notes.check()
    assert notes.rows() == {}
    slot = notes.add(1, KIND_DELIVERED, 1)
    if place is None:
        assert notes.store.size_bytes == FILE_BYTES_MIN
        return
    assert slot not in dropped
    assert sorted(os.listdir(place)) == ["0", "1", "2"]
    gathered = notes.dropped_files()
    notes.begin_generation(3)
    notes.remove_dropped(gathered)
    assert os.listdir(place) == ["2"]
    notes.remove_dropped(notes.dropped_files())
    assert os.listdir(place) == []
    assert notes.store.size_bytes == 0
    notes.add(1, KIND_DELIVERED, 1)
    notes.check()


def test_a_power_failure_brings_back_a_generation_whose_files_are_there(tmp_path):
    directory = tmp_path / "notes"
    notes = notes_in(directory, 1)
    notes.add(1, KIND_DELIVERED, 1)
    notes.begin_generation(2)
    notes.add(2, KIND_DELIVERED, 1)
    notes, problems = found_in(directory, 1, power_failed=True)
    assert ([row[0] for row in notes.rows().values()], problems) == ([1], [])
    assert os.listdir(directory) == ["0"]


def test_for_a_lost_ledger_the_newest_generation_counts(tmp_path):
    directory = tmp_path / "notes"
    notes = notes_in(directory, 4)
    notes.add(1, KIND_DELIVERED, 1)
    notes.begin_generation(5)
    notes.add(2, KIND_DELIVERED, 1)
    notes = notes_in(directory, 1)
    assert notes.load(False, True) == []
    assert ([row[0] for row in notes.rows().values()], notes.generation) == ([2], 5)


def test_found_notes_that_nothing_asks_for_are_removed(tmp_path):
    directory = tmp_path / "notes"
    notes = notes_in(directory)
    slots = [notes.add(seq, KIND_DELIVERED, 1) for seq in range(10)]
    notes, _ = found_in(directory)
    assert notes.found_slots() == slots
    for seq in (4, 7):
        assert notes.find(seq) == slots[seq]
    notes.end_recovery()
    notes.check()
    assert sorted(row[0] for row in notes.rows().values()) == [4, 7]


def test_syncs_cover_the_changes_that_they_were_given(tmp_path):
    notes = Notes(Files(), str(tmp_path / "notes"), SpaceLimit(), 1)
    slots = [notes.add(seq, KIND_DELIVERED, 1) for seq in range(FIRST_FILE_NOTES + 1)]
    assert [file.number for file, _ in notes.store.dirty_files()] == [0, 1]
    gathered, change_count = notes.store.dirty_files(), notes.store.change_count
    notes.change(slots[0], KIND_DELIVERED, 2)
    notes.store.note_synced(gathered, change_count)
    assert [file.number for file, _ in notes.store.dirty_files()] == [0]
    assert notes.store.synced_change_count < notes.store.change_count
    notes.store.note_synced(notes.store.dirty_files(), notes.store.change_count)
    assert notes.store.dirty_files() == []
    assert notes.store.synced_change_count == notes.store.change_count
    notes.free(slots[-1])
    assert [file.number for file, _ in notes.store.dirty_files()] == [1]


def test_names_of_files_that_come_or_go_during_a_sync_are_covered_by_the_next(tmp_path):
    directory = tmp_path / "notes"
    directories = [str(directory), str(tmp_path)]
    notes = Notes(Files(), str(directory), SpaceLimit(), 1)
    slots = [notes.add(seq, KIND_DELIVERED, 1) for seq in range(FIRST_FILE_NOTES + 1)]
    assert notes.store.changed_directories() == directories
    change_count = notes.store.change_count
    for slot in slots[:-1]:
        notes.free(slot)
    notes.store.note_synced([], change_count)
    assert notes.store.changed_directories() == directories
    notes.store.note_synced([], notes.store.change_count)
    assert notes.store.changed_directories() == []


def test_a_start_lets_the_next_sync_cover_the_files_that_it_found(tmp_path):
    directory = tmp_path / "notes"
    notes_in(directory).add(1, KIND_DELIVERED, 1)
    notes, _ = found_in(directory)
    assert [file.number for file, _ in notes.store.dirty_files()] == [0]
    assert notes.store.changed_directories() == [str(directory), str(tmp_path)]
