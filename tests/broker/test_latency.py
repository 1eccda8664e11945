"""The histograms behind the end-to-end latency percentiles."""

import math
import random

import pytest

from pyqd.broker.latency import latency_of, new_buffer
from pyqd.hot.broker.latency import LatencyBuffer
from pyqd.hot.primitives import clock
from tests.support.held_clock import HeldClock
from tests.support.structures import note_latency

SECOND_NS = 10**9
HOUR_NS = 3600 * SECOND_NS


def counts(buffer: LatencyBuffer, now_ns: int) -> list[int]:
    buffer.flush(now_ns)
    return [histogram.count for histogram in buffer.window.histograms()]


def test_percentiles_are_within_half_a_percent_of_the_value_of_their_rank() -> None:
    buffer = new_buffer(HOUR_NS, clock.mono())
    chance = random.Random(7)
    ages = sorted(int(chance.lognormvariate(18, 1.5)) for _ in range(20_000))
    with HeldClock() as held:
        for age in ages:
            note_latency(buffer, held.wall_ns - age)
        quantiles = (1.0, 0.999, 0.99, 0.9, 0.5, 0.001)
        found = latency_of([buffer], quantiles)
    assert found["count"] == len(ages)
    assert found["percentiles"][0]["value"] == pytest.approx(ages[-1], rel=1e-7)
    for entry in found["percentiles"]:
        expected = ages[math.ceil(entry["quantile"] * len(ages)) - 1]
        assert entry["value"] == pytest.approx(expected, rel=0.004), entry


def test_the_window_moves_by_halves() -> None:
    start_ns = clock.mono()
    buffer = new_buffer(2 * HOUR_NS, start_ns)
    note_latency(buffer, clock.wall())
    assert counts(buffer, start_ns + HOUR_NS - 1) == [1]
    buffer.flush(start_ns + HOUR_NS)
    note_latency(buffer, clock.wall())
    note_latency(buffer, clock.wall())
    assert counts(buffer, start_ns + HOUR_NS) == [2, 1]
    assert counts(buffer, start_ns + 2 * HOUR_NS) == [2]
    assert counts(buffer, start_ns + 3 * HOUR_NS) == []


def test_samples_older_than_the_window_are_dropped_at_once() -> None:
    start_ns = clock.mono()
    buffer = new_buffer(2 * HOUR_NS, start_ns)
    note_latency(buffer, clock.wall())
    assert counts(buffer, start_ns + 10 * HOUR_NS) == []
    assert start_ns + 10 * HOUR_NS < buffer.move_ns <= start_ns + 11 * HOUR_NS


def test_buffered_samples_go_to_their_own_half() -> None:
    with HeldClock() as held:
        buffer = new_buffer(2 * HOUR_NS, held.mono_ns - HOUR_NS + SECOND_NS)
        note_latency(buffer, held.wall_ns)
        held.advance(SECOND_NS)
        note_latency(buffer, held.wall_ns)
        assert counts(buffer, held.mono_ns) == [1, 1]


def test_several_windows_are_shown_as_one() -> None:
    buffers = [new_buffer(HOUR_NS, clock.mono()) for _ in range(3)]
    for number, buffer in enumerate(buffers):
        for _ in range(600):
            note_latency(buffer, clock.wall() - number * SECOND_NS)
    found = latency_of(buffers, (1.0, 0.5))
    assert found["count"] == 1800
    assert [round(entry["value"] / SECOND_NS) for entry in found["percentiles"]] == [2, 1]


@pytest.mark.parametrize("quantiles", [(), (1.0,), (0.5, 0.25)])
def test_the_latency_of_no_message_is_zero_at_every_quantile(quantiles: tuple[float, ...]) -> None:
    expected = [{"quantile": quantile, "value": 0} for quantile in quantiles]
    assert latency_of([], quantiles) == {"count": 0, "percentiles": expected}
