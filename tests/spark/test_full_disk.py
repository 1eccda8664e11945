"""Tables on a really full disk: failures are reported, nothing is half done, and with space all goes on."""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from pyqd.primitives.errors import DiskFull
from pyqd_spark import cli
from pyqd_spark.channel import ChannelReadSettings, PyqdChannelReader
from pyqd_spark.jobs.compact import CompactOptions, compact
from pyqd_spark.jobs.errors import DrainError, TableError
from pyqd_spark.jobs.profile import ProfileOptions, profile
from pyqd_spark.jobs.table import JobTable
from tests.spark.drained import QUIET, InProcess, connection, files, options, run
from tests.support.nsq import Client
from tests.support.server import Daemon
from tests.support.small_disk import enlarge, fill, mounted_or_skipped
from tests.support.spark_side import http_address

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

DISK_BYTES = 4 << 20
ENOUGH_BYTES = 64 << 20
COUNT = 2500
BODY_BYTES = 4000
NO_SPACE = "No space left on device"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_or_skipped(tmp_path / "disk", DISK_BYTES) as path:
        yield path


def publish(daemon: Daemon, topic: str, count: int = COUNT, body_bytes: int = BODY_BYTES) -> None:
    """Publish numbered messages that cannot be compressed."""
    noise = random.Random(topic)
    with Client(daemon.tcp_address) as client:
        for first in range(0, count, 500):
            numbers = range(first, min(first + 500, count))
            client.mpub(topic, [b"%d " % number + noise.randbytes(body_bytes) for number in numbers])


def numbers_in(paths: list[Path]) -> list[int]:
    """Return the numbers in files, each of which must be whole."""
    bodies = [body for path in paths for body in pq.ParquetFile(path).read(columns=["value"])["value"].to_pylist()]
    return sorted(int(body.split(b" ", 1)[0]) for body in bodies)


def hidden(path: Path) -> list[str]:
    """Return the leftovers of landings below a directory."""
    return [name for _, _, names in os.walk(path) for name in names if name.endswith(".tmp")]


def test_a_drain_onto_a_full_disk_fails_clearly_and_resumes_when_there_is_space(
    broker: Daemon, topic: str, disk: Path
) -> None:
    publish(broker, topic)
    table = disk / "table"
    chosen = options(table, broker, topics=(topic,), rows_per_file=200)
    with pytest.raises(DrainError, match=NO_SPACE):
        run(chosen)
    landed = numbers_in(files(table))
    assert 0 < len(landed) == len(set(landed)) < COUNT
    assert hidden(table) == []
    with pytest.raises(DrainError, match=NO_SPACE):
        run(chosen)
    enlarge(disk, ENOUGH_BYTES)
    assert [(report.run, report.rows) for report in run(chosen)] == [(1, COUNT)]
    assert numbers_in(files(table)) == list(range(COUNT))
    assert JobTable(str(table)).open_plan() is None


def test_a_disk_that_is_full_to_the_last_byte_is_named_before_anything_is_planned(
    broker: Daemon, topic: str, disk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def none(parsed: Any) -> Iterator[None]:
        yield None

    monkeypatch.setattr(cli, "spark_of", none)
    monkeypatch.setattr("pyqd_spark.jobs.runner.OnSpark", lambda *_: InProcess())
    publish(broker, topic, 10)
    words = ["drain", "--quiet", "--nsqd", http_address(broker), "--topic", topic, "--path", str(disk / "table")]
    fill(disk / "ballast")
    assert cli.main(words) == cli.FAILED
    said = capsys.readouterr().err
    assert NO_SPACE in said
    assert "make room and run the same command again" in said
    assert files(disk / "table") == []
    assert hidden(disk) == []
    (disk / "ballast").unlink()
    assert cli.main(words) == cli.DONE
    assert numbers_in(files(disk / "table")) == list(range(10))


def test_a_channel_drained_onto_a_full_disk_keeps_the_messages_that_have_not_landed(
    broker: Daemon, topic: str, disk: Path
) -> None:
    broker.http("POST", "/topic/create", topic=topic)
    broker.http("POST", "/channel/create", topic=topic, channel="c")
    publish(broker, topic)
    given = {"nsqd": http_address(broker), "topic": topic, "channel": "c", "path": str(disk / "landed")}
    settings = ChannelReadSettings.of({**given, "batchMessages": "200", "idleTimeoutMs": "500"})

    def drain() -> None:
        reader = PyqdChannelReader(settings)
        for partition in reader.partitions():
            list(reader.read(partition))

    with pytest.raises(DiskFull, match=NO_SPACE):
        drain()
    landed = numbers_in(files(disk / "landed"))
    assert 0 < len(landed) == len(set(landed)) < COUNT
    assert hidden(disk) == []
    broker.wait_for_channel(topic, "c", depth=COUNT - len(landed), in_flight_count=0)
    enlarge(disk, ENOUGH_BYTES)
    drain()
    assert Counter(numbers_in(files(disk / "landed"))) == Counter(range(COUNT))
    broker.wait_for_channel(topic, "c", depth=0, in_flight_count=0)


@pytest.mark.parametrize("left_bytes", [0, 1 << 19])
def test_a_compaction_onto_a_full_disk_changes_nothing_and_runs_when_there_is_space(
    broker: Daemon, topic: str, disk: Path, left_bytes: int
) -> None:
    table, count = disk / "table", 500
    publish(broker, topic, count)
    run(options(table, broker, topics=(topic,), rows_per_file=50))
    before = files(table)
    fill(disk / "ballast")
    os.truncate(disk / "ballast", os.path.getsize(disk / "ballast") - left_bytes)
    with pytest.raises((TableError, DiskFull), match=NO_SPACE):
        compact(CompactOptions(str(table)), InProcess(), QUIET)
    assert files(table) == before
    assert hidden(table) == []
    enlarge(disk, ENOUGH_BYTES)
    assert compact(CompactOptions(str(table)), InProcess(), QUIET).files_after == 1
    assert numbers_in(files(table)) == list(range(count))


def test_a_profile_onto_a_full_disk_fails_and_is_written_when_there_is_space(
    spark: SparkSession, broker: Daemon, topic: str, disk: Path
) -> None:
    publish(broker, topic, 10)
    chosen = ProfileOptions(str(disk / "profile"), connection=connection(broker), topics=(topic,))
    fill(disk / "ballast")
    with pytest.raises(Exception, match=NO_SPACE):
        profile(chosen, spark, QUIET)
    (disk / "ballast").unlink()
    assert "10 messages" in profile(chosen, spark, QUIET)
