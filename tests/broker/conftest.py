"""Fixtures of the tests of single modules."""

from collections.abc import Iterator

import pytest

from pyqd.hot.diskqueue.ledger import set_limits_for_tests


@pytest.fixture
def short_ring() -> Iterator[int]:
    """Let new ledgers have so few bits that they grow soon. Returns: their number."""
    former = set_limits_for_tests(64)
    yield 64
    set_limits_for_tests(former)
