"""Events become rows in each kind of database."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from pyqd.trace import MovedError
from pyqd.trace.database import Database, TraceNode
from tests.support.trace_log import AT_US, TraceLog, add_all
from tests.support.trace_tables import outcomes_of, rows_of
from tests.trace.conftest import Store

AWKWARD = "10.0.0.7:1\t\\N'\";--%s\n\u00e4\U0001f600"


def test_a_published_message_is_a_row_of_publish_log(database: Database, log: TraceLog, store: Store) -> None:
    log.add("published", 0xABC, client=AWKWARD, size=12, body=b"\0\xff\\\t'", due_ns=1000 * (AT_US + 77) + 999)
    log.add("published", 0xABD)
    store()
    first, second = rows_of(database, "publish_log")
    assert first == {
        "message_id": "0000000000000abc",
        "topic": "orders",
        "nsqd": "broker:4151",
        "client": AWKWARD,
        "size": 12,
        "body": b"\0\xff\\\t'",
        "published_at": 1,
        "due_at": 77,
    }
    assert (second["client"], second["size"], second["body"], second["due_at"]) == (None, 0, None, None)


def test_a_delivery_is_a_row_of_consume_log(database: Database, log: TraceLog, store: Store) -> None:
    log.add("sent", 0xABC, channel="email", client=AWKWARD, attempt=3)
    log.add("finished", 0xABC, channel="email", client=AWKWARD, attempt=3)
    store()
    assert rows_of(database, "consume_log") == [
        {
            "message_id": "0000000000000abc",
            "topic": "orders",
            "channel": "email",
            "nsqd": "broker:4151",
            "client": AWKWARD,
            "attempt": 3,
            "sent_at": 1,
            "outcome": "finished",
            "outcome_at": 2,
        }
    ]


@pytest.mark.parametrize("is_later", [False, True], ids=["one batch", "a later batch"])
def test_emptying_a_channel_cancels_what_is_in_flight(
    database: Database, log: TraceLog, store: Store, is_later: bool
) -> None:
    for channel in ("a", "b"):
        log.add("sent", 1, channel=channel, attempt=1)
    log.add("sent", 2, channel="a", attempt=1)
    log.add("finished", 2, channel="a")
    if is_later:
        store()
    log.add("dropped", 0, channel="a", reason="emptied", count=7)
    log.add("sent", 3, channel="a", attempt=1)
    store()
    assert outcomes_of(database) == [
        ("1", "a", 1, "cancelled", 5),
        ("1", "b", 1, "in_flight", None),
        ("2", "a", 1, "finished", 4),
        ("3", "a", 1, "in_flight", None),
    ]
    (bulk,) = rows_of(database, "bulk_event_log")
    assert (bulk["message_id"], bulk["event"], bulk["reason"], bulk["message_count"]) == (
        None,
        "dropped",
        "emptied",
        7,
    )


def cancellations_of(database: Database, store: Store) -> list[tuple[str, Any]]:
    """Store the events of a log. Returns: text and values of the statements that cancel deliveries in flight."""
    statements: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        if statement.startswith("UPDATE trace_deliveries"):
            statements.append((statement, values))

    sa.event.listen(database.engine, "before_cursor_execute", note)
    try:
        store()
    finally:
        sa.event.remove(database.engine, "before_cursor_execute", note)
    return statements


def test_emptying_a_channel_reads_its_unfinished_deliveries_only(sqlite: Database, log: TraceLog) -> None:
    node = sqlite.node("log", "broker:4151")
    log.add("dropped", 0, channel="a", reason="emptied", count=1)
    ((statement, values),) = cancellations_of(sqlite, lambda: sqlite.write(node, log.decoded()))
    with sqlite.transaction("read", reading=True) as connection:
        plan = "\n".join(row.detail for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values))
    assert "USING INDEX trace_deliveries_unfinished (topic=? AND channel=?)" in plan


def test_a_channel_that_is_emptied_repeatedly_is_searched_once_per_batch(
    database: Database, log: TraceLog, store: Store
) -> None:
    for channel in ("a", "b"):
        log.add("sent", 1, channel=channel, attempt=1)
    store()
    for channel in ("a", "b", "a", "a"):
        log.add("dropped", 0, channel=channel, reason="emptied", count=1)
    assert len(cancellations_of(database, store)) == 2
    assert outcomes_of(database) == [("1", "a", 1, "cancelled", 3), ("1", "b", 1, "cancelled", 4)]


def test_overwritten_events_are_a_gap(database: Database, log: TraceLog, store: Store) -> None:
    add_all(log, [("sent", 1)])
    store()
    log.skip(41)
    add_all(log, [("sent", 2)])
    assert store().position == 44
    (gap,) = rows_of(database, "gap_log", "position")
    assert (gap["nsqd"], gap["position"], gap["event_count"]) == ("broker:4151", 2, 41)


def test_a_batch_that_was_stored_is_refused_a_second_time(database: Database, log: TraceLog, store: Store) -> None:
    add_all(log, [("sent", 1)])
    before = database.node("log", "broker:4151")
    store()
    with pytest.raises(MovedError) as caught:
        database.write(before, log.decoded())
    assert caught.value.position == 2
    assert len(outcomes_of(database)) == 1


def test_a_shipper_that_goes_on_after_another_one_ends_the_last_delivery(sqlite: Database, log: TraceLog) -> None:
    other = Database(str(sqlite.engine.url))
    try:
        log.add("sent", 7, channel="a", attempt=1)
        first = sqlite.write(sqlite.node("log", "broker:4151"), log.decoded())
        log.add("timed_out", 7, channel="a", attempt=1)
        log.add("sent", 7, channel="a", attempt=2)
        other.write(other.node("log", "broker:4151"), log.decoded(first.position))
        log.add("finished", 7, channel="a", attempt=2)
        node = sqlite.node("log", "broker:4151")
        sqlite.write(node, log.decoded(node.position))
    finally:
        other.close()
    assert outcomes_of(sqlite) == [("7", "a", 1, "timed_out", 2), ("7", "a", 2, "finished", 4)]


def test_long_names_are_cut_and_nul_is_replaced(database: Database, log: TraceLog, store: Store) -> None:
    log.add("published", 1, client="x\0" * 100)
    store()
    (row,) = rows_of(database, "publish_log")
    assert row["client"] == "x\ufffd" * 64


@pytest.mark.slow
def test_more_rows_than_a_statement_takes_are_stored(database: Database, log: TraceLog, store: Store) -> None:
    for guid in range(1, 2504):
        log.add("published", guid, body=bytes(300))
        add_all(log, [("sent", guid)])
    store()
    add_all(log, [("timed_out", guid) for guid in range(1, 2504)])
    store()
    assert len(rows_of(database, "publish_log")) == 2503
    assert {outcome for _, _, _, outcome, _ in outcomes_of(database)} == {"timed_out"}


def test_a_broker_keeps_its_number_and_another_log_gets_its_own(database: Database) -> None:
    first = database.node("log", "broker:4151")
    assert database.node("log", "renamed:4151") == TraceNode(first.node_id, "log", "renamed:4151", 0)
    second = database.node("another log", "renamed:4151")
    assert second.node_id != first.node_id
    assert database.nodes() == [TraceNode(first.node_id, "log", "renamed:4151", 0), second]


def test_a_long_address_of_a_broker_is_cut(database: Database) -> None:
    address = "broker." * 30 + "example:4151"
    node = database.node("log", address)
    assert node.nsqd == address[:128]
    assert database.node("log", address) == node
    assert database.node("renamed log", "broker:4151").node_id != node.node_id
    assert database.nodes()[0] == node


def test_a_new_file_can_be_read_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "trace.db"
    before = os.umask(0o022)
    try:
        database = Database(f"sqlite:///{path}")
        assert not path.exists()
        with database.engine.begin() as connection:
            connection.execute(sa.text("CREATE TABLE t (a)"))
            modes = {each.name: each.stat().st_mode & 0o777 for each in tmp_path.iterdir()}
        database.close()
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(modes, 0o600)
    assert "trace.db" in modes
