"""Tests of pyqd.diskqueue.placeholders: a start on a full disk with missing files, and what becomes of these files."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyqd.diskqueue.files import Files
from pyqd.diskqueue.placeholders import Placeholders
from pyqd.hot.diskqueue.ledger import Ledger, set_limits_for_tests
from pyqd.hot.diskqueue.mapping import Mapping
from pyqd.primitives.errors import DiskFull, StorageError
from tests.support.storage import FullFiles, broker_on, run_all_wakes

NOW_NS = 10**18
COUNT = 5


class FullDisk(FullFiles):
    """A disk that may have no room for files and directories. may_map: files that are there can be mapped."""

    may_map = True

    @property
    def full(self) -> bool:
        return self.room == 0

    @full.setter
    def full(self, full: bool) -> None:
        self.room = 0 if full else None

    def make_directory(self, path: str) -> None:
        if self.full and not self.exists(path):
            raise DiskFull("create", path, errno.ENOSPC, "No space left on device")
        super().make_directory(path)

    def write_mapped(self, mapping: Mapping, path: str) -> None:
        if self.full:
            raise DiskFull("reserve", path, errno.ENOSPC, "No space left on device")
        super().write_mapped(mapping, path)


@pytest.fixture
def files() -> FullDisk:
    return FullDisk()


@pytest.fixture
def small_rings() -> Iterator[None]:
    former = set_limits_for_tests(64)
    yield
    set_limits_for_tests(*former)


def left_by_a_run(path: Path, *missing: str) -> None:
    """Have a killed run leave a topic with a channel and messages, without some of its files."""
    broker = broker_on(path)
    topic = broker.topic("t")
    topic.channel("c")
    for number in range(COUNT):
        topic.publish_body(b"%d" % number, NOW_NS)
    topic.publish_body(b"deferred", NOW_NS, 1 << 62)
    run_all_wakes(broker)
    for name in missing:
        os.unlink(path / "topics" / "t.topic" / name)


def finish(ledger: Any, count: int) -> None:
    for _ in range(count):
        ledger.note_handed_out()
        ledger.note_finished(ledger.cursor - 1)


MISSING = ["state", "c.channel/ledger"]


@pytest.mark.parametrize("missing", [*([name] for name in MISSING), MISSING], ids=lambda names: "+".join(names))
def test_a_start_without_space_for_missing_files_keeps_them_in_memory_until_there_is_space(
    tmp_path: Path, files: FullDisk, missing: list[str]
) -> None:
    left_by_a_run(tmp_path, *missing)
    directory = tmp_path / "topics" / "t.topic"
    files.full = True
    broker = broker_on(tmp_path, files)
    (channel,) = broker.topic("t").channels_by_name.values()
    assert (channel.depth, channel.deferred_count) == (COUNT, 1)
    assert sorted(broker.placeholders.paths) == sorted(str(directory / name) for name in missing)
    assert broker.health().startswith(f"NOK - the disk has no room for {broker.placeholders.paths[0]}")
    assert not broker.placeholders.settle()
    broker.topic("t").pause(True)
    finish(channel.ledger, 2)
    files.full = False
    assert broker.placeholders.settle()
    assert broker.health() == "OK"
    assert all((directory / name).stat().st_size > 0 for name in missing)
    assert broker.topic("t").names, "the names wait for a sync"
    finish(channel.ledger, 1)
    again = broker_on(tmp_path)
    assert not again.placeholders
    (channel,) = again.topic("t").channels_by_name.values()
    assert again.topic("t").paused
    assert (channel.depth, channel.deferred_count) == (COUNT - 3, 1)


def test_a_topic_with_only_a_directory_starts_on_a_full_disk_and_accepts_messages_once_there_is_space(
    tmp_path: Path, files: FullDisk
) -> None:
    (tmp_path / "topics").mkdir()
    broker_on(tmp_path).close()
    (tmp_path / "topics" / "t.topic").mkdir()
    files.full = True
    broker = broker_on(tmp_path, files)
    topic = broker.topic("t")
    with pytest.raises(StorageError):
        topic.publish_body(b"x", NOW_NS)
    files.full = False
    topic.publish_body(b"x", NOW_NS)
    topic.channel("c")
    assert not broker.placeholders
    assert str(tmp_path / "topics" / "t.topic") in topic.names.gather()
    assert broker_on(tmp_path).topic("t").channels_by_name["c"].depth == 1


def test_a_clean_stop_writes_as_many_stand_ins_as_fit(tmp_path: Path, files: FullDisk) -> None:
    left_by_a_run(tmp_path, "c.channel/ledger")
    files.full = True
    broker = broker_on(tmp_path, files)
    finish(broker.topic("t").channels_by_name["c"].ledger, 2)
    files.full = False
    broker.close()
    assert broker_on(tmp_path).topic("t").channels_by_name["c"].depth == COUNT - 2


def test_a_clean_stop_names_the_files_without_space(
    tmp_path: Path, files: FullDisk, caplog: pytest.LogCaptureFixture
) -> None:
    left_by_a_run(tmp_path, "c.channel/ledger")
    files.full = True
    broker_on(tmp_path, files).close()
    path = tmp_path / "topics" / "t.topic" / "c.channel" / "ledger"
    assert f"cannot write {path}: the disk is full" in caplog.text
    assert broker_on(tmp_path).topic("t").channels_by_name["c"].depth == COUNT


@pytest.mark.parametrize("what", ["topic", "channel"])
def test_the_stand_in_of_a_deleted_object_is_not_written(tmp_path: Path, files: FullDisk, what: str) -> None:
    left_by_a_run(tmp_path, "c.channel/ledger")
    files.full = True
    broker = broker_on(tmp_path, files)
    assert broker.delete_topic("t") if what == "topic" else broker.topic("t").delete_channel("c")
    assert broker.placeholders.settle()
    assert not list(tmp_path.glob("topics/*/c.channel"))


def test_a_deletion_takes_no_space(tmp_path: Path, files: FullDisk) -> None:
    broker = broker_on(tmp_path, files)
    broker.topic("t").channel("c")
    files.full = True
    assert broker.topic("t").delete_channel("c")
    assert broker.delete_topic("t")
    assert not list(tmp_path.glob("discarded/*"))


@pytest.mark.usefixtures("small_rings")
def test_a_ledger_that_has_grown_into_a_file_is_not_written_over(tmp_path: Path, files: FullDisk) -> None:
    placeholders = Placeholders(files)
    path = str(tmp_path / "ledger")
    files.full = True
    ledger = Ledger(files, path, placeholders)
    assert placeholders.paths == [path]
    files.full = False
    ledger.note_finished(1000)
    assert placeholders.settle()
    again = Ledger(files, path)
    assert again.has_finished(1000)
    assert os.listdir(tmp_path) == ["ledger"]


def test_a_new_ledger_of_a_running_broker_is_refused_on_a_full_disk(tmp_path: Path, files: FullDisk) -> None:
    files.full = True
    with pytest.raises(DiskFull):
        Ledger(files, str(tmp_path / "ledger"))


def test_memory_that_is_put_into_a_file_has_the_same_address_and_bytes(tmp_path: Path) -> None:
    files = Files()
    mapping = files.new_mapped(None, 3 * 4096, False)
    address, view = mapping.address, mapping.view()
    view[4096:4099] = b"abc"
    path = tmp_path / "file"
    files.write_mapped(mapping, str(path))
    assert (mapping.address, mapping.path, path.stat().st_size) == (address, str(path), 3 * 4096)
    assert path.stat().st_blocks * 512 >= 3 * 4096
    assert bytes(view[4096:4099]) == path.read_bytes()[4096:4099] == b"abc"
    view[0] = 7
    assert path.read_bytes()[0] == 7
    with pytest.raises(ValueError, match="only memory"):
        files.write_mapped(mapping, str(tmp_path / "another"))
    assert os.listdir(tmp_path) == ["file"]


def test_memory_stays_memory_if_its_file_cannot_be_renamed(tmp_path: Path) -> None:
    class Unnamed(Files):
        def rename(self, source: str, target: str) -> None:
            raise StorageError("rename", source, errno.EIO, "Input/output error")

    files = Unnamed()
    mapping = files.new_mapped(None, 4096, False)
    with pytest.raises(StorageError):
        files.write_mapped(mapping, str(tmp_path / "file"))
    assert mapping.path is None
    assert os.listdir(tmp_path) == []
