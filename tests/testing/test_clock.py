"""Tests of pyqd.testing.memory.clock."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from pyqd.testing import ManualClock

NOON = datetime(2026, 5, 1, 12, tzinfo=timezone.utc)


def test_a_clock_stands_still_until_it_is_advanced() -> None:
    clock = ManualClock(NOON)
    assert clock.now == NOON
    assert clock.now_ns == int(NOON.timestamp()) * 1_000_000_000
    assert clock.advance(1.5) == NOON + timedelta(seconds=1.5)
    assert clock.advance(timedelta(days=400)) == NOON + timedelta(days=400, seconds=1.5)
    assert clock.now_s == clock.now.timestamp()


def test_a_clock_advances_to_a_time() -> None:
    clock = ManualClock(NOON)
    clock.advance_to(NOON + timedelta(hours=3))
    assert clock.now == NOON + timedelta(hours=3)


def test_a_clock_begins_with_the_systems_time() -> None:
    before = datetime.now(timezone.utc)
    assert before <= ManualClock().now <= datetime.now(timezone.utc)


def test_a_clock_shows_utc() -> None:
    clock = ManualClock(NOON.astimezone(timezone(timedelta(hours=5))))
    assert clock.now == NOON
    assert clock.now.tzinfo is timezone.utc


def test_a_clock_refuses_to_go_back_and_times_without_a_zone() -> None:
    clock = ManualClock(NOON)
    with pytest.raises(ValueError, match="only moves forward"):
        clock.advance(-1)
    with pytest.raises(ValueError, match="only moves forward"):
        clock.advance_to(NOON - timedelta(seconds=1))
    with pytest.raises(ValueError, match="time zone"):
        ManualClock(datetime(2026, 5, 1))
