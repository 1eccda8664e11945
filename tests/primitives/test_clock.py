"""Tests of pyqd.hot.primitives.clock."""

import time

from pyqd.hot.primitives import clock


def test_the_wall_clock_counts_nanoseconds_since_1970():
    before = time.time_ns()
    now = clock.wall()
    after = time.time_ns()
    # The clock may be set while this runs; another second makes that harmless without hiding a wrong unit.
    assert before - 10**9 <= now <= after + 10**9


def test_the_monotonic_clock_is_that_of_the_system():
    before = time.monotonic_ns()
    now = clock.mono()
    after = time.monotonic_ns()
    assert before <= now <= after


def test_the_monotonic_clock_never_goes_backwards():
    readings = [clock.mono() for _ in range(1000)]
    assert readings == sorted(readings)
