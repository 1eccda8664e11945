"""Drains on Spark, of two brokers, with processes killed: the table has each message once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyqd_spark.jobs.runner import OnSpark
from tests.spark import gated_drain
from tests.spark.drained import connection, numbers, options, publish, run
from tests.spark.gated_drain import Gated, waiting
from tests.support.numbered import how_many
from tests.support.server import REPOSITORY, Daemon, wait_until
from tests.support.spark_home import settings
from tests.support.spark_side import http_address

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = how_many(10_000) // 2
ROWS_PER_FILE = max(COUNT // 10, 500)
WAIT_S = 90.0
TASKS_AT_ONCE = 2


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    directory = tmp_path / "gate"
    directory.mkdir()
    return directory


def environment() -> dict[str, str]:
    entries = [str(REPOSITORY), str(REPOSITORY / "spark"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, entries)), "PYSPARK_PYTHON": sys.executable}


def in_use(spark: SparkSession, path: Path) -> list[int]:
    rows = spark.read.parquet(str(path)).selectExpr("cast(cast(value as string) as int) as number").collect()
    return sorted(row.number for row in rows)


def test_a_drain_whose_worker_and_broker_are_killed_ends_with_each_message_once(
    spark: SparkSession, make_broker: Callable[..., Daemon], topic: str, tmp_path: Path, gate: Path
) -> None:
    steady, dying = make_broker(), make_broker()
    publish(steady, topic, range(COUNT))
    publish(dying, topic, range(COUNT, 2 * COUNT))
    table = tmp_path / "table"
    chosen = options(
        table,
        steady,
        dying,
        topics=(topic,),
        rows_per_file=ROWS_PER_FILE,
        connection=connection(steady, dying, retry_s=60),
    )
    with ThreadPoolExecutor(1) as pool:
        try:
            draining = pool.submit(run, chosen, Gated(spark, gate))
            wait_until(lambda: len(waiting(gate)) == TASKS_AT_ONCE or draining.done(), "workers at the gate", WAIT_S)
            os.kill(waiting(gate)[0], signal.SIGKILL)
            dying.kill()
            dying.start()
        finally:
            (gate / "open").touch()
        (report,) = draining.result(WAIT_S)
    assert (report.rows, report.complete) == (2 * COUNT, True)
    assert in_use(spark, table) == numbers(table) == list(range(2 * COUNT))


def test_a_drain_whose_driver_is_killed_is_completed_by_the_next_one(
    spark: SparkSession, make_broker: Callable[..., Daemon], topic: str, tmp_path: Path, gate: Path
) -> None:
    daemons = (make_broker(), make_broker())
    publish(daemons[0], topic, range(COUNT))
    publish(daemons[1], topic, range(COUNT, 2 * COUNT))
    table = tmp_path / "table"
    words = ["drain", "--quiet", "--topic", topic, "--path", str(table), "--max-rows-per-file", str(ROWS_PER_FILE)]
    words += [word for daemon in daemons for word in ("--nsqd", http_address(daemon))]
    config = settings(tmp_path)
    master = config.pop("spark.master")
    flags = [word for item in config.items() for word in ("--conf", "=".join(item))]
    submit = [f"{os.environ['SPARK_HOME']}/bin/spark-submit", "--master", master, *flags]
    driver = subprocess.Popen(
        [*submit, gated_drain.__file__, str(gate), *words], env=environment(), cwd=REPOSITORY, start_new_session=True
    )
    try:
        wait_until(lambda: bool(waiting(gate)) or driver.poll() is not None, "workers at the gate", WAIT_S)
    finally:
        # The JVM is in this group; Python workers are not, and go on for as long as they do not notice.
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait(WAIT_S)
    landed = numbers(table)
    assert len(landed) == len(set(landed)) < 2 * COUNT
    publish(daemons[0], topic, range(2 * COUNT, 2 * COUNT + 100))
    (gate / "open").touch()
    chosen = options(table, *daemons, topics=(topic,))
    assert [(report.run, report.rows) for report in run(chosen, OnSpark(spark, "resumed"))] == [
        (1, 2 * COUNT),
        (2, 100),
    ]
    assert in_use(spark, table) == list(range(2 * COUNT + 100))
