"""Compaction: fewer files with the same rows, at any time all old ones of a day or all new ones."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyqd_spark.jobs import compact as module
from pyqd_spark.jobs.compact import CompactOptions, CompactReport, as_text, compact, exchange
from pyqd_spark.jobs.errors import TableError
from pyqd_spark.jobs.runner import Task
from pyqd_spark.jobs.table import JobTable
from tests.spark.drained import QUIET, InProcess, files, numbers, options, publish, run
from tests.support.server import Daemon

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

ROWS = 3000


@pytest.fixture
def table(broker: Daemon, topic: str, tmp_path: Path) -> Path:
    """A table with the numbers below ROWS in six files."""
    path = tmp_path / "table"
    publish(broker, topic, range(ROWS))
    run(options(path, broker, topics=(topic,), rows_per_file=500))
    assert len(files(path)) == 6
    return path


def compacted(path: Path, **fields: Any) -> CompactReport:
    return compact(CompactOptions(str(path), **fields), InProcess(), QUIET)


def test_small_files_become_one_with_the_same_rows_in_the_same_order(table: Path) -> None:
    before = [pq.ParquetFile(file).read() for file in files(table)]
    report = compacted(table)
    (file,) = files(table)
    assert pq.ParquetFile(file).read() == pa.concat_tables(before)
    assert (report.days, report.files_before, report.files_after, report.rows) == (1, 6, 1, ROWS)
    assert "6 files" in as_text(report)


def test_a_path_that_differs_on_the_executors_is_named(table: Path, tmp_path: Path) -> None:
    class OnAnotherMachine(InProcess):
        def run(self, function: Task, arguments: Sequence[Any]) -> list[dict[str, Any]]:
            return super().run(function, [replace(each, directory=str(tmp_path / "none")) for each in arguments])

    with pytest.raises(TableError, match=r"none is not there on .*executors and driver have to share it"):
        compact(CompactOptions(str(table)), OnAnotherMachine(), QUIET)
    assert numbers(table) == list(range(ROWS))


def test_a_second_compaction_has_nothing_to_do(table: Path) -> None:
    compacted(table)
    before = files(table)
    report = compacted(table)
    assert as_text(report) == "nothing to compact"
    assert files(table) == before


def test_large_files_stay_as_they_are(table: Path) -> None:
    size = max(file.stat().st_size for file in files(table))
    large = {file: file.stat().st_ino for file in files(table) if file.stat().st_size == size}
    report = compacted(table, small_bytes=size)
    assert report.files_before == 6 - len(large) >= 2
    assert {file: file.stat().st_ino for file in large} == large
    assert numbers(table) == list(range(ROWS))


def test_merged_files_have_no_more_rows_than_asked_for(table: Path) -> None:
    report = compacted(table, rows_per_file=1200)
    counts = [pq.read_metadata(file).num_rows for file in files(table)]
    assert max(counts) <= 1200
    assert report.files_after == len(counts) < 6
    assert numbers(table) == list(range(ROWS))


def test_a_drain_continues_after_a_compaction(table: Path, broker: Daemon, topic: str) -> None:
    compacted(table)
    publish(broker, topic, range(ROWS, ROWS + 100))
    run(options(table, broker, topics=(topic,)))
    assert numbers(table) == list(range(ROWS + 100))
    compacted(table)
    assert numbers(table) == list(range(ROWS + 100))
    assert len(files(table)) == 1


def test_a_table_whose_drain_was_cut_short_is_not_compacted(
    table: Path, broker: Daemon, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cut(InProcess):
        def run(self, function: Task, arguments: Sequence[Any]) -> list[dict[str, Any]]:
            function(arguments[0])
            raise KeyboardInterrupt

    publish(broker, topic, range(ROWS, ROWS + 2000))
    with pytest.raises(KeyboardInterrupt):
        run(options(table, broker, topics=(topic,)), Cut())
    with pytest.raises(TableError, match="a drain was cut short"):
        compacted(table)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_kill_around_the_exchange_leaves_all_rows_once(
    table: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def killed(one: str, other: str) -> None:
        if one.rpartition("/")[2].startswith("try"):
            exchange(one, other)
            return
        if moment == "after":
            exchange(one, other)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "exchange", killed)
        with pytest.raises(KeyboardInterrupt):
            compacted(table)
    assert len(files(table)) == (6 if moment == "before" else 1)
    assert numbers(table) == list(range(ROWS))
    compacted(table)
    assert numbers(table) == list(range(ROWS))
    assert len(files(table)) == 1
    assert os.listdir(JobTable(str(table)).attempts) == []


def test_a_file_that_is_no_parquet_is_named_and_nothing_changes(table: Path) -> None:
    spoilt = files(table)[3]
    spoilt.write_bytes(b"x" * 100)
    before = files(table)
    with pytest.raises(TableError, match=spoilt.name):
        compacted(table)
    assert files(table) == before


def test_without_an_exchange_in_one_step_compaction_is_refused(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(one: str, other: str) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(module, "exchange", refused)
    with pytest.raises(TableError, match="cannot exchange two directories"):
        compacted(table)
    assert numbers(table) == list(range(ROWS))


def test_a_directory_that_is_no_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="is no drained table"):
        compacted(tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_reader_that_is_listing_keeps_the_exchange_waiting(table: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        with JobTable(str(table)).reading():
            compacting = pool.submit(compacted, table)
            with pytest.raises(TimeoutError):
                compacting.result(0.5)
            assert len(files(table)) == 6
        assert compacting.result(30).files_after == 1
