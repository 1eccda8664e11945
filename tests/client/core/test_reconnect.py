"""Waits between attempts to connect, and the circuit breaker of a broker."""

import random

import pytest

from pyqd.client.core.reconnect import FAILURES_OPEN, HASTE_S, STABLE_S, BreakerState, BrokerHealth


class NoLuck(random.Random):
    """Draws the largest number of every range."""

    def uniform(self, a, b):
        return b


@pytest.fixture
def health():
    return BrokerHealth(first_s=0.1, max_s=0.4, open_s=2.0, rng=NoLuck())


def fail(health, count, now=0.0):
    for _ in range(count):
        health.failed(now)


def wait_s(health, now):
    return health.next_try_s(now) - now


def test_a_broker_is_tried_at_once_at_first(health):
    assert (health.state, health.may_try(0.0), wait_s(health, 0.0)) == (BreakerState.CLOSED, True, 0.0)


def test_waits_double_up_to_the_maximum(health):
    waits = []
    for _ in range(FAILURES_OPEN - 1):
        health.failed(100.0)
        waits.append(round(wait_s(health, 100.0), 6))
    assert waits == [0.1, 0.2, 0.4, 0.4]
    assert health.state is BreakerState.CLOSED


def test_no_attempt_before_the_wait_is_over(health):
    fail(health, 3)
    assert [health.may_try(0.39), health.may_try(0.4), health.may_try(0.4)] == [False, True, True]


def test_many_failures_open_the_breaker_and_one_attempt_is_allowed_afterwards(health):
    fail(health, FAILURES_OPEN)
    assert (health.state, health.may_try(1.9)) == (BreakerState.OPEN, False)
    assert health.may_try(2.0)
    assert (health.state, health.may_try(2.0), health.may_try(3.9)) == (BreakerState.HALF_OPEN, False, False)


def test_a_wait_is_shortened_for_commands_that_no_other_broker_takes():
    health = BrokerHealth(0.1, 15.0, 5.0, NoLuck())
    fail(health, 2)
    assert (health.hasten(0.0), wait_s(health, 0.0)) == (False, 0.2)
    fail(health, 5)
    assert wait_s(health, 0.0) > HASTE_S
    assert (health.hasten(0.1), health.hasten(0.1), health.next_try_s(0.1)) == (True, False, HASTE_S)
    assert (health.may_try(0.24), health.may_try(0.26)) == (False, True)


def test_a_command_that_comes_long_after_the_last_failure_waits_for_no_attempt():
    health = BrokerHealth(0.1, 15.0, 5.0, NoLuck())
    fail(health, 7)
    assert (health.hasten(1.0), health.may_try(1.0)) == (True, True)


def test_a_broker_that_is_away_is_tried_four_to_twenty_times_a_second_while_commands_wait():
    now, count = 0.0, 0
    health = BrokerHealth(0.1, 15.0, 5.0, random.Random(1))
    while now < 60.0:
        assert health.may_try(now)
        health.failed(now)
        health.hasten(now)
        now = health.next_try_s(now)
        count += 1
    assert 4 <= count / 60 <= 20


def test_a_first_wait_that_the_user_has_set_is_not_shortened():
    health = BrokerHealth(2.0, 15.0, 5.0, NoLuck())
    fail(health, 1)
    assert (health.hasten(0.0), wait_s(health, 0.0)) == (False, 2.0)


def test_an_attempt_that_is_never_reported_blocks_the_broker_for_a_time_only(health):
    fail(health, FAILURES_OPEN)
    assert health.may_try(2.0)
    assert health.may_try(4.0)


def test_a_failed_attempt_opens_the_breaker_for_twice_the_time_up_to_the_maximum():
    health = BrokerHealth(0.1, 9.0, 2.0, NoLuck())
    fail(health, FAILURES_OPEN - 1)
    now, waits = 0.0, []
    for _ in range(5):
        health.failed(now)
        assert health.state is BreakerState.OPEN
        waits.append(wait_s(health, now))
        now += waits[-1]
        assert health.may_try(now)
    assert waits == [2.0, 4.0, 8.0, 9.0, 9.0]


def test_a_success_closes_the_breaker(health):
    fail(health, FAILURES_OPEN)
    health.may_try(2.0)
    health.connected(2.1)
    assert (health.state, health.may_try(2.1), wait_s(health, 2.1)) == (BreakerState.CLOSED, True, 0.0)


def test_a_stable_connection_resets_the_wait(health):
    fail(health, FAILURES_OPEN)
    health.connected(5.0)
    health.failed(5.0 + STABLE_S)
    assert (health.state, health.failure_count) == (BreakerState.CLOSED, 1)
    assert wait_s(health, 5.0 + STABLE_S) == pytest.approx(0.1)


def test_a_broker_that_accepts_and_closes_is_tried_less_and_less_often(health):
    now, waits = 0.0, []
    for _ in range(FAILURES_OPEN):
        health.connected(now)
        health.failed(now + 0.01)
        waits.append(round(wait_s(health, now + 0.01), 6))
        now += 0.01 + waits[-1]
    assert waits == [0.1, 0.2, 0.4, 0.4, 2.0]
