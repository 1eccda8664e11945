"""Tests of pyqd.diskqueue.files."""

import errno
import fcntl
import os
import struct
from typing import Any

import pytest
from cffi import FFI

from pyqd.diskqueue import files as files_module
from pyqd.diskqueue.files import Files
from pyqd.hot.diskqueue.mapping import Mapping
from pyqd.primitives.errors import DiskFull, StorageError

# linux/fs.h
FS_IOC_FIEMAP = 0xC020660B

ffi = FFI()
ffi.cdef("int mincore(void *address, size_t length, unsigned char *present);")
mincore: Any = ffi.dlopen(None)


@pytest.fixture
def files():
    return Files()


@pytest.mark.parametrize("populate", [False, True])
def test_a_new_mapping_is_zeros_and_shares_its_file(files, tmp_path, populate):
    path = str(tmp_path / "new")
    mapping = files.new_mapped(path, 3 * 4096, populate)
    assert (mapping.size_bytes, mapping.path) == (3 * 4096, path)
    assert bytes(mapping.view()) == bytes(3 * 4096)
    mapping.view()[4097] = 9
    assert (tmp_path / "new").read_bytes()[4097] == 9
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.stat(path).st_blocks * 512 >= 3 * 4096
    assert os.listdir(tmp_path) == ["new"]


@pytest.mark.parametrize("populate", [False, True])
def test_anonymous_memory_has_no_path(files, populate):
    mapping = files.new_mapped(None, 8192, populate)
    assert mapping.path is None
    assert bytes(mapping.view()) == bytes(8192)
    files.sync(mapping, 0, 8192)


def test_an_existing_file_is_mapped_whole_and_shared(files, tmp_path):
    (tmp_path / "old").write_bytes(b"a" * 5000)
    mapping = files.open_mapped(str(tmp_path / "old"))
    assert bytes(mapping.view()) == b"a" * 5000
    mapping.view()[0] = ord("b")
    assert (tmp_path / "old").read_bytes()[0] == ord("b")


def test_a_mapping_outlives_the_removal_of_its_file_and_a_view_outlives_the_mapping(files, tmp_path):
    mapping = files.new_mapped(str(tmp_path / "new"), 4096, True)
    view = mapping.view()
    files.remove(str(tmp_path / "new"))
    del mapping
    view[:5] = b"alive"
    assert bytes(view[:5]) == b"alive"


def test_a_mapping_begins_on_a_page_and_is_made_once(files):
    for address in (0, 4097):
        with pytest.raises(ValueError, match="starts on a page"):
            Mapping(address, 4096)
    mapping = files.new_mapped(None, 4096, False)
    with pytest.raises(ValueError, match="holds a mapping already"):
        mapping.__init__(mapping.address, 4096)


def test_replacing_a_name_keeps_the_former_mapping(files, tmp_path):
    path = str(tmp_path / "file")
    former = files.new_mapped(path, 4096, True)
    former.view()[0] = 1
    other = files.new_mapped(path, 4096, True)
    assert (former.view()[0], other.view()[0]) == (1, 0)


def test_a_failed_reservation_leaves_no_file(files, tmp_path):
    with pytest.raises(StorageError) as caught:
        files.new_mapped(str(tmp_path / "huge"), 1 << 62, False)
    assert caught.value.operation == "reserve"
    assert os.listdir(tmp_path) == []


def test_a_file_half_made_by_a_killed_process_is_no_obstacle(files, tmp_path):
    (tmp_path / "file.making").write_bytes(b"x")
    mapping = files.new_mapped(str(tmp_path / "file"), 4096, False)
    assert bytes(mapping.view()) == bytes(4096)
    assert os.listdir(tmp_path) == ["file"]


def test_a_sync_writes_a_range_out(files, tmp_path):
    mapping = files.new_mapped(str(tmp_path / "new"), 8192, True)
    files.sync(mapping, 4096, 4096)
    files.sync(mapping, 0, 0)
    files.sync_directory(str(tmp_path))


def test_a_sync_that_the_kernel_refuses_is_an_error_of_storage(files, tmp_path, monkeypatch):
    mapping = files.new_mapped(str(tmp_path / "new"), 8192, True)
    # The kernel refuses ranges that do not begin with a page.
    monkeypatch.setattr(
        files_module,
        "_whole_pages",
        lambda mapping, start, length: (ffi.cast("void *", mapping.address + start), length),
    )
    with pytest.raises(StorageError) as caught:
        files.sync(mapping, 1, 10)
    assert (caught.value.operation, caught.value.errno) == ("sync", errno.EINVAL)


def test_a_small_file_is_replaced_whole(files, tmp_path):
    path = str(tmp_path / "small")
    files.write(path, b"one")
    files.write(path, b"two")
    assert files.read(path) == b"two"
    assert os.listdir(tmp_path) == ["small"]


def test_removing_a_missing_file_is_no_error(files, tmp_path):
    files.remove(str(tmp_path / "none"))
    files.remove_tree(str(tmp_path / "none"))
    files.make_directory(str(tmp_path / "made"))
    files.make_directory(str(tmp_path / "made"))
    files.write(str(tmp_path / "made" / "file"), b"x")
    assert files.list_directory(str(tmp_path / "made")) == ["file"]
    files.rename(str(tmp_path / "made" / "file"), str(tmp_path / "made" / "other"))
    assert files.exists(str(tmp_path / "made" / "other"))
    files.remove_tree(str(tmp_path / "made"))
    assert not files.exists(str(tmp_path / "made"))


def test_a_directory_is_removed_whole_while_others_remove_and_create_files_in_it(files, tmp_path, monkeypatch):
    directory = tmp_path / "directory"
    directory.mkdir()
    for name in "abc":
        (directory / name).write_bytes(b"")
    unlink, rmdir = os.unlink, os.rmdir
    called = []

    def unlink_after_another(path, **place):
        if "unlink" not in called:
            called.append("unlink")
            unlink(path, **place)
        unlink(path, **place)

    def rmdir_after_another(path, **place):
        if "rmdir" not in called:
            called.append("rmdir")
            (directory / "late").write_bytes(b"")
        rmdir(path, **place)

    monkeypatch.setattr(os, "unlink", unlink_after_another)
    monkeypatch.setattr(os, "rmdir", rmdir_after_another)
    files.remove_tree(str(directory))
    assert called == ["unlink", "rmdir"]
    assert os.listdir(tmp_path) == []


def test_a_directory_whose_files_come_again_and_again_is_a_storage_error(files, tmp_path, monkeypatch):
    (tmp_path / "directory").mkdir()

    def fail(path, **_place):
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)

    with monkeypatch.context() as patches:
        patches.setattr(os, "rmdir", fail)
        with pytest.raises(StorageError) as caught:
            files.remove_tree(str(tmp_path / "directory"))
    assert caught.value.errno == errno.ENOTEMPTY


@pytest.mark.parametrize(
    ("operation", "call"),
    [
        ("create", lambda files, path: files.new_mapped(path + "/no/file", 4096, False)),
        ("create", lambda files, path: files.make_directory(path + "/no/directory")),
        ("open", lambda files, path: files.open_mapped(path + "/none")),
        ("list", lambda files, path: files.list_directory(path + "/none")),
        ("read", lambda files, path: files.read(path + "/none")),
        ("write", lambda files, path: files.write(path + "/no/file", b"")),
        ("rename", lambda files, path: files.rename(path + "/none", path + "/other")),
        ("remove", lambda files, path: files.remove(path + "/directory")),
        ("remove", lambda files, path: files.remove_tree(path + "/empty")),
        ("sync", lambda files, path: files.sync_directory(path + "/none")),
    ],
)
def test_a_refusal_of_the_system_is_a_storage_error_that_names_the_operation(files, tmp_path, operation, call):
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "directory").mkdir()
    with pytest.raises(StorageError) as caught:
        call(files, str(tmp_path))
    assert caught.value.operation == operation
    assert str(tmp_path) in str(caught.value)


def test_a_file_in_a_moved_directory_is_a_storage_error(tmp_path):
    class Moving(Files):
        def rename(self, source, target):
            os.rename(tmp_path / "topic", tmp_path / "gone")
            super().rename(source, target)

    (tmp_path / "topic").mkdir()
    with pytest.raises(StorageError) as caught:
        Moving().new_mapped(str(tmp_path / "topic" / "new"), 4096, True)
    assert caught.value.errno == errno.ENOENT


# The patches end before pytest removes the directory, which was made before them.
def test_a_new_file_that_can_neither_be_made_nor_removed_is_a_storage_error(tmp_path, monkeypatch):
    def refuse(*_args):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "rename", refuse)
    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(StorageError) as caught:
        Files().new_mapped(str(tmp_path / "new"), 4096, True)
    assert caught.value.operation == "rename"
    with pytest.raises(StorageError) as caught:
        Files().write_mapped(Files().new_mapped(None, 4096, False), str(tmp_path / "new"))
    assert caught.value.operation == "rename"


@pytest.mark.parametrize("written", [[0], [2], [5], [0, 2, 5], list(range(0, 40, 2)), []])
def test_holes_anywhere_in_a_file_get_their_blocks_when_it_is_mapped(files, tmp_path, written):
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(40 * 4096 if len(written) > 3 else 6 * 4096)
        for page in written:
            os.pwrite(file.fileno(), b"page", page * 4096)
        os.fsync(file.fileno())
    assert path.stat().st_blocks * 512 < path.stat().st_size
    files.open_mapped(str(path))
    assert path.stat().st_blocks * 512 >= path.stat().st_size


def test_a_file_that_has_all_its_blocks_is_not_changed_by_mapping_it(files, tmp_path):
    path = tmp_path / "whole"
    files.sync(files.new_mapped(str(path), 16 * 4096, False), 0, 16 * 4096)
    with path.open("rb") as file:
        try:
            fcntl.ioctl(file, FS_IOC_FIEMAP, struct.pack("QQ16x", 0, 16 * 4096))
        except OSError:
            pytest.skip("the file system does not say which blocks a file has")
    os.utime(path, ns=(0, 0))
    before = path.stat()
    files.open_mapped(str(path))
    assert (path.stat().st_mtime_ns, path.stat().st_ctime_ns) == (before.st_mtime_ns, before.st_ctime_ns)


def test_a_file_that_was_restored_with_holes_has_all_its_blocks_when_it_is_mapped(files, tmp_path):
    path = tmp_path / "sparse"
    path.write_bytes(b"head")
    os.truncate(path, 100 * 4096)
    assert os.stat(path).st_blocks * 512 < 100 * 4096
    mapping = files.open_mapped(str(path))
    assert os.stat(path).st_blocks * 512 >= 100 * 4096
    assert bytes(mapping.view()) == b"head" + bytes(100 * 4096 - 4)


class NoRoom:
    """A C library whose fallocate(2) says that the disk is full."""

    def __init__(self, libc):
        self.libc = libc

    def __getattr__(self, name):
        return getattr(self.libc, name)

    def fallocate(self, fd, mode, start, length):
        ffi.errno = errno.ENOSPC
        return -1


@pytest.fixture
def no_room(monkeypatch):
    monkeypatch.setattr("pyqd.diskqueue.files._libc", NoRoom(files_module._libc))
    # It calls the C library by itself, and leaves it to step by step if that fails.
    monkeypatch.setattr("pyqd.diskqueue.files.map_existing", lambda path: None)


@pytest.mark.usefixtures("no_room")
def test_a_file_with_holes_is_not_mapped_on_a_full_disk(files, tmp_path):
    path = tmp_path / "sparse"
    path.write_bytes(b"head")
    os.truncate(path, 100 * 4096)
    with pytest.raises(DiskFull, match=r"failed to reserve .*sparse - No space left on device"):
        files.open_mapped(str(path))


@pytest.mark.usefixtures("no_room")
def test_a_file_with_reserved_blocks_is_mapped_on_a_full_disk_although_the_file_system_reports_no_space(
    files, tmp_path
):
    path = tmp_path / "whole"
    path.write_bytes(b"whole" * 4096)
    assert bytes(files.open_mapped(str(path)).view()) == b"whole" * 4096


def test_the_first_page_of_a_new_file_is_there_and_no_other(files, tmp_path):
    mapping = files.new_mapped(str(tmp_path / "new"), 1 << 20, False)
    mapping.view()[:8] = b"a header"
    present = ffi.new("unsigned char[]", (1 << 20) // 4096)
    assert mincore.mincore(ffi.cast("void *", mapping.address), 1 << 20, present) == 0
    assert [number for number, here in enumerate(present) if here & 1] == [0]


def test_dirtying_a_range_again_touches_only_its_pages_and_changes_no_byte(files, tmp_path):
    mapping = files.new_mapped(str(tmp_path / "new"), 8 * 4096, False)
    mapping.dirty_again(2 * 4096, 3 * 4096)
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        words = os.pread(pagemap.fileno(), 8 * 8, mapping.address // 4096 * 8)
    # A page that was never stored to is neither present nor swapped out.
    there = [int.from_bytes(words[at : at + 8], "little") >> 62 != 0 for at in range(0, 64, 8)]
    assert there == [False, False, True, True, True, False, False, False]
    mapping.view()[:] = body = os.urandom(8 * 4096)
    mapping.dirty_again(0, 8 * 4096)
    assert bytes(mapping.view()) == body
    mapping.dirty_again(8 * 4096, 0)


@pytest.mark.parametrize("wrong", [(1, 4096), (0, 4097), (8192, 1)])
def test_only_pages_of_the_mapping_are_made_dirty_again(files, wrong):
    with pytest.raises(ValueError, match="no range of pages"):
        files.new_mapped(None, 4096, True).dirty_again(*wrong)


@pytest.mark.parametrize("content", [b"short", b"longer than what was there"])
def test_a_small_file_is_overwritten_in_the_block_that_it_has(files, tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(b"what was there")
    before = path.stat()
    files.write_in_place(str(path), content)
    assert path.read_bytes() == content.ljust(4096)
    assert (path.stat().st_ino, path.stat().st_blocks) == (before.st_ino, before.st_blocks)
    with pytest.raises(StorageError):
        files.write_in_place(str(tmp_path / "missing"), content)


def test_a_small_file_is_overwritten_whole_despite_partial_writes(files, tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"what was there")
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, content, offset: pwrite(fd, content[:3], offset))
    files.write_in_place(str(path), b"what comes now")
    assert path.read_bytes() == b"what comes now".ljust(4096)


class Recording:
    """A C library that notes the ranges of its calls, and refuses those that do not begin with a page of 64 KiB."""

    def __init__(self, base):
        self.base = base
        self.ranges = []

    def madvise(self, address, length, advice):
        offset = int(ffi.cast("uintptr_t", address)) - self.base
        self.ranges.append((offset, length))
        return -1 if offset % (64 << 10) else 0

    msync = madvise


@pytest.mark.parametrize("call", ["sync", "read_in", "populate"])
def test_ranges_begin_with_a_page_of_the_kernel_where_its_pages_are_larger_than_ours(
    call, files, tmp_path, monkeypatch
):
    mapping = files.new_mapped(str(tmp_path / "file"), 1 << 20, False)
    library = Recording(mapping.address)
    monkeypatch.setattr(files_module, "KERNEL_PAGE_BYTES", 64 << 10)
    monkeypatch.setattr(files_module, "_libc", library)
    getattr(files, call)(mapping, (128 << 10) + 3 * 4096, 4096)
    assert set(library.ranges) == {(128 << 10, 4 * 4096)}
