"""Sums and rates of counters."""

from __future__ import annotations

from typing import Any

from pyqd.tools.ctl.counters import NodeStats, Reading, rates


def stats_of(node: str, received: int, depth: int, **counters: int) -> NodeStats:
    channel = {
        "channel_name": "c",
        "depth": depth,
        "in_flight_count": 0,
        "deferred_count": 0,
        "message_count": received,
        "requeue_count": 0,
        "timeout_count": 0,
        **counters,
    }
    topics: list[dict[str, Any]] = [{"topic_name": "t", "message_count": received, "channels": [channel]}]
    return NodeStats(node, topics, {})


def test_rates_are_differences_by_time_summed_over_brokers() -> None:
    before = Reading(10.0, [stats_of("a", 100, 10), stats_of("b", 50, 0)])
    now = Reading(12.0, [stats_of("a", 160, 20, requeue_count=4), stats_of("b", 60, 0)])
    # Done: (160 - 20) - (100 - 10) + 10.
    assert rates(before, now)[("t", "c")] == (35.0, 30.0, 2.0, 0.0)
    assert rates(before, now)[("t", None)] == (35.0, 0.0, 0.0, 0.0)


def test_a_broker_in_one_reading_only_has_no_rates() -> None:
    assert rates(Reading(1.0, []), Reading(2.0, [stats_of("a", 5, 0)])) == {}


def test_a_counter_that_has_fallen_has_no_rate() -> None:
    before, now = Reading(1.0, [stats_of("a", 100, 0)]), Reading(2.0, [stats_of("a", 5, 5)])
    assert rates(before, now)[("t", "c")] == (0.0, 0.0, 0.0, 0.0)
