"""Tests of pyqd.hot.diskqueue.segment."""

import os
import struct
from pathlib import Path

import pytest

from pyqd.diskqueue.files import Files
from pyqd.hot.diskqueue.log import Log
from pyqd.hot.diskqueue.segment import Segment, segment_identity
from pyqd.hot.primitives import crc32c
from pyqd.primitives.errors import CorruptionError, LaterFormatError, StorageError


def only_file(directory):
    (path,) = directory.glob("*.seg")
    return path


def test_a_new_segment_is_a_spare_without_records():
    segment = Segment(Files().new_mapped(None, 1 << 16, False))
    assert (segment.number, segment.count, segment.tail, segment.next) == (0, 0, 128, None)
    assert segment.capacity_bytes == 1 << 16


def test_a_mapping_too_small_for_a_header_is_no_segment(tmp_path):
    (tmp_path / "short").write_bytes(bytes(128))
    with pytest.raises(CorruptionError, match="shorter than a segment's header"):
        Segment(Files().open_mapped(str(tmp_path / "short")))


@pytest.mark.parametrize(
    ("offset", "detail"),
    [(0, "not a pyqd segment"), (12, "checksum"), (16, "checksum"), (24, "checksum")],
)
def test_a_file_with_a_damaged_header_is_set_aside_whole(tmp_path, caplog, offset, detail):
    directory = tmp_path / "log"
    log = Log(Files(), str(directory), 1 << 16)
    log.append_message(1, b"body")
    path = only_file(directory)
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x40
    path.write_bytes(content)
    log = Log(Files(), str(directory), 1 << 16)
    assert (log.end, log.epoch, log.damage.found_count) == (0, 1, 1)
    assert detail in caplog.text
    assert (tmp_path / "damaged" / path.name).read_bytes() == content


@pytest.mark.parametrize("version", [3, 4, 6, 7])
def test_a_file_of_a_later_version_is_refused_and_not_touched(tmp_path, version):
    log = Log(Files(), str(tmp_path), 1 << 16)
    log.append_message(1, b"body")
    path = only_file(tmp_path)
    content = bytearray(path.read_bytes())
    content[8:16] = struct.pack("<II", version, crc32c.value(struct.pack("<Q", version) + content[16:40]))
    path.write_bytes(content)
    with pytest.raises(LaterFormatError, match=f"format version {version}"):
        Log(Files(), str(tmp_path), 1 << 16)
    assert path.read_bytes() == content


@pytest.mark.parametrize("version", [0, 1, 3, 255])
def test_a_damaged_version_of_a_segment_is_told_by_the_checksum_and_reported(tmp_path, version):
    log = Log(Files(), str(tmp_path / "log"), 1 << 16)
    log.append_message(1, b"body")
    path = only_file(tmp_path / "log")
    content = bytearray(path.read_bytes())
    content[8] = version
    path.write_bytes(content)
    log = Log(Files(), str(tmp_path / "log"), 1 << 16)
    assert [body for *_, body in log.records()] == [b"body"]
    assert (log.damage.found_count, log.damage.lost_count) == (1, 0)


def test_a_sealed_segment_that_was_cut_is_read_as_far_as_it_goes(tmp_path):
    log = Log(Files(), str(tmp_path / "log"), 1 << 16)
    for guid in range(1, 4):
        log.append_message(guid, bytes([guid]) * 30_000)
    first = log.first.mapping.path
    assert first is not None
    assert log.first is not log.active
    with open(first, "r+b") as file:
        file.truncate(40_000)
    log = Log(Files(), str(tmp_path / "log"), 1 << 16)
    assert [record[4][:1] for record in log.records()] == [b"\1", b"\3"]
    assert log.damage.lost_count == 1


def test_a_spare_left_by_an_earlier_run_is_used_again(tmp_path):
    log = Log(Files(), str(tmp_path), 1 << 16)
    log.pool.add_spare(log.pool.new_segment(1 << 16))
    names = {path.name for path in tmp_path.iterdir()}
    assert len(names) == 2
    log = Log(Files(), str(tmp_path), 1 << 16)
    assert len(log.pool.spares) == 1
    for guid in range(1, 4):
        log.append_message(guid, b"x" * 30_000)
    assert {path.name for path in tmp_path.iterdir()} == names


class Noting(Files):
    """Record the synced ranges; fail on request."""

    def __init__(self):
        self.synced = []
        self.failing = False

    def sync(self, mapping, start_bytes, length_bytes):
        self.synced.append((mapping.path, start_bytes, length_bytes))
        if self.failing:
            raise StorageError("sync", mapping.path, 5, "Input/output error")
        super().sync(mapping, start_bytes, length_bytes)


def log_with_a_drained_segment(directory):
    log = Log(Files(), str(directory), 1 << 16)
    for guid in range(1, 4):
        log.append_message(guid, b"x" * 30_000)
    log.trim_below(log.end - 1)
    (spare,) = log.pool.spares
    return spare.mapping.path


def test_a_spare_found_at_a_start_is_one_on_stable_storage_before_it_is_used(tmp_path):
    path = log_with_a_drained_segment(tmp_path)
    files = Noting()
    log = Log(files, str(tmp_path), 1 << 16)
    assert [spare.mapping.path for spare in log.pool.spares] == [path]
    assert files.synced == [(path, 0, 4096)]


def test_a_spare_found_at_a_start_that_cannot_be_synced_is_removed(tmp_path):
    path = log_with_a_drained_segment(tmp_path)
    files = Noting()
    files.failing = True
    log = Log(files, str(tmp_path), 1 << 16)
    assert log.pool.spares == []
    assert not os.path.exists(path)
    assert [record[1] for record in log.records()] == [3]
    log.append_message(4, b"x" * 60_000)
    assert [record[1] for record in Log(Files(), str(tmp_path), 1 << 16).records()] == [3, 4]


NUMBER, CHECKSUM = slice(16, 24), slice(12, 16)


@pytest.mark.parametrize("state", ["half retired", "retired", "about to begin"])
def test_a_segment_that_was_retired_or_was_to_begin_when_the_process_was_killed_is_a_spare(tmp_path, state):
    log = Log(Files(), str(tmp_path / "log"), 1 << 16)
    for guid in range(1, 4):
        log.append_message(guid, b"x" * 30_000)
    path = Path(str(log.first.mapping.path))
    content = bytearray(path.read_bytes())
    log.trim_below(log.end - 1)
    retired = path.read_bytes()
    if state == "half retired":
        content[CHECKSUM] = retired[CHECKSUM]
    elif state == "retired":
        content[:] = retired
    else:
        content[NUMBER], content[128:136] = bytes(8), bytes(8)
    path.write_bytes(content)
    assert segment_identity(bytes(content))[0] == 0
    log = Log(Files(), str(tmp_path / "log"), 1 << 16)
    assert (log.epoch, log.damage.found_count) == (0, 0)
    assert [spare.mapping.path for spare in log.pool.spares] == [str(path)]
    assert [record[1] for record in log.records()] == [3]
    log.append_message(4, b"y" * 60_000)
    log = Log(Files(), str(tmp_path / "log"), 1 << 16)
    assert [record[1] for record in log.records()] == [3, 4]
    assert log.pool.spares == []


@pytest.mark.parametrize("part", [NUMBER, CHECKSUM])
def test_a_segment_whose_number_or_checksum_is_zeroed_is_damaged_and_no_spare(tmp_path, part):
    log = Log(Files(), str(tmp_path / "log"), 1 << 16)
    log.append_message(1, b"body")
    path = only_file(tmp_path / "log")
    content = bytearray(path.read_bytes())
    content[part] = bytes(part.stop - part.start)
    path.write_bytes(content)
    log = Log(Files(), str(tmp_path / "log"), 1 << 16)
    assert (log.end, log.epoch, log.damage.found_count) == (0, 1, 1)
