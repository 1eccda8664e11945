"""Time to turn a topic into Parquet, by `pyq_spark drain` and by Spark's Parquet sink on format("pyqd").

All on the same cores with zstd. Spark's sink writes plain files, and once more by topic and day, as the drain does. The
drain syncs its files to disk and Spark's sink does not.
"""

import atexit
import os
import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import functions

import pyqd_spark
from bench.server import Figures, RunError, Target, address_text, running
from bench.setting import Setting
from bench.spark_read import MESSAGES, publish
from bench.study import Study
from pyqd_spark.jobs.drain import DrainOptions, drain
from pyqd_spark.jobs.progress import JobProgress
from pyqd_spark.jobs.runner import OnSpark
from pyqd_spark.options import BrokerOptions


def random_body(_number: int) -> bytes:
    """Return bytes that cannot be compressed."""
    return os.urandom(200)


def json_body(number: int) -> bytes:
    """Return an order, as text of about 200 bytes."""
    item = f'{{"sku":"{number % 997:06}","count":{number % 5 + 1},"price":{number * 31 % 9999}}}'
    head = f'{{"order":{number},"customer":"{os.urandom(8).hex()}","amount":{number * 7919 % 100_000},"items":['
    return f"{head}{item},{item},{item}]}}".encode()


BODIES = {"random": random_body, "json": json_body}
# Directories of Spark's sink.
SINKS: dict[str, tuple[str, ...]] = {"sink": (), "sink by day": ("topic", "day")}


def study(_setting: Setting, scale: float) -> Study:
    stack = ExitStack()
    atexit.register(stack.close)
    count = max(1, round(MESSAGES * scale))
    server = stack.enter_context(running(Target.parse("pyqd")))
    for topic, body in BODIES.items():
        publish(server, topic, count, body)
    address = address_text(server.http_address)
    config = {"spark.sql.session.timeZone": "UTC", "spark.log.level": "ERROR"}
    spark = pyqd_spark.session("bench", master="local[2]", config=config)
    stack.callback(spark.stop)

    def write(topic: str, way: str, path: Path) -> None:
        if way == "drain":
            drain(
                DrainOptions(str(path), BrokerOptions(nsqd=(address,)), (topic,)),
                OnSpark(spark, "drain"),
                JobProgress(quiet=True),
            )
            return
        reader = spark.read.format("pyqd").option("nsqd", address).option("subscribe", topic)
        cores = spark.sparkContext.defaultParallelism
        frame = reader.option("minPartitions", cores).load().withColumn("day", functions.to_date("timestamp"))
        frame.write.partitionBy(*SINKS[way]).option("compression", "zstd").parquet(str(path))

    def run(topic: str, way: str) -> Figures:
        path = Path(tempfile.mkdtemp(prefix="bench-")) / "parquet"
        begun_s = time.monotonic()
        write(topic, way, path)
        took_s = time.monotonic() - begun_s
        rows = spark.read.parquet(str(path)).count()
        size = sum(each.stat().st_size for each in path.rglob("*.parquet"))
        shutil.rmtree(path.parent)
        if rows != count:
            raise RunError(f"{rows} of {count} rows are written")
        return {"took_s": took_s, "written, MB": size / 1e6}

    ways = ["drain", *SINKS]
    # The first run of each starts Python processes and fills caches.
    for way in ways:
        run("random", way)
    return Study(rows={name: f"bodies of {name}" for name in BODIES}, contenders=ways, run=run)
