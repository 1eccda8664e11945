"""Tests of pyqd.hot.broker.rate_limit."""

import pytest

from pyqd.hot.broker.rate_limit import RateLimit
from pyqd.primitives.durations import HOUR_NS, MILLISECOND_NS, SECOND_NS
from tests.support.structures import next_token_ns, take_tokens


def test_a_bucket_is_full_at_first_and_gives_no_more():
    bucket = RateLimit(10, 5, 0)
    assert take_tokens(bucket, 100, 0) == 5
    assert take_tokens(bucket, 100, 0) == 0


def test_tokens_come_one_by_one_at_the_rate():
    bucket = RateLimit(4, 1, 0)
    assert take_tokens(bucket, 1, 0) == 1
    assert next_token_ns(bucket) == SECOND_NS // 4
    assert take_tokens(bucket, 1, SECOND_NS // 4 - 1000) == 0
    assert take_tokens(bucket, 1, SECOND_NS // 4) == 1


@pytest.mark.parametrize("rate", [1000, 900, 999, 1 / 3])
def test_a_take_just_before_a_token_is_whole_is_never_more_than_the_rate_allows(rate):
    """A fraction that differs from the tolerance by a rounding only, as each millionth time has that is counted."""
    for tokens in range(1, 50):
        whole_ns = round(tokens * SECOND_NS / rate)
        for now_ns in range(whole_ns - 3, whole_ns + 3):
            bucket = RateLimit(rate, 50, 0)
            take_tokens(bucket, 10**9, 0)
            assert take_tokens(bucket, 10**9, now_ns) in (tokens - 1, tokens)


def test_no_more_than_the_burst_is_kept():
    bucket = RateLimit(10, 7.5, 0)
    assert take_tokens(bucket, 100, HOUR_NS) == 7


def test_a_rate_may_be_a_fraction():
    bucket = RateLimit(0.01, 1, 0)
    assert take_tokens(bucket, 1, 0) == 1
    assert next_token_ns(bucket) == 100 * SECOND_NS
    assert take_tokens(bucket, 1, 99 * SECOND_NS) == 0
    assert take_tokens(bucket, 1, 100 * SECOND_NS) == 1


def test_a_wait_is_never_longer_than_an_hour():
    bucket = RateLimit(1e-9, 1, 0)
    take_tokens(bucket, 1, 0)
    assert next_token_ns(bucket) == HOUR_NS


def test_a_high_rate_is_waited_for_by_the_millisecond():
    bucket = RateLimit(100_000, 100_000, 0)
    take_tokens(bucket, 100_000, 0)
    assert next_token_ns(bucket) == MILLISECOND_NS
    assert take_tokens(bucket, 1000, MILLISECOND_NS) == 100


@pytest.mark.parametrize(("burst", "kept"), [(0, 10), (1, 10), (10.5, 10.5), (2000, 2000)])
def test_a_burst_is_a_hundredth_of_the_rate_at_least(burst, kept):
    assert RateLimit(1000, burst, 0).burst == kept
    assert RateLimit(0.5, 0, 0).burst == 1


def test_a_clock_that_stands_or_goes_back_gives_nothing():
    bucket = RateLimit(1000, 10, SECOND_NS)
    assert take_tokens(bucket, 100, SECOND_NS) == 10
    assert take_tokens(bucket, 100, 0) == 0


def test_a_new_bucket_can_start_with_the_tokens_of_the_old_one():
    bucket = RateLimit(10, 100, 0)
    bucket.discard_above(3.5)
    assert bucket.remaining(0) == 3.5
    assert take_tokens(bucket, 100, 0) == 3
