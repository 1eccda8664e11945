"""Each message once, in a table that a stream fills, through kills of driver, executor and broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.spark import stream_driver
from tests.support.numbered import addresses_of, how_many, publish_numbers
from tests.support.server import REPOSITORY, Daemon, wait_until

DRIVER = Path(__file__).with_name("stream_driver.py")
ROWS = how_many(200_000)
ROWS_PER_BATCH = max(ROWS // 8, 20_000)
WAIT_S = 150.0


def children_of(pid: int) -> list[int]:
    """Return the processes below one, those of the JVM and their workers too."""
    parent_of = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent_of[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parent_of.items() if parent == one]
    return found[1:]


class Driver:
    """The process of a stream, with its JVM and their Python processes in a process group of their own."""

    def __init__(self, nsqd: str, topic: str, directory: Path, home: Path) -> None:
        self.directory = directory
        environment = os.environ | {"SPARK_HOME": str(home)}
        environment["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "spark")])
        command = [sys.executable, str(DRIVER), nsqd, topic, str(directory), str(ROWS), str(ROWS_PER_BATCH)]
        with (directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=REPOSITORY, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def log_text(self) -> str:
        return (self.directory / "log").read_text(errors="replace")[-6000:]

    def batches(self, kind: str) -> int:
        """Return how many batches are planned (offsets) or done (commits)."""
        path = self.directory / "checkpoint" / kind
        return sum(entry.name.isdigit() for entry in path.iterdir()) if path.exists() else 0

    def wait_for(self, kind: str, count: int) -> None:
        wait_until(
            lambda: self.batches(kind) >= count or self.process.poll() is not None, f"{count} batches in {kind}", WAIT_S
        )
        assert self.process.poll() is None, self.log_text()

    def kill(self) -> None:
        """Kill the driver, its JVM and all their Python processes at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(WAIT_S)

    def kill_a_worker(self) -> bool:
        """Kill a Python process that reads for a task, if there is one."""
        for pid in children_of(self.process.pid):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
                parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
                if b"pyspark.daemon" in line and b"pyspark.daemon" in Path(f"/proc/{parent}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
                    return True
            except OSError:
                continue
        return False


@pytest.fixture
def start_driver(fast_spark_home, tmp_path) -> Iterator[object]:
    made: list[Driver] = []

    def start(nsqd: str, topic: str) -> Driver:
        made.append(Driver(nsqd, topic, tmp_path, fast_spark_home))
        return made[-1]

    yield start
    for driver in made:
        if driver.process.poll() is None:
            driver.kill()


def rows_of(directory: Path) -> list[tuple[int, str, int]]:
    """Return the rows of the table that the file sink's log says are there."""
    tables = [pq.read_table(directory / "table" / name) for name in committed_names(directory)]
    return [
        row
        for one in tables
        for row in zip(*(one[name].to_pylist() for name in ("number", "node", "offset")), strict=True)
    ]


def committed_names(directory: Path) -> set[str]:
    names = set()
    for entry in (directory / "table" / "_spark_metadata").iterdir():
        if not entry.name.startswith("."):
            names |= {json.loads(line)["path"].rpartition("/")[2] for line in entry.read_text().splitlines()[1:]}
    return names


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_table_has_each_message_once_through_kills_of_driver_executor_and_broker(
    make_broker, start_driver, spark, topic, tmp_path
):
    daemons: tuple[Daemon, Daemon] = (make_broker(), make_broker())
    nsqd = addresses_of(*daemons)
    half = ROWS // 2
    publish_numbers(daemons[0], topic, 0, half // 2)
    publish_numbers(daemons[1], topic, half // 2, half)

    driver = start_driver(nsqd, topic)
    driver.wait_for("commits", 1)
    daemons[0].kill()
    daemons[0].start()
    wait_until(driver.kill_a_worker, "a worker", WAIT_S)
    driver.wait_for("commits", driver.batches("commits") + 1)
    driver.wait_for("offsets", driver.batches("commits") + 1)
    driver.kill()

    publish_numbers(daemons[1], topic, half, ROWS)
    # The session of the tests is another driver, which has nothing of the first one but its checkpoint.
    stream_driver.land(spark, nsqd, topic, tmp_path, ROWS, ROWS_PER_BATCH)

    rows = rows_of(tmp_path)
    assert sorted(row[0] for row in rows) == list(range(ROWS))
    assert len({row[1:] for row in rows}) == ROWS
