"""The shipper stores the events of all brokers, each once, also when brokers come and go."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack

import pytest

from pyqd.client.http import HttpClient
from pyqd.hot.wire.trace_events import TraceColumns
from pyqd.trace import DatabaseError
from pyqd.trace.database import Database, TraceNode
from pyqd.trace.fetcher import Fetcher
from pyqd.trace.retention import Retention
from pyqd.trace.shipper import ShipOptions, Shipper
from tests.support.server import wait_until
from tests.support.trace_broker import TraceBroker
from tests.support.trace_log import TraceLog
from tests.support.trace_shipping import TIMEOUT_S, clients, ids_of, publish, ship_once, shipping, wait_for_ids
from tests.support.trace_tables import rows_of

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow


def test_all_events_of_all_brokers_are_stored(sqlite: Database, brokers: list[TraceBroker]) -> None:
    one, two = brokers
    one.max_bytes = 5000
    one.log.add("published", 1)
    publish(2, 5000)(one.log)
    publish(1, 3)(two.log)
    assert ship_once(sqlite, *brokers) == []
    assert ids_of(sqlite, "one") == list(range(1, 5002))
    assert ids_of(sqlite, "two") == [1, 2, 3]


def test_the_next_run_goes_on_after_the_last_event(sqlite: Database, brokers: list[TraceBroker]) -> None:
    one = brokers[0]
    publish(1, 3)(one.log)
    ship_once(sqlite, one)
    publish(4, 3)(one.log)
    ship_once(sqlite, one)
    ship_once(sqlite, one)
    assert ids_of(sqlite, "one") == [1, 2, 3, 4, 5, 6]


def test_new_events_are_stored_while_the_shipper_runs(sqlite: Database, brokers: list[TraceBroker]) -> None:
    one, two = brokers
    with shipping(sqlite, clients(one.address, two.address)):
        one.change(publish(1, 2))
        wait_for_ids(sqlite, "one", [1, 2])
        two.change(publish(7, 1))
        one.change(publish(3, 1))
        wait_for_ids(sqlite, "one", [1, 2, 3])
        wait_for_ids(sqlite, "two", [7])


def test_a_stop_while_a_thread_for_a_new_broker_starts_is_clean(
    sqlite: Database, brokers: list[TraceBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    starting, stopped = threading.Event(), threading.Event()
    start = Fetcher.start

    def start_slowly(fetcher: Fetcher) -> None:
        starting.set()
        assert stopped.wait(TIMEOUT_S)
        start(fetcher)

    monkeypatch.setattr(Fetcher, "start", start_slowly)
    with shipping(sqlite, clients(brokers[0].address)):
        assert starting.wait(TIMEOUT_S)
    stopped.set()


def test_two_shippers_at_once_store_each_event_once(database: Database, brokers: list[TraceBroker]) -> None:
    url = database.store.url.render_as_string(hide_password=False)
    others = [Database(url) for _ in range(2)]
    one, two = brokers
    with ExitStack() as stack:
        for other in others:
            stack.enter_context(shipping(other, clients(one.address, two.address), standby_s=0.02))
        for first in range(1, 400, 20):
            one.change(publish(first, 20))
            two.change(publish(first, 20))
        for name in ("one", "two"):
            wait_for_ids(database, name, list(range(1, 401)))
    for other in others:
        other.close()


def test_a_shipper_takes_over_from_one_that_has_ended(sqlite: Database, brokers: list[TraceBroker]) -> None:
    one = brokers[0]
    other = Database(sqlite.store.url.render_as_string())
    with shipping(sqlite, clients(one.address), standby_s=0.05):
        one.change(publish(1, 1))
        wait_for_ids(sqlite, "one", [1])
        with shipping(other, clients(one.address), standby_s=0.05):
            one.change(publish(2, 1))
            wait_for_ids(sqlite, "one", [1, 2])
        one.change(publish(3, 1))
        wait_for_ids(sqlite, "one", [1, 2, 3])
    other.close()


def test_a_transaction_whose_answer_was_lost_is_not_repeated(
    sqlite: Database, brokers: list[TraceBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = brokers[0]
    publish(1, 3)(one.log)
    write = sqlite.write
    writes = []

    def write_and_fail(node: TraceNode, events: TraceColumns) -> TraceNode:
        written = write(node, events)
        writes.append(written)
        raise DatabaseError("the connection is lost")

    def fail_first(node: TraceNode, events: TraceColumns) -> TraceNode:
        return write(node, events) if writes else write_and_fail(node, events)

    monkeypatch.setattr(sqlite, "write", fail_first)
    assert ship_once(sqlite, one) == []
    assert ids_of(sqlite, "one") == [1, 2, 3]
    publish(4, 1)(one.log)
    ship_once(sqlite, one)
    assert ids_of(sqlite, "one") == [1, 2, 3, 4]


def test_a_new_data_directory_is_another_log(sqlite: Database, brokers: list[TraceBroker]) -> None:
    one = brokers[0]
    with shipping(sqlite, clients(one.address)):
        one.change(publish(1, 3))
        wait_for_ids(sqlite, "one", [1, 2, 3])
        one.log_id, one.log = "log of another directory", TraceLog()
        one.change(publish(10, 2))
        wait_for_ids(sqlite, "one", [1, 2, 3, 10, 11])
    assert len(sqlite.nodes()) == 2


def test_an_older_copy_of_a_data_directory_is_reported(
    sqlite: Database, brokers: list[TraceBroker], caplog: pytest.LogCaptureFixture
) -> None:
    one = brokers[0]
    publish(1, 3)(one.log)
    ship_once(sqlite, one)
    one.log = TraceLog()
    publish(1, 2)(one.log)
    with shipping(sqlite, clients(one.address)):
        wait_until(lambda: "is an older copy" in caplog.text, "a warning")
    assert ids_of(sqlite, "one") == [1, 2, 3]


def test_a_broker_that_is_away_is_read_when_it_is_back(
    sqlite: Database, brokers: list[TraceBroker], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    one = brokers[0]
    publish(1, 3)(one.log)
    one.refusal = (500, {}, b"")
    with shipping(sqlite, clients(one.address)):
        wait_until(lambda: "cannot read the event log" in caplog.text, "a warning")
        one.refusal = None
        wait_for_ids(sqlite, "one", [1, 2, 3])


def test_a_run_with_an_end_returns_the_error_of_a_broker_and_stores_the_events_of_others(
    sqlite: Database, brokers: list[TraceBroker]
) -> None:
    one, two = brokers
    one.refusal = (404, {}, b'{"message":"NOT_FOUND"}')
    publish(1, 2)(two.log)
    (error,) = ship_once(sqlite, one, two)
    assert "/info" in str(error)
    assert ids_of(sqlite, "two") == [1, 2]


def test_brokers_that_are_found_later_are_read(sqlite: Database, brokers: list[TraceBroker]) -> None:
    one, two = brokers
    publish(1, 1)(one.log)
    publish(2, 1)(two.log)
    known = [one.address]
    with shipping(sqlite, lambda: clients(*known)(), discovery_s=0.01):
        wait_for_ids(sqlite, "one", [1])
        known.append(two.address)
        wait_for_ids(sqlite, "two", [2])


def test_a_broker_with_two_addresses_is_read_once(
    sqlite: Database, brokers: list[TraceBroker], caplog: pytest.LogCaptureFixture
) -> None:
    one = brokers[0]
    again = one.address.replace("127.0.0.1", "localhost")
    with shipping(sqlite, clients(one.address, again)):
        wait_until(lambda: "are the same broker" in caplog.text, "a warning")
        one.change(publish(1, 2))
        wait_for_ids(sqlite, "one", [1, 2])


@pytest.mark.parametrize("max_bytes", [1, 1 << 20], ids=["a block at a time", "all at once"])
def test_damaged_blocks_are_a_gap(
    sqlite: Database, brokers: list[TraceBroker], max_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    one = brokers[0]
    one.max_bytes = max_bytes
    for first in (1, 11, 21, 31):
        publish(first, 10)(one.log)
        one.log.seal()
    for number in (1, 2):
        position, record = one.log.records[number]
        one.log.records[number] = position, record[:100] + b"!" + record[101:]
    ship_once(sqlite, one)
    assert ids_of(sqlite, "one") == [*range(1, 11), *range(31, 41)]
    (gap,) = rows_of(sqlite, "gap_log", "position")
    assert (gap["position"], gap["event_count"]) == (11, 20)
    assert "blocks of the event log are damaged" in caplog.text


def test_a_damaged_last_block_is_a_gap_when_others_follow(sqlite: Database, brokers: list[TraceBroker]) -> None:
    one = brokers[0]
    for first in (1, 11):
        publish(first, 10)(one.log)
        one.log.seal()
    position, record = one.log.records[1]
    one.log.records[1] = position, record[:100] + b"!" + record[101:]
    ship_once(sqlite, one)
    assert ids_of(sqlite, "one") == list(range(1, 11))
    assert rows_of(sqlite, "gap_log", "position") == []
    publish(21, 2)(one.log)
    ship_once(sqlite, one)
    assert ids_of(sqlite, "one") == [*range(1, 11), 21, 22]
    (gap,) = rows_of(sqlite, "gap_log", "position")
    assert (gap["position"], gap["event_count"]) == (11, 10)


def test_events_that_were_overwritten_before_the_first_run_are_a_gap(
    sqlite: Database, brokers: list[TraceBroker], caplog: pytest.LogCaptureFixture
) -> None:
    one = brokers[0]
    one.log.skip(25)
    publish(1, 2)(one.log)
    ship_once(sqlite, one)
    ship_once(sqlite, one)
    assert ids_of(sqlite, "one") == [1, 2]
    (gap,) = rows_of(sqlite, "gap_log", "position")
    assert (gap["position"], gap["event_count"]) == (1, 25)
    said = "one:4151: 25 events were overwritten or damaged before they were read; gap_log has a row of them"
    assert caplog.messages.count(said) == 1


def test_a_run_with_an_end_ends_if_a_broker_has_two_addresses(sqlite: Database, brokers: list[TraceBroker]) -> None:
    one = brokers[0]
    publish(1, 3)(one.log)
    addresses = one.address, one.address.replace("127.0.0.1", "localhost")
    shipper = Shipper(sqlite, clients(*addresses), Retention(), ShipOptions(is_once=True, interval_s=0.01))
    thread = threading.Thread(target=shipper.run)
    thread.start()
    thread.join(TIMEOUT_S)
    is_over = not thread.is_alive()
    shipper.stop()
    thread.join()
    assert is_over
    assert ids_of(sqlite, "one") == [1, 2, 3]


@pytest.mark.parametrize("is_named", [True, False], ids=["both addresses are named", "the new address is named"])
def test_a_broker_that_has_moved_is_read_at_its_new_address(
    sqlite: Database, brokers: list[TraceBroker], is_named: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    one, moved = brokers
    known = [one.address]
    with shipping(sqlite, lambda: clients(*known)(), discovery_s=0.01, standby_s=0.01):
        one.change(publish(1, 3))
        wait_for_ids(sqlite, "one", [1, 2, 3])
        one.refusal = (500, {}, b"")
        wait_until(lambda: "cannot read the event log" in caplog.text, "the end of the old address")
        moved.name, moved.log_id, moved.log = one.name, one.log_id, one.log
        known[:] = [one.address, moved.address] if is_named else [moved.address]
        moved.change(publish(4, 2))
        wait_for_ids(sqlite, "one", [1, 2, 3, 4, 5])
        if not is_named:
            assert f"{one.address}: no broker is there any more" in caplog.text
    assert len(sqlite.nodes()) == 1


def test_a_login_that_has_changed_is_used_after_a_refusal(sqlite: Database, brokers: list[TraceBroker]) -> None:
    one = brokers[0]
    one.token = "new"
    tokens = ["old"]
    publish(1, 3)(one.log)

    def find() -> list[HttpClient]:
        return [HttpClient(one.address, token=tokens[-1], timeout_s=TIMEOUT_S, retry_timeout_s=0)]

    with shipping(sqlite, find, discovery_s=0.01):
        wait_until(lambda: len(one.requests) > 0, "a refused request")
        tokens.append("new")
        wait_for_ids(sqlite, "one", [1, 2, 3])
