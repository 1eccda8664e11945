"""Fixtures of the tests of single modules."""

from collections.abc import Iterator

import pytest

from pyqd.hot.diskqueue.ledger import set_limits_for_tests


@pytest.fixture
def short_ring_with_exceptions() -> Iterator[int]:
    """Like `short_ring`, but up to 21 unfinished messages below the ring become exceptions before it grows."""
    former = set_limits_for_tests(64, 64, 3)
    yield 64
    set_limits_for_tests(*former)


@pytest.fixture
def short_ring() -> Iterator[int]:
    """Let new ledgers have so few bits that they grow soon. Returns: their number."""
    former = set_limits_for_tests(64)
    yield 64
    set_limits_for_tests(*former)
