"""Tests of bench.pyq_bench: pyq_bench and the benchmarks in turns."""

import pytest

from bench import pyq_bench


@pytest.mark.slow
def test_each_load_runs_with_both(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(pyq_bench, "NAMES", ("mpub", "consume-4"))
    pyq_bench.main(["--repeat=1", "--scale=0.0005", "--unpinned"])
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == ["| mpub", "| consume-4"]
    assert all(float(row.split(" | ")[4].split(" ")[0]) > 0 for row in rows)
