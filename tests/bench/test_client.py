"""Tests of bench.client: Python clients side by side."""

from types import SimpleNamespace

import pytest

from bench import client, client_loads
from bench.client import Figures


@pytest.mark.slow
@pytest.mark.interop
def test_every_client_runs_every_row_against_one_broker(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client, "PROBE_COUNT", 200)
    monkeypatch.setattr(client, "BATCH", 100)
    assert client.main(["--repeat", "1", "--seconds", "0.05", "--unpinned"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rates = [line for line in lines if line.startswith("| consume")]
    # The bare socket does not consume.
    assert [all(float(cell.replace(",", "")) > 0 for cell in line.split(" | ")[1:6]) for line in rates[:2]] == [
        True
    ] * 2
    assert len([line for line in lines if "pyqd.client.aio |" in line and "consume" in line]) == 1


def test_a_client_that_fails_is_named_with_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    session = client.Session.__new__(client.Session)
    with pytest.raises(client.RunError, match=r"pynsq, publish: 3 lost"):
        session._figures("pynsq", "publish", "topic", {"messages": 1.0}, "3 lost")


def test_each_own_client_is_compared_with_the_fastest_and_with_the_most_frugal_of_the_others() -> None:
    found = {
        ("publish", "pyqd.client"): Figures(rate_per_s=300.0, cpu_us=4.0),
        ("publish", "pyqd.client.aio"): Figures(rate_per_s=150.0, cpu_us=1.0),
        ("publish", "pynsq"): Figures(rate_per_s=100.0, cpu_us=9.0),
        ("publish", "gnsq"): Figures(rate_per_s=50.0, cpu_us=5.0),
        ("publish", client_loads.BARE): Figures(rate_per_s=900.0, cpu_us=0.1),
    }
    assert client.tables(found).splitlines()[-2:] == [
        "| publish, awaited one by one | pyqd.client | 3.00 | 0.80 (above) |",
        "| publish, awaited one by one | pyqd.client.aio | 1.50 (below) | 0.20 |",
    ]


def test_a_load_stops_after_its_time_and_does_not_count_its_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 10.5, 11.0, 11.0])
    monkeypatch.setattr(client_loads, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    clock = client_loads.Clock(limit_s=1.0)
    assert [clock.more(client_loads.WARM_UP), clock.more(5), clock.more(5)] == [True, True, False]
    assert (clock.result()["messages"], clock.result()["seconds"]) == (10, 1.0)
    assert clock.result()["published"] == client_loads.WARM_UP + 10
