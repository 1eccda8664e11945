"""Cost of a message: how it is counted and read."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("bench.sink", reason="built only with PYQD_BUILD_BENCH=1")

from bench import cost
from bench.cost import (
    CostError,
    Counter,
    count_run,
    cpu_of_run,
    cpu_per_message,
    find_counter,
    instructions_per_message,
)
from bench.setting import Cores, Setting
from bench.workloads import Workload, find
from pyqd.tools.bench.process import CpuTime

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

SETTING = Setting(cores=Cores())


def test_the_cost_of_a_message_excludes_the_start_of_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(workload: Workload, counter: Counter, setting: Setting) -> int:
        return 1_000_000 + 300 * workload.messages

    monkeypatch.setattr(cost, "count_run", counted)
    assert instructions_per_message(find("mpub"), Counter("perf"), SETTING) == 300.0
    assert instructions_per_message(find("mpub"), Counter("perf"), SETTING, scale=0.0001) == 300.0


def test_cpu_time_is_the_difference_of_two_loads_and_the_median_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    disturbances_ns = iter([0, 0, 0, 400_000, 0, 40_000])

    def spent(workload: Workload, setting: Setting) -> CpuTime:
        user_ns = 300_000_000 + 700 * workload.messages + next(disturbances_ns)
        return CpuTime(user_s=user_ns / 1e9, system_s=(50_000_000 + 1100 * workload.messages) / 1e9)

    monkeypatch.setattr(cost, "cpu_of_run", spent)
    load = replace(find("pub"), messages=5000)
    total, user, system = cpu_per_message(load, SETTING, repeat=3)
    assert (round(total), round(user), round(system)) == (1810, 710, 1100)


def test_the_cost_of_consuming_a_channel_excludes_filling_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(workload: Workload, counter: Counter, setting: Setting) -> int:
        # Both fill an existing channel; one of them consumes it.
        assert workload.kind == "consume" or workload.existing
        return 1_000_000 + (300 if workload.kind == "publish" else 300 + 1100) * workload.messages

    monkeypatch.setattr(cost, "count_run", counted)
    assert instructions_per_message(find("consume-4"), Counter("perf"), SETTING) == 1100.0


def test_the_cpu_time_of_a_run_is_that_of_its_daemon_from_start_to_end() -> None:
    spent = cpu_of_run(find("pub").scaled(0.001), SETTING)
    assert spent.user_s > 0.0
    assert spent.system_s > 0.0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("perf", "# started on Sat\n\n12345,,instructions:u,9,100.00,,\n"),
        ("callgrind", "version: 1\nevents: Ir\nsummary: 12345\n\nfn=(1) f\n1 7\n"),
        ("callgrind", "version: 1\nevents: Ir\n\nfn=(1) f\n1 7\n\ntotals: 12345\n"),
    ],
)
def test_a_count_is_read_from_the_output_of_the_counter(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "counted"
    path.write_text(text)
    assert Counter(name).read(path) == 12345


def test_a_counter_that_wrote_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "PERF_WRITES_WITHIN_S", 0.0)
    with pytest.raises(CostError, match="callgrind has left no count"):
        Counter("callgrind").read(tmp_path / "absent")


@pytest.fixture
def nothing_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("nothing_counts")
def test_instructions_alone_fail_without_a_counter(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CostError, match=r"perf is not installed .* valgrind is not installed"):
        find_counter()
    assert cost.main(["--count", "only", "-w", "pub", "--unpinned"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("apt-get install valgrind") == 1


@pytest.mark.usefixtures("nothing_counts")
def test_without_a_counter_of_instructions_cpu_time_is_shown_with_advice_on_installing_one(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cost, "cpu_per_message", lambda *_: (1800.0, 700.0, 1100.0))
    # Both streams in one, as on a terminal.
    monkeypatch.setattr("sys.stderr", sys.stdout)
    assert cost.main(["-w", "pub", "-w", "mpub", "--unpinned"]) == 0
    head, pub, mpub, last = capfd.readouterr().out.splitlines()
    assert head.split() == ["per", "message", "CPU,", "ns", "user,", "ns", "system,", "ns"]
    assert pub.split() == ["pub", "1,800", "700", "1,100"]
    assert mpub.split() == ["mpub", "1,800", "700", "1,100"]
    assert last.endswith("(on Debian: apt-get install valgrind)")


@pytest.mark.slow
def test_a_row_shows_the_cpu_time_of_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert cost.main(["--count", "no", "-w", "pub", "--scale", "0.02", "--repeat", "1", "--unpinned"]) == 0
    name, total, user, system = capsys.readouterr().out.splitlines()[-1].replace(",", "").split()
    assert name == "pub"
    # The cost of so short a load may disappear in the difference between two starts.
    assert abs(int(user) + int(system) - int(total)) <= 1


def test_cpu_time_is_shown_although_counting_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cost, "cpu_per_message", lambda *_: (1800.0, 700.0, 1100.0))
    monkeypatch.setattr(cost, "find_counter", lambda: Counter("callgrind"))

    def fail(*_: object) -> int:
        raise CostError("under callgrind: no count")

    monkeypatch.setattr(cost, "count_run", fail)
    assert cost.main(["-w", "pub", "--unpinned"]) == 1
    assert [line.split() for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["pub", "1,800", "700", "1,100"],
        ["pub", "failed:", "under", "callgrind:", "no", "count"],
    ]


def test_no_run_at_all_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cost.main(["--repeat", "0"])
    assert "a whole number from 1 on is needed: " in capsys.readouterr().err


def test_a_failed_load_is_named_and_the_others_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cost, "DAEMON", ("false",))
    monkeypatch.setattr(cost, "find_counter", lambda: Counter("perf", "page-faults:u"))
    assert cost.main(["--count", "only", "-w", "pub", "-w", "mpub", "--unpinned"]) == 1
    assert [line.split(":")[0].split() for line in capsys.readouterr().out.splitlines() if "failed" in line] == [
        ["pub", "failed"],
        ["mpub", "failed"],
    ]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("perf") is None, reason="perf is not installed")
def test_perf_counts_the_daemon_from_start_to_stop() -> None:
    # Virtual machines often have no counter of instructions; page faults the kernel counts itself.
    assert count_run(find("pub").scaled(0.01), Counter("perf", "page-faults:u"), SETTING) > 1000
