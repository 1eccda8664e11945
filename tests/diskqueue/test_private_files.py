"""Tests of pyqd.diskqueue.private_files."""

import os

import pytest

from pyqd.diskqueue.files import Files
from pyqd.diskqueue.private_files import PrivateFiles
from pyqd.hot.diskqueue.log import Log
from pyqd.primitives.errors import CorruptionError, StorageError
from tests.support.nsqd_data import snapshot
from tests.support.storage import SEGMENT_BYTES_MIN
from tests.support.unreadable import make_unreadable


@pytest.fixture
def files(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "f").write_bytes(b"content")
    return PrivateFiles()


def test_every_change_is_seen_by_these_files_and_by_no_other(files, tmp_path):
    root = str(tmp_path)
    before = snapshot(tmp_path)
    files.make_directory(f"{root}/b")
    files.write(f"{root}/b/new", b"written")
    files.new_mapped(f"{root}/b/mapped", 4096, True).view()[:3] = b"abc"
    files.overwrite(f"{root}/a/f", 1, b"O")
    files.rename(f"{root}/b/new", f"{root}/a/renamed")
    assert sorted(files.list_directory(root)) == ["a", "b"]
    assert sorted(files.list_directory(f"{root}/a")) == ["f", "renamed"]
    assert files.list_directory(f"{root}/b") == ["mapped"]
    assert (files.read(f"{root}/a/f"), files.read(f"{root}/a/renamed")) == (b"cOntent", b"written")
    assert (files.read_range(f"{root}/b/mapped", 1, 2), files.size_of(f"{root}/b/mapped")) == (b"bc", 4096)
    assert files.is_directory(f"{root}/b")
    assert not files.exists(f"{root}/b/new")
    files.remove(f"{root}/a/f")
    assert not files.exists(f"{root}/a/f")
    with pytest.raises(StorageError, match="No such file"):
        files.read(f"{root}/a/f")
    files.remove_tree(f"{root}/a")
    assert files.list_directory(root) == ["b"]
    assert snapshot(tmp_path) == before
    assert os.listdir(tmp_path) == ["a"]
    files.forget_changes(root)
    assert files.read(f"{root}/a/f") == b"content"


def test_a_moved_directory_keeps_its_files(files, tmp_path):
    files.write(f"{tmp_path}/a/new", b"written")
    files.rename(f"{tmp_path}/a", f"{tmp_path}/moved")
    assert not files.exists(f"{tmp_path}/a/f")
    assert files.read(f"{tmp_path}/moved/f") == b"content"
    assert files.read(f"{tmp_path}/moved/new") == b"written"
    assert sorted(files.list_directory(f"{tmp_path}/moved")) == ["f", "new"]


def test_stores_into_mapped_files_stay_in_memory(files, tmp_path):
    log = Log(files, f"{tmp_path}/log", SEGMENT_BYTES_MIN)
    assert os.listdir(tmp_path) == ["a"]
    log.append_message(1, b"x")
    (tmp_path / "1.seg").write_bytes(bytes(8192))
    for path in (f"{tmp_path}/1.seg", f"{tmp_path}/a/f"):
        files.open_mapped(path).view()[:4] = b"mine"
        assert files.read_range(path, 0, 4) == b"mine"
        assert files.open_mapped(path) is files.open_mapped(path)
    assert (tmp_path / "1.seg").read_bytes() == bytes(8192)
    assert (tmp_path / "a" / "f").read_bytes() == b"content"


@pytest.mark.parametrize("name", ["empty", "empty.seg"])
def test_an_empty_file_is_damaged(files, tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(CorruptionError, match="the file is empty"):
        files.open_mapped(f"{tmp_path}/{name}")


def test_segments_that_another_process_reuses_or_removes_are_noticed(files, tmp_path):
    log = Log(PrivateFiles(), str(tmp_path / "none"), SEGMENT_BYTES_MIN)
    log.append_message(1, b"x")
    content = bytes(log.first.mapping.view())
    paths = [tmp_path / "log" / f"{number}.seg" for number in (1, 2)]
    paths[0].parent.mkdir()
    for path, change in zip(paths, (paths[0].unlink, lambda: paths[1].write_bytes(bytes(4096))), strict=True):
        path.write_bytes(content)
        files.open_mapped(str(path))
        assert files.is_unchanged(str(path))
        change()
        assert not files.is_unchanged(str(path))
    assert not files.is_unchanged(str(tmp_path / "log"))
    files.forget_changes(str(tmp_path / "log"))
    assert files.is_unchanged(str(tmp_path / "log"))


def test_an_unreadable_page_is_damage(files, tmp_path):
    log = Log(Files(), f"{tmp_path}/log", SEGMENT_BYTES_MIN)
    for number in range(20):
        log.append_message(number + 1, bytes(1000))
    (path,) = (tmp_path / "log").iterdir()
    before = snapshot(tmp_path)
    make_unreadable(files.open_mapped(str(path)), 2)
    found = Log(files, f"{tmp_path}/log", SEGMENT_BYTES_MIN)
    assert 10 < len(list(found.records())) < 18
    assert [problem.split(" at ")[0] for problem in files.problems] == [f"{path}: damaged record"]
    assert snapshot(tmp_path) == before
