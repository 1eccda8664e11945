"""Tests of pyqd.diskqueue.reliable_sync: a sync that returns may be believed, whatever failed before or beside it."""

import errno
import threading

import pytest

from pyqd.diskqueue.files import Files
from pyqd.diskqueue.reliable_sync import ReliableSync, dirty_range
from pyqd.primitives.errors import DiskFull, StorageError
from tests.support.forgetful import ForgetfulFiles

SIZE_BYTES = 4 * 4096


@pytest.fixture
def files():
    return ForgetfulFiles()


@pytest.fixture
def syncs(files, tmp_path):
    return ReliableSync(files, str(tmp_path))


@pytest.fixture
def mapping(files, tmp_path):
    return files.new_mapped(str(tmp_path / "file"), SIZE_BYTES, True)


def test_failed_ranges_are_made_dirty_again_before_the_next_sync(files, syncs, mapping):
    files.failing = ["file"]
    with pytest.raises(StorageError):
        syncs.sync(*dirty_range(mapping, 0, SIZE_BYTES))
    syncs.sync(*dirty_range(mapping, 0, SIZE_BYTES))
    assert files.missing == set()
    assert mapping.failed_syncs == mapping.healed_syncs == 1


def test_ranges_gathered_before_a_failure_are_made_dirty_again_and_do_not_end_the_failure(files, syncs, mapping):
    before = dirty_range(mapping, 0, 4096)
    files.failing = ["file"]
    with pytest.raises(StorageError):
        syncs.sync(*dirty_range(mapping, 0, SIZE_BYTES))
    syncs.sync(*before)
    syncs.sync(mapping, 4096, 4096)
    assert (mapping.failed_syncs, mapping.healed_syncs) == (1, 0)
    syncs.sync(*dirty_range(mapping, 0, SIZE_BYTES))
    assert mapping.healed_syncs == 1
    assert files.missing == set()


@pytest.mark.slow
def test_one_sync_of_a_mapping_runs_at_a_time_and_others_beside_it(tmp_path):
    class Slow(Files):
        inside = threading.Event()
        overlapped = threading.Event()
        both = threading.Barrier(2)

        def sync(self, mapping, start_bytes, length_bytes):
            if start_bytes == 0:
                self.inside.set()
                self.both.wait(10)
                self.inside.clear()
            elif self.inside.is_set():
                self.overlapped.set()

    files = Slow()
    syncs = ReliableSync(files, str(tmp_path))
    mapping = files.new_mapped(str(tmp_path / "file"), SIZE_BYTES, True)
    other = files.new_mapped(str(tmp_path / "other"), SIZE_BYTES, True)
    first, second = (threading.Thread(target=syncs.sync, args=(mapping, start, 4096)) for start in (0, 4096))
    first.start()
    assert files.inside.wait(10)
    second.start()
    files.overlapped.wait(0.2)
    syncs.sync(other, 0, 4096)
    for thread in (first, second):
        thread.join(10)
        assert not thread.is_alive()
    assert not files.overlapped.is_set()


def test_after_a_failure_of_the_whole_file_system_each_file_is_synced_by_itself(files, syncs, mapping):
    assert syncs.sync_file_system([dirty_range(mapping, 0, SIZE_BYTES)])
    files.file_system_fails = True
    with pytest.raises(StorageError):
        syncs.sync_file_system([dirty_range(mapping, 0, SIZE_BYTES)])
    assert not syncs.sync_file_system([dirty_range(mapping, 0, SIZE_BYTES)])
    syncs.sync(*dirty_range(mapping, 0, SIZE_BYTES))
    assert not syncs.sync_file_system([])
    assert files.file_system_count == 2
    assert files.missing == set()


def test_a_sync_of_the_file_system_is_not_believed_of_a_file_that_failed_since_or_before(files, syncs, mapping):
    before = dirty_range(mapping, 0, SIZE_BYTES)
    files.failing = ["file"]
    with pytest.raises(StorageError):
        syncs.sync(*before)
    assert not syncs.sync_file_system([before])
    after = dirty_range(mapping, 0, SIZE_BYTES)
    assert not syncs.sync_file_system([after])
    syncs.sync(*after)
    assert not syncs.sync_file_system([before])
    assert syncs.sync_file_system([dirty_range(mapping, 0, SIZE_BYTES)])
    assert files.missing == set()


def test_a_failure_beside_a_sync_of_the_file_system_takes_its_word_away(tmp_path):
    class Beside(ForgetfulFiles):
        def sync_file_system(self, path):
            done = super().sync_file_system(path)
            self.failing = ["file"]
            with pytest.raises(StorageError):
                syncs.sync(*gathered)
            return done

    files = Beside()
    syncs = ReliableSync(files, str(tmp_path))
    mapping = files.new_mapped(str(tmp_path / "file"), SIZE_BYTES, True)
    gathered = dirty_range(mapping, 0, SIZE_BYTES)
    assert not syncs.sync_file_system([gathered])


def test_a_failure_on_a_full_disk_is_noted_for_the_next_process_until_a_clean_stop(
    files, tmp_path, mapping, monkeypatch
):
    syncs = ReliableSync(files, str(tmp_path))
    syncs.reserve_failure_note()
    assert not syncs.has_failure_note()

    def refuse(path):
        raise DiskFull("create", path, errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "make_directory", refuse)
    for _ in range(2):
        files.failing = ["file"]
        with pytest.raises(StorageError):
            syncs.sync(mapping, 0, SIZE_BYTES)
        assert ReliableSync(files, str(tmp_path)).has_failure_note()
        syncs.withdraw_failure_note()
        assert not ReliableSync(files, str(tmp_path)).has_failure_note()
