"""Messages are found by topic, channel, time and state; topics and channels have figures."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import sqlalchemy as sa

from pyqd.trace.database import Database
from pyqd.trace.figures import figures_of
from pyqd.trace.search import TraceQuery, find, newest, unclaimed
from pyqd.trace.story import stories_of
from tests.support.trace_log import AT_US, TraceLog, add_all
from tests.trace.conftest import Store

SECOND_US = 1_000_000


def second(number: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=AT_US + number * SECOND_US)


CONDITIONS: list[tuple[dict[str, Any], set[int]]] = [
    ({}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 11}),
    ({"topic": "returns"}, {11}),
    ({"topic": "orders", "channel": "a"}, {1, 2, 3, 4, 5, 6, 7, 8, 9}),
    ({"channel": "b"}, {11}),
    ({"topic": "orders", "channel": "b"}, set()),
    ({"state": "finished"}, {1, 2, 3}),
    ({"state": "unfinished"}, {4, 7, 8, 9, 11}),
    ({"state": "waiting"}, {9}),
    ({"state": "in_flight"}, {7, 11}),
    ({"state": "requeued"}, {4}),
    ({"state": "dead_lettered"}, {5}),
    ({"state": "cancelled"}, {6}),
    ({"state": "disconnected"}, {8}),
    ({"state": "timed_out"}, set()),
    ({"attempts_above": 1}, {3, 11}),
    ({"attempts_above": 6}, {11}),
    ({"slower_than": timedelta(seconds=10)}, {2}),
    ({"slower_than": timedelta(seconds=4), "state": "finished"}, {2, 3}),
    ({"since": second(8), "until": second(10)}, {7, 8, 9}),
    ({"since": second(8), "topic": "orders", "channel": "a", "state": "unfinished"}, {7, 8, 9}),
]


@pytest.fixture
def filled(database: Database, log: TraceLog, store: Store) -> Database:
    """A database with messages in all states. Message N was published at second N, and sent a second later."""

    def send(guid: int, *ends: str, channel: str = "a", attempt: int = 1, took_s: float = 2) -> None:
        at_us = AT_US + (guid + 1) * SECOND_US
        log.add("sent", guid, channel=channel, client="10.0.0.2:5", attempt=attempt, at_us=at_us)
        for end in ends:
            log.add(end, guid, channel=channel, attempt=attempt, at_us=at_us + round(took_s * SECOND_US))

    for guid in range(1, 11):
        log.add("published", guid, size=100, at_us=AT_US + guid * SECOND_US)
        log.add("stored", guid, channel="a", at_us=AT_US + guid * SECOND_US)
    send(1, "finished", took_s=0.5)
    send(2, "finished", took_s=60)
    send(3, "requeued")
    send(3, "finished", attempt=2, took_s=4)
    send(4, "requeued")
    send(5, "timed_out", "dead_lettered")
    send(6, "requeued", "cancelled")
    send(7)
    send(8, "client_gone")
    # 9 waits, 10 was dropped.
    store()
    log.add("dropped", 10, channel="a", reason="ephemeral", at_us=AT_US + 20 * SECOND_US)
    log.add("published", 11, "returns", size=7, at_us=AT_US + 11 * SECOND_US)
    log.add("sent", 11, "returns", "b", attempt=7, at_us=AT_US + 12 * SECOND_US)
    store()
    return database


@pytest.mark.slow
def test_messages_are_found_by_conditions(filled: Database) -> None:
    for conditions, expected in CONDITIONS:
        assert {int(row.message_id, 16) for row in find(filled, TraceQuery(**conditions))} == expected, conditions


def test_a_found_message_says_what_became_of_it(filled: Database) -> None:
    (row,) = find(filled, TraceQuery(state="finished", attempts_above=1))
    assert (row.message_id, row.topic, row.channel, row.nsqd) == ("0000000000000003", "orders", "a", "broker:4151")
    assert (row.state, row.at, row.attempts, row.client) == ("finished", second(4), 2, "10.0.0.2:5")
    assert (row.published_at, row.outcome_at) == (second(3), second(8))
    assert row.taken_s == pytest.approx(5.0, abs=0.001)


def test_messages_that_no_channel_has_got_are_found_by_their_publishing(
    filled: Database, log: TraceLog, store: Store
) -> None:
    log.add("published", 12, "held", size=7, at_us=AT_US + 12 * SECOND_US)
    log.add("published", 13, "held", size=7, at_us=AT_US + 13 * SECOND_US)
    store()
    found = unclaimed(filled, TraceQuery(since=second(12)))
    assert [(int(row.message_id, 16), row.topic, row.channel, row.state) for row in found] == [
        (13, "held", "", "waiting"),
        (12, "held", "", "waiting"),
    ]
    assert found[0].published_at == found[0].at == second(13)
    assert [int(row.message_id, 16) for row in newest(filled, TraceQuery(since=second(11), limit=1))] == [13]
    assert {int(row.message_id, 16) for row in newest(filled, TraceQuery(since=second(12)))} == {11, 12, 13}
    for conditions in ({"state": "finished"}, {"channel": "a"}, {"topic": "orders"}, {"attempts_above": 1}):
        assert unclaimed(filled, TraceQuery(**conditions)) == []
    log.add("sent", 12, "held", "a", attempt=1)
    log.add("dropped", 0, "held", "", reason="emptied", count=1)
    store()
    assert unclaimed(filled, TraceQuery(topic="held")) == []


def test_a_message_that_no_client_has_got_is_found_after_its_due_time_was_changed(
    database: Database, log: TraceLog, store: Store
) -> None:
    # Held by their topics, or released to a channel.
    cases = [(f"{kind}-{channel}", kind, channel) for kind in ("rescheduled", "delivered_now") for channel in ("", "a")]
    for topic, kind, channel in cases:
        log.add("published", 1, topic)
        if channel:
            log.add("stored", 0, topic, channel, reason="released", count=1)
        log.add(kind, 1, topic, channel)
    store()
    for topic, _, channel in cases:
        for state in (None, "unfinished", "waiting"):
            (row,) = newest(database, TraceQuery(topic=topic, state=state))
            assert (row.message_id, row.state) == ("0000000000000001", "waiting")
        log.add("cancelled", 1, topic, channel)
    store()
    assert newest(database, TraceQuery()) == []


def test_the_newest_messages_are_found_first(filled: Database) -> None:
    found = [int(row.message_id, 16) for row in find(filled, TraceQuery(limit=3))]
    assert found == [11, 9, 8] or found == [11, 8, 9]


def test_what_was_emptied_is_not_unfinished(filled: Database, log: TraceLog, store: Store) -> None:
    log.add("dropped", 0, channel="a", reason="emptied", count=5)
    store()
    assert {int(row.message_id, 16) for row in find(filled, TraceQuery(state="unfinished"))} == {11}


@pytest.mark.parametrize("is_later", [False, True], ids=["one batch", "a later batch"])
def test_messages_that_a_seek_delivers_again_are_unfinished_until_they_are_removed(
    database: Database, log: TraceLog, store: Store, is_later: bool
) -> None:
    events = ("sent", 1), ("sent", 2), ("timed_out", 2), ("dead_lettered", 2), ("sent", 3), ("requeued", 3)
    topics = {f"to-{target}": target for target in (0, 1, 5)}
    for topic in topics:
        for guid in (1, 2, 3, 4):
            log.add("published", guid, topic)
            log.add("stored", guid, topic, "a")
        for kind, guid in events:
            log.add(kind, guid, topic, "a", client="10.0.0.7:5", attempt=1)
    if is_later:
        store()
    # All are skipped, and come back if the second seek goes back beyond them.
    for topic, target in topics.items():
        log.add("dropped", 4, topic, "a", reason="seek", count=4)
        log.add("stored", target, topic, "a", reason="seek", count=4 - target)
    store()
    expected = {(topic, guid) for topic, target in topics.items() for guid in (1, 2, 3, 4) if guid > target}
    found = find(database, TraceQuery(state="unfinished"))
    assert {(row.topic, int(row.message_id, 16)) for row in found} == expected
    stories = [story for guid in (1, 2, 3, 4) for story in stories_of(database, f"{guid:016x}")]
    waiting = {(story.topic, int(story.message_id, 16)) for story in stories if story.channels["a"].state == "waiting"}
    assert waiting == expected
    for topic in topics:
        log.add("dropped", 0, topic, "a", reason="emptied", count=4)
    store()
    assert find(database, TraceQuery(state="unfinished")) == []


def test_figures_of_topics_and_channels(filled: Database) -> None:
    figures = figures_of(filled)
    assert [(topic.topic, topic.message_count, topic.size_bytes) for topic in figures.topics] == [
        ("orders", 10, 1000),
        ("returns", 1, 7),
    ]
    assert (figures.topics[0].first_at, figures.topics[0].last_at) == (second(1), second(10))
    orders, returns = figures.channels
    assert (orders.topic, orders.channel, orders.delivery_count) == ("orders", "a", 9)
    assert orders.outcomes == {
        "finished": 3,
        "requeued": 2,
        "dead_lettered": 1,
        "cancelled": 1,
        "in_flight": 1,
        "disconnected": 1,
    }
    assert orders.percentiles_s == {50: 5.0, 90: 100.0, 99: 100.0}
    assert returns.percentiles_s == {50: None, 90: None, 99: None}


def test_figures_of_a_topic_and_a_span_of_time(filled: Database) -> None:
    figures = figures_of(filled, "orders", second(2), second(4))
    assert [topic.message_count for topic in figures.topics] == [2]
    assert [channel.delivery_count for channel in figures.channels] == [2]


# Start and duration of a delivery in microseconds, and the limit of its class in seconds.
TIMES = (
    (0, 490, 0.0005),
    (0, 900, 0.001),
    (0, 1000, 0.001),
    (0, 1001, 0.002),
    (999_500, 1000, 0.001),
    (999_999, 100, 0.0001),
    (0, 3_600_000_000 - 1, 5000.0),
)


def test_times_are_exact_to_the_microsecond(database: Database, log: TraceLog, store: Store) -> None:
    for number, (start_us, took_us, _) in enumerate(TIMES):
        at_us = start_us + AT_US - AT_US % SECOND_US
        log.add("published", 1, f"t{number}", at_us=at_us)
        log.add("sent", 1, f"t{number}", "a", attempt=1, at_us=at_us)
        log.add("finished", 1, f"t{number}", "a", attempt=1, at_us=at_us + took_us)
    store()
    assert [channel.percentiles_s[50] for channel in figures_of(database).channels] == [
        limit_s for *_, limit_s in TIMES
    ]
    for number, (_, took_us, _) in enumerate(TIMES):
        for least_us, count in ((took_us - 1, 1), (took_us, 0)):
            query = TraceQuery(topic=f"t{number}", slower_than=timedelta(microseconds=least_us))
            assert len(find(database, query)) == count, took_us


def test_a_message_of_another_broker_with_the_same_id_is_apart(filled: Database) -> None:
    log = TraceLog()
    add_all(log, [("sent", 4), ("finished", 4)])
    filled.write(filled.node("another log", "another:4151"), log.decoded())
    found = find(filled, TraceQuery(state="unfinished"))
    assert "0000000000000004" in {row.message_id for row in found}


def test_lost_events_are_counted_by_broker(database: Database, log: TraceLog, store: Store) -> None:
    log.add("published", 1)
    store()
    log.skip(5)
    log.add("published", 2)
    store()
    log.skip(7)
    log.add("published", 3)
    store()
    (gaps,) = figures_of(database).gaps
    assert (gaps.nsqd, gaps.event_count, gaps.unknown_count) == ("broker:4151", 12, 0)
    # The blocks of these tests have no time of their own.
    assert figures_of(database, since=gaps.last_at).gaps == [gaps]
    assert figures_of(database, until=gaps.last_at).gaps == []


def plan_of(database: Database, query: TraceQuery) -> str:
    """Return SQLite's plan of a search."""
    statements: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        if statement.startswith("SELECT trace_deliveries"):
            statements.append((statement, values))

    sa.event.listen(database.engine, "before_cursor_execute", note)
    try:
        find(database, query)
    finally:
        sa.event.remove(database.engine, "before_cursor_execute", note)
    (statement, values) = statements[0]
    with database.transaction("read", reading=True) as connection:
        rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
    return "\n".join(row.detail for row in rows)


@pytest.mark.parametrize(
    ("conditions", "index"),
    [
        ({}, "trace_deliveries_time"),
        ({"state": "unfinished"}, "trace_deliveries_unfinished"),
        ({"state": "requeued"}, "trace_deliveries_unfinished"),
        ({"attempts_above": 3}, "trace_deliveries_again"),
    ],
)
def test_a_search_for_few_of_many_messages_uses_their_index(
    sqlite: Database, conditions: dict[str, Any], index: str
) -> None:
    plan = plan_of(sqlite, TraceQuery(topic="orders", channel="a", **conditions))
    assert f"trace_deliveries USING INDEX {index} " in plan
    assert "TEMP B-TREE" not in plan


def test_acts_on_many_messages_are_found_by_their_reason(sqlite: Database) -> None:
    plan = plan_of(sqlite, TraceQuery(topic="orders", channel="a", state="unfinished"))
    assert "trace_bulk_events USING INDEX trace_bulk_events_reason (topic=? AND reason=?" in plan
