"""Comparison of the consumers of a channel."""

from __future__ import annotations

from typing import Any

from pyqd.client.compared_consumers import CHANNELS_MAX, NOT_READY, REQUEUES, SLOW, TIMES_OUT, Looks

CHANNEL = ("t", "c")


def client(name: str, finished: int = 0, **more: Any) -> dict[str, Any]:
    row = {
        "node": "n",
        "remote_address": name,
        "finish_count": finished,
        "requeue_count": 0,
        "in_flight_count": 1,
        "ready_count": 1,
        "connected": 100 * 10**9,
        **more,
    }
    counted = row["finish_count"] + row["requeue_count"] + row["in_flight_count"]
    return {"message_count": counted + row.pop("timed_out", 0), **row}


def marks(*clients: dict[str, Any]) -> dict[str, list[str]]:
    return {each.client["remote_address"]: each.marks for each in Looks().compare(CHANNEL, clients, 0.0)}


def test_the_first_look_has_averages_and_later_ones_the_last_seconds() -> None:
    looks = Looks()
    (first,) = looks.compare(CHANNEL, [client("a", 1000)], 0.0)
    (second,) = looks.compare(CHANNEL, [client("a", 1100)], 2.0)
    (third,) = looks.compare(CHANNEL, [client("a", 1100)], 60.0)
    assert (first.rate, second.rate, third.rate) == (10.0, 50.0, 11.0)


def test_a_client_that_has_connected_since_then_has_its_average() -> None:
    looks = Looks()
    looks.compare(CHANNEL, [client("a", 1000)], 0.0)
    found = looks.compare(CHANNEL, [client("a", 1000), client("b", 500)], 2.0)
    assert [each.rate for each in found] == [0.0, 5.0]
    assert [each.share for each in found] == [0.0, 1.0]


def test_a_count_that_began_anew_gives_an_average() -> None:
    looks = Looks()
    looks.compare(CHANNEL, [client("a", 1000)], 0.0)
    (found,) = looks.compare(CHANNEL, [client("a", 100)], 2.0)
    assert found.rate == 1.0


def test_the_time_per_message_follows_from_rate_and_messages_in_flight() -> None:
    found = Looks().compare(CHANNEL, [client("a", 1000, in_flight_count=5), client("b")], 0.0)
    assert [each.took_s for each in found] == [0.5, None]


def test_the_odd_ones_are_marked() -> None:
    assert marks(client("a", 1000), client("b", 900), client("c", 300)) == {"a": [], "b": [], "c": [SLOW]}
    assert marks(client("a", 1000), client("b", 1000, requeue_count=100))["b"] == [REQUEUES]
    assert marks(client("a", 1000), client("b", 1000, timed_out=100), client("c", 1000))["b"] == [TIMES_OUT]
    assert marks(client("a", 1000), client("b", 0, ready_count=0, in_flight_count=0))["b"] == [SLOW, NOT_READY]
    assert marks(client("a", 1000), client("b", 1000, ready_count=0))["b"] == []


def test_consumers_that_are_alike_or_alone_have_no_marks() -> None:
    assert marks(client("a", 1000), client("b", 1001)) == {"a": [], "b": []}
    assert marks(client("a", 0, requeue_count=100)) == {"a": []}
    assert marks(client("a", 900, requeue_count=100), client("b", 900, requeue_count=90)) == {"a": [], "b": []}


def test_only_the_latest_channels_are_kept() -> None:
    looks = Looks()
    for number in range(CHANNELS_MAX + 10):
        looks.compare(("t", str(number)), [client("a", 10)], 0.0)
    assert len(looks._looks) == CHANNELS_MAX
