"""The simulated disk and deaths keep and lose the right bytes: a simulator that loses nothing would find nothing."""

import errno
import gc
import os
import random
import socket

import pytest

from pyqd.hot.diskqueue import arena
from pyqd.primitives.errors import DiskFull, StorageError
from tests.simulation import deaths
from tests.simulation.disk import BROKEN, OPEN, REST, SYNC, Disk, Fault, SimulatedFiles
from tests.simulation.mirror import ROOT, Mirror

PATH = f"{ROOT}/file"
PAGE = 4096


@pytest.fixture
def disk():
    return Disk()


@pytest.fixture
def files(disk):
    files = SimulatedFiles(disk, deaths.library())
    yield files
    files.deaths.deaths_die()
    files.mappings.clear()
    files.deaths.deaths_forget()


def cut(disk, chance=0.0):
    disk.cut(random.Random(0), chance)
    return SimulatedFiles(disk, deaths.library())


def test_a_power_cut_keeps_synced_bytes_under_a_synced_name(disk, files):
    mapping = files.new_mapped(PATH, 2 * PAGE, False)
    mapping.view()[0] = 1
    files.sync(mapping, 0, PAGE)
    files.sync_directory(ROOT)
    mapping.view()[1] = 2
    mapping.view()[PAGE] = 3
    after = cut(disk)
    assert after.read(PATH)[:2] == b"\1\0"
    assert after.read(PATH)[PAGE] == 0


def test_a_power_cut_removes_a_file_if_its_directory_was_not_synced(disk, files):
    mapping = files.new_mapped(PATH, PAGE, False)
    files.sync(mapping, 0, PAGE)
    assert not cut(disk).exists(PATH)


def test_a_power_cut_may_keep_unsynced_bytes(disk, files):
    files.new_mapped(PATH, PAGE, False).view()[0] = 1
    assert cut(disk, chance=1.0).read(PATH)[0] == 1


def test_a_rename_between_directories_is_there_whole_or_not_at_all(disk, files):
    files.make_directory(f"{ROOT}/one")
    files.make_directory(f"{ROOT}/two")
    files.write(f"{ROOT}/one/file", b"x")
    for directory in (ROOT, f"{ROOT}/one"):
        files.sync_directory(directory)
    files.rename(f"{ROOT}/one/file", f"{ROOT}/two/file")
    files.sync_directory(f"{ROOT}/two")
    after = cut(disk)
    assert (after.exists(f"{ROOT}/one/file"), after.exists(f"{ROOT}/two/file")) == (False, True)


def test_a_kill_keeps_all_that_was_stored_before_it_and_nothing_after(disk, files):
    mapping = files.new_mapped(PATH, PAGE, False)
    mapping.view()[0] = 1
    files.deaths.deaths_die()
    mapping.view()[1] = 2
    with pytest.raises(StorageError):
        files.remove(PATH)
    after = SimulatedFiles(disk, deaths.library())
    assert after.read(PATH)[:2] == b"\1\0"


def test_a_death_comes_at_the_store_it_is_planned_for(disk, files):
    mapping = files.new_mapped(PATH, PAGE, False)
    view = mapping.view()
    files.deaths.deaths_arm(3)
    for index in range(5):
        view[index] = 1
    files.deaths.deaths_disarm()
    assert files.dead
    assert bytes(view[:5]) == b"\1\1\1\1\1"
    assert SimulatedFiles(disk, deaths.library()).read(PATH)[:5] == b"\1\1\0\0\0"


def test_a_write_after_death_is_seen_by_the_dead_alone(disk, files):
    mapping = files.new_mapped(PATH, PAGE, False)
    fd = files.open_for_writing(PATH)
    files.deaths.deaths_die()
    os.pwrite(fd, b"x", 0)
    os.close(fd)
    assert mapping.view()[0] == ord("x")
    assert SimulatedFiles(disk, deaths.library()).read(PATH)[0] == 0


def test_nothing_counts_as_sent_to_a_client_that_came_after_the_watch_began(files):
    here, there = socket.socketpair()
    with here, there:
        there.send(b"OK")
        files.deaths.deaths_watch_sockets(deaths.sockets_of([here.fileno()]), 1)
        files.deaths.deaths_die()
        assert files.deaths.deaths_sent(0) == 2
        files.deaths.deaths_forget()
        files.deaths.deaths_watch_sockets(deaths.sockets_of([]), 0)
        files.deaths.deaths_die()
        assert files.deaths.deaths_sent(0) == 0


def test_a_page_that_was_not_written_back_is_taken_for_clean(disk, files):
    mapping = files.new_mapped(PATH, PAGE, False)
    files.sync_directory(ROOT)
    mapping.view()[0] = 1
    files.fault = Fault(SYNC, 0)
    with pytest.raises(StorageError):
        files.sync(mapping, 0, PAGE)
    files.sync(mapping, 0, PAGE)
    assert cut(disk).read(PATH)[0] == 0


def test_a_page_made_dirty_again_is_written_by_the_next_sync(disk, files):
    mapping = files.new_mapped(PATH, PAGE, False)
    files.sync_directory(ROOT)
    mapping.view()[0] = 1
    files.fault = Fault(SYNC, 0)
    with pytest.raises(StorageError):
        files.sync(mapping, 0, PAGE)
    files.dirty_again(mapping, 0, PAGE)
    files.sync(mapping, 0, PAGE)
    assert cut(disk).read(PATH)[0] == 1


def test_a_full_disk_refuses_a_file_and_leaves_none(disk, files):
    disk.limit_pages = 1
    with pytest.raises(DiskFull):
        files.new_mapped(PATH, 2 * PAGE, False)
    assert disk.paths() == []
    assert disk.free_pages == 1


def test_the_space_of_a_removed_file_is_reclaimed(disk, files):
    files.new_mapped(PATH, 2 * PAGE, False)
    assert disk.used_pages == 2
    files.remove(PATH)
    assert disk.used_pages == 0


@pytest.mark.parametrize("is_durable", [False, True])
def test_others_take_the_space_of_a_removed_file_when_the_removal_is_durable(disk, files, is_durable):
    files.new_mapped(PATH, 2 * PAGE, False)
    files.sync_directory(ROOT)
    files.new_mapped(PATH + "2", 2 * PAGE, False)
    files.remove(PATH)
    if is_durable:
        files.sync_directory(ROOT)
    disk.fill(0)
    files = cut(disk)
    assert disk.paths() == [PATH + "2" if is_durable else PATH]
    assert disk.free_pages == (0 if is_durable else 2)
    disk.free()
    files.new_mapped(PATH + "3", 4 * PAGE, False)


def test_a_fault_is_of_the_calls_of_its_kind_and_passes(disk, files):
    files.fault = Fault(OPEN, 1)
    files.write(PATH, b"x")
    with pytest.raises(StorageError) as raised:
        files.read(PATH)
    assert raised.value.errno == errno.EMFILE
    assert files.read(PATH) == b"x"


@pytest.fixture
def few(disk):
    """Files of which few are mapped at a time."""
    # An extent of a removed file is never unmapped early. Hundreds that earlier tests left to the collector would be
    # looked at first, so these files would stay mapped.
    gc.collect()
    before = arena.mapped_max()
    arena.set_limits_for_tests(3, 6, silent=True)
    arena.configure(6)
    files = SimulatedFiles(disk, deaths.library())
    files.mirror = Mirror(disk.root)
    files.deaths.deaths_follow(*arena.hooks())
    yield files
    files.deaths.deaths_die()
    files.mappings.clear()
    files.deaths.deaths_forget()
    files.deaths.deaths_follow(0, 0, 0)
    arena.refuse(0, 0)
    arena.set_limits_for_tests(16, 32, silent=False)
    arena.configure(before)


def test_idle_files_are_unmapped_and_mapped_again(disk, few):
    mappings = [few.new_mapped(f"{PATH}{number}", PAGE, False) for number in range(20)]
    before = arena.remapped_count()
    for number, mapping in enumerate(mappings):
        mapping.view()[0] = number
    assert arena.remapped_count() > before
    assert [few.read(f"{PATH}{number}")[0] for number in range(20)] == list(range(20))


def test_a_file_that_cannot_be_mapped_again_is_a_kill(disk, few):
    mappings = [few.new_mapped(f"{PATH}{number}", PAGE, False) for number in range(20)]
    mappings[-1].view()[0] = 1
    arena.refuse(0, 2)
    mappings[0].view()[0] = 2
    assert few.dead
    mappings[-1].view()[1] = 3
    mappings[1].view()[0] = 4
    after = SimulatedFiles(disk, deaths.library())
    assert [after.read(f"{PATH}{number}")[:2] for number in (0, 1, 19)] == [b"\0\0", b"\0\0", b"\1\0"]


def test_a_store_is_counted_in_a_file_that_is_mapped_for_it(disk, few):
    mappings = [few.new_mapped(f"{PATH}{number}", PAGE, False) for number in range(20)]
    few.deaths.deaths_arm(3)
    for mapping in mappings[:5]:
        mapping.view()[0] = 1
    few.deaths.deaths_disarm()
    assert few.dead
    after = SimulatedFiles(disk, deaths.library())
    assert [after.read(f"{PATH}{number}")[0] for number in range(5)] == [1, 1, 0, 0, 0]


def test_a_small_file_may_be_written_in_part(disk):
    files = SimulatedFiles(disk, deaths.library(), in_parts=True)
    files.write(PATH, b"old")
    files.fault = Fault(REST, 0)
    with pytest.raises(DiskFull):
        files.write(PATH, b"x" * 1000)
    assert (disk.paths(), disk.used_pages) == ([PATH], 1)
    files.die_at = files.calls + 2
    with pytest.raises(StorageError):
        files.write(PATH, b"x" * 1000)
    files = SimulatedFiles(disk, deaths.library(), in_parts=True)
    assert files.read(PATH) == b"old"
    assert disk.paths() == [PATH, PATH + ".new"]
    files.fault = Fault(BROKEN, 0)
    with pytest.raises(StorageError):
        files.write_in_place(PATH, b"new")
    assert files.read(PATH) in (b"old", b"nld", b"ned", b"new")
