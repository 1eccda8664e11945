"""A short run of scripts/kills/to_file_kills.py, and proof that it notices a loss."""

from __future__ import annotations

import gzip
from typing import Any

import cramjam
import pytest

from tests.support.loops import WAIT_S, module_of, run_loop

kills: Any = module_of("to_file_kills")


@pytest.mark.slow
@pytest.mark.timeout(WAIT_S + 20)
def test_nothing_finished_is_lost_over_some_kills():
    code, report = run_loop("to_file_kills", "--kills=5", "--seed=3")
    assert (report["lost"], report["last_exit_code"], report["ok"]) == (0, 0, True), report
    assert report["kills_after_a_sync"] >= 1
    assert report["messages"] > 1000
    assert code == 0


def test_every_number_that_is_in_no_file_is_found(tmp_path):
    lines = [kills.body_of(number) + b"\n" for number in range(12)]
    (tmp_path / "a.log").write_bytes(lines[0] + lines[1] + lines[2][:-3])
    (tmp_path / "b.log.gz").write_bytes(gzip.compress(lines[3]) + gzip.compress(lines[4])[:-2])
    frames = [bytes(cramjam.zstd.compress(line)) for line in lines[5:7]]
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.log.zst").write_bytes(frames[0] + frames[1][:-2])
    # Another message has the place of number 7, and number 8 is glued to a part of it.
    (tmp_path / "d.log").write_bytes(lines[7][:-4] + lines[8] + lines[9] + lines[9])
    assert list(kills.counts_in([tmp_path], 12)) == [1, 1, 0, 1, 0, 1, 0, 0, 0, 2, 0, 0]


def test_numbers_in_parquet_files_and_their_journals_count(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    from pyqd.tools.to_file.parquet import Parquet
    from tests.tools.to_file.conftest import message

    encoding = Parquet("t", "c")
    pieces = [encoding.encode([message(kills.body_of(number))]) for number in range(3)]
    (tmp_path / ".x.parquet.partial").write_bytes(encoding.head() + pieces[0] + pieces[1] + pieces[2][:-9])
    assert list(kills.counts_in([tmp_path], 4)) == [1, 1, 0, 0]
    # A kill between the conversion of a journal and its move leaves this.
    rows = pyarrow.Table.from_pylist([{"value": kills.body_of(3)}])
    pyarrow.parquet.write_table(rows, tmp_path / ".y.parquet.partial")
    assert list(kills.counts_in([tmp_path], 4)) == [1, 1, 0, 1]
