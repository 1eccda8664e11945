"""Compaction: merges the small files of each day into few large ones; no reader sees a row twice or misses one.

A day's directory is rebuilt beside the table: small files merged, large ones as hard links. Then the two directories
are exchanged in one step (renameat2 with RENAME_EXCHANGE), and the old one is removed. So at any time, and after a kill
at any time, a directory of the table has all old files of a day or all new ones. Spark first lists names and then opens
each file, so a reader that is listing that very day would miss files: JobTable.reading makes the exchange wait. A
reader that has listed the old files and opens them too late fails with "file not found"; start it again.

A drain that was cut short is finished first: its files may be replaced, so none of them may have been merged.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pyqd.primitives.errors import storage_error
from pyqd_spark.jobs.errors import TableError
from pyqd_spark.jobs.progress import JobProgress
from pyqd_spark.jobs.rows import RowGroups
from pyqd_spark.jobs.runner import Runner
from pyqd_spark.jobs.table import JobTable
from pyqd_spark.landing import COMPRESSION, Landing, make_directories, not_shared, sync_path

ROWS_PER_FILE: Final = 4_000_000
SMALL_BYTES: Final = 128 << 20

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_POSITIONS = re.compile(r"-(\d+)-(\d+)\.parquet$")


@dataclass(frozen=True)
class CompactOptions:
    """Options of a compaction.

    path: of the table. small_bytes: files below are merged. rows_per_file: at most, in a merged one.
    """

    path: str
    small_bytes: int = SMALL_BYTES
    rows_per_file: int = ROWS_PER_FILE
    compression: str = COMPRESSION


@dataclass(frozen=True)
class MergeTask:
    """One day of one topic. directory: of the day; staged: of the rebuilt day, created by the task. small: files to
    merge.
    """

    directory: str
    staged: str
    small: tuple[str, ...]
    kept: tuple[str, ...]
    rows_per_file: int
    compression: str


@dataclass
class CompactReport:
    """Result of a compaction. days: number of rebuilt directories."""

    days: int = 0
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    rows: int = 0
    partitions: list[str] = field(default_factory=list)


def compact(options: CompactOptions, runner: Runner, shown: JobProgress) -> CompactReport:
    """Compact a table. Raises: TableError, StorageError; OSError with the name of an unreadable Parquet file."""
    table = JobTable(options.path)
    table.must_exist()
    report = CompactReport()
    with table.locked():
        if table.open_plan() is not None:
            raise TableError(f"{table.path}: a drain was cut short; run it again before compacting")
        hidden = table.attempt_path(table.begin_attempt())
        days = [planned(options, table, day, hidden, number) for number, day in enumerate(table.partitions())]
        tasks = [task for task in days if task is not None]
        if tasks:
            must_exchange(hidden)
        rows = 0
        shown.say(f"{len(tasks)} days to compact, {sum(len(task.small) for task in tasks)} small files")
        for task, outcome in zip(tasks, runner.run(merge, tasks), strict=True):
            if "error" in outcome:
                raise TableError(outcome["error"])
            with table.changing():
                exchange(task.staged, task.directory)
            sync_path(os.path.dirname(task.directory))
            report.days += 1
            report.files_before += len(task.small)
            report.files_after += outcome["files"]
            report.bytes_before += outcome["bytes_before"]
            report.bytes_after += outcome["bytes_after"]
            report.partitions.append(os.path.relpath(task.directory, table.path))
            rows += outcome["rows"]
        report.rows = rows
        table.end_attempts()
    return report


def planned(options: CompactOptions, table: JobTable, day: str, hidden: str, number: int) -> MergeTask | None:
    """Return the task of a day; None if it would change nothing."""
    directory = os.path.join(table.path, day)
    small, kept = [], []
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        if name.startswith((".", "_")) or not name.endswith(".parquet"):
            continue
        if os.path.getsize(path) < options.small_bytes and rows_in(path) < options.rows_per_file:
            small.append(name)
        else:
            kept.append(name)
    if len(small) < 2:
        return None
    return MergeTask(
        directory=directory,
        staged=os.path.join(hidden, f"day-{number:06d}"),
        small=tuple(sorted(small, key=order)),
        kept=tuple(kept),
        rows_per_file=options.rows_per_file,
        compression=options.compression,
    )


def rows_in(path: str) -> int:
    """Return the number of rows of a Parquet file. Raises: TableError."""
    try:
        rows: int = pq.read_metadata(path).num_rows
    except (pa.ArrowException, OSError) as error:
        raise TableError(f"cannot compact {path}: the Parquet file is damaged: {error}; restore it") from None
    return rows


def order(name: str) -> tuple[str, int, str]:
    """Return the sort key of a file name: the part before its positions, then the positions."""
    match = _POSITIONS.search(name)
    return (name[: match.start()], int(match[1]), name) if match else (name, 0, name)


def merge(task: MergeTask) -> dict[str, Any]:
    """Rebuild a day in its staged directory. Returns: counts; or `error` if that fails."""
    if not os.path.isdir(task.directory):
        return {"error": not_shared(task.directory)}
    shutil.rmtree(task.staged, ignore_errors=True)
    try:
        os.mkdir(task.staged)
        files, rows, size = merged(task)
        for name in task.kept:
            os.link(os.path.join(task.directory, name), os.path.join(task.staged, name))
        sync_path(task.staged)
    except (pa.ArrowException, OSError) as error:
        return {"error": f"{task.directory}: {error}"}
    before = sum(os.path.getsize(os.path.join(task.directory, name)) for name in task.small)
    return {"files": files, "rows": rows, "bytes_before": before, "bytes_after": size}


def merged(task: MergeTask) -> tuple[int, int, int]:
    """Merge the rows of the small files into new ones. Returns: the number of new files, their rows and bytes."""
    sources = [pq.ParquetFile(os.path.join(task.directory, name)) for name in task.small]
    schema = pa.unify_schemas([source.schema_arrow for source in sources])
    expected = sum(source.metadata.num_rows for source in sources)
    digest = hashlib.sha256("\0".join(task.small).encode()).hexdigest()[:16]
    files = rows = size = 0
    groups: RowGroups | None = None
    landing: Landing | None = None
    try:
        for table in tables(sources, schema):
            for piece in pieces(table, task.rows_per_file):
                if groups is None or groups.rows + piece.num_rows > task.rows_per_file:
                    if groups is not None:
                        size += groups.land().bytes
                    landing = Landing(
                        task.staged, f"merged-{digest}-{files:05d}.parquet", schema, compression=task.compression
                    )
                    groups, files = RowGroups(landing), files + 1
                groups.add(piece)
                rows += piece.num_rows
        if groups is not None:
            size += groups.land().bytes
    finally:
        if landing is not None:
            landing.discard()
        for source in sources:
            source.close()
    if rows != expected:
        raise pa.ArrowInvalid(f"{expected} rows were expected in the files to merge, {rows} were read")
    return files, rows, size


def tables(sources: Sequence[pq.ParquetFile], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the row groups of files in order, all with the same columns; a missing column becomes null."""
    for source in sources:
        for number in range(source.num_row_groups):
            table = source.read_row_group(number)
            for column in schema:
                if column.name not in table.column_names:
                    table = table.append_column(column, pa.nulls(table.num_rows, column.type))
            yield table.select(schema.names).cast(schema)


def pieces(table: pa.Table, rows_max: int) -> Iterator[pa.Table]:
    for start in range(0, table.num_rows, rows_max):
        yield table.slice(start, rows_max)


def exchange(one: str, other: str) -> None:
    """Exchange two directories in one step. Raises: StorageError."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        raise storage_error("exchange", other, OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)))
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise storage_error("exchange", other, OSError(number, os.strerror(number)))


def must_exchange(directory: str) -> None:
    """Check that the file system can exchange directories. Raises: TableError, StorageError."""
    one, other = os.path.join(directory, "try-1"), os.path.join(directory, "try-2")
    make_directories(one)
    make_directories(other)
    try:
        exchange(one, other)
    except OSError as error:
        raise TableError(
            f"{directory}: this file system cannot exchange two directories in one step ({error.strerror}), and "
            "without that a reader could see rows twice or not at all while a table is compacted"
        ) from None
    finally:
        os.rmdir(one)
        os.rmdir(other)


def as_text(report: CompactReport) -> str:
    if not report.days:
        return "nothing to compact"
    return (
        f"{report.days} days: {report.files_before} files with {report.bytes_before:,} bytes became "
        f"{report.files_after} with {report.bytes_after:,} bytes, {report.rows:,} rows"
    )
