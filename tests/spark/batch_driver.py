"""Driver program, killed by tests, that reads a topic in one batch into a Parquet table, then into the next table.

Its tasks stop at a gate in the middle of their ranges, so that a test can kill a process while they wait. What
stops them is defined here and not imported: as a program, it is sent to executors that have nothing of the tests.

Usage: python batch_driver.py MASTER NSQD TOPIC GATE TABLE [GATE TABLE]...
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

import pyqd_spark
from pyqd_spark.read_options import parse_settings
from pyqd_spark.reader import PyqdReader
from pyqd_spark.source import PyqdDataSource

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

# Tasks that go through before any is stopped, so that some of the table has been written.
NOT_STOPPED = 3
TASKS = 10
GATE_WAIT_S = 120.0
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class GatedReader(PyqdReader):
    """Reads as the format does, and stops behind the first rows of a range until the gate is open."""

    def __init__(self, settings: Any, gate: str) -> None:
        super().__init__(settings)
        self.gate = gate

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        for number, batch in enumerate(super().read(partition)):
            yield batch
            if number == 0:
                self.wait()

    def wait(self) -> None:
        """Wait until the gate is open, and say which process does; the first few tasks go through."""
        for number in range(NOT_STOPPED):
            try:
                os.close(os.open(f"{self.gate}/through-{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            except FileExistsError:
                continue
            return
        Path(self.gate, f"waiting-{os.getpid()}").touch()
        deadline_s = time.monotonic() + GATE_WAIT_S
        while not os.path.exists(f"{self.gate}/open"):
            assert time.monotonic() < deadline_s, "nobody opened the gate"
            time.sleep(0.02)


class GatedDataSource(PyqdDataSource):
    """format("pyqd"), with one more option: the gate."""

    @classmethod
    def name(cls) -> str:
        return "pyqd-gated"

    def reader(self, schema: StructType) -> PyqdReader:
        options = {name.lower(): value for name, value in self.options.items()}
        gate = options.pop("gate")
        return GatedReader(parse_settings(options, streaming=False), gate)


def land(spark: "SparkSession", nsqd: str, topic: str, table: str, **options: str | int) -> None:
    """Write the table again, with the present messages of the topic. With the option `gate` the tasks stop there."""
    spark.dataSource.register(GatedDataSource)
    frame = (
        spark.read.format("pyqd-gated" if "gate" in options else "pyqd")
        .options(nsqd=nsqd, subscribe=topic, minPartitions=TASKS, **options)
        .load()
    )
    rows = frame.selectExpr("CAST(CAST(value AS STRING) AS LONG) AS number", "node", "offset")
    rows.write.mode("overwrite").parquet(table)


def main() -> None:
    master, nsqd, topic, *places = sys.argv[1:]
    config = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.driver.extraJavaOptions": JVM_OPTIONS,
        "spark.executor.extraJavaOptions": JVM_OPTIONS,
    }
    spark = pyqd_spark.session("batches", master=master, config=config)
    for gate, table in zip(places[::2], places[1::2], strict=True):
        land(spark, nsqd, topic, table, gate=gate)
        Path(gate, "done").write_text(json.dumps(table))
    spark.stop()


if __name__ == "__main__":
    main()
