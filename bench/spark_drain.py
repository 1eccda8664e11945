"""Time to turn a topic into Parquet, alternately by `pyq_spark drain` and by Spark's Parquet sink on format("pyqd").

    python -m bench.spark_drain --messages 1000000 --rounds 3

A broker of its own, all on the same cores with the same compression. Spark's sink writes plain files, and once more by
topic and day, as the drain does. The drain syncs its files to disk and Spark's sink does not. The first round of each
is not counted: it starts Python processes and fills caches.
"""

from __future__ import annotations

import os
import shutil
import statistics
import struct
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from pyqd.primitives.command_line import CommandParser
from pyqd.primitives.progress import Progress as Shown
from pyqd_spark.brokers import BrokerClient
from pyqd_spark.jobs.drain import DrainOptions, drain
from pyqd_spark.jobs.progress import JobProgress
from pyqd_spark.jobs.runner import OnSpark
from pyqd_spark.options import BrokerOptions
from tests.support.server import Daemon, unshared_pyqd

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "bench"
MPUB_BODIES = 5000


def random_body(number: int, size: int) -> bytes:  # noqa: ARG001 - one of two kinds
    """Return bytes that cannot be compressed."""
    return os.urandom(size)


def json_body(number: int, size: int) -> bytes:
    """Return an order, as text of about that size."""
    head = f'{{"order":{number},"customer":"{os.urandom(8).hex()}","amount":{number * 7919 % 100_000},"items":['
    item = f'{{"sku":"{number % 997:06}","count":{number % 5 + 1},"price":{number * 31 % 9999}}}'
    return (head + ",".join([item] * max(1, (size - len(head)) // (len(item) + 1))) + "]}").encode()


BODIES = {"random": random_body, "json": json_body}


def publish(address: str, count: int, size: int, kind: str = "random") -> None:
    """Publish bodies over HTTP."""
    made = BODIES[kind]
    with BrokerClient(address, BrokerOptions(nsqd=(address,))) as client:
        for first in range(0, count, MPUB_BODIES):
            bodies = min(MPUB_BODIES, count - first)
            each = [made(number, size) for number in range(first, first + bodies)]
            data = b"".join(struct.pack(">i", len(body)) + body for body in each)
            reply = client.request(
                "POST", "/mpub", {"topic": TOPIC, "binary": "true"}, struct.pack(">i", bodies) + data
            )
            assert reply.status == 200, reply


def by_drain(spark: SparkSession, address: str, path: Path, rows: int) -> float:
    """Drain the topic. Returns: seconds."""
    options = DrainOptions(str(path), BrokerOptions(nsqd=(address,)), (TOPIC,))
    started_s = time.perf_counter()
    (report,) = drain(options, OnSpark(spark, "drain"), JobProgress(quiet=True))
    seconds = time.perf_counter() - started_s
    assert report.rows == rows, report
    return seconds


def by_plain_sink(spark: SparkSession, address: str, path: Path, rows: int) -> float:
    """Write the rows of format("pyqd") with Spark's Parquet sink. Returns: seconds."""
    return by_sink(spark, address, path, rows)


def by_day_sink(spark: SparkSession, address: str, path: Path, rows: int) -> float:
    """Write it by topic and day. Returns: seconds."""
    return by_sink(spark, address, path, rows, "topic", "day")


def by_sink(spark: SparkSession, address: str, path: Path, rows: int, *directories: str) -> float:
    """Write the rows of format("pyqd") with Spark's Parquet sink. Returns: seconds."""
    from pyspark.sql import functions

    cores = spark.sparkContext.defaultParallelism
    reader = spark.read.format("pyqd").option("nsqd", address).option("subscribe", TOPIC)
    started_s = time.perf_counter()
    frame = reader.option("minPartitions", cores).load().withColumn("day", functions.to_date("timestamp"))
    frame.write.partitionBy(*directories).option("compression", "zstd").parquet(str(path))
    seconds = time.perf_counter() - started_s
    assert spark.read.parquet(str(path)).count() == rows
    return seconds


def measure(spark: SparkSession, address: str, directory: Path, rows: int, rounds: int) -> dict[str, list[float]]:
    """Run all ways, one after the other. Returns: seconds of each round, the first left out."""
    ways = {"drain": by_drain, "sink": by_plain_sink, "sink by day": by_day_sink}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    with Shown(total=(rounds + 1) * len(ways), unit="rounds") as progress:
        for number, (name, way) in product(range(rounds + 1), ways.items()):
            progress.describe(name)
            path = directory / f"{name}-{number}"
            seconds = way(spark, address, path, rows)
            shutil.rmtree(path)
            if number:
                taken[name].append(seconds)
            progress.advance()
    return taken


def main() -> None:
    """Measure and print."""
    parser = CommandParser(
        prog="python -m bench.spark_drain", description="Time of a drain beside Spark's Parquet sink."
    )
    parser.add_argument("--messages", type=int, default=1_000_000, help="default: %(default)s")
    parser.add_argument("--size", type=int, default=200, help="bytes of a body (default: %(default)s)")
    parser.add_argument("--bodies", choices=sorted(BODIES), default="random", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="of each, one more before (default: %(default)s)")
    parser.add_argument("--master", default="local[2]", help="of Spark (default: %(default)s)")
    asked = parser.parse_args()
    from pyqd_spark.session import session

    with tempfile.TemporaryDirectory(prefix="pyqd-bench-") as name:
        broker = Daemon(unshared_pyqd(), Path(name) / "broker")
        broker.start()
        try:
            address = "{}:{}".format(*broker.http_address)
            publish(address, asked.messages, asked.size, asked.bodies)
            with session("bench", master=asked.master, config={"spark.sql.session.timeZone": "UTC"}) as spark:
                taken = measure(spark, address, Path(name), asked.messages, asked.rounds)
            broker.stop()
        finally:
            broker.kill()
    for way, seconds in taken.items():
        middle = statistics.median(seconds)
        rounds = ", ".join(f"{each:.2f}" for each in seconds)
        print(f"{way:11}  {middle:6.2f} s  {asked.messages / middle:12,.0f} rows/s  (rounds: {rounds} s)")
    for way in ("sink", "sink by day"):
        ratio = statistics.median(taken[way]) / statistics.median(taken["drain"])
        print(f"the drain is {ratio:.1f} times as fast as the {way}")


if __name__ == "__main__":
    main()
