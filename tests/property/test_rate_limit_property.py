"""A token bucket, whatever is asked of it and when: never too many, and never too late."""

from fractions import Fraction

from hypothesis import example, given
from hypothesis import strategies as st

from pyqd.hot.broker.rate_limit import RateLimit
from pyqd.primitives.durations import HOUR_NS, SECOND_NS
from tests.support.structures import next_token_ns, take_tokens

RATES = st.one_of(st.floats(0.001, 10), st.floats(10, 1e6), st.sampled_from([0.1, 1 / 3, 3, 1000, 999_999]))
STEPS = st.lists(st.tuples(st.integers(0, 20 * SECOND_NS), st.integers(0, 5000)), min_size=1, max_size=60)


@given(rate=RATES, burst=st.floats(1, 5000), steps=STEPS)
def test_any_span_has_at_most_the_burst_plus_the_rate_times_its_length(rate, burst, steps):
    bucket = RateLimit(rate, burst, 0)
    now = 0
    taken = [(0, 0)]
    for wait_ns, wanted in steps:
        now += wait_ns
        taken.append((now, taken[-1][1] + take_tokens(bucket, wanted, now)))
    for first, (start, before) in enumerate(taken[:-1]):
        for at, total in taken[first + 1 :]:
            allowed = Fraction(bucket.burst) + Fraction(rate) * (at - start) / SECOND_NS
            # Tokens taken at `start` itself are counted in `before`: the span begins after it.
            assert total - before <= allowed * (1 + Fraction(1, 10**9)) + Fraction(1, 10**4)


@example(rate=1000, burst=1.0, late_ns=[0, 0, 0, 0, 2_999_999])
@given(rate=RATES, burst=st.floats(1, 5000), late_ns=st.lists(st.integers(0, 3_000_000), min_size=5, max_size=40))
def test_a_constant_backlog_gets_the_full_rate_although_every_timer_is_late(rate, burst, late_ns):
    bucket = RateLimit(rate, burst, 0)
    take_tokens(bucket, 10**9, 0)
    now = 0
    total = 0
    for late in late_ns:
        now = max(now, next_token_ns(bucket)) + late
        got = take_tokens(bucket, 10**9, now)
        # There is a token when the bucket says so, but for waits that are cut short.
        assert got >= 1 or rate < SECOND_NS / HOUR_NS
        total += got
    assert total >= rate * now / SECOND_NS - 1.001
