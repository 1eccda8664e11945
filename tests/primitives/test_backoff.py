"""Delays between attempts to reconnect."""

from pyqd.primitives.backoff import Backoff


def test_delays_double_with_jitter_up_to_the_maximum() -> None:
    backoff = Backoff(0.1, 1.0)
    for bound_s in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        assert bound_s / 2 <= backoff.next_s() <= bound_s


def test_two_sequences_differ() -> None:
    first, second = Backoff(0.1, 15.0), Backoff(0.1, 15.0)
    assert [first.next_s() for _ in range(8)] != [second.next_s() for _ in range(8)]


def test_a_reset_begins_again() -> None:
    backoff = Backoff(0.1, 15.0)
    for _ in range(9):
        backoff.next_s()
    backoff.reset()
    assert backoff.next_s() <= 0.1
