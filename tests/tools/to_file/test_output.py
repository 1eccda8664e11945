"""Output files: rotation, revisions, flushes, files that exist or are in use, clocks that jump."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cramjam
import pytest

from pyqd.tools.to_file import disk
from pyqd.tools.to_file.disk import FileStorageError
from pyqd.tools.to_file.encodings import Gzip, Lines, Zstd
from pyqd.tools.to_file.naming import FileNames
from pyqd.tools.to_file.output import Clock, FileOutput, Limits
from pyqd.tools.to_file.places import Places
from pyqd.tools.to_file.topic_log import Recorder
from tests.tools.to_file.conftest import HeldClock, messages

FORM = "<TOPIC><REV>.<DATETIME>.log"
HOUR_S = 3600.0
Make = Callable[..., Recorder]


@pytest.fixture
def make(tmp_path: Path, clock: HeldClock) -> Make:
    """Function that returns a recorder of the topic "t". Options: of Limits, and those named here."""

    def recorder(
        encoding: Lines | None = None,
        *,
        form: str = FORM,
        keeps_revision: bool = False,
        work_dir: Path = tmp_path / "out",
        skips_empty_files: bool = False,
        **limits: Any,
    ) -> Recorder:
        encoding = encoding or Lines()
        names = FileNames.of(form, "%H", encoding.suffix, "t", "host", keeps_revision=keeps_revision)
        places = Places(names, encoding, str(tmp_path / "out"), str(work_dir), "[t/c]")
        places.recover()
        output = FileOutput(places, Limits(**limits), Clock(lambda: clock.wall_s, lambda: clock.monotonic_s))
        return Recorder(output, "[t/c]", skips_empty_files=skips_empty_files)

    return recorder


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hour of the held clock is 15."""
    monkeypatch.setattr("time.localtime", __import__("time").gmtime)


def files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def bodies(safe: list[Any]) -> list[bytes]:
    return [message.body for message in safe]


class TestSafety:
    def test_the_first_message_of_a_file_is_safe_at_once(self, make: Make, tmp_path: Path) -> None:
        recorder = make()
        assert bodies(recorder.record(messages(b"a"), False)) == [b"a"]
        assert recorder.record(messages(b"b"), False) == []
        assert len(recorder.held) == 1
        assert files(tmp_path / "out") == {"t.15.log": b"a\nb\n"}

    def test_messages_are_safe_after_a_sync(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        recorder = make()
        recorder.record(messages(b"a"), False)
        synced: list[str] = []
        monkeypatch.setattr(disk, "sync", lambda descriptor, path: synced.append(path))
        assert recorder.record(messages(b"b"), False) == []
        assert synced == []
        assert bodies(recorder.record(messages(b"c"), True)) == [b"b", b"c"]
        assert len(synced) == 1

    def test_a_failed_sync_makes_nothing_safe(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        recorder = make()
        recorder.record(messages(b"a"), False)

        def fail(descriptor: int) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(FileStorageError, match=r"cannot sync .*t\.15\.log: Input/output error"):
            recorder.record(messages(b"b"), True)
        assert len(recorder.held) == 1

    def test_a_write_that_the_disk_takes_in_part_leaves_nothing(
        self, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recorder = make()
        recorder.record(messages(b"a"), False)
        write = os.write
        parts = iter([3, 0])

        def take_a_part(descriptor: int, data: memoryview) -> int:
            part = next(parts)
            if part == 0:
                raise OSError(28, "No space left on device")
            return write(descriptor, data[:part])

        monkeypatch.setattr(os, "write", take_a_part)
        with pytest.raises(FileStorageError, match="No space left on device"):
            recorder.record(messages(b"bcdefgh"), True)
        assert files(tmp_path / "out") == {"t.15.log": b"a\n"}

    def test_the_names_of_new_files_and_directories_are_synced(
        self, make: Make, monkeypatch: pytest.MonkeyPatch, clock: HeldClock
    ) -> None:
        synced: list[str] = []
        monkeypatch.setattr(disk, "sync_directory", synced.append)
        recorder = make(form="<TOPIC>/<DATETIME>/x.log")
        recorder.record(messages(b"a"), False)
        assert [os.path.basename(path) for path in synced] == ["out", "t", "15", "x.log"]
        clock.pass_s(HOUR_S)
        recorder.record(messages(b"b"), False)
        assert [os.path.basename(path) for path in synced[4:]] == ["16", "x.log"]


class TestRotation:
    def test_a_new_hour_begins_a_new_file(self, make: Make, tmp_path: Path, clock: HeldClock) -> None:
        recorder = make()
        recorder.record(messages(b"a"), False)
        recorder.record(messages(b"b"), False)
        clock.pass_s(HOUR_S)
        assert bodies(recorder.record(messages(b"c"), False)) == [b"b", b"c"]
        assert files(tmp_path / "out") == {"t.15.log": b"a\nb\n", "t.16.log": b"c\n"}

    def test_a_batch_is_split_where_a_file_is_large_enough(self, make: Make, tmp_path: Path) -> None:
        recorder = make(keeps_revision=True, size_bytes=5)
        recorder.record(messages(b"aa", b"bb", b"cc", b"dd", b"ee"), False)
        recorder.close()
        assert files(tmp_path / "out") == {"t-000000.15.log": b"aa\nbb\n", "t-000001.15.log": b"cc\ndd\n",
                                           "t-000002.15.log": b"ee\n"}  # fmt: skip

    def test_an_old_file_is_rotated_by_the_monotonic_clock(self, make: Make, tmp_path: Path, clock: HeldClock) -> None:
        recorder = make(keeps_revision=True, age_s=60.0)
        recorder.record(messages(b"a"), False)
        clock.pass_s(60.0)
        recorder.record(messages(b"b"), False)
        clock.pass_s(1.0)
        recorder.record(messages(b"c"), False)
        assert files(tmp_path / "out") == {"t-000000.15.log": b"a\nb\n", "t-000001.15.log": b"c\n"}

    def test_a_tick_rotates_and_makes_an_empty_file(self, make: Make, tmp_path: Path, clock: HeldClock) -> None:
        recorder = make()
        assert recorder.tick() == []
        clock.pass_s(HOUR_S)
        recorder.tick()
        assert files(tmp_path / "out") == {"t.15.log": b"", "t.16.log": b""}

    def test_a_tick_makes_no_empty_file_if_these_are_skipped(
        self, make: Make, tmp_path: Path, clock: HeldClock
    ) -> None:
        recorder = make(skips_empty_files=True)
        recorder.tick()
        recorder.record(messages(b"a"), False)
        clock.pass_s(HOUR_S)
        recorder.tick()
        recorder.tick()
        assert bodies(recorder.record(messages(b"b"), False)) == [b"b"]
        assert files(tmp_path / "out") == {"t.15.log": b"a\n", "t.16.log": b"b\n"}

    def test_a_tick_makes_held_messages_safe(self, make: Make) -> None:
        recorder = make()
        recorder.record(messages(b"a"), False)
        recorder.record(messages(b"b"), False)
        assert bodies(recorder.tick()) == [b"b"]

    def test_after_closing_a_plain_file_is_continued(self, make: Make, tmp_path: Path) -> None:
        recorder = make()
        recorder.record(messages(b"a"), False)
        recorder.record(messages(b"b"), False)
        assert bodies(recorder.close()) == [b"b"]
        recorder.record(messages(b"c"), False)
        assert files(tmp_path / "out") == {"t.15.log": b"a\nb\nc\n"}

    def test_after_closing_a_file_with_revisions_gets_the_next_one(self, make: Make, tmp_path: Path) -> None:
        recorder = make(Gzip(6), keeps_revision=True)
        for body in (b"a", b"b"):
            recorder.record(messages(body), False)
            recorder.close()
        assert sorted(files(tmp_path / "out")) == ["t-000000.15.log.gz", "t-000001.15.log.gz"]


class TestClocks:
    def test_a_clock_that_jumps_over_many_hours_makes_one_rotation(
        self, make: Make, tmp_path: Path, clock: HeldClock
    ) -> None:
        recorder = make(Gzip(1), keeps_revision=True, age_s=HOUR_S)
        recorder.record(messages(b"a"), False)
        clock.wall_s += 5 * HOUR_S
        recorder.record(messages(b"b"), False)
        recorder.tick()
        recorder.close()
        assert sorted(files(tmp_path / "out")) == ["t-000000.15.log.gz", "t-000000.20.log.gz"]

    def test_a_clock_that_jumps_back_continues_the_plain_file(
        self, make: Make, tmp_path: Path, clock: HeldClock
    ) -> None:
        recorder = make()
        for jump_s, body in ((0.0, b"a"), (HOUR_S, b"b"), (-HOUR_S, b"c"), (HOUR_S, b"d")):
            clock.wall_s += jump_s
            recorder.record(messages(body), False)
        assert files(tmp_path / "out") == {"t.15.log": b"a\nc\n", "t.16.log": b"b\nd\n"}

    def test_a_clock_that_jumps_back_overwrites_no_compressed_file(
        self, make: Make, tmp_path: Path, clock: HeldClock
    ) -> None:
        recorder = make(Zstd(3), keeps_revision=True)
        for jump_s, body in ((0.0, b"a"), (HOUR_S, b"b"), (-HOUR_S, b"c")):
            clock.wall_s += jump_s
            recorder.record(messages(body), False)
        recorder.close()
        found = {name: bytes(cramjam.zstd.decompress(data)) for name, data in files(tmp_path / "out").items()}
        assert found == {"t-000000.15.log.zst": b"a\n", "t-000000.16.log.zst": b"b\n", "t-000001.15.log.zst": b"c\n"}


class TestCompression:
    @pytest.mark.parametrize(
        ("encoding", "decode"),
        [(Gzip(9), gzip.decompress), (Zstd(1), lambda data: bytes(cramjam.zstd.decompress(data)))],
    )
    def test_each_flush_appends_a_piece_that_stands_for_itself(
        self, make: Make, tmp_path: Path, encoding: Lines, decode: Callable[[bytes], bytes]
    ) -> None:
        recorder = make(encoding, keeps_revision=True)
        recorder.record(messages(b"a"), False)
        ((name, first),) = files(tmp_path / "out").items()
        recorder.record(messages(b"b"), False)
        recorder.record(messages(b"c"), True)
        both = files(tmp_path / "out")[name]
        assert (decode(first), decode(both)) == (b"a\n", b"a\nb\nc\n")
        assert both.startswith(first)
        assert decode(both[len(first) :]) == b"b\nc\n"

    @pytest.mark.parametrize("encoding", [Gzip(6), Zstd(3)])
    def test_a_compressed_file_without_messages_can_be_decoded(
        self, make: Make, tmp_path: Path, encoding: Lines
    ) -> None:
        recorder = make(encoding, keeps_revision=True)
        recorder.tick()
        recorder.close()
        ((_, data),) = files(tmp_path / "out").items()
        decode = gzip.decompress if encoding.suffix == ".gz" else cramjam.zstd.decompress
        assert data != b""
        assert bytes(decode(data)) == b""


class TestExistingFiles:
    @pytest.mark.parametrize("before", [b"before\n", b"before\nincompl"])
    def test_a_plain_file_is_continued_on_a_new_line(self, make: Make, tmp_path: Path, before: bytes) -> None:
        path = tmp_path / "out" / "t.15.log"
        path.parent.mkdir()
        path.write_bytes(before)
        make().record(messages(b"a"), False)
        assert path.read_bytes() == before.rstrip(b"\n") + b"\na\n"

    @pytest.mark.parametrize(
        ("options", "suffix"),
        [
            ({"encoding": Gzip(6)}, ".gz"),
            ({"encoding": Zstd(3)}, ".zst"),
            ({"age_s": 9.0}, ""),
            # Smaller than the file that is there.
            ({"size_bytes": 5}, ""),
        ],
    )
    def test_a_file_that_is_not_continued_is_never_overwritten(
        self, make: Make, tmp_path: Path, options: dict[str, Any], suffix: str
    ) -> None:
        path = tmp_path / "out" / f"t-000000.15.log{suffix}"
        path.parent.mkdir()
        path.write_bytes(b"precious\n")
        make(keeps_revision=True, **options).record(messages(b"a"), False)
        assert path.read_bytes() == b"precious\n"
        assert (tmp_path / "out" / f"t-000001.15.log{suffix}").exists()

    def test_a_plain_file_that_another_instance_writes_is_not_shared(self, make: Make, tmp_path: Path) -> None:
        first, second = make(), make()
        first.record(messages(b"a"), False)
        second.record(messages(b"b"), False)
        first.record(messages(b"c"), False)
        assert files(tmp_path / "out") == {"t.15.log": b"a\nc\n", "t-000001.15.log": b"b\n"}

    def test_a_name_in_use_without_a_revision_is_an_error(self, make: Make) -> None:
        first, second = make(form="<TOPIC>.log"), make(form="<TOPIC>.log")
        first.record(messages(b"a"), False)
        with pytest.raises(FileStorageError, match="no file name is free"):
            second.record(messages(b"b"), False)

    def test_a_directory_that_is_a_file_is_an_error(self, make: Make, tmp_path: Path) -> None:
        (tmp_path / "out").write_bytes(b"")
        with pytest.raises(FileStorageError, match=r"cannot create directory .*: Not a directory"):
            make().record(messages(b"a"), False)

    def test_directories_in_the_format_are_created(self, make: Make, tmp_path: Path) -> None:
        make(form="<TOPIC>/<DATETIME>/x.log").record(messages(b"a"), False)
        assert files(tmp_path / "out") == {"t/15/x.log": b"a\n"}
        umask = os.umask(0)
        os.umask(umask)
        modes = [(tmp_path / "out" / made).stat().st_mode & 0o777 for made in ("", "t", "t/15")]
        assert modes == [0o770 & ~umask] * 3


class TestWorkDirectory:
    def test_a_finished_file_is_moved(self, make: Make, tmp_path: Path) -> None:
        work = tmp_path / "work"
        recorder = make(keeps_revision=True, work_dir=work)
        recorder.record(messages(b"a"), False)
        assert (files(work), files(tmp_path / "out")) == ({"t-000000.15.log": b"a\n"}, {})
        recorder.close()
        assert (files(work), files(tmp_path / "out")) == ({}, {"t-000000.15.log": b"a\n"})

    def test_the_next_file_takes_no_name_that_is_in_the_output_directory(self, make: Make, tmp_path: Path) -> None:
        recorder = make(keeps_revision=True, work_dir=tmp_path / "work")
        for body in (b"a", b"b"):
            recorder.record(messages(body), False)
            recorder.close()
        assert files(tmp_path / "out") == {"t-000000.15.log": b"a\n", "t-000001.15.log": b"b\n"}

    @pytest.mark.parametrize("missing", ["nothing", "rename", "rename and hard links"])
    def test_a_finished_file_overwrites_none_that_came_meanwhile(
        self, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
    ) -> None:
        if missing != "nothing":
            # As on an older kernel.
            monkeypatch.setattr(disk, "renameat2", lambda: None)
        if "links" in missing:
            # As between two file systems.
            real = os.link

            def link(source: str, target: str) -> None:
                if "copy" not in source:
                    raise OSError(18, "Invalid cross-device link")
                real(source, target)

            monkeypatch.setattr(os, "link", link)
        recorder = make(keeps_revision=True, work_dir=tmp_path / "work")
        recorder.record(messages(b"a"), False)
        (tmp_path / "out" / "t-000000.15.log").write_bytes(b"precious")
        recorder.close()
        assert files(tmp_path / "out") == {"t-000000.15.log": b"precious", "t-000001.15.log": b"a\n"}
        assert files(tmp_path / "work") == {}

    @pytest.mark.parametrize("error", [22, 18], ids=["without the newer system call", "between two file systems"])
    def test_the_old_name_goes_after_the_new_one_is_synced(
        self, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
    ) -> None:
        work, out = tmp_path / "work", tmp_path / "out"
        recorder = make(keeps_revision=True, work_dir=work)
        recorder.record(messages(b"a"), False)
        steps: list[tuple[str, str]] = []
        unlink, sync, rename = os.unlink, disk.sync_directory, disk.rename_new

        # dir_fd: pytest removes the directory of the test before the patch ends.
        def remove(path: str, *, dir_fd: int | None = None) -> None:
            steps.append(("remove", os.path.dirname(path)))
            unlink(path, dir_fd=dir_fd)

        def synced(path: str) -> None:
            steps.append(("sync", os.path.dirname(path)))
            sync(path)

        def refused(source: str, target: str) -> None:
            if error == 18 and "copy" not in source:
                raise OSError(error, os.strerror(error))
            rename(source, target)

        monkeypatch.setattr(disk, "renameat2", lambda: None)
        monkeypatch.setattr(disk, "rename_new", refused)
        monkeypatch.setattr(disk, "sync_directory", synced)
        monkeypatch.setattr(os, "unlink", remove)
        recorder.close()
        assert files(out) == {"t-000000.15.log": b"a\n"}
        assert steps.index(("sync", str(out))) < steps.index(("remove", str(work)))
        assert steps[-1] == ("sync", str(work))

    def test_files_that_a_killed_instance_has_left_are_moved_at_the_next_start(
        self, make: Make, tmp_path: Path
    ) -> None:
        work = tmp_path / "work"
        work.mkdir()
        (work / "t-000003.14.log").write_bytes(b"a\nincompl")
        (work / "other-000003.14.log").write_bytes(b"of another topic\n")
        make(keeps_revision=True, work_dir=work)
        assert files(tmp_path / "out") == {"t-000003.14.log": b"a\nincompl\n"}
        assert files(work) == {"other-000003.14.log": b"of another topic\n"}

    def test_finished_files_stay_if_there_is_no_work_directory(self, make: Make, tmp_path: Path) -> None:
        out = tmp_path / "out"
        out.mkdir()
        names = ("t.15.log", "t-000000.14.log", "t-000001.14.log")
        for name in names:
            (out / name).write_bytes(b"a\n")
        make()
        make(keeps_revision=True)
        assert sorted(files(out)) == sorted(names)

    def test_files_that_another_instance_writes_stay(self, make: Make, tmp_path: Path) -> None:
        work = tmp_path / "work"
        make(keeps_revision=True, work_dir=work).record(messages(b"a"), False)
        running = make(keeps_revision=True, work_dir=work)
        assert files(work) == {"t-000000.15.log": b"a\n"}
        running.record(messages(b"b"), False)
        assert sorted(files(work)) == ["t-000000.15.log", "t-000001.15.log"]
