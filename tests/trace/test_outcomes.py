"""Rules by which events give deliveries their outcomes; they do not depend on the kind of database."""

from __future__ import annotations

import pytest

from pyqd.trace.database import Database
from pyqd.trace.search import TraceQuery, find
from pyqd.trace.story import stories_of
from tests.support.trace_log import TraceLog, add_all
from tests.support.trace_tables import events_of, outcomes_of, rows_of
from tests.trace.conftest import Store


@pytest.fixture
def database(sqlite: Database) -> Database:
    return sqlite


@pytest.mark.parametrize("is_later", [False, True], ids=["one batch", "a later batch"])
@pytest.mark.parametrize(
    ("kinds", "outcome", "at"),
    [
        (["finished"], "finished", 2),
        (["requeued"], "requeued", 2),
        (["timed_out"], "timed_out", 2),
        (["client_gone"], "disconnected", 2),
        (["client_gone", "timed_out"], "disconnected", 2),
        (["touched"], "in_flight", None),
        (["touched", "finished"], "finished", 3),
        (["requeued", "dead_lettered"], "dead_lettered", 3),
        (["dead_lettered"], "dead_lettered", 2),
        (["requeued", "rescheduled", "cancelled"], "cancelled", 4),
        (["timed_out", "dropped"], "cancelled", 3),
        (["finished", "dropped"], "finished", 2),
    ],
)
def test_events_of_a_delivery_give_its_outcome(
    database: Database, log: TraceLog, store: Store, is_later: bool, kinds: list[str], outcome: str, at: int | None
) -> None:
    add_all(log, [("sent", 1)])
    if is_later:
        store()
    add_all(log, [(kind, 1) for kind in kinds])
    store()
    assert outcomes_of(database) == [("1", "a", 1, outcome, at)]
    assert [event for _, _, event in events_of(database)] == [kind for kind in kinds if kind != "finished"]


@pytest.mark.parametrize("is_later", [False, True], ids=["one batch", "a later batch"])
def test_each_delivery_of_a_message_has_a_row(database: Database, log: TraceLog, store: Store, is_later: bool) -> None:
    add_all(log, [("sent", 1), ("requeued", 1)])
    if is_later:
        store()
    add_all(log, [("sent", 1)], attempt=2)
    if is_later:
        store()
    add_all(log, [("finished", 1)], attempt=2)
    store()
    assert outcomes_of(database) == [("1", "a", 1, "requeued", 2), ("1", "a", 2, "finished", 4)]


@pytest.mark.parametrize("is_later", [False, True], ids=["one batch", "a later batch"])
def test_a_delivery_that_no_event_ended_is_over_when_the_message_is_sent_again(
    database: Database, log: TraceLog, store: Store, is_later: bool
) -> None:
    add_all(log, [("sent", 1)])
    if is_later:
        store()
    add_all(log, [("sent", 1)], attempt=2)
    store()
    assert outcomes_of(database) == [("1", "a", 1, "disconnected", None), ("1", "a", 2, "in_flight", None)]


def test_channels_and_topics_have_deliveries_of_their_own(database: Database, log: TraceLog, store: Store) -> None:
    for topic in ("orders", "returns"):
        for channel in ("a", "b"):
            log.add("sent", 1, topic, channel, attempt=1)
    log.add("finished", 1, "returns", "a")
    store()
    log.add("finished", 1, "orders", "b")
    store()
    found = {(row["topic"], row["channel"]): row["outcome"] for row in rows_of(database, "consume_log")}
    assert found == {
        ("orders", "a"): "in_flight",
        ("orders", "b"): "finished",
        ("returns", "a"): "finished",
        ("returns", "b"): "in_flight",
    }


def test_an_end_of_another_broker_leaves_a_delivery_alone(database: Database, log: TraceLog, store: Store) -> None:
    add_all(log, [("sent", 1)])
    store()
    other_log = TraceLog()
    other = database.node("another log", "another:4151")
    add_all(other_log, [("finished", 1)])
    database.write(other, other_log.decoded())
    assert outcomes_of(database) == [("1", "a", 1, "in_flight", None)]


def test_a_fin_without_its_delivery_is_an_event(database: Database, log: TraceLog, store: Store) -> None:
    add_all(log, [("finished", 1)])
    store()
    assert outcomes_of(database) == []
    assert events_of(database) == [("1", "a", "finished")]


@pytest.mark.parametrize("is_later", [False, True], ids=["one batch", "a later batch"])
@pytest.mark.parametrize("end", ["timed_out", "finished"])
def test_a_fin_is_an_event_if_only_an_older_delivery_of_its_message_is_known(
    database: Database, log: TraceLog, store: Store, is_later: bool, end: str
) -> None:
    add_all(log, [("sent", 1), (end, 1)])
    if is_later:
        store()
    log.skip(1)
    add_all(log, [("finished", 1)], attempt=2)
    store()
    assert outcomes_of(database) == [("1", "a", 1, end, 2)]
    assert events_of(database)[-1:] == [("1", "a", "finished")]
    assert find(database, TraceQuery(state="unfinished")) == []
    (story,) = stories_of(database, "0000000000000001")
    assert story.channels["a"].state == "finished"


def test_a_message_that_waits_in_a_channel_has_an_event(database: Database, log: TraceLog, store: Store) -> None:
    for channel in ("a", "b"):
        log.add("stored", 1, channel=channel)
    add_all(log, [("sent", 1)])
    store()
    assert events_of(database) == [("1", "b", "stored")]


@pytest.mark.parametrize("is_later", [False, True], ids=["one batch", "a later batch"])
@pytest.mark.parametrize(
    ("kind", "channel", "reason", "is_taken_back"),
    [
        ("dropped", "a", "emptied", True),
        ("dropped", "a", "channel_deleted", True),
        ("dropped", "a", "topic_deleted", True),
        ("dropped", "a", "seek", True),
        ("stored", "a", "seek", True),
        ("stored", "a", "released", False),
        ("dropped", "b", "emptied", False),
        # The messages that no client has.
        ("dropped", "a", "ephemeral", False),
        # The messages that the topic holds for its channels.
        ("dropped", "", "topic_deleted", False),
    ],
)
def test_an_act_on_a_channel_cancels_what_is_in_flight_if_it_takes_it_back(
    database: Database,
    log: TraceLog,
    store: Store,
    is_later: bool,
    kind: str,
    channel: str,
    reason: str,
    is_taken_back: bool,
) -> None:
    add_all(log, [("sent", 1), ("sent", 2), ("finished", 2), ("sent", 3)])
    if is_later:
        store()
    log.add(kind, 1, channel=channel, reason=reason, count=1)
    store()
    found = [outcome for _, _, _, outcome, _ in outcomes_of(database)]
    expected = "cancelled" if is_taken_back else "in_flight"
    assert found == [expected, "finished", expected]
