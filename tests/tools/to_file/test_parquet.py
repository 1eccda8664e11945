"""Parquet files of pyq_to_file, and their journals."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyqd.tools.to_file import disk
from pyqd.tools.to_file.naming import FileNames
from pyqd.tools.to_file.output import Clock, FileOutput, Limits
from pyqd.tools.to_file.places import Places
from pyqd.tools.to_file.topic_log import Recorder
from tests.tools.to_file.conftest import TIMESTAMP_NS, HeldClock, messages

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

Make = Callable[..., Recorder]


@pytest.fixture
def make(tmp_path: Path, clock: HeldClock) -> Make:
    """Function that returns a recorder of Parquet files, after it has finished what others have left."""
    from pyqd.tools.to_file.parquet import Parquet

    def recorder(work_dir: Path = tmp_path) -> Recorder:
        names = FileNames.of("<TOPIC><REV>", "", ".parquet", "t", "host", keeps_revision=True)
        places = Places(names, Parquet("t", "c"), str(tmp_path), str(work_dir), "[t/c]")
        places.recover()
        output = FileOutput(places, Limits(), Clock(lambda: clock.wall_s, lambda: clock.monotonic_s))
        return Recorder(output, "[t/c]", skips_empty_files=False)

    return recorder


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.is_file())


def values(path: Path) -> list[bytes]:
    return list(pq.read_table(path)["value"].to_pylist())


def test_the_file_has_a_row_per_message(make: Make, tmp_path: Path) -> None:
    recorder = make()
    recorder.record(messages(b"\x00\xff", b"b"), False)
    recorder.close()
    assert names_in(tmp_path) == ["t-000000.parquet"]
    first, second = pq.read_table(tmp_path / "t-000000.parquet").to_pylist()
    assert first.pop("timestamp").isoformat() == "2026-11-23T15:04:05.123456+00:00"
    assert first == {"value": b"\x00\xff", "topic": "t", "channel": "c", "node": "127.0.0.1:4150",
                     "timestamp_ns": TIMESTAMP_NS, "id": "0" * 16, "attempts": 1}  # fmt: skip
    assert (second["value"], second["id"]) == (b"b", "0" * 15 + "1")


def test_messages_are_safe_in_a_journal_before_the_file_is_there(make: Make, tmp_path: Path) -> None:
    recorder = make()
    assert len(recorder.record(messages(b"a"), False)) == 1
    assert len(recorder.record(messages(b"b"), True)) == 1
    assert names_in(tmp_path) == [".t-000000.parquet.partial"]
    with pa.OSFile(str(tmp_path / ".t-000000.parquet.partial")) as journal:
        assert pa.ipc.open_stream(journal).read_all()["value"].to_pylist() == [b"a", b"b"]


def test_a_journal_that_a_kill_has_left_becomes_a_file_without_its_incomplete_end(make: Make, tmp_path: Path) -> None:
    recorder = make()
    recorder.record(messages(b"a"), False)
    recorder.record(messages(b"b"), True)
    journal = tmp_path / ".t-000000.parquet.partial"
    data = journal.read_bytes()
    left = tmp_path / ".t-000007.parquet.partial"
    left.write_bytes(data[:-5])
    make()
    # The first instance goes on writing its own.
    assert names_in(tmp_path) == [journal.name, "t-000007.parquet"]
    assert values(tmp_path / "t-000007.parquet") == [b"a"]


@pytest.mark.slow
def test_every_cut_of_a_journal_leaves_a_readable_file(make: Make, tmp_path: Path) -> None:
    recorder = make()
    recorder.record(messages(b"a"), False)
    head = (tmp_path / ".t-000000.parquet.partial").read_bytes()
    recorder.record(messages(b"b"), True)
    data = (tmp_path / ".t-000000.parquet.partial").read_bytes()
    work = tmp_path / "work"
    work.mkdir()
    for size in range(0, len(data), 7):
        (work / f".t-{size:06d}.parquet.partial").write_bytes(data[:size])
    make(work)
    found = {path.name: values(path) for path in tmp_path.glob("t-*.parquet")}
    assert len(found) == len(range(0, len(data), 7))
    for name, rows in found.items():
        size = int(name[2:8])
        assert rows == ([b"a"] if size >= len(head) else []), size


@pytest.fixture
def left(make: Make, tmp_path: Path) -> tuple[Path, int]:
    """A journal of five batches of ten messages, which a kill has left. Returns: its path, the offset of the third."""
    recorder = make()
    journal = tmp_path / ".t-000000.parquet.partial"
    offset = 0
    for number in range(5):
        if number == 2:
            offset = journal.stat().st_size
        recorder.record(messages(*[b"%d" % number] * 10), True)
    path = tmp_path / "left" / ".t-000007.parquet.partial"
    path.parent.mkdir()
    path.write_bytes(journal.read_bytes())
    return path, offset


def overwrite(path: Path, offset: int, data: bytes) -> bytes:
    """Write bytes into a file. Returns: its content."""
    content = bytearray(path.read_bytes())
    content[offset : offset + len(data)] = data
    path.write_bytes(content)
    return bytes(content)


@pytest.mark.parametrize(
    ("place", "data"),
    [
        pytest.param(0, bytes(4), id="the mark is zeros"),
        pytest.param(4, bytes(4), id="the size is zero"),
        pytest.param(4, b"\xff\xff\xff\x7f", id="the size is too large"),
        pytest.param(8, bytes(8), id="the metadata are zeros"),
        pytest.param(20, bytes(4), id="the version is zero"),
    ],
)
def test_damage_within_a_journal_is_logged_and_the_journal_is_kept(
    make: Make, tmp_path: Path, left: tuple[Path, int], caplog: pytest.LogCaptureFixture, place: int, data: bytes
) -> None:
    path, offset = left
    damaged = overwrite(path, offset + place, data)
    make(path.parent)
    assert values(tmp_path / "t-000007.parquet") == [b"0"] * 10 + [b"1"] * 10
    kept = path.parent / f"{path.name}.damaged"
    assert names_in(path.parent) == [kept.name]
    assert kept.read_bytes() == damaged
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert f"{path} is damaged at offset {offset} (" in line
    assert str(kept) in line


def test_a_damaged_journal_overwrites_no_earlier_one_of_its_name(
    make: Make, tmp_path: Path, left: tuple[Path, int]
) -> None:
    path, offset = left
    earlier = path.parent / f"{path.name}.damaged"
    earlier.write_bytes(b"precious")
    damaged = overwrite(path, offset, bytes(4))
    make(path.parent)
    assert earlier.read_bytes() == b"precious"
    assert (path.parent / f"{path.name}.damaged.2").read_bytes() == damaged
    assert names_in(path.parent) == [earlier.name, f"{earlier.name}.2"]


def test_a_journal_that_the_disk_cannot_read_stays(
    make: Make, tmp_path: Path, left: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, offset = left
    before = path.read_bytes()

    class Failing:
        """File whose third record batch cannot be read."""

        closed = False

        def __init__(self) -> None:
            self._file = path.open("rb")
            self.seek, self.tell, self.close = self._file.seek, self._file.tell, self._file.close

        def read(self, size: int) -> bytes:
            if self._file.tell() + size > offset:
                raise OSError(5, "Input/output error")
            return self._file.read(size)

    def fail(_path: str) -> Any:
        return pa.PythonFile(Failing(), "r")

    monkeypatch.setattr(pa, "OSFile", fail)
    with pytest.raises(disk.FileStorageError, match=r"cannot read .*t-000007\.parquet\.partial: Input/output error"):
        make(path.parent)
    assert path.read_bytes() == before
    assert names_in(path.parent) == [path.name]
    assert not (tmp_path / "t-000007.parquet").exists()


def test_a_kill_between_conversion_and_move_makes_no_second_file(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    recorder = make(work)
    recorder.record(messages(b"a"), False)

    def stop(source: str, target: str) -> None:
        raise disk.FileStorageError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "move", stop)
        with pytest.raises(disk.FileStorageError):
            recorder.close()
    assert names_in(tmp_path) == []
    make(work)
    assert names_in(tmp_path) == ["t-000000.parquet"]
    assert values(tmp_path / "t-000000.parquet") == [b"a"]
    assert names_in(work) == []


def test_large_journals_are_converted_in_row_groups(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyqd.tools.to_file.parquet.GROUP_ROWS", 3)
    recorder = make()
    for number in range(7):
        recorder.record(messages(b"%d" % number), True)
    recorder.close()
    file = pq.ParquetFile(tmp_path / "t-000000.parquet")
    assert [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)] == [3, 3, 1]
    assert values(tmp_path / "t-000000.parquet") == [b"%d" % number for number in range(7)]


def test_a_file_without_messages_has_the_columns(make: Make, tmp_path: Path) -> None:
    recorder = make()
    recorder.tick()
    recorder.close()
    table = pq.read_table(tmp_path / "t-000000.parquet")
    assert (table.num_rows, table.column_names[0]) == (0, "value")
