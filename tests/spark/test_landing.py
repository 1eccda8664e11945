"""Files land whole or not at all."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyqd.primitives.errors import DiskFull, StorageError
from pyqd_spark.landing import (
    COMPRESSIONS,
    Landed,
    Landing,
    escape,
    local_path,
    make_directories,
    partition_directory,
    write_file,
)

SCHEMA = pa.schema([("offset", pa.int64()), ("value", pa.binary()), ("node", pa.string())])


def batch(start: int, count: int) -> pa.RecordBatch:
    numbers = range(start, start + count)
    return pa.RecordBatch.from_pydict(
        {"offset": list(numbers), "value": [b"%d" % number for number in numbers], "node": ["n"] * count}, SCHEMA
    )


def land(directory: Path, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], **more: Any) -> Landed:
    with Landing(directory, name, schema, **more) as landing:
        for each in batches:
            landing.write(each)
        return landing.land()


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_written_rows_are_read_back(tmp_path: Path, compression: str) -> None:
    landed = land(tmp_path, "a.parquet", SCHEMA, [batch(0, 10), batch(10, 5)], compression=compression)
    table = pq.read_table(landed.path)
    assert table.schema == SCHEMA
    assert table["offset"].to_pylist() == list(range(15))
    assert (landed.rows, landed.bytes) == (15, os.path.getsize(tmp_path / "a.parquet"))
    assert names(tmp_path) == ["a.parquet"]


def test_positions_are_stored_as_differences(tmp_path: Path) -> None:
    positions = [*range(100_000), 1 << 48, (1 << 62) + 5, 7, -1, (1 << 63) - 1, -(1 << 63)]
    schema = pa.schema([("offset", pa.int64())])
    rows = pa.RecordBatch.from_arrays([pa.array(positions)], schema=schema)
    landed = land(tmp_path, "a.parquet", schema, [rows], compression="none")
    assert pq.read_table(landed.path)["offset"].to_pylist() == positions
    assert landed.bytes < len(positions)


def test_a_file_is_hidden_until_it_lands(tmp_path: Path) -> None:
    with Landing(tmp_path, "a.parquet", SCHEMA) as landing:
        landing.write(batch(0, 10))
        assert [name[0] for name in names(tmp_path)] == ["."]
        landing.land()
        assert names(tmp_path) == ["a.parquet"]
    assert names(tmp_path) == ["a.parquet"]


def test_a_file_that_did_not_land_is_removed_and_the_old_one_stays(tmp_path: Path) -> None:
    land(tmp_path, "a.parquet", SCHEMA, [batch(0, 3)])

    def interrupted() -> Iterator[pa.RecordBatch]:
        yield batch(0, 10)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        land(tmp_path, "a.parquet", SCHEMA, interrupted())
    assert names(tmp_path) == ["a.parquet"]
    assert pq.read_table(tmp_path / "a.parquet").num_rows == 3


def test_the_same_rows_make_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.parquet", "b.parquet"):
        land(tmp_path, name, SCHEMA, [batch(0, 1000)])
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_landing_again_replaces_the_file(tmp_path: Path) -> None:
    for count in (3, 7):
        land(tmp_path, "a.parquet", SCHEMA, [batch(0, count)])
    assert pq.read_table(tmp_path / "a.parquet").num_rows == 7


def test_nothing_lands_from_a_temporary_directory_that_was_taken_away(tmp_path: Path) -> None:
    temporary = tmp_path / "_tmp" / "attempt"
    make_directories(temporary)
    with Landing(tmp_path, "a.parquet", SCHEMA, temporary=temporary) as landing:
        landing.write(batch(0, 3))
        os.rename(temporary, tmp_path / "_tmp" / "gone")
        with pytest.raises(StorageError):
            landing.land()
    assert names(tmp_path) == ["_tmp"]
    with pytest.raises(StorageError):
        Landing(tmp_path, "a.parquet", SCHEMA, temporary=temporary)


@pytest.mark.parametrize("name", ["", ".a.parquet", "_a.parquet", "a/b.parquet"])
def test_a_name_that_readers_would_not_see_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="name of a file"):
        Landing(tmp_path, name, SCHEMA)
    assert names(tmp_path) == []


def test_an_unknown_compression_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected one of zstd, snappy"):
        Landing(tmp_path, "a.parquet", SCHEMA, compression="rar")
    assert names(tmp_path) == []


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="missing"):
        Landing(tmp_path / "missing", "a.parquet", SCHEMA)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_is_a_disk_full_error_and_leaves_nothing_visible(tmp_path: Path) -> None:
    # The hidden file's descriptor is replaced by a device that is always full: every write returns ENOSPC.
    with Landing(tmp_path, "a.parquet", SCHEMA) as landing:
        assert landing._file is not None
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, landing._file.fileno())
        os.close(full)
        with pytest.raises(DiskFull, match="No space left"):
            landing.write(batch(0, 10))
    assert names(tmp_path) == []


@pytest.mark.slow
def test_a_process_killed_while_it_writes_leaves_only_hidden_files(tmp_path: Path) -> None:
    script = f"""
import os, signal, sys
sys.path[:0] = {sys.path!r}
from tests.spark.test_landing import Landing, SCHEMA, batch
landing = Landing({str(tmp_path)!r}, "a.parquet", SCHEMA)
landing.write(batch(0, 1000))
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], timeout=30, check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = names(tmp_path)
    assert left.startswith(".a.parquet.")


def test_a_small_file_is_replaced_whole(tmp_path: Path) -> None:
    for content in (b"one", b"another"):
        write_file(tmp_path / "state.json", content)
        assert (tmp_path / "state.json").read_bytes() == content
    assert names(tmp_path) == ["state.json"]


def test_a_small_file_that_cannot_be_written_keeps_its_old_content(tmp_path: Path) -> None:
    write_file(tmp_path / "state.json", b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(StorageError, match=r"state\.json"):
            write_file(tmp_path / "state.json", bytes(1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert (tmp_path / "state.json").read_bytes() == b"old"
    assert names(tmp_path) == ["state.json"]


def test_directories_are_made_once_and_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    make_directories(tmp_path / "a" / "b")
    make_directories(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file"):
        make_directories(tmp_path / "file" / "c")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/a/b", "/a/b"),
        ("a b", "a b"),
        ("file:/a/b", "/a/b"),
        ("file:///a/b%20c", "/a/b c"),
        ("file://localhost/a", "/a"),
    ],
)
def test_a_path_may_be_a_file_url(text: str, path: str) -> None:
    assert local_path(text) == path


@pytest.mark.parametrize("text", ["s3a://bucket/a", "hdfs://name:8020/a", "file://other/a"])
def test_a_place_that_has_no_atomic_rename_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="only paths of file systems"):
        local_path(text)


def test_partitions_are_named_as_spark_names_them() -> None:
    assert partition_directory([("topic", "a.b#ephemeral"), ("day", "2026-11-21")]) == (
        "topic=a.b%23ephemeral/day=2026-11-21"
    )
    assert escape("a_b-c.d 1") == "a_b-c.d 1"
