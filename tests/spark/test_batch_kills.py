"""Each message once, in a table that a batch writes, through kills of driver, executor and broker."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from tests.spark import batch_driver
from tests.spark.batch_driver import land
from tests.spark.gated_drain import waiting
from tests.support.numbered import addresses_of, how_many, publish_numbers
from tests.support.server import Daemon, wait_until
from tests.support.spark_cluster import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(420)]

ROWS = how_many(50_000)
# So that a range is several pages.
BODY_BYTES = 200
WAIT_S = 150.0
TASKS_AT_ONCE = 2


class Driver:
    """The process of a driver on the cluster, with its JVM in a process group of their own."""

    def __init__(self, cluster: Cluster, directory: Path, *arguments: str) -> None:
        self.log = directory / "driver.log"
        command = [sys.executable, batch_driver.__file__, cluster.master, *arguments]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=directory, env=cluster.environment(), stdout=log, stderr=log, start_new_session=True
            )

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(lambda: condition() or self.process.poll() is not None, what, WAIT_S)
        assert self.process.poll() is None, self.log.read_text(errors="replace")[-6000:]

    def kill(self) -> None:
        """Kill the driver and its JVM at once; the executors are not asked."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(WAIT_S)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def executor_of(worker: int) -> int:
    """Return the JVM that a Python worker belongs to: the parent of the process that forks workers."""
    executor = parent_of(parent_of(worker))
    assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{executor}/cmdline").read_bytes()
    return executor


def rows_of(table: Path) -> list[tuple[int, str, int]]:
    """Return the rows that a reader of the table finds, sorted."""
    names = ("number", "node", "offset")
    tables = [pq.read_table(file) for file in table.glob("*.parquet")]
    return sorted(row for one in tables for row in zip(*(one[name].to_pylist() for name in names), strict=True))


def assert_each_once(table: Path, count: int) -> None:
    rows = rows_of(table)
    assert [number for number, _, _ in rows] == list(range(count))
    assert len({(node, offset) for _, node, offset in rows}) == count


@pytest.fixture
def make_gate(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Make gates by name; at the end of the test all are open, so that no task waits for long."""
    made: list[Path] = []

    def make(name: str) -> Path:
        made.append(tmp_path / name)
        made[-1].mkdir()
        return made[-1]

    yield make
    for gate in made:
        (gate / "open").touch()


def test_a_table_has_each_message_once_through_kills_of_driver_executor_worker_and_broker(
    two_workers: Cluster,
    request: pytest.FixtureRequest,
    make_broker: Callable[..., Daemon],
    make_gate: Callable[[str], Path],
    topic: str,
    tmp_path: Path,
) -> None:
    daemons = (make_broker(), make_broker())
    nsqd = addresses_of(*daemons)
    publish_numbers(daemons[0], topic, 0, ROWS // 2, BODY_BYTES)
    publish_numbers(daemons[1], topic, ROWS // 2, ROWS, BODY_BYTES)
    first, second = tmp_path / "first", tmp_path / "second"
    gates = make_gate("gate-of-first"), make_gate("gate-of-second")

    driver = Driver(two_workers, tmp_path, nsqd, topic, *map(str, (gates[0], first, gates[1], second)))
    try:
        # Only now: a session that does not exist yet starts beside the driver.
        spark: SparkSession = request.getfixturevalue("spark")
        driver.wait_for(lambda: len(waiting(gates[0])) == TASKS_AT_ONCE, "tasks in the middle of their ranges")
        one, other = waiting(gates[0])
        os.kill(executor_of(one), signal.SIGKILL)
        os.kill(other, signal.SIGKILL)
        daemons[0].kill()
        daemons[0].start()
        (gates[0] / "open").touch()
        driver.wait_for((gates[0] / "done").exists, "a table in spite of the kills")
        assert_each_once(first, ROWS)
        assert (first / "_SUCCESS").exists()

        driver.wait_for(lambda: len(waiting(gates[1])) >= TASKS_AT_ONCE, "tasks of the second table")
    finally:
        driver.kill()
    assert rows_of(second) == []
    assert not (second / "_SUCCESS").exists()
    (gates[1] / "open").touch()
    more = 100
    publish_numbers(daemons[1], topic, ROWS, ROWS + more, BODY_BYTES)
    # As a user would do: the batch is run again, here by another driver.
    land(spark, nsqd, topic, str(second))
    assert_each_once(second, ROWS + more)


def test_a_batch_fails_and_says_so_when_a_broker_that_is_killed_stays_away(
    spark: SparkSession,
    make_broker: Callable[..., Daemon],
    make_gate: Callable[[str], Path],
    topic: str,
    tmp_path: Path,
) -> None:
    count = 20_000
    daemons = (make_broker(), make_broker())
    nsqd = addresses_of(*daemons)
    publish_numbers(daemons[0], topic, 0, count // 2, BODY_BYTES)
    publish_numbers(daemons[1], topic, count // 2, count, BODY_BYTES)
    table, gate = tmp_path / "table", make_gate("gate")
    with ThreadPoolExecutor(1) as pool:
        landing = pool.submit(land, spark, nsqd, topic, str(table), gate=str(gate), retryTimeoutMs=300)
        wait_until(lambda: len(waiting(gate)) >= TASKS_AT_ONCE or landing.done(), "tasks in their ranges", WAIT_S)
        for daemon in daemons:
            daemon.kill()
        (gate / "open").touch()
        addresses = "|".join(re.escape(addresses_of(daemon)) for daemon in daemons)
        with pytest.raises(Exception, match=rf"({addresses}): GET /topic/log: .*tried for 0\.3 s"):
            landing.result(WAIT_S)
    assert rows_of(table) == []
    assert not (table / "_SUCCESS").exists()
    for daemon in daemons:
        daemon.start()
    land(spark, nsqd, topic, str(table))
    assert_each_once(table, count)
