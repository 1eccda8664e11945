"""Drains of real brokers, in one process: each message once, however a run is cut short."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyqd_spark import decode
from pyqd_spark.brokers import BrokerClient, LogPage, TopicNotFoundError, UnreachableError
from pyqd_spark.discovery import DataLossError
from pyqd_spark.jobs import ranges
from pyqd_spark.jobs.errors import DrainError, TableError
from pyqd_spark.jobs.ranges import drain_range
from pyqd_spark.jobs.report import as_text
from pyqd_spark.jobs.runner import Task
from pyqd_spark.jobs.table import JobTable
from tests.spark.drained import QUIET, InProcess, bodies, connection, files, numbers, options, publish, run
from tests.support.nsq import Client
from tests.support.server import Daemon, wait_until

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

MakeBroker = Callable[..., Daemon]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


class KilledError(Exception):
    """Raised in a driver at the place where a kill would end it."""


class Killed(InProcess):
    """Runner that ends after some tasks, like a killed driver. late: the tasks that remain to be run later."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.late: list[tuple[Task, Any]] = []

    def run(self, function: Task, arguments: Sequence[Any]) -> list[dict[str, Any]]:
        for argument in arguments[: self.count]:
            assert "error" not in function(argument)
        self.late = [(function, argument) for argument in arguments[self.count :]]
        raise KilledError


class Between(InProcess):
    """Does something after the plan was made and before it is carried out."""

    def __init__(self, action: Callable[[], object]) -> None:
        self.action = action

    def run(self, function: Task, arguments: Sequence[Any]) -> list[dict[str, Any]]:
        self.action()
        return super().run(function, arguments)


def test_each_message_of_two_brokers_is_in_the_table_once(
    brokers: tuple[Daemon, Daemon], topic: str, table: Path
) -> None:
    publish(brokers[0], topic, range(2500))
    publish(brokers[1], topic, range(2500, 4000))
    (report,) = run(options(table, *brokers, topics=(topic,)))
    assert numbers(table) == list(range(4000))
    assert report.complete
    assert (report.rows, report.files, report.bytes) == (4000, 5, sum(map(len, bodies(table))))
    assert [source.rows for source in report.sources] in ([2500, 1500], [1500, 2500])
    assert len({file.parent for file in files(table)}) == 1


def test_the_next_run_takes_newer_messages_and_leaves_earlier_files_unchanged(
    broker: Daemon, topic: str, table: Path
) -> None:
    chosen = options(table, broker, topics=(topic,))
    publish(broker, topic, range(1500))
    run(chosen)
    before = {file: file.stat().st_mtime_ns for file in files(table)}
    publish(broker, topic, range(1500, 2000))
    (report,) = run(chosen)
    assert (report.run, report.rows) == (2, 500)
    assert numbers(table) == list(range(2000))
    assert {file: file.stat().st_mtime_ns for file in before} == before


def test_a_run_with_nothing_new_writes_nothing(broker: Daemon, topic: str, table: Path) -> None:
    chosen = options(table, broker, topics=(topic,))
    publish(broker, topic, range(10))
    run(chosen)
    (report,) = run(chosen)
    assert (report.rows, report.complete) == (0, True)
    assert as_text(report) == "nothing new"
    assert JobTable(str(table)).numbers() == [1]


def test_rows_have_the_broker_s_metadata_of_a_message(broker: Daemon, topic: str, table: Path) -> None:
    body = bytes(range(256))
    with Client(broker.tcp_address) as client:
        client.pub(topic, body)
        client.dpub(topic, 3_600_000, b"later")
    run(options(table, broker, topics=(topic,)))
    (file,) = files(table)
    rows = pq.ParquetFile(file).read().to_pylist()
    shown = broker.http("GET", "/topic/positions", topic=topic).json()
    assert [row["value"] for row in rows] == [body, b"later"]
    assert [row["offset"] for row in rows] == [0, 1]
    assert {row["node"] for row in rows} == {shown["node"]}
    assert rows[0]["timestamp_ns"] == shown["earliest_timestamp"]
    assert all(len(row["id"]) == 16 for row in rows)
    assert rows[0]["deferred_until"] is None
    assert (rows[1]["deferred_until"] - rows[1]["timestamp"]).total_seconds() == pytest.approx(3600, abs=1)
    assert file.parent.name == f"day={rows[0]['timestamp']:%Y-%m-%d}"


def test_messages_of_several_days_go_to_the_directories_of_their_days(
    broker: Daemon, topic: str, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, day_us = decode.batch_of, ranges.US_PER_DAY

    def spread(*arguments: Any) -> pa.RecordBatch:
        """Give each row a day of its own, the later ones first."""
        rows = made(*arguments)
        place = rows.schema.get_field_index("timestamp")
        times = [number * day_us - 1 for number in range(rows.num_rows, 0, -1)]
        stamps = pa.array(times, pa.int64()).cast(rows.schema.field(place).type)
        return rows.set_column(place, rows.schema.field(place), stamps)

    monkeypatch.setattr(ranges, "batch_of", spread)
    publish(broker, topic, range(3))
    run(options(table, broker, topics=(topic,)))
    days = {file.parent.name: pq.ParquetFile(file).read()["value"].to_pylist() for file in files(table)}
    assert days == {"day=1970-01-01": [b"2"], "day=1970-01-02": [b"1"], "day=1970-01-03": [b"0"]}
    assert len({file.name for file in files(table)}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("landed", [0, 1, 3])
def test_a_run_cut_short_is_carried_out_as_it_was_planned(
    make_broker: MakeBroker, topic: str, table: Path, landed: int
) -> None:
    # The run that resumes is for all topics, so no other test may have topics there.
    broker = make_broker()
    chosen = options(table, broker, topics=(topic,))
    publish(broker, topic, range(3000))
    publish(broker, "another", [1])
    with pytest.raises(KilledError):
        run(chosen, Killed(landed))
    before = {file.name: file.stat().st_mtime_ns for file in files(table)}
    publish(broker, topic, range(3000, 3500))
    resumed, following = run(replace(chosen, rows_per_file=250, topics=()))
    assert (resumed.run, resumed.rows, resumed.files) == (1, 3000, 3)
    assert (following.run, following.rows) == (2, 501)
    assert numbers(table, topic) == list(range(3500))
    assert {file.name: file.stat().st_mtime_ns for file in files(table) if file.name in before} == before


def test_a_file_that_landed_without_being_noted_is_replaced_by_the_same_rows(
    broker: Daemon, topic: str, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*arguments: object, **more: object) -> None:
        raise KilledError

    chosen = options(table, broker, topics=(topic,))
    publish(broker, topic, range(2000))
    with monkeypatch.context() as patch:
        patch.setattr(ranges, "write_file", kill)
        with pytest.raises(KilledError):
            run(chosen)
    (file,) = files(table)
    content = file.read_bytes()
    run(chosen)
    assert numbers(table) == list(range(2000))
    assert file.read_bytes() == content


def test_a_file_that_was_removed_before_the_commit_is_read_again(broker: Daemon, topic: str, table: Path) -> None:
    chosen = options(table, broker, topics=(topic,))
    publish(broker, topic, range(2000))
    with pytest.raises(KilledError):
        run(chosen, Killed(2))
    files(table)[0].unlink()
    run(chosen)
    assert numbers(table) == list(range(2000))


def test_a_task_that_outlives_its_driver_cannot_land_anything(broker: Daemon, topic: str, table: Path) -> None:
    chosen = options(table, broker, topics=(topic,))
    publish(broker, topic, range(2000))
    killed = Killed(1)
    with pytest.raises(KilledError):
        run(chosen, killed)
    run(chosen)
    before = files(table)
    for file in before:
        file.unlink()
    for function, argument in killed.late:
        assert function(argument)["kind"] == ranges.STORAGE
    assert files(table) == []


def test_the_same_range_read_twice_at_once_lands_once(broker: Daemon, topic: str, table: Path) -> None:
    class Twice(InProcess):
        def run(self, function: Task, arguments: Sequence[Any]) -> list[dict[str, Any]]:
            first = super().run(function, arguments)
            for argument in arguments:
                os.unlink(argument.done_path)
            assert [each["files"] for each in super().run(function, arguments)] == [each["files"] for each in first]
            return first

    publish(broker, topic, range(2000))
    run(options(table, broker, topics=(topic,)), Twice())
    assert numbers(table) == list(range(2000))


def test_a_path_that_differs_on_the_executors_is_named_and_nothing_lands_there(
    broker: Daemon, topic: str, table: Path, tmp_path: Path
) -> None:
    class OnAnotherMachine(InProcess):
        def run(self, function: Task, arguments: Sequence[Any]) -> list[dict[str, Any]]:
            def there(path: str) -> str:
                return path.replace(str(table), str(tmp_path / "elsewhere"))

            moved = [
                replace(each, table=there(each.table), hidden=there(each.hidden), done_path=there(each.done_path))
                for each in arguments
            ]
            return super().run(function, moved)

    publish(broker, topic, range(10))
    with pytest.raises(DrainError, match=r"elsewhere is not there on .*executors and driver have to share it"):
        run(options(table, broker, topics=(topic,)), OnAnotherMachine())
    assert not (tmp_path / "elsewhere").exists()
    run(options(table, broker, topics=(topic,)))
    assert numbers(table) == list(range(10))


def test_a_table_has_one_writer_at_a_time(broker: Daemon, topic: str, table: Path) -> None:
    with JobTable(str(table)).locked(), pytest.raises(TableError, match="changed by another"):
        run(options(table, broker, topics=(topic,)))


def test_an_obstacle_in_the_target_directory_is_named(broker: Daemon, table: Path) -> None:
    run(options(table, broker, topics=(), pattern="no such topic"))
    state = JobTable(str(table)).state
    Path(state, "table.json").write_text('{"format": 2}')
    with pytest.raises(TableError, match="has format 2, and this version reads format 1"):
        run(options(table, broker))
    Path(state, "table.json").write_text("{")
    with pytest.raises(TableError, match=r"table\.json: its content is damaged"):
        run(options(table, broker))


def test_a_broker_that_does_not_answer_fails_the_run_before_anything_is_planned(
    brokers: tuple[Daemon, Daemon], make_broker: MakeBroker, topic: str, table: Path
) -> None:
    away = make_broker()
    away.kill()
    publish(brokers[0], topic, range(10))
    chosen = options(table, brokers[0], away, topics=(topic,))
    with pytest.raises(UnreachableError, match=str(away.http_address[1])):
        run(chosen)
    assert JobTable(str(table)).numbers() == []
    (report,) = run(replace(chosen, fail_on_data_loss=False))
    assert numbers(table) == list(range(10))
    assert not report.complete
    assert str(away.http_address[1]) in as_text(report)


@pytest.mark.slow
def test_a_broker_killed_while_it_is_drained_fails_the_run_and_the_next_one_completes_it(
    broker: Daemon, make_broker: MakeBroker, topic: str, table: Path
) -> None:
    dying = make_broker()
    publish(broker, topic, range(2000))
    publish(dying, topic, range(2000, 4000))
    chosen = options(table, broker, dying, topics=(topic,))
    with pytest.raises(DrainError, match=r"2 of 4 ranges have not landed: .*refused"):
        run(chosen, Between(dying.kill))
    assert numbers(table) == list(range(2000))
    dying.start()
    resumed = run(chosen)[0]
    assert (resumed.run, resumed.rows, resumed.complete) == (1, 4000, True)
    assert numbers(table) == list(range(4000))


@pytest.mark.slow
def test_a_broker_restarted_while_it_is_drained_is_waited_for(make_broker: MakeBroker, topic: str, table: Path) -> None:
    dying = make_broker()
    publish(dying, topic, range(2000))
    chosen = options(table, dying, topics=(topic,), connection=connection(dying, retry_s=30))

    def restart() -> None:
        dying.kill()
        dying.start()

    (report,) = run(chosen, Between(restart))
    assert report.complete
    assert numbers(table) == list(range(2000))


@pytest.mark.slow
def test_ranges_of_an_unreachable_broker_remain_for_the_next_run_if_that_is_allowed(
    broker: Daemon, make_broker: MakeBroker, topic: str, table: Path
) -> None:
    dying = make_broker()
    publish(broker, topic, range(2000))
    publish(dying, topic, range(2000, 4000))
    chosen = options(table, broker, dying, topics=(topic,), fail_on_data_loss=False)
    (report,) = run(chosen, Between(dying.kill))
    assert (report.left, report.rows, report.complete) == (2, 2000, False)
    publish(broker, topic, range(4000, 5000))
    (report,) = run(chosen)
    assert (report.left, report.rows) == (2, 1000)
    dying.start()
    publish(dying, topic, range(5000, 6000))
    (report,) = run(chosen)
    assert (report.left, report.rows, report.complete) == (0, 3000, True)
    assert numbers(table) == list(range(6000))


def test_a_topic_that_no_broker_has_is_an_error_or_a_note(broker: Daemon, topic: str, table: Path) -> None:
    chosen = options(table, broker, topics=(topic,))
    with pytest.raises(TopicNotFoundError, match=f"no broker has topic {topic}"):
        run(chosen)
    (report,) = run(replace(chosen, fail_on_data_loss=False))
    assert report.notes == [f"no broker has topic {topic}"]


def test_an_empty_topic_is_no_error_and_its_place_is_kept(broker: Daemon, topic: str, table: Path) -> None:
    broker.http("POST", "/topic/create", topic=topic)
    chosen = options(table, broker, topics=(topic,), start="latest")
    (report,) = run(chosen)
    assert (report.rows, report.complete) == (0, True)
    assert files(table) == []
    publish(broker, topic, range(10))
    run(chosen)
    assert numbers(table) == list(range(10))


def test_latest_is_settled_by_the_first_run(broker: Daemon, topic: str, table: Path) -> None:
    publish(broker, topic, range(10))
    chosen = options(table, broker, topics=(topic,), start="latest")
    run(chosen)
    publish(broker, topic, range(10, 20))
    run(chosen)
    assert numbers(table) == list(range(10, 20))


def test_a_topic_deleted_between_plan_and_reading_is_an_error_or_a_gap(
    make_broker: MakeBroker, topic: str, table: Path
) -> None:
    broker = make_broker()
    publish(broker, topic, range(1500))
    publish(broker, "another", [1])
    chosen = options(table, broker, topics=(topic,))
    with pytest.raises(DrainError, match="gone with the topic"):
        run(chosen, Between(lambda: broker.http("POST", "/topic/delete", topic=topic)))
    resumed = run(replace(chosen, fail_on_data_loss=False))[0]
    assert [(gap["reason"], gap["records"]) for gap in resumed.gaps] == [("reset", 1000), ("reset", 500)]
    assert files(table) == []


def test_a_re_created_topic_is_noticed_and_its_rows_do_not_replace_the_old_ones(
    make_broker: MakeBroker, topic: str, table: Path
) -> None:
    broker = make_broker()
    publish(broker, topic, range(1000))
    chosen = options(table, broker, topics=(topic,))
    run(chosen)
    broker.http("POST", "/topic/delete", topic=topic)
    publish(broker, topic, range(1000, 3000))
    with pytest.raises(DataLossError, match="gone with the topic"):
        run(chosen)
    (report,) = run(replace(chosen, fail_on_data_loss=False))
    assert [gap["reason"] for gap in report.gaps] == ["reset"]
    assert numbers(table) == list(range(3000))
    assert run(chosen)[0].complete


def trimmed(broker: Daemon, topic: str) -> int:
    """Have the broker drop the finished messages. Returns: the first position it still has."""
    before = broker.http("GET", "/topic/positions", topic=topic).json()["earliest"]
    broker.http("POST", "/channel/seek", topic=topic, channel="c", to="latest")
    earliest = 0

    def gone() -> bool:
        nonlocal earliest
        earliest = broker.http("GET", "/topic/positions", topic=topic).json()["earliest"]
        return bool(earliest > before)

    wait_until(gone, "segments to be dropped")
    return earliest


def test_messages_that_retention_removed_before_they_were_read_are_an_error_or_a_gap(
    make_broker: MakeBroker, topic: str, table: Path
) -> None:
    broker = make_broker("-max-bytes-per-file=65536")
    broker.http("POST", "/topic/create", topic=topic)
    broker.http("POST", "/channel/create", topic=topic, channel="c")
    publish(broker, topic, range(5000))
    chosen = options(table, broker, topics=(topic,))
    with pytest.raises(DrainError, match="were removed by retention"):
        run(chosen, Between(lambda: trimmed(broker, topic)))
    earliest = broker.http("GET", "/topic/positions", topic=topic).json()["earliest"]
    kept = sorted({*range(earliest, 5000), *numbers(table)})
    resumed = run(replace(chosen, fail_on_data_loss=False))[0]
    assert numbers(table) == kept
    assert resumed.rows == len(kept)
    assert sum(gap["records"] for gap in resumed.gaps) == 5000 - len(kept) > 0


def test_files_of_an_earlier_attempt_are_not_replaced_by_a_smaller_read(
    make_broker: MakeBroker, topic: str, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*arguments: object, **more: object) -> None:
        raise KilledError

    broker = make_broker("-max-bytes-per-file=65536")
    broker.http("POST", "/topic/create", topic=topic)
    broker.http("POST", "/channel/create", topic=topic, channel="c")
    publish(broker, topic, range(5000))
    chosen = options(table, broker, topics=(topic,), rows_per_file=5000, fail_on_data_loss=False)
    with monkeypatch.context() as patch:
        patch.setattr(ranges, "write_file", kill)
        with pytest.raises(KilledError):
            run(chosen)
    assert trimmed(broker, topic) > 0
    resumed = run(chosen)[0]
    assert (resumed.rows, resumed.gaps) == (5000, [])
    assert numbers(table) == list(range(5000))


def test_a_held_topic_keeps_everything_until_it_is_drained(make_broker: MakeBroker, topic: str, table: Path) -> None:
    broker = make_broker("-max-bytes-per-file=65536")
    broker.http("POST", "/topic/create", topic=topic)
    broker.http("POST", "/channel/create", topic=topic, channel="c")
    chosen = options(table, broker, topics=(topic,), hold="table")
    publish(broker, topic, range(1000))
    run(chosen)
    broker.wait_for_channel(topic, "table", depth=0)
    publish(broker, topic, range(1000, 5000))
    broker.wait_for_channel(topic, "table", depth=4000)
    broker.http("POST", "/channel/seek", topic=topic, channel="c", to="latest")
    run(chosen)
    assert numbers(table) == list(range(5000))
    broker.wait_for_channel(topic, "table", depth=0)


def test_a_page_damaged_on_the_way_is_an_error_or_a_gap(
    broker: Daemon, topic: str, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page_of = BrokerClient.page

    def damaged(self: BrokerClient, *arguments: Any, **more: Any) -> LogPage:
        page = page_of(self, *arguments, **more)
        data = bytearray(page.data)
        data[-1 - 48] ^= 1
        return page._replace(data=bytes(data))

    publish(broker, topic, range(1500))
    chosen = options(table, broker, topics=(topic,))
    monkeypatch.setattr(BrokerClient, "page", damaged)
    with pytest.raises(DrainError, match="is damaged"):
        run(chosen)
    assert files(table) == []
    resumed = run(replace(chosen, fail_on_data_loss=False))[0]
    assert 0 < resumed.rows < 1500
    assert resumed.rows + sum(gap["records"] for gap in resumed.gaps) == 1500
    assert len(numbers(table)) == len(set(numbers(table))) == resumed.rows


def test_a_task_reports_its_failure_instead_of_raising(broker: Daemon, topic: str, table: Path) -> None:
    publish(broker, topic, range(10))
    killed = Killed(0)
    with pytest.raises(KilledError):
        run(options(table, broker, topics=(topic,)), killed)
    ((_, task),) = killed.late
    other = replace(task, range=replace(task.range, node="0" * 32))
    outcome = drain_range(other)
    assert outcome["kind"] == ranges.REFUSED
    assert "0" * 32 in outcome["error"]


def test_topics_are_chosen_by_name_by_pattern_or_all(make_broker: MakeBroker, table: Path) -> None:
    broker = make_broker()
    for name in ("orders", "orders.eu", "mail"):
        publish(broker, name, [1])
    chosen: list[tuple[dict[str, Any], int]] = [
        ({"topics": ("mail",)}, 1),
        ({"pattern": r"orders(\..*)?"}, 2),
        ({}, 3),
    ]
    for number, (fields, count) in enumerate(chosen):
        (report,) = run(options(table / str(number), broker, **fields))
        assert len(report.sources) == count
    with pytest.raises(ValueError, match="topics pattern"):
        run(options(table / "bad", broker, pattern="("))


def test_a_report_is_written_as_json(broker: Daemon, topic: str, table: Path) -> None:
    from pyqd_spark.jobs.drain import write_report

    publish(broker, topic, range(10))
    reports = run(options(table, broker, topics=(topic,)))
    write_report(reports, str(table / "_report.json"))
    (shown,) = json.loads((table / "_report.json").read_text())
    assert shown["sources"][0] | {"seconds": 0, "file_bytes": 0} == {
        "topic": topic,
        "node": shown["sources"][0]["node"],
        "first": 0,
        "next": 10,
        "ranges": 1,
        "rows": 10,
        "bytes": 10,
        "files": 1,
        "file_bytes": 0,
        "seconds": 0,
        "lost": 0,
    }
    assert f"run 1: {10} rows" in as_text(reports[0])
    assert QUIET.quiet
