"""Every situation that `make stalls` measures, in a tiny size: whether measuring works."""

import pytest

pytest.importorskip("bench.sink", reason="built only with PYQD_BUILD_BENCH=1")

from bench import stalls
from bench.prober import Silence
from bench.setting import Cores
from bench.situations import SITUATIONS, Situation


@pytest.mark.slow
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: str(situation.steps.__name__))
def test_a_situation_can_be_set_up_and_the_daemon_answers_all_the_while(situation: Situation) -> None:
    silence = stalls.measure(situation, Cores(), stalls.SMOKE_SCALE)
    assert 0 < silence.p999_ms <= silence.max_ms


def test_a_row_has_the_medians_of_its_runs() -> None:
    runs = [Silence(3.0, 2.0, 1.0), Silence(30.0, 20.0, 10.0), Silence(4.0, 1.0, 2.0)]
    line = stalls.row(SITUATIONS[0], Silence.median_of(runs))
    assert line.endswith("| 4.0 | 2.0 | 2.0 |")


def test_a_late_answer_counts_as_the_longest_silence() -> None:
    silence = Silence.of([(0.001, 1e6)] * 9 + [(0.25, 9e6)])
    assert (silence.max_ms, silence.cpu_max_ms) == (250.0, 9.0)


def test_a_late_answer_counts_for_each_question_that_was_due_meanwhile() -> None:
    silence = Silence.of([(0.001, 1e6)] * 999 + [(0.011, 1e6)])
    # Six of them, of 11, 9, 7, 5, 3 and 1 ms: the 99.9th percentile of 1,005 is the second.
    assert silence.p999_ms == pytest.approx(9.0)


def test_situations_are_chosen_by_a_word() -> None:
    assert [each.steps.__name__ for each in stalls.chosen(["seek_position"])] == ["seek_position"]
    assert stalls.chosen([]) == list(SITUATIONS)
