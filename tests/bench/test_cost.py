"""What a message costs: how it is counted and read."""

import shutil
from pathlib import Path

import pytest

pytest.importorskip("bench.loadgen", reason="built only with PYQD_BUILD_BENCH=1")

from bench import cost
from bench.cost import CostError, Counter, count_run, find_counter, instructions_per_message
from bench.setting import Cores, Setting
from bench.workloads import Workload, find

SETTING = Setting(cores=Cores())


def test_the_start_of_the_daemon_is_no_part_of_what_a_message_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(workload: Workload, counter: Counter, setting: Setting) -> int:
        return 1_000_000 + 300 * workload.messages

    monkeypatch.setattr(cost, "count_run", counted)
    assert instructions_per_message(find("mpub"), Counter("perf"), SETTING) == 300.0
    assert instructions_per_message(find("mpub"), Counter("perf"), SETTING, scale=0.0001) == 300.0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("perf", "# started on Sat\n\n12345,,instructions:u,9,100.00,,\n"),
        ("callgrind", "version: 1\nevents: Ir\nsummary: 12345\n\nfn=(1) f\n1 7\n"),
        ("callgrind", "version: 1\nevents: Ir\n\nfn=(1) f\n1 7\n\ntotals: 12345\n"),
    ],
)
def test_a_count_is_read_from_what_the_counter_wrote(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "counted"
    path.write_text(text)
    assert Counter(name).read(path) == 12345


def test_a_counter_that_wrote_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "PERF_WRITES_WITHIN_S", 0.0)
    with pytest.raises(CostError, match="callgrind has left no count"):
        Counter("callgrind").read(tmp_path / "absent")


def test_without_anything_that_counts_what_is_missing_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CostError, match=r"perf is not installed .* valgrind is not installed"):
        find_counter()
    assert cost.main(["--count", "only", "-w", "pub", "--unpinned"]) == 1
    assert "valgrind" in capsys.readouterr().err


def test_a_row_shows_the_cpu_time_of_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert cost.main(["--count", "no", "-w", "pub", "--scale", "0.02", "--repeat", "1", "--unpinned"]) == 0
    name, total, user, system = capsys.readouterr().out.splitlines()[-1].replace(",", "").split()
    assert name == "pub"
    assert int(total) > 0
    assert abs(int(user) + int(system) - int(total)) <= 1


def test_a_load_that_fails_is_named_and_the_others_go_on(
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
