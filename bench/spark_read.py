"""Rows a second of a batch read into Spark: format("pyqd") against a Python client of NSQ in foreachPartition.

Usage: python -m bench.spark_read [--messages 1000000] [--client-messages 100000] [--runs 5] [--client gnsq|pynsq]

One daemon, one topic, one Spark session with as many tasks at a time as cores; both ways in turn, A B A B, in one run.
format("pyqd") gives whole rows (topic, node, offset, times, attempts, id, body) to Spark's noop sink. The client does
less: its tasks take messages of a channel, finish them and count their bytes; no row is made.
"""

import argparse
import json
import os
import statistics
import struct
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bench.server import Server, Target, running
from pyqd.primitives.command_line import CommandParser
from pyqd.primitives.progress import Progress

TOPIC = "read"
BODY_BYTES = 200
MPUB_COUNT = 5000
MAX_IN_FLIGHT = 2500


def url(server: Server, path: str) -> str:
    host, port = server.http_address
    return f"http://{host}:{port}{path}"


def post(server: Server, path: str, body: bytes = b"") -> None:
    with urllib.request.urlopen(url(server, path), data=body, timeout=60) as answer:
        answer.read()


def fill(server: Server, count: int) -> None:
    """Publish `count` messages of BODY_BYTES incompressible bytes."""
    bodies = [os.urandom(BODY_BYTES) for _ in range(min(MPUB_COUNT, count))]
    for start in range(0, count, MPUB_COUNT):
        chunk = bodies[: count - start]
        frames = b"".join(struct.pack(">i", BODY_BYTES) + body for body in chunk)
        post(server, f"/mpub?topic={TOPIC}&binary=true", struct.pack(">i", len(chunk)) + frames)


def take_with_gnsq(address: str, channel: str, count: int) -> Callable[[Iterator[Any]], None]:
    """Return a task that finishes `count` messages of a channel."""

    def task(_: Iterator[Any]) -> None:
        import gnsq

        seen = [0, 0]
        consumer = gnsq.Consumer(TOPIC, channel, address, max_in_flight=MAX_IN_FLIGHT)

        def handle(consumer: Any, message: Any) -> None:
            seen[0] += 1
            seen[1] += len(message.body)
            if seen[0] == count:
                consumer.close()

        consumer.on_message.connect(handle)
        consumer.start()

    return task


def take_with_pynsq(address: str, channel: str, count: int) -> Callable[[Iterator[Any]], None]:
    """Return a task that finishes `count` messages of a channel."""

    def task(_: Iterator[Any]) -> None:
        import asyncio

        import nsq
        import tornado.ioloop

        asyncio.set_event_loop(asyncio.new_event_loop())
        loop = tornado.ioloop.IOLoop.current()
        seen = [0, 0]

        def handle(message: Any) -> bool:
            seen[0] += 1
            seen[1] += len(message.body)
            if seen[0] == count:
                # After the answer to this message, and to those before it, has been sent.
                loop.call_later(0.05, loop.stop)
            return True

        reader = nsq.Reader(
            message_handler=handle,
            nsqd_tcp_addresses=[address],
            topic=TOPIC,
            channel=channel,
            max_in_flight=MAX_IN_FLIGHT,
        )
        loop.start()
        reader.close()

    return task


CLIENTS = {"gnsq": take_with_gnsq, "pynsq": take_with_pynsq}


def timed(action: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    action()
    return time.perf_counter() - start_s


def measure(arguments: argparse.Namespace, spark: Any, server: Server) -> dict[str, list[float]]:
    """Return rows a second of each way, run by run."""
    parallelism = os.cpu_count() or 1
    rates: dict[str, list[float]] = {"format(pyqd)": [], arguments.client: []}
    host, port = server.http_address
    reader = spark.read.format("pyqd").option("nsqd", f"{host}:{port}").option("subscribe", TOPIC)
    reader = reader.option("minPartitions", str(parallelism))
    address = "{}:{}".format(*server.tcp_address)
    with Progress(total=arguments.runs + 1, unit="runs") as progress:
        for run in range(arguments.runs + 1):
            frame = reader.load()
            seconds = timed(frame.write.format("noop").mode("overwrite").save)
            channel = f"run{run}"
            post(server, f"/channel/create?topic={TOPIC}&channel={channel}&start=earliest")
            share = arguments.client_messages // parallelism
            task = CLIENTS[arguments.client](address, channel, share)
            tasks = spark.sparkContext.parallelize(range(parallelism), parallelism)
            client_seconds = timed(lambda tasks=tasks, task=task: tasks.foreachPartition(task))  # type: ignore[misc]
            post(server, f"/channel/delete?topic={TOPIC}&channel={channel}")
            rate, client_rate = arguments.messages / seconds, share * parallelism / client_seconds
            progress.advance()
            progress.say(f"run {run}: {rate:,.0f} and {client_rate:,.0f} rows/s", sys.stdout)
            # The first run of each starts Python workers and compiles.
            if run:
                rates["format(pyqd)"].append(rate)
                rates[arguments.client].append(client_rate)
    assert frame.count() == arguments.messages, "the read was not whole"
    return rates


def show(rates: dict[str, list[float]]) -> None:
    for name, values in rates.items():
        print(f"{name:14} median {statistics.median(values):>12,.0f} rows/s ({min(values):,.0f} to {max(values):,.0f})")
    ours, client = rates.values()
    ratios = [one / other for one, other in zip(ours, client, strict=True)]
    print(f"ratio          median {statistics.median(ratios):>12.1f} ({min(ratios):.1f} to {max(ratios):.1f})")
    print(json.dumps(rates))


def main(argv: Sequence[str] | None = None) -> int:
    parser = CommandParser(
        prog="python -m bench.spark_read", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--client-messages", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--client", choices=sorted(CLIENTS), default="gnsq")
    arguments = parser.parse_args(argv)
    import pyqd_spark

    with running(Target.parse("pyqd"), flags=["--retention-bytes=4294967296"]) as server:
        fill(server, arguments.messages)
        spark = pyqd_spark.session("spark_read", config={"spark.driver.memory": "1g", "spark.log.level": "ERROR"})
        try:
            show(measure(arguments, spark, server))
        finally:
            spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
