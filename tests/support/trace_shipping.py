"""Shippers in tests: one run, or a thread for a block, over brokers that have nothing but an event log."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pyqd.client.errors import ClientError
from pyqd.client.http import HttpClient
from pyqd.trace.database import Database
from pyqd.trace.retention import Retention
from pyqd.trace.shipper import ShipOptions, Shipper
from tests.support.server import wait_until
from tests.support.trace_broker import TraceBroker
from tests.support.trace_log import TraceLog
from tests.support.trace_tables import rows_of

TIMEOUT_S = 20.0


def clients(*addresses: str) -> Callable[[], Sequence[HttpClient]]:
    return lambda: [HttpClient(address, timeout_s=TIMEOUT_S, retry_timeout_s=0) for address in addresses]


def ship_once(database: Database, *brokers: TraceBroker) -> list[ClientError]:
    """Store all events that the brokers have."""
    addresses = [broker.address for broker in brokers]
    return Shipper(database, clients(*addresses), Retention(), ShipOptions(is_once=True, interval_s=0.01)).run()


@contextmanager
def shipping(database: Database, find: Callable[[], Sequence[HttpClient]], **options: Any) -> Iterator[Shipper]:
    shipper = Shipper(database, find, Retention(), ShipOptions(interval_s=0.01, **options))
    thread = threading.Thread(target=shipper.run)
    thread.start()
    try:
        yield shipper
    finally:
        shipper.stop()
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


def publish(first: int, count: int) -> Callable[[TraceLog], None]:
    """Return a change of a log: so many published messages."""

    def change(log: TraceLog) -> None:
        for guid in range(first, first + count):
            log.add("published", guid)

    return change


def ids_of(database: Database, nsqd: str) -> list[int]:
    return [int(row["message_id"], 16) for row in rows_of(database, "publish_log") if row["nsqd"] == f"{nsqd}:4151"]


def wait_for_ids(database: Database, nsqd: str, expected: list[int]) -> None:
    wait_until(lambda: ids_of(database, nsqd) == expected, f"messages of {nsqd}", TIMEOUT_S)
