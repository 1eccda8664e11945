"""Choice of a target among several."""

from __future__ import annotations

import random

import pytest

from pyqd.tools.targets import SLICE_S, SLICES, EpsilonGreedy, HostPool, RoundRobin, targets_for

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow


def chosen(pool, count, now_s=0.0):
    return [pool.choose(now_s) for _ in range(count)]


def test_each_target_has_its_turn_from_the_second_on():
    assert chosen(RoundRobin(3), 5) == [1, 2, 0, 1, 2]


def test_words_that_are_no_mode_mean_each_in_turn():
    kinds = [type(targets_for(mode, 2)) for mode in ("hostpool", "epsilon-greedy", "round-robin", "x")]
    assert kinds == [HostPool, EpsilonGreedy, RoundRobin, RoundRobin]


class TestHostPool:
    def test_each_target_that_works_has_its_turn(self):
        assert chosen(HostPool(3), 4) == [0, 1, 2, 0]

    def test_a_target_that_fails_is_left_out_for_30_seconds(self):
        pool = HostPool(3)
        pool.note(1, 0.0, None)
        assert chosen(pool, 4, 30.0) == [0, 2, 0, 2]
        assert chosen(pool, 4, 30.1) == [0, 1, 2, 0]

    def test_the_time_doubles_with_each_attempt_that_fails(self):
        pool = HostPool(2)
        pool.note(1, 0.0, None)
        now_s, pauses_s = 0.0, []
        for _ in range(7):
            failed_s = now_s
            while 1 not in chosen(pool, 2, now_s):
                now_s += 1.0
            pauses_s.append(now_s - failed_s)
            pool.note(1, now_s, None)
        assert pauses_s == [31, 61, 121, 241, 481, 901, 901]

    def test_a_success_ends_the_pause(self):
        pool = HostPool(2)
        pool.note(1, 0.0, None)
        pool.note(1, 1.0, 0.01)
        assert chosen(pool, 2, 2.0) == [0, 1]

    def test_all_are_tried_if_all_fail(self):
        pool = HostPool(2)
        for target in (0, 1):
            pool.note(target, 0.0, None)
        assert chosen(pool, 3, 1.0) == [0, 0, 1]


class TestEpsilonGreedy:
    def pool(self, *times_s):
        """Return a pool that has explored, with a response time of each target."""
        pool = EpsilonGreedy(len(times_s), random.Random(1))
        for _ in range(20):
            for target, time_s in enumerate(times_s):
                pool.note(target, 0.0, time_s)
        chosen(pool, 400)
        return pool

    def test_faster_targets_are_chosen_more_often(self):
        counts = [chosen(self.pool(0.001, 0.004), 5000).count(target) for target in (0, 1)]
        assert 3.0 < counts[0] / counts[1] < 5.0

    def test_times_below_a_millisecond_count(self):
        counts = [chosen(self.pool(0.0001, 0.0004), 5000).count(target) for target in (0, 1)]
        assert 3.0 < counts[0] / counts[1] < 5.0

    def test_a_target_that_fails_is_left_out(self):
        pool = self.pool(0.001, 0.001)
        pool.note(0, 0.0, None)
        assert set(chosen(pool, 200, 1.0)) == {1}

    def test_old_times_are_forgotten(self):
        pool = self.pool(0.001, 0.1)
        later_s = SLICE_S * (SLICES + 1)
        pool.note(0, later_s, 0.1)
        pool.note(1, later_s, 0.001)
        found = chosen(pool, 2000, later_s)
        assert found.count(1) > 10 * found.count(0)

    def test_without_any_time_each_has_its_turn(self):
        assert chosen(EpsilonGreedy(2), 4) == [0, 1, 0, 1]
