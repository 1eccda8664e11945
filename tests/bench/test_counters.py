"""Counters of a daemon's events."""

import shutil
from pathlib import Path

import pytest

pytest.importorskip("bench.sink", reason="built only with PYQD_BUILD_BENCH=1")

from bench import counters
from bench.cost import count_run
from bench.counters import Counter, CounterError, find_call_counter, find_instruction_counter, perf_counts
from bench.server import Target
from bench.setting import Cores, Setting
from bench.workloads import find

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("perf", "# started on Sat\n\n12345,,instructions:u,9,100.00,,\n"),
        ("callgrind", "version: 1\nevents: Ir\nsummary: 12345\n\nfn=(1) f\n1 7\n"),
        ("callgrind", "version: 1\nevents: Ir\n\nfn=(1) f\n1 7\n\ntotals: 12345\n"),
        (
            "strace",
            "    calls syscall\n--------- ---------\n    12300 sendto\n       45 exit\n    12345 total\n",
        ),
    ],
)
def test_a_count_is_read_from_the_output_of_the_counter(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "counted"
    path.write_text(text)
    assert Counter(name).read(path) == 12345


def test_a_counter_that_wrote_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "WRITES_WITHIN_S", 0.0)
    with pytest.raises(CounterError, match="callgrind has left no count"):
        Counter("callgrind").read(tmp_path / "absent")


def test_programs_that_are_absent_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CounterError, match="valgrind is not installed"):
        find_instruction_counter()
    with pytest.raises(CounterError, match="strace is not installed"):
        find_call_counter()


@pytest.mark.parametrize("counter", [Counter("perf", "page-faults:u"), Counter("strace")], ids=lambda each: each.name)
def test_a_counter_counts_the_daemon_from_start_to_stop(counter: Counter) -> None:
    # Virtual machines often have no counter of instructions; page faults the kernel counts itself.
    if not (perf_counts(counter.event) if counter.name == "perf" else shutil.which(counter.name)):
        pytest.skip(f"{counter.name} is not installed, or may not count here")
    spent = count_run(counter, Target.parse("pyqd"), Setting(cores=Cores()), find("pub").scaled(0.01))
    assert spent.whole[0] > 1000
