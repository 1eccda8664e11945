"""Driver program, killed by tests, that streams a topic into a Parquet table until the table has ROWS rows.

Usage: python stream_driver.py NSQD TOPIC DIRECTORY ROWS ROWS_PER_BATCH
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyqd_spark
from tests.support.spark_home import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rows_read(progress: Any, topic: str) -> int:
    """Return how many messages the offsets at the end of the last batch say were read. All began at 0."""
    if progress is None:
        return 0
    return sum(json.loads(progress["sources"][0]["endOffset"]).get(topic, {}).values())


def land(spark: SparkSession, nsqd: str, topic: str, path: Path, rows: int, per_batch: int) -> None:
    """Land the topic in path/table until so many rows were read, by the offsets. Raises: the query's error."""
    options: dict[str, str | int] = {"nsqd": nsqd, "subscribe": topic}
    options |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": per_batch}
    frame = spark.readStream.format("pyqd").options(**options).load()
    writer = frame.selectExpr("CAST(CAST(value AS STRING) AS LONG) AS number", "node", "offset").writeStream
    query = writer.format("parquet").option("checkpointLocation", str(path / "checkpoint")).start(str(path / "table"))
    while query.isActive and rows_read(query.lastProgress, topic) < rows:
        time.sleep(0.05)
    failure = query.exception()
    query.stop()
    if failure is not None:
        raise failure


def main() -> None:
    nsqd, topic, directory, rows, per_batch = sys.argv[1:]
    path = Path(directory)
    # Four attempts for each task: its Python process is killed in the middle.
    spark = pyqd_spark.session("stream", config={**settings(path), "spark.master": "local[2,4]"})
    land(spark, nsqd, topic, path, int(rows), int(per_batch))
    spark.stop()


if __name__ == "__main__":
    main()
