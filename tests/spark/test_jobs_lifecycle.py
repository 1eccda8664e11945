"""Trace logs to a table of lives: states by events, runs that go on where the last one ended, gaps, kills."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import pyqd
from pyqd_spark import cli
from pyqd_spark.brokers import UnreachableError
from pyqd_spark.jobs import lifecycle, lifecycle_report
from pyqd_spark.jobs.errors import JobError, TableError
from pyqd_spark.jobs.lifecycle import LifecycleOptions, RunReport, update
from pyqd_spark.jobs.progress import JobProgress
from pyqd_spark.jobs.table import JobTable
from pyqd_spark.jobs.trace_log import EventRange, EventTask, land_events
from pyqd_spark.options import BrokerOptions
from tests.spark import gated_lifecycle
from tests.spark.drained import QUIET, connection, files
from tests.spark.gated_drain import Gated, at_gate, waiting
from tests.support.nsq import Client
from tests.support.numbered import how_many
from tests.support.server import REPOSITORY, Daemon, wait_until
from tests.support.spark_side import http_address
from tests.support.trace_broker import TraceBroker
from tests.support.trace_log import AT_US, TraceLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = how_many(2_000)
WAIT_S = 90.0
CHANNELS = ("a", "b")


class Stopped(Exception):  # noqa: N818 (a kill, not an error)
    """The driver is killed here."""


@pytest.fixture
def brokers() -> Iterator[list[TraceBroker]]:
    """Two brokers that have nothing but an event log."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(TraceBroker(name).serving()) for name in ("one", "two")]


@pytest.fixture
def run(spark: SparkSession, brokers: list[TraceBroker], tmp_path: Path) -> Callable[[], RunReport]:
    addresses = tuple(broker.address for broker in brokers)
    options = LifecycleOptions(str(tmp_path / "lives"), BrokerOptions(nsqd=addresses, retry_timeout_s=0.0))
    return lambda: update(options, spark, QUIET)


def rows_in(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a table with their topics and days, by id and channel."""
    rows = []
    for file in files(path):
        day, topic = (file.parts[-place].partition("=")[2] for place in (2, 3))
        rows += [{**row, "topic": topic, "day": day} for row in pq.ParquetFile(file).read().to_pylist()]
    return sorted(rows, key=lambda row: (row["message_id"], row["channel"] or "", row["node"]))


def outcomes(path: Path) -> list[tuple[int, str | None, str, int]]:
    """Return id, channel, outcome and deliveries of all rows."""
    return [(int(row["message_id"], 16), row["channel"], row["outcome"], row["attempts"]) for row in rows_in(path)]


def publish(log: TraceLog, *guids: int, channels: tuple[str, ...] = ("a",)) -> None:
    """Add messages that each channel has got."""
    for guid in guids:
        log.add("published", guid, size=7, client="10.0.0.1:1")
        for channel in channels:
            log.add("stored", guid, channel=channel)


def deliver(log: TraceLog, guid: int, *ends: str, channel: str = "a", attempt: int = 1) -> None:
    """Add deliveries that end so; an end may be followed by others of the same delivery, behind a plus."""
    for number, end in enumerate(ends, start=attempt):
        log.add("sent", guid, channel=channel, client="10.0.0.2:2", attempt=number)
        for kind in filter(None, end.split("+")):
            log.add(kind, guid, channel=channel, client="10.0.0.2:2", attempt=number)


def test_each_message_and_channel_is_one_row(
    run: Callable[[], RunReport], brokers: list[TraceBroker], tmp_path: Path
) -> None:
    log = brokers[0].log
    publish(log, 1, 2, 3, 4, 5, 6, 7, channels=CHANNELS)
    deliver(log, 1, "finished")
    deliver(log, 1, "requeued", "client_gone+timed_out", "finished", channel="b")
    deliver(log, 2, "requeued+dead_lettered")
    log.add("cancelled", 2, channel="b")
    deliver(log, 3, "timed_out", "touched")
    # Delivered again after a kill.
    deliver(log, 4, "finished", "finished")
    deliver(log, 5, "finished+dropped")
    deliver(log, 6, "")
    log.add("dropped", 6, channel="a", reason="copy")
    log.add("dropped", 7, channel="a", reason="sampled")
    publish(brokers[1].log, 1)
    deliver(brokers[1].log, 1, "finished")
    report = run()
    assert outcomes(tmp_path / "lives") == [
        (1, "a", "finished", 1),
        (1, "a", "finished", 1),
        (1, "b", "finished", 3),
        (2, "a", "dead_lettered", 1),
        (2, "b", "cancelled", 0),
        (4, "a", "finished", 2),
        (5, "a", "dropped", 1),
        (7, "a", "dropped", 0),
    ]
    assert (report.run, report.rows, report.open, report.is_complete) == (1, 8, 7, True)
    assert report.events == log.next - 1 + brokers[1].log.next - 1


def test_a_row_has_times_counts_and_clients(
    run: Callable[[], RunReport], brokers: list[TraceBroker], tmp_path: Path
) -> None:
    log = brokers[0].log
    log.add("published", 1, size=7, client="10.0.0.1:1", at_us=AT_US, due_ns=(AT_US + 1_000_000) * 1000)
    log.add("stored", 1, channel="a", at_us=AT_US)
    for kind, at_us in (("sent", 1_500_000), ("requeued", 2_000_000), ("sent", 3_000_000), ("finished", 3_250_000)):
        log.add(kind, 1, channel="a", client="10.0.0.2:2", attempt=1, at_us=AT_US + at_us)
    run()
    (row,) = rows_in(tmp_path / "lives")
    times = {name: row[name].timestamp() * 1e6 - AT_US for name in row if name.endswith("_at")}
    assert {name: round(value) for name, value in times.items()} == {
        "published_at": 0,
        "due_at": 1_000_000,
        "first_sent_at": 1_500_000,
        "last_sent_at": 3_000_000,
        "over_at": 3_250_000,
    }
    assert (row["wait_s"], row["handling_s"], row["total_s"]) == (0.5, 0.25, 2.25)
    assert (row["attempts"], row["requeued"], row["timed_out"], row["disconnected"]) == (2, 1, 0, 0)
    assert (row["size_bytes"], row["publisher"], row["consumer"]) == (7, "10.0.0.1:1", "10.0.0.2:2")
    assert (row["topic"], row["day"], row["node"], row["reason"]) == ("orders", "2026-11-20", "log of one", None)


def test_a_message_may_live_over_many_runs(
    run: Callable[[], RunReport], brokers: list[TraceBroker], tmp_path: Path
) -> None:
    log = brokers[0].log
    publish(log, 1, 2, channels=CHANNELS)
    assert (run().rows, run().run) == (0, 1)
    deliver(log, 1, "requeued")
    deliver(log, 1, "finished", channel="b")
    assert (run().rows, outcomes(tmp_path / "lives")) == (1, [(1, "b", "finished", 1)])
    # Channel b delivers it again, after a kill of the broker.
    deliver(log, 1, "finished", channel="b")
    deliver(log, 1, "finished", attempt=2)
    deliver(log, 2, "finished", channel="b")
    report = run()
    assert (report.run, report.rows, report.repeated, report.open) == (3, 2, 1, 1)
    assert outcomes(tmp_path / "lives") == [
        (1, "a", "finished", 2),
        (1, "b", "finished", 1),
        (2, "b", "finished", 1),
    ]
    assert all(row["published_at"] is not None for row in rows_in(tmp_path / "lives"))


def test_acts_on_many_messages_concern_each_of_them(
    run: Callable[[], RunReport], brokers: list[TraceBroker], tmp_path: Path
) -> None:
    log = brokers[0].log
    publish(log, 1, 2, 3)
    deliver(log, 1, "finished")
    deliver(log, 2, "")
    run()
    log.add("dropped", 0, channel="a", reason="emptied", count=2)
    publish(log, 4, 5)
    log.add("dropped", 4, channel="a", reason="seek", count=1)
    # Held by the topic: one is given to a channel that comes later, the other ones are dropped.
    publish(log, 6, channels=())
    log.add("stored", 0, channel="b", reason="released", count=1)
    publish(log, 7, channels=())
    log.add("dropped", 0, reason="emptied", count=1)
    publish(log, 8, channels=())
    report = run()
    assert outcomes(tmp_path / "lives") == [
        (1, "a", "finished", 1),
        (2, "a", "dropped", 1),
        (3, "a", "dropped", 0),
        (4, "a", "dropped", 0),
        (7, None, "dropped", 0),
    ]
    assert report.open == 3
    deliver(log, 6, "finished", channel="b")
    deliver(log, 5, "finished")
    assert (run().rows, run().open) == (2, 1)


def test_acts_of_ephemeral_channels_are_counted_and_not_kept(
    run: Callable[[], RunReport], brokers: list[TraceBroker], tmp_path: Path
) -> None:
    log = brokers[0].log
    publish(log, 1)
    for _ in range(1000):
        log.add("dropped", 0, channel="a", reason="ephemeral", count=2)
    deliver(log, 1, "finished")
    address, options = brokers[0].address, BrokerOptions(nsqd=(brokers[0].address,), retry_timeout_s=0.0)
    task = EventTask(0, EventRange("log of one", 1, log.next, True), address, str(tmp_path), options)
    assert land_events(task) == {"rows": 4, "many": [], "ignored": 1000}
    assert run().events == 1004
    assert outcomes(tmp_path / "lives") == [(1, "a", "finished", 1)]


def test_an_executor_without_compiled_modules_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyqd.hot.wire.trace_events", None)
    task = EventTask(0, EventRange("one", 1, 2, True), "127.0.0.1:1", str(tmp_path), BrokerOptions())
    error = land_events(task)["error"]
    assert error.startswith(f"{socket.gethostname()} cannot decode trace events: ")
    assert f": install pyqd {pyqd.__version__} in the Python of the executors" in error


def test_overwritten_events_are_counted(
    run: Callable[[], RunReport], brokers: list[TraceBroker], tmp_path: Path
) -> None:
    log = brokers[0].log
    publish(log, 1)
    run()
    log.skip(25)
    publish(log, 2)
    deliver(log, 2, "finished")
    report = run()
    assert (report.lost, report.unknown, report.is_complete, report.events) == (25, 0, False, 4)
    assert outcomes(tmp_path / "lives") == [(2, "a", "finished", 1)]


def test_a_gap_over_several_ranges_is_counted_once(
    run: Callable[[], RunReport], brokers: list[TraceBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyqd_spark.jobs.trace_log.EVENTS_PER_RANGE_MIN", 10)
    log = brokers[0].log
    publish(log, 1)
    run()
    log.skip(95)
    publish(log, 2)
    assert run().lost == 95


@pytest.mark.parametrize("step", ["written.json", "move", "commit.json"])
def test_a_run_that_is_killed_at_any_step_goes_on_with_each_message_once(
    run: Callable[[], RunReport],
    brokers: list[TraceBroker],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    publish(brokers[0].log, *range(1, 21), channels=CHANNELS)
    for guid in range(1, 11):
        deliver(brokers[0].log, guid, "finished")
    with monkeypatch.context() as patch:
        if step == "move":
            rename = os.rename

            def rename_one(source: str, target: str) -> None:
                rename(source, target)
                if target.endswith(".parquet"):
                    raise Stopped

            patch.setattr(os, "rename", rename_one)
        else:
            write = lifecycle.LifeTable.write_state

            def write_some(table: Any, number: int, name: str, content: dict[str, Any]) -> None:
                if name == step:
                    raise Stopped
                write(table, number, name, content)

            patch.setattr(lifecycle.LifeTable, "write_state", write_some)
        with pytest.raises(Stopped):
            run()
    for guid in range(1, 21):
        deliver(brokers[0].log, guid, "finished", channel="b")
    report = run()
    assert (report.run, report.rows, report.open) == (2, 20, 10)
    expected = [(guid, channel, "finished", 1) for guid in range(1, 21) for channel in CHANNELS[guid > 10 :]]
    assert outcomes(tmp_path / "lives") == expected


def test_a_worker_and_a_broker_may_be_killed_during_a_run(
    spark: SparkSession,
    make_broker: Callable[..., Daemon],
    topic: str,
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    steady, dying = daemons = make_broker("--trace-topic=test*"), make_broker("--trace-topic=test*")
    for daemon in daemons:
        consume(daemon, topic, COUNT)
    options = LifecycleOptions(str(tmp_path / "lives"), connection(steady, dying, retry_s=60))
    with ThreadPoolExecutor(1) as pool:
        try:
            running = pool.submit(update, options, spark, QUIET, Gated(spark, gate, at_gate))
            wait_until(lambda: len(waiting(gate)) == 2 or running.done(), "workers at the gate", WAIT_S)
            os.kill(waiting(gate)[0], signal.SIGKILL)
            dying.kill()
            dying.start()
        finally:
            (gate / "open").touch()
        report = running.result(WAIT_S)
    assert (report.rows, report.open, report.lost) == (2 * COUNT, 0, 0)
    keys = {(row["node"], row["message_id"]) for row in rows_in(tmp_path / "lives")}
    assert len(keys) == 2 * COUNT
    assert {row["outcome"] for row in rows_in(tmp_path / "lives")} == {"finished"}


def test_a_driver_may_be_killed_during_a_run(
    spark: SparkSession, make_broker: Callable[..., Daemon], topic: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    daemons = make_broker("--trace-topic=test*"), make_broker("--trace-topic=test*")
    for daemon in daemons:
        consume(daemon, topic, COUNT)
    table = tmp_path / "lives"
    entries = [str(REPOSITORY), str(REPOSITORY / "spark"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, entries))}
    command = [sys.executable, gated_lifecycle.__file__, str(gate), str(table), *map(http_address, daemons)]
    driver = subprocess.Popen(command, env=environment, cwd=REPOSITORY, start_new_session=True)
    try:
        wait_until(lambda: len(waiting(gate)) == 2 or driver.poll() is not None, "workers at the gate", WAIT_S)
        # Its workers go on.
        driver.kill()
        driver.wait(WAIT_S)
        assert files(table) == []
        (gate / "open").touch()
        consume(daemons[0], topic, 10)
        report = update(LifecycleOptions(str(table), connection(*daemons)), spark, QUIET)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
    assert (report.run, report.rows) == (2, 10)
    rows = rows_in(table)
    assert len({(row["node"], row["message_id"]) for row in rows}) == len(rows) == 2 * COUNT + 10


def consume(daemon: Daemon, topic: str, count: int) -> None:
    """Publish messages and finish them in a channel."""
    daemon.http("POST", "/topic/create", topic=topic)
    daemon.http("POST", "/channel/create", topic=topic, channel="a")
    with Client(daemon.tcp_address) as publisher, Client(daemon.tcp_address) as consumer:
        publisher.mpub(topic, [b"%d" % number for number in range(count)])
        consumer.sub(topic, "a", rdy_count=count)
        consumer.finish_exactly(count)


def test_the_report_has_waits_by_channel_and_the_oldest_messages_that_are_not_over(
    spark: SparkSession, run: Callable[[], RunReport], brokers: list[TraceBroker], tmp_path: Path
) -> None:
    log = brokers[0].log
    for guid in range(1, 101):
        at_us = AT_US + guid * 1_000_000
        log.add("published", guid, at_us=at_us)
        log.add("stored", guid, channel="a", at_us=at_us)
        log.add("sent", guid, channel="a", attempt=1, at_us=at_us + guid * 10_000)
        if guid <= 98:
            log.add("finished", guid, channel="a", attempt=1, at_us=at_us + guid * 20_000)
    report = lifecycle_report.report_of(str(tmp_path / "lives"), run(), spark)
    (figures,) = report["channels"]
    assert (figures["topic"], figures["channel"], figures["messages"], figures["finished"]) == ("orders", "a", 98, 98)
    assert [round(figures[f"wait_s_p{percent}"], 2) for percent in (50, 90, 99)] == [0.49, 0.89, 0.98]
    assert [round(figures[f"total_s_p{percent}"], 2) for percent in (50, 90, 99)] == [0.98, 1.78, 1.96]
    assert round(figures["total_s_max"], 2) == 1.96
    assert [(int(each["message_id"], 16), each["state"]) for each in report["unfinished"]] == [
        (99, "in_flight"),
        (100, "in_flight"),
    ]
    text = lifecycle_report.as_text(report)
    assert "run 1: 398 events, 98 messages are over, 2 are not" in text
    assert "not over: 0000000000000063 of orders/a at log of one, in_flight since 2026-11-20" in text


def test_a_table_of_another_job_is_left_alone(run: Callable[[], RunReport], tmp_path: Path) -> None:
    (tmp_path / "lives" / "_pyqd" / "runs" / "00000001").mkdir(parents=True)
    with pytest.raises(TableError, match="a table of another job"):
        run()


def test_a_drain_leaves_a_table_of_lives_alone(tmp_path: Path) -> None:
    with lifecycle.LifeTable(str(tmp_path / "lives")).locked():
        pass
    with pytest.raises(TableError, match="a table of another job"), JobTable(str(tmp_path / "lives")).locked():
        pass


def test_following_goes_on_after_a_broker_was_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results: Iterator[RunReport | BaseException] = iter(
        [UnreachableError("broker is away"), RunReport(1), RunReport(1), RunReport(2), KeyboardInterrupt()]
    )

    def update_(*_: object) -> RunReport:
        result = next(results)
        if isinstance(result, BaseException):
            raise result
        return result

    monkeypatch.setattr(lifecycle, "update", update_)
    told: list[int] = []
    options = LifecycleOptions("lives", BrokerOptions(nsqd=("127.0.0.1:1",)))
    spark: Any = None
    with pytest.raises(KeyboardInterrupt):
        lifecycle.follow(options, spark, JobProgress(), 0.0, lambda report: told.append(report.run))
    assert told == [1, 2]
    assert "broker is away; trying again" in capsys.readouterr().err


def test_a_log_that_is_shorter_than_before_is_refused(run: Callable[[], RunReport], brokers: list[TraceBroker]) -> None:
    publish(brokers[0].log, 1, 2)
    run()
    brokers[0].log = TraceLog()
    publish(brokers[0].log, 3)
    with pytest.raises(JobError, match="the data directory is an older copy"):
        run()


def test_a_broker_that_does_not_answer_is_an_error_and_nothing_changes(
    run: Callable[[], RunReport], brokers: list[TraceBroker], tmp_path: Path
) -> None:
    publish(brokers[0].log, 1)
    brokers[1].refusal = (503, {}, b"EXITING")
    with pytest.raises(UnreachableError):
        run()
    assert not (tmp_path / "lives" / "_pyqd" / "runs" / "00000001").exists()


def test_the_command_prints_the_report(
    spark: SparkSession,
    brokers: list[TraceBroker],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publish(brokers[0].log, 1)
    deliver(brokers[0].log, 1, "finished")
    brokers[0].log.skip(3)
    publish(brokers[0].log, 2)
    monkeypatch.setattr(cli, "spark_of", lambda _: contextlib.nullcontext(spark))
    words = ["lifecycle", "--quiet", "--path", str(tmp_path / "lives"), "--report", str(tmp_path / "report.json")]
    code = cli.main([*words, "--nsqd", brokers[0].address])
    assert code == cli.INCOMPLETE
    assert "1 messages are over, 1 are not, 3 events are lost" in capsys.readouterr().out
    assert '"lost": 3' in (tmp_path / "report.json").read_text()
