"""Replay: the selection of a table is published, no faster than the rate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from pyqd_spark.jobs.errors import JobError, reason_in
from pyqd_spark.jobs.replay import ReplayOptions, as_text, paced, replay
from tests.spark.drained import QUIET, connection, numbers, options, publish, run
from tests.support.server import Daemon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 3000


class Time:
    """A clock that advances by the slept time, and by `work_s` at each reading."""

    def __init__(self, work_s: float = 0.0) -> None:
        self.now_s = 100.0
        self.work_s = work_s

    def clock(self) -> float:
        self.now_s += self.work_s
        return self.now_s

    def sleep(self, wait_s: float) -> None:
        assert wait_s > 0
        self.now_s += wait_s


def batch(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": [b"%d" % number for number in range(count)]})


@pytest.mark.parametrize("rate", [0.5, 3.0, 1000.0, 250_000.0])
@pytest.mark.parametrize("work_s", [0.0, 0.001])
def test_at_no_time_are_more_rows_published_than_the_rate_allows(rate: float, work_s: float) -> None:
    time = Time(work_s)
    count = 0
    for piece in paced([batch(5), batch(0), batch(2000)], rate, time.clock, time.sleep):
        count += piece.num_rows
        assert count <= rate * (time.now_s - 100) * (1 + 1e-9)
    assert count == 2005


def test_rows_keep_their_order_and_their_bodies() -> None:
    time = Time()
    pieces = list(paced([batch(500)], 1000.0, time.clock, time.sleep))
    assert len(pieces) == 5
    assert pa.Table.from_batches(pieces)["value"].to_pylist() == batch(500)["value"].to_pylist()


def test_the_reason_is_found_in_a_traceback_within_a_traceback() -> None:
    text = "Job aborted\n  File x\npyqd_spark.brokers.UnreachableError: no broker can be reached\n\tat org.apache"
    assert reason_in(text) == "no broker can be reached"
    java = 'An error occurred.\n\tat org.x\nCaused by: java.io.IOException: Cannot run program "/no/python"\n\tat a.b'
    assert reason_in(java + "\nCaused by: java.io.IOException: error=2") == 'Cannot run program "/no/python"'
    assert reason_in("out of luck") == "out of luck"
    assert reason_in("") == "no reason given"


def test_a_selection_goes_to_a_topic_and_a_dry_run_only_counts(
    spark: SparkSession, broker: Daemon, topic: str, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    publish(broker, topic, range(ROWS))
    run(options(table, broker, topics=(topic,)))
    target = f"{topic}-again"
    chosen = ReplayOptions(str(table), target, connection(broker), where=f"topic = '{topic}' and offset >= 1000")
    counted = replay(ReplayOptions(**{**vars(chosen), "dry_run": True}), spark, QUIET)
    assert (counted.rows, counted.bytes) == (ROWS - 1000, 4 * (ROWS - 1000))
    assert "would go" in as_text(counted)
    assert broker.topic(target) is None
    done = replay(ReplayOptions(**{**vars(chosen), "rate": 1_000_000}), spark, QUIET)
    assert (done.rows, done.repeated) == (ROWS - 1000, 0)
    run(options(tmp_path / "again", broker, topics=(target,)))
    assert numbers(tmp_path / "again") == list(range(1000, ROWS))
    nothing = replay(ReplayOptions(**{**vars(chosen), "where": "false"}), spark, QUIET)
    assert nothing.rows == 0
    with pytest.raises(JobError, match=r"--where 'nothing = 1'.*the columns are value, node, offset"):
        replay(ReplayOptions(**{**vars(chosen), "where": "nothing = 1"}), spark, QUIET)


def test_a_broker_that_is_away_is_named(
    spark: SparkSession, broker: Daemon, make_broker: Callable[..., Daemon], topic: str, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    publish(broker, topic, range(10))
    run(options(table, broker, topics=(topic,)))
    away = make_broker()
    away.kill()
    with pytest.raises(JobError, match=f"publishing failed.*{away.http_address[1]}"):
        replay(ReplayOptions(str(table), topic, connection(away)), spark, QUIET)
    with pytest.raises(JobError, match="no drained table"):
        replay(ReplayOptions(str(tmp_path / "none"), topic, connection(broker)), spark, QUIET)
