"""The studies beside the workloads of brokers, in a tiny size."""

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("bench.sink", reason="built only with PYQD_BUILD_BENCH=1")

from bench import clients, lookup, tools, trace_ship
from bench.server import RunError, Target, running
from bench.setting import Cores, Setting

SETTING = Setting(cores=Cores())


@pytest.mark.slow
@pytest.mark.interop
@pytest.mark.timeout(240)
def test_every_client_runs_every_row_against_one_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "PROBE_COUNT", 200)
    monkeypatch.setattr(clients, "BATCH", 100)
    study = clients.study(SETTING, 0.02)
    for row in study.rows:
        for _, client in study.turns(row, 1):
            assert study.run(row, client)["rate_per_s"] > 0
    # The bare socket does not consume.
    assert not study.can("consume", clients.BARE)


def test_a_client_load_stops_after_its_time_and_does_not_count_its_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 10.5, 11.0, 11.0])
    monkeypatch.setattr(clients, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    clock = clients.Clock(limit_s=1.0)
    assert [clock.more(clients.WARM_UP), clock.more(5), clock.more(5)] == [True, True, False]
    assert (clock.result()["messages"], clock.result()["seconds"]) == (10, 1.0)
    assert clock.result()["published"] == clients.WARM_UP + 10


@pytest.mark.slow
@pytest.mark.parametrize("tool", tools.TOOLS)
def test_a_tool_is_measured_against_a_broker(tool: str) -> None:
    study = tools.study(SETTING, 0.003)
    assert study.run(f"{tool} pyqd", "pyqd")["rate_per_s"] > 0


@pytest.mark.slow
def test_a_tool_that_fails_is_an_error(tmp_path: Path) -> None:
    with running(Target.parse("sink")) as server:
        run = tools.ToolRun("to_pyq", ("false",), server, 1, tmp_path)
        with pytest.raises(RunError, match="ended with 1"):
            run.publish_lines()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "scale", "figure"),
    [(lookup, 0.02, "REGISTER per s"), (trace_ship, 0.001, "rate_per_s")],
    ids=["lookup", "trace-ship"],
)
def test_a_study_measures_each_contender(module: object, scale: float, figure: str) -> None:
    study = module.study(SETTING, scale)  # type: ignore[attr-defined]
    row = next(iter(study.rows))
    for _, contender in study.turns(row, 1):
        assert study.run(row, contender)[figure] > 0
