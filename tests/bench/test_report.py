"""Tables, goals, plot and file of series of invented runs."""

import json
from pathlib import Path

import pytest

pytest.importorskip("bench.sink", reason="built only with PYQD_BUILD_BENCH=1")

from bench import cli, plot, tables
from bench.figures import FIGURES, figure_of
from bench.goals import GOALS, goals_of
from bench.report import Row, counting_rows, pair_ratios, problems, spread_of
from bench.series import Series, SeriesError
from tests.bench.made_up import TARGETS, Made, add_session, rates, runs_of, series_of, session, workload

TWO = "nsqd, 2 cores"


def only_row(series: Series, name: str) -> Row:
    [row] = counting_rows(series, series.workloads[name])
    return row


def test_the_ratio_is_taken_pair_by_pair_and_leaves_failed_pairs_out() -> None:
    runs = runs_of(
        [
            [("a", {"rate_per_s": 30.0}), ("b", {"rate_per_s": 10.0})],
            [("a", {"rate_per_s": 8.0}), ("b", {"rate_per_s": 2.0})],
            [("a", "lost"), ("b", {"rate_per_s": 1.0})],
        ]
    )
    assert pair_ratios(runs, "a", "b", "rate_per_s") == [3.0, 4.0]


def test_pairs_of_different_sessions_are_not_mixed() -> None:
    series = series_of("mpub", [[("pyqd", {"rate_per_s": 10.0}), ("nsqd", "lost")]])
    add_session(series, "mpub", [[("pyqd", {"rate_per_s": 12.0}), ("nsqd", {"rate_per_s": 3.0})]])
    assert pair_ratios(series.runs["mpub"], "pyqd", "nsqd", "rate_per_s") == [4.0]


def test_a_goal_is_judged_by_the_median_of_the_ratios_against_its_own_target() -> None:
    pairs = [rates(80.0, 10.0, 20.0), rates(90.0, 10.0, 18.0), rates(60.0, 10.0, 15.0)]
    row = only_row(series_of("mpub", pairs), "mpub")
    assert (row.versus["nsqd"].ratios.median, row.versus["nsqd"].goal, row.versus["nsqd"].reached) == (8.0, 7, True)
    assert (row.versus[TWO].ratios.median, row.versus[TWO].goal, row.versus[TWO].reached) == (4.0, 5, False)
    assert row.verdict() == "only nsqd"


def test_a_goal_is_a_ratio_to_an_nsqd_and_not_to_a_sink() -> None:
    pair: list[Made] = [*rates(80.0, 10.0, 10.0), ("sink", {"rate_per_s": 100.0})]
    series = series_of("mpub", [pair], [*TARGETS, "sink"])
    row = only_row(series, "mpub")
    assert (row.versus["sink"].ratios.median, row.versus["sink"].goal, row.versus["sink"].reached) == (0.8, None, None)
    assert (tables.show_aim(row), row.verdict()) == ("at least 7 / 5 / -", "yes")


def test_a_known_file_system_of_the_data_is_among_the_conditions() -> None:
    series = series_of("mpub", [rates(80.0, 10.0, 10.0)])
    assert not any("data directories" in line for line in tables.conditions(series))
    series.sessions[0]["data"] = {"path": "/tmp", "file_system": "tmpfs"}
    assert "data directories on tmpfs" in tables.conditions(series)


@pytest.mark.parametrize(("pyqd", "reached"), [(10.0, True), (11.0, False)])
def test_for_a_figure_that_should_be_small_the_goal_is_an_upper_bound_of_the_ratio(pyqd: float, reached: bool) -> None:
    pair = [("pyqd", {"latency_p50_us": pyqd}), ("nsqd", {"latency_p50_us": 100.0})]
    p50, p99 = counting_rows(series := series_of("latency-10k", [pair]), series.workloads["latency-10k"])
    assert p50.versus["nsqd"].reached is reached
    assert p99.spreads == {}
    assert p99.verdict() == ""


@pytest.mark.parametrize(("p99", "verdict"), [(4_999.0, "yes"), (5_000.1, "no")])
def test_a_limit_is_judged_without_any_other_server(p99: float, verdict: str) -> None:
    series = series_of("deferred-lateness", [[("pyqd", {"lateness_p99_us": p99})]], ["pyqd"])
    assert only_row(series, "deferred-lateness").verdict() == verdict


def test_without_a_goal_the_measured_figures_count() -> None:
    series = series_of("other", [[("pyqd", {"private_bytes": 5.0, "cpu_percent": 1.0, "rss_bytes": 9.0})]])
    assert [row.figure.key for row in counting_rows(series, series.workloads["other"])] == [
        "private_bytes",
        "cpu_percent",
    ]


def test_a_run_that_measured_several_times_gives_its_own_range() -> None:
    figures = {"start_s": 2.0, "start_s_least": 1.0, "start_s_most": 5.0}
    spread = spread_of(runs_of([[("a", figures)], [("a", {"start_s": 4.0})]]), "a", "start_s")
    assert spread is not None
    assert (spread.median, spread.least, spread.most, spread.count) == (3.0, 1.0, 5.0, 2)


def test_every_goal_is_for_a_figure_with_a_known_direction() -> None:
    assert [goal for goal in GOALS if not figure_of(goal.key).better] == []
    assert len({(goal.workload, goal.key) for goal in GOALS}) == len(GOALS)
    assert [goal for goal in GOALS if goal.limit is None and (goal.one_core is None or goal.two_cores is None)] == []
    assert len({figure.key for figure in FIGURES}) == len(FIGURES)


def test_the_tables_show_medians_ranges_ratios_goals_failures_and_conditions() -> None:
    lost: list[Made] = [("pyqd", "3 lost")]
    pairs = [rates(80e3, 10e3, 20e3), rates(70e3, 10e3, 20e3), lost]
    series = series_of("mpub", pairs)
    assert problems(series, series.workloads["mpub"]) == [("pyqd", "3 lost")]
    text = tables.summary_table(series)
    for wanted in ("75.0 (70.0 .. 80.0)", "7.50", "3.75", "at least 7 / 5", "only nsqd", "FAILED pyqd: 3 lost"):
        assert wanted in text
    for wanted in ("a processor, 2 cores, 8 GiB", "Python 3.11.0", "nsqd v1", "2026-01-02", "abc1234"):
        assert wanted in text
    page = tables.markdown(series, "x.png")
    assert "| mpub | messages, k/s | 75.0 (70.0 .. 80.0) |" in page
    assert "![ratios](x.png)" in page
    assert "FAILED pyqd: 3 lost" in page


def test_a_server_alone_has_a_table_without_ratios() -> None:
    series = series_of("mpub", [[("pyqd", {"rate_per_s": 1000.0})]], ["pyqd"])
    header, row = (line.split() for line in tables.summary_table(series).splitlines()[1:3])
    assert header == ["workload", "figure", "pyqd", "aim", "reached"]
    assert row == ["mpub", "messages,", "k/s", "1.0"]


def test_longer_bars_are_better_results() -> None:
    pair = [("pyqd", {"latency_p50_us": 10.0}), ("nsqd", {"latency_p50_us": 80.0})]
    row, _ = counting_rows(series := series_of("latency-10k", [pair]), series.workloads["latency-10k"])
    bar = plot.bars_of(row)["nsqd"]
    assert (bar.factor, bar.least, bar.most, bar.goal, bar.reached) == (8.0, 8.0, 8.0, 10.0, False)


@pytest.mark.slow
def test_a_plot_is_a_picture_and_only_made_of_ratios(tmp_path: Path) -> None:
    assert plot.draw(series_of("mpub", [rates(80.0, 10.0, 20.0)]), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert not plot.draw(series_of("mpub", [rates(80.0, 0.0, 0.0)[:1]], ["pyqd"]), tmp_path / "b.png")
    assert not (tmp_path / "b.png").exists()


def test_a_file_holds_every_run_of_every_session(tmp_path: Path) -> None:
    path = tmp_path / "new" / "series.json"
    series = series_of("mpub", [rates(80.0, 10.0, 20.0)])
    series.write(path)
    again = Series.read(path)
    assert again == series
    add_session(again, "mpub", [rates(90.0, 10.0, 30.0)])
    add_session(again, "e2e", [[("pyqd", "lost")]])
    again.write(path)
    document = json.loads(path.read_text())
    assert [entry["workload"]["name"] for entry in document["workloads"]] == ["mpub", "e2e"]
    assert [(run["session"], run["pair"], run["target"]) for run in document["workloads"][0]["runs"]] == [
        (number, 0, name) for number in (0, 1) for name in TARGETS
    ]
    assert (again.good("mpub", "pyqd"), again.good("e2e", "pyqd")) == (2, 0)
    assert [path.name for path in path.parent.iterdir()] == ["series.json"]


def test_runs_of_other_sizes_or_flags_are_not_merged() -> None:
    series = series_of("mpub", [rates(80.0, 10.0, 20.0)])
    with pytest.raises(SeriesError, match=r"mpub: .* other sizes"):
        series.begin(session(), [workload("mpub").scaled(2)])
    with pytest.raises(SeriesError, match="other flags"):
        series.begin(session(flags=["-max-msg-size=9"]), [workload("mpub")])
    assert len(series.sessions) == 1


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "workloads": []}'])
def test_a_file_that_is_no_series_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "series.json"
    path.write_text(text)
    with pytest.raises(SeriesError, match=str(path)):
        Series.read(path)


@pytest.mark.slow
def test_report_writes_page_and_plot_of_a_file_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "series.json"
    series_of("mpub", [rates(80.0, 10.0, 20.0)]).write(path)
    assert cli.main(["report", str(path)]) == 0
    assert sorted(found.name for found in tmp_path.iterdir()) == ["series.json", "series.md", "series.png"]
    assert "at least 7 / 5" in capsys.readouterr().out


def test_report_without_a_file_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["report", str(tmp_path / "none.json")])
    assert ended.value.code == 2
    assert "none.json" in capsys.readouterr().err


def test_goals_are_found_by_the_name_of_their_workload() -> None:
    assert [goal.key for goal in goals_of("pub-1x1")] == ["answer_p50_us", "answer_p99_us"]
    assert goals_of("pub-sync-1") == []
