"""Cost of a message: how it is measured, and the table."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("bench.sink", reason="built only with PYQD_BUILD_BENCH=1")

from bench import cost
from bench.cost import Spent, of_one_more, time_run
from bench.server import REPOSITORY, Target
from bench.setting import Cores, Setting
from bench.workloads import Workload, find

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

SETTING = Setting(cores=Cores())
THIS = Target.parse("pyqd")
# CPU time, all, user and system; faults and switches.
SPENT = Spent((1800.4, 700.2, 1100.2), (1.25, 0.5))


def spending(spent: Spent) -> Callable[..., Spent]:
    """Return a run that spends so much on each message, after a start that costs much more."""

    def run(*given: object) -> Spent:
        workload = given[-1]
        assert isinstance(workload, Workload)
        return Spent(
            tuple(1e6 + workload.messages * figure for figure in spent.whole),
            tuple(workload.messages * figure for figure in spent.loaded),
        )

    return run


def test_the_cost_of_a_message_excludes_the_start_of_the_daemon() -> None:
    run = spending(Spent((300.0,), (5.0,)))
    assert of_one_more(find("mpub"), 100_000, run) == [300.0, 5.0]
    assert of_one_more(find("mpub"), 10, run) == [300.0, 5.0]


def test_the_cost_of_consuming_a_channel_excludes_filling_it() -> None:
    def run(workload: Workload) -> Spent:
        # Both fill an existing channel; one of them consumes it. Events during the load are those of consuming alone.
        assert workload.kind == "consume" or workload.existing
        return spending(Spent((300.0 if workload.kind == "publish" else 300.0 + 1100.0,), (5.0,)))(workload)

    assert of_one_more(find("consume-4"), 50_000, run) == [1100.0, 5.0]


def test_a_run_has_the_cpu_time_of_its_daemon_from_start_to_end_and_the_faults_of_its_main_thread() -> None:
    spent = time_run(THIS, SETTING, find("pub").scaled(0.01))
    total_ns, user_ns, system_ns = spent.whole
    assert min(user_ns, system_ns) > 0
    assert total_ns == pytest.approx(user_ns + system_ns)
    faults, switches = spent.loaded
    # The pages of a new log are absent.
    assert faults > 0
    assert switches >= 0


def test_a_page_of_the_log_has_space_for_some_sixteen_records_of_200_bytes() -> None:
    assert cost.log_pages(find("pub")) == pytest.approx(248 / 4096)


@pytest.fixture
def nothing_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)


@pytest.fixture(autouse=True)
def results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cost, "RESULTS_DIRECTORY", tmp_path / "results")


@pytest.mark.usefixtures("nothing_counts")
def test_counts_alone_fail_without_a_counter(capsys: pytest.CaptureFixture[str]) -> None:
    assert cost.main(["--count", "only", "-w", "pub", "--unpinned"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "valgrind is not installed" in err
    assert "strace is not installed" in err


@pytest.mark.usefixtures("nothing_counts")
def test_without_counters_cpu_time_is_shown_with_the_reasons(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cost, "time_run", spending(SPENT))
    assert cost.main(["-w", "pub", "--unpinned"]) == 0
    out, err = capsys.readouterr()
    assert [line.split("|")[2:4] for line in out.splitlines() if line.startswith("| pub")] == [
        [" CPU, ns ", " 1,800 "],
        [" user, ns ", " 700 "],
        [" system, ns ", " 1,100 "],
        [" faults/page ", " 1.250 "],
        [" switches ", " 0.500 "],
    ]
    assert err.count("is not installed") == 2


def test_another_checkout_is_set_beside_with_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--base", str(REPOSITORY), "--count", "no", "-w", "pub", "--scale", "0.02", "--repeat", "1"]
    assert cost.main([*arguments, "--unpinned"]) == 0
    out = capsys.readouterr().out
    assert "| load | figure | this | base | this / base |" in out
    lines = [line.split("|") for line in out.splitlines() if line.startswith("| pub")]
    assert len(lines) == 5
    # The cost of so short a load may disappear in the difference between two starts.
    total, user, system = (float(line[3].replace(",", "")) for line in lines[:3])
    assert abs(user + system - total) <= 1


def test_a_base_that_is_not_built_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cost.main(["--base", str(tmp_path), "-w", "pub", "--unpinned"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith(".venv/bin/python: build that checkout first (make build)\n")


def test_the_daemon_of_another_checkout_is_started_in_it_whatever_the_environment_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One that has the environment of this tree, as a worktree may.
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    package = tmp_path / "pyqd" / "apps"
    package.mkdir(parents=True)
    (package / "daemon.py").write_text("print('pyqd v0.0.7')\n")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    assert Target.of_checkout(tmp_path).version() == "pyqd v0.0.7"


def test_no_run_at_all_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cost.main(["--repeat", "0"])
    assert "a whole number from 1 on is needed: " in capsys.readouterr().err


def test_a_failed_load_is_named_and_the_others_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = replace(THIS, command=("false",))
    monkeypatch.setattr("bench.server.Target.parse", lambda _: broken)
    assert cost.main(["--count", "no", "-w", "pub", "-w", "mpub", "--unpinned", "--repeat", "1"]) == 1
    err = capsys.readouterr().err
    assert "FAILED pub, this: ServerError" in err
    assert "FAILED mpub, this: ServerError" in err
