"""Old rows are removed by age and by size."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from pyqd.trace import database as database_module
from pyqd.trace import retention as retention_module
from pyqd.trace import schema
from pyqd.trace.database import Database
from pyqd.trace.retention import Retention
from pyqd.trace.shipper import ShipOptions, Shipper
from tests.support.trace_broker import TraceBroker
from tests.support.trace_log import TraceLog, add_all
from tests.support.trace_shipping import clients
from tests.support.trace_tables import rows_of
from tests.trace.conftest import Store

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

HOUR_US = 3_600_000_000
HOURS = 4


def fill(log: TraceLog, store: Store) -> None:
    """Store some rows of each table for each of the last hours."""
    now_us = time.time_ns() // 1000
    for hour in range(HOURS, 0, -1):
        log.at_us = now_us - hour * HOUR_US + 60_000_000
        for guid in range(100 * hour, 100 * hour + 10):
            log.add("published", guid)
            add_all(log, [("sent", guid), ("requeued", guid)])
        log.skip(5)
        log.add("dropped", 1, channel="a", reason="emptied", count=3)
        store()


def remove_all(database: Database, retention: Retention) -> None:
    """Remove rows until none exceeds a limit."""
    for _ in range(100):
        if not retention.is_due(time.monotonic()):
            return
        retention.remove_some(database)
    raise AssertionError("the removal does not end")


def counts(database: Database) -> dict[str, int]:
    """Return the number of rows of each table."""
    with database.transaction("read") as connection:
        return {
            table.name: connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0
            for table in (*schema.ROW_TABLES, schema.portions)
        }


def rows_of_hours(hours: int) -> dict[str, int]:
    """Return the number of rows of each table after `fill`, if so many hours are left."""
    each = {"publications": 10, "deliveries": 10, "events": 10, "bulk_events": 1, "gaps": 1, "portions": 1}
    return {f"trace_{name}": count * hours for name, count in each.items()}


def test_rows_beyond_an_age_are_removed(
    database: Database, log: TraceLog, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "PORTION_TIME", timedelta(minutes=30))
    # Small transactions: a portion takes several.
    monkeypatch.setattr(retention_module, "ROWS", 4)
    fill(log, store)
    assert counts(database) == rows_of_hours(HOURS)
    remove_all(database, Retention(keep=timedelta(hours=2)))
    assert counts(database) == rows_of_hours(2)
    assert {row["message_id"][-3:-2] for row in rows_of(database, "publish_log")} == {"0"}


@pytest.mark.parametrize(
    ("ages", "removed"),
    [
        ([timedelta(minutes=1), timedelta(days=20_000), timedelta(0)], 1),
        ([timedelta(days=40), timedelta(days=-3650), timedelta(days=39), timedelta(0)], 2),
    ],
    ids=["the past", "the future"],
)
def test_a_wrong_clock_of_a_broker_removes_no_rows_before_or_after_it(
    database: Database,
    log: TraceLog,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    ages: list[timedelta],
    removed: int,
) -> None:
    # Each batch is a portion.
    monkeypatch.setattr(database_module, "PORTION_ROWS", 1)
    for number, age in enumerate(ages, start=1):
        log.add("published", number, at_us=time.time_ns() // 1000 - age // timedelta(microseconds=1))
        store()
    keep = timedelta(days=30)
    kept = [number for number, age in enumerate(ages, start=1) if age < keep]
    assert len(kept) == len(ages) - removed
    remove_all(database, Retention(keep=keep))
    assert [int(row["message_id"], 16) for row in rows_of(database, "publish_log")] == kept
    assert counts(database)["trace_portions"] == len(kept)


def test_the_oldest_rows_are_removed_beyond_a_size(
    sqlite: Database, log: TraceLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "PORTION_ROWS", 1)
    node = sqlite.node("log", "broker:4151")
    for first in range(1, 1001, 100):
        for guid in range(first, first + 100):
            log.add("published", guid, body=bytes(1000))
        node = sqlite.write(node, log.decoded(node.position))
    with sqlite.transaction("read") as connection:
        size_bytes = connection.scalar(sa.select(sa.func.sum(schema.portions.c.size_bytes)))
    assert size_bytes is not None
    remove_all(sqlite, Retention(keep_bytes=size_bytes // 2))
    assert [int(row["message_id"], 16) for row in rows_of(sqlite, "publish_log")] == list(range(501, 1001))


def test_a_run_with_an_end_removes_all_rows_beyond_a_limit(
    sqlite: Database, log: TraceLog, store: Store, monkeypatch: pytest.MonkeyPatch, brokers: list[TraceBroker]
) -> None:
    monkeypatch.setattr(database_module, "PORTION_TIME", timedelta(minutes=30))
    monkeypatch.setattr(retention_module, "ROWS", 4)
    for hour in range(HOURS, 0, -1):
        for guid in range(100 * hour, 100 * hour + 10):
            log.add("published", guid, at_us=time.time_ns() // 1000 - hour * HOUR_US)
        node = sqlite.node("log of one", "one:4151")
        sqlite.write(node, log.decoded(node.position))
    brokers[0].log = log
    shipper = Shipper(
        sqlite, clients(brokers[0].address), Retention(keep=timedelta(hours=2)), ShipOptions(is_once=True)
    )
    assert shipper.run() == []
    assert [row["message_id"][-3:-2] for row in rows_of(sqlite, "publish_log")] == ["0"] * 10


def test_nothing_is_removed_within_an_age_that_goes_back_beyond_all_dates(
    database: Database, log: TraceLog, store: Store
) -> None:
    log.add("published", 1)
    store()
    remove_all(database, Retention(keep=timedelta(days=1_000_000)))
    assert len(rows_of(database, "publish_log")) == 1


def test_nothing_is_removed_without_a_limit(sqlite: Database, log: TraceLog, store: Store) -> None:
    fill(log, store)
    assert not Retention().is_due(time.monotonic())


def test_the_estimate_of_the_size_is_near_the_size_of_the_file(sqlite_url: str, log: TraceLog) -> None:
    database = Database(sqlite_url)
    database.upgrade()
    node = database.node("log", "broker:4151")
    for guid in range(0x0C5F0E5B2AC07000, 0x0C5F0E5B2AC07000 + 20_000 * 4096, 4096):
        log.add("published", guid, client="10.0.0.1:53412", size=200)
        log.add("sent", guid, channel="email", client="10.0.0.2:50001", attempt=1)
        log.add("finished", guid, channel="email", client="10.0.0.2:50001", attempt=1)
    database.write(node, log.decoded())
    with database.transaction("read") as connection:
        estimate_bytes = connection.scalar(sa.select(sa.func.sum(schema.portions.c.size_bytes)))
    database.close()
    assert estimate_bytes is not None
    assert 0.7 < estimate_bytes / Path(sqlite_url.removeprefix("sqlite:///")).stat().st_size < 1.4
