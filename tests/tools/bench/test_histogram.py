"""The histogram of latencies against all values sorted."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyqd.hot.tools.histogram import LatencyHistogram

DURATION_MAX = 2**42 - 1
# Uniform in the exponent, as all sizes of latencies matter alike.
DURATIONS = st.integers(0, 42).flatmap(lambda bits: st.integers(0, min(2**bits, DURATION_MAX)))


def rank(share: float, count: int) -> int:
    return min(max(math.ceil(share * count), 1), count)


@given(st.lists(DURATIONS, min_size=1, max_size=300), st.floats(0, 1))
def test_a_quantile_is_within_one_percent_of_the_value_at_its_rank(durations: list[int], share: float) -> None:
    counted = LatencyHistogram()
    for duration in durations:
        counted.add(duration)
    exact = sorted(durations)[rank(share, len(durations)) - 1]
    assert abs(counted.quantile(share) - exact) <= exact / 100
    assert counted.most == max(durations)
    assert counted.count == len(durations)


@pytest.mark.slow
@given(st.lists(DURATIONS, min_size=1, max_size=50), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_never_has_a_smaller_quantile(durations: list[int], one: float, other: float) -> None:
    counted = LatencyHistogram()
    for duration in durations:
        counted.add(duration)
    less, more = sorted((one, other))
    assert counted.quantile(less) <= counted.quantile(more) <= max(durations)


@pytest.mark.parametrize("duration", [0, 1, 255, 256, 257, 511, 512, 2**41, DURATION_MAX])
def test_the_edges_of_buckets_and_octaves_are_within_one_percent(duration: int) -> None:
    counted = LatencyHistogram()
    counted.add(duration)
    counted.add(DURATION_MAX)
    assert abs(counted.quantile(0.5) - duration) <= duration / 100


def test_durations_outside_the_range_count_as_the_nearest_one() -> None:
    counted = LatencyHistogram()
    counted.add(-5)
    counted.add(2**62)
    assert counted.quantile(0.5) == 0
    assert counted.most == DURATION_MAX


def test_nothing_counted_is_all_zero() -> None:
    assert (LatencyHistogram().count, LatencyHistogram().most) == (0, 0)
    assert LatencyHistogram().quantile(1.0) == 0


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_a_share_is_from_0_to_1(share: float) -> None:
    with pytest.raises(ValueError, match="share must be 0 to 1"):
        LatencyHistogram().quantile(share)
