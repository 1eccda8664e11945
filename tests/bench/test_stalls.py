"""Every situation that `make stalls` measures, in a tiny size: whether measuring works."""

import pytest

pytest.importorskip("bench.sink", reason="built only with PYQD_BUILD_BENCH=1")

from bench.prober import silence
from bench.setting import Cores, Setting
from bench.stalls import SITUATIONS, run


@pytest.mark.slow
@pytest.mark.parametrize("name", SITUATIONS)
def test_a_situation_can_be_set_up_and_the_daemon_answers_all_the_while(name: str) -> None:
    found = run(SITUATIONS[name], Setting(cores=Cores()), 0.002)
    assert 0 < found["p999_ms"] <= found["max_ms"]


def test_a_late_answer_counts_as_the_longest_silence() -> None:
    found = silence([(0.001, 1e6)] * 9 + [(0.25, 9e6)])
    assert (found["max_ms"], found["cpu_max_ms"]) == (250.0, 9.0)


def test_a_late_answer_counts_for_each_question_that_was_due_meanwhile() -> None:
    found = silence([(0.001, 1e6)] * 999 + [(0.011, 1e6)])
    # Six of them, of 11, 9, 7, 5, 3 and 1 ms: the 99.9th percentile of 1,005 is the second.
    assert found["p999_ms"] == pytest.approx(9.0)
