"""Rows per second of a batch read into Spark: format("pyqd"), and a Python client of NSQ in foreachPartition.

One daemon, one topic, one Spark session with as many tasks at a time as cores. format("pyqd") gives whole rows to
Spark's noop sink. The client does less: its tasks take messages of a channel, finish them and count them.
"""

import atexit
import os
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import pyqd_spark
from bench.server import Figures, Server, Target, address_text, running
from bench.setting import Setting
from bench.study import Study
from pyqd.client import Producer

TOPIC = "read"
BODY_BYTES = 200
BATCH = 5000
# The client takes a tenth of them.
MESSAGES = 1_000_000
CLIENT_SHARE = 10
MAX_IN_FLIGHT = 2500


def publish(server: Server, topic: str, count: int, body: Callable[[int], bytes]) -> None:
    with Producer(address_text(server.tcp_address)) as producer:
        for start in range(0, count, BATCH):
            producer.publish_many(topic, map(body, range(start, min(start + BATCH, count))))


def take_with_gnsq(address: str, channel: str, count: int) -> Callable[[Iterable[int]], None]:
    """Return a task that finishes `count` messages of a channel."""

    def task(_: Iterable[int]) -> None:
        import gnsq

        seen = [0]
        consumer = gnsq.Consumer(TOPIC, channel, address, max_in_flight=MAX_IN_FLIGHT)

        def handle(consumer: Any, message: Any) -> None:  # noqa: ARG001 - blinker passes the message by this name
            seen[0] += 1
            if seen[0] == count:
                consumer.close()

        consumer.on_message.connect(handle)
        consumer.start()

    return task


def study(_setting: Setting, scale: float) -> Study:
    stack = ExitStack()
    atexit.register(stack.close)
    count, tasks = max(1, round(MESSAGES * scale)), os.cpu_count() or 1
    server = stack.enter_context(running(Target.parse("pyqd --retention-bytes=4294967296")))
    publish(server, TOPIC, count, lambda _number: os.urandom(BODY_BYTES))
    config = {"spark.driver.memory": "1g", "spark.log.level": "ERROR"}
    spark = pyqd_spark.session("spark_read", config=config)
    stack.callback(spark.stop)

    def read() -> int:
        reader = spark.read.format("pyqd").option("nsqd", address_text(server.http_address))
        frame = reader.option("subscribe", TOPIC).option("minPartitions", str(tasks)).load()
        frame.write.format("noop").mode("overwrite").save()
        return count

    def take() -> int:
        server.post("/channel/create", topic=TOPIC, channel="client", start="earliest")
        share = max(1, count // CLIENT_SHARE // tasks)
        task = take_with_gnsq(address_text(server.tcp_address), "client", share)
        spark.sparkContext.parallelize(range(tasks), tasks).foreachPartition(task)
        return share * tasks

    def run(_row: str, contender: str) -> Figures:
        begun_s = time.monotonic()
        rows = read() if contender != "gnsq" else take()
        took_s = time.monotonic() - begun_s
        if contender == "gnsq":
            server.post("/channel/delete", topic=TOPIC, channel="client")
        return {"rate_per_s": rows / took_s}

    # The first run of each starts Python workers and compiles.
    read(), run("read", "gnsq")
    return Study(rows={"read": "messages of 200 B, rows"}, contenders=['format("pyqd")', "gnsq"], run=run)
