"""Contenders in turns, medians, and ratios of neighbouring runs."""

import json
from pathlib import Path

import pytest

pytest.importorskip("bench.sink", reason="built only with PYQD_BUILD_BENCH=1")

from bench import study
from bench.server import Figures, RunError
from bench.setting import Setting
from bench.study import Results, Run, Study, measure, show_ratio, spread

RATES = {"pyqd": [100.0, 400.0, 900.0], "nsqd": [100.0, 200.0, 300.0]}


def made_up(rates: dict[str, list[float]], key: str = "rate_per_s") -> Study:
    """Return a study with a row, and these figures of the runs of each contender; a figure of 0 is a failed run."""
    left = {name: iter(values) for name, values in rates.items()}

    def run(_row: str, contender: str) -> Figures:
        value = next(left[contender])
        if not value:
            raise RunError("3 lost")
        return {key: 1000 * value}

    return Study(rows={"mpub": "publish"}, contenders=list(rates), run=run)


def test_contenders_run_in_turn_and_a_row_may_have_fewer_pairs() -> None:
    order = list(made_up(RATES).turns("mpub", 2))
    assert order == [(0, "pyqd"), (0, "nsqd"), (1, "pyqd"), (1, "nsqd")]
    long = Study(rows={"long": ""}, contenders=["a", "b"], run=lambda *_: {}, pairs_max={"long": 1})
    assert list(long.turns("long", 5)) == [(0, "a"), (0, "b")]
    without = Study(rows={"r": ""}, contenders=["a", "b"], run=lambda *_: {}, can=lambda _row, name: name == "a")
    assert list(without.turns("r", 1)) == [(0, "a")]


def test_a_line_has_medians_ranges_and_the_ratios_of_neighbouring_runs(capsys: pytest.CaptureFixture[str]) -> None:
    found = Results(made_up(RATES))
    found.measure(3)
    line = "| mpub | messages, k/s | 400.0 (100.0 .. 900.0) | 200.0 (100.0 .. 300.0) | 2.00 (1.00 .. 3.00) |"
    assert capsys.readouterr().out.splitlines() == [
        "| load | figure | pyqd | nsqd | pyqd / nsqd |",
        "| --- | --- | ---: | ---: | ---: |",
        line,
    ]
    assert found.lines("mpub", 1) == [line]


def test_a_figure_without_a_direction_has_no_ratio_and_an_unknown_one_its_own_name() -> None:
    for key, label in (("seconds", "time of the load, s"), ("files", "files")):
        found = Results(made_up({"a": [1.0], "b": [2.0]}, key))
        found.take("mpub", "a", 0)
        found.take("mpub", "b", 0)
        [line] = found.lines("mpub")
        assert line.startswith(f"| mpub | {label} | ")
        assert line.endswith(" |  |")


def test_a_failed_run_has_no_figures_and_no_ratio_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    found = Results(made_up({"pyqd": [100.0, 0.0], "nsqd": [50.0, 10.0]}))
    found.measure(2)
    assert found.lines("mpub") == ["| mpub | messages, k/s | 100.0 | 30.0 (10.0 .. 50.0) | 2.00 |"]
    assert found.failures() == ["FAILED mpub, pyqd: RunError: 3 lost"]
    assert "FAILED mpub, pyqd: RunError: 3 lost" in capsys.readouterr().err


def test_numbers_are_short() -> None:
    assert [show_ratio(value) for value in (0.0123, 0.5, 12.34)] == ["0.012", "0.50", "12.3"]
    assert spread([], str) == "-"
    assert spread([2.0, 2.0], str) == "2.0"


@pytest.mark.parametrize(("rates", "status"), [(RATES, 0), ({"pyqd": [0.0]}, 1)])
def test_every_run_is_written_and_a_failure_is_the_status(
    rates: dict[str, list[float]], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "read_file_system", lambda _: "ext4")
    assert measure(made_up(rates), 1, Setting(), tmp_path, "python -m bench run") == status
    [page] = tmp_path.glob("*.md")
    assert "- python -m bench run" in page.read_text()
    runs = json.loads(page.with_suffix(".json").read_text())["runs"]
    assert [(run["contender"], bool(run["problem"])) for run in runs] == [(name, bool(status)) for name in rates]


def test_an_interrupted_study_shows_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: Results, _pairs: int) -> None:
        self.runs.append(Run("mpub", "pyqd", 0, {"rate_per_s": 1.0}))
        raise KeyboardInterrupt

    monkeypatch.setattr(Results, "measure", interrupt)
    assert measure(made_up(RATES), 1, Setting(), tmp_path, "") == 130
    [page] = tmp_path.glob("*.md")
    assert "| mpub | messages, k/s |" in page.read_text()
