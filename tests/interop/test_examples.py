"""Programs of docs/examples, run unchanged against a broker on NSQ's ports."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.interop.process import ROOT, WAIT_S
from tests.support.machine import Machine
from tests.support.server import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

EXAMPLES = ROOT / "docs" / "examples"
PUBLISH = """
import json, sys
from pyqd.client import Producer
with Producer("127.0.0.1:4150") as producer:
    producer.publish_many(sys.argv[1], [text.encode() for text in json.loads(sys.argv[2])])
"""
FASTAPI = """
import time
from fastapi.testclient import TestClient
from fastapi_orders import app

with TestClient(app) as client:
    answer = client.post("/orders", json={"number": 7, "customer": "Ada"})
    print(answer.status_code, len(answer.json()["message_id"]))
    deadline_s = time.monotonic() + 20
    while client.get("/reminded").json() != [7] and time.monotonic() < deadline_s:
        time.sleep(0.01)
    print(client.get("/reminded").json())
    print(client.post("/orders", json={"number": "seven"}).status_code)
"""
DJANGO = """
import django_orders
from django.db import connection
from django.test import Client

with connection.cursor() as cursor:
    cursor.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, mailed INTEGER DEFAULT 0)")
print(Client().post("/orders", {"customer": "Ada"}).json())
django_orders.producer.close()
"""


class Examples:
    """Runner of examples in the home directory of a machine with a broker."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.home = machine.home

    def start(self, *words: str) -> tuple[subprocess.Popen[bytes], Path]:
        log = self.machine.directory / f"log-{len(list(self.machine.directory.glob('log-*')))}"
        return self.machine.start([sys.executable, *words], log), log

    def run(self, *words: str) -> str:
        process, log = self.start(*words)
        assert process.wait(WAIT_S) == 0, log.read_text()
        return log.read_text()

    def publish(self, topic: str, *bodies: str) -> None:
        self.run("-c", PUBLISH, topic, json.dumps(bodies))

    def wait_for_exit(self, process: subprocess.Popen[bytes], log: Path) -> None:
        """Stop a worker as an orchestrator does, and expect that it has answered all messages."""
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0, log.read_text()
        assert "Traceback" not in log.read_text()


@pytest.fixture
def examples(tmp_path: Path) -> Iterator[Examples]:
    machine = Machine(tmp_path)
    for path in EXAMPLES.iterdir():
        (machine.home / path.name).symlink_to(path)
    machine.environment["PYTHONUNBUFFERED"] = "1"
    machine.environment["PYTHONPATH"] = str(ROOT)
    (machine.home / "data").mkdir()
    broker = machine.start(["pyqd", "--data-path=data"], machine.directory / "broker.log")
    runner = Examples(machine)
    ping = ["curl", "-sf", "http://127.0.0.1:4151/ping"]
    wait_until(
        lambda: machine.start(ping, machine.directory / "ping").wait(WAIT_S) == 0 or broker.poll() is not None,
        "the broker answers",
        WAIT_S,
    )
    yield runner
    machine.close()


def holds(log: Path, text: str) -> Callable[[], bool]:
    return lambda: text in log.read_text()


def rows_of(path: Path, query: str) -> list[tuple[object, ...]]:
    """Return the rows of a query; none while the table does not exist."""
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
            return database.execute(query).fetchall()
    except sqlite3.OperationalError:
        return []


def test_the_consumer_prints_the_message_of_the_producer(examples: Examples) -> None:
    assert examples.run("producer.py").startswith("published ")
    consumer, log = examples.start("consumer.py")
    wait_until(holds(log, "received b'order 1'"), "the message has come", WAIT_S)
    consumer.send_signal(signal.SIGINT)
    consumer.wait(WAIT_S)


def test_the_worker_handles_every_order_once(examples: Examples) -> None:
    worker, log = examples.start("worker.py")
    examples.publish("orders", *[f"order {number}" for number in range(50)])
    wait_until(lambda: log.read_text().count("attempt 1") == 50, "all orders are handled", WAIT_S)
    examples.wait_for_exit(worker, log)


def test_the_asyncio_worker_publishes_a_parcel_for_each_order(examples: Examples) -> None:
    examples.publish("orders", "order 1", "order 2")
    worker, log = examples.start("aio_worker.py")
    program = """
from pyqd.client import Consumer
with Consumer("parcels", "test", nsqd="127.0.0.1:4150", max_in_flight=10) as consumer:
    bodies = []
    while len(bodies) < 2:
        batch = consumer.fetch(10)
        bodies += [message.body for message in batch]
        consumer.finish_many(batch)
print(sorted(bodies))
"""
    assert examples.run("-c", program) == "[b'parcel for order 1', b'parcel for order 2']\n"
    examples.wait_for_exit(worker, log)


def test_the_writer_of_batches_stores_all_events(examples: Examples) -> None:
    writer, log = examples.start("batch_writer.py")
    examples.publish("events", *[f"event {number}" for number in range(2000)])
    stored = partial(rows_of, examples.home / "events.db", "SELECT count(*) FROM events")
    wait_until(lambda: stored() == [(2000,)], "all events are stored", WAIT_S)
    examples.wait_for_exit(writer, log)


def test_the_fastapi_program_publishes_and_refuses_wrong_bodies(examples: Examples) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("httpx")
    assert examples.run("-W", "ignore", "-c", FASTAPI) == "202 16\n[7]\n422\n"


def test_the_django_program_stores_an_order_and_mails_it(examples: Examples) -> None:
    pytest.importorskip("django")
    assert examples.run("-c", DJANGO) == "{'number': 1}\n"
    command, log = examples.start("django_orders.py")
    mailed = partial(rows_of, examples.home / "orders.db", "SELECT customer, mailed FROM orders")
    wait_until(lambda: mailed() == [("Ada", 1)], "the order is mailed", WAIT_S)
    examples.wait_for_exit(command, log)


def test_a_job_runs_each_interval_and_only_one_of_two_workers_runs_it(examples: Examples) -> None:
    # An hour of the program is a second of the test.
    program = (EXAMPLES / "hourly_report.py").read_text().replace("timedelta(hours=1)", "timedelta(seconds=1)")
    (examples.home / "job.py").write_text(program)
    examples.run("job.py", "--begin")
    workers = [examples.start("job.py") for _ in range(2)]

    def reports() -> list[str]:
        return sorted(line for _, log in workers for line in log.read_text().splitlines() if "report at" in line)

    wait_until(lambda: len(reports()) >= 3, "three reports", WAIT_S)
    for worker, log in workers:
        examples.wait_for_exit(worker, log)
    seconds = [line.partition(".")[0] for line in reports()]
    assert len(set(seconds)) == len(seconds), seconds


def test_an_effect_happens_once_although_the_message_comes_twice(examples: Examples) -> None:
    payments = [json.dumps({"account": "Ada", "cents": 5})] * 3
    program = (EXAMPLES / "exactly_once.py").read_text()
    # The first delivery of each message has its effect, and then fails.
    failing = program.replace(
        "    payment = message.value\n",
        "    payment = message.value\n    print('attempt', message.attempts, flush=True)\n",
    ).replace(
        "\n\n\nsys.exit(",
        "\n    from pyqd.client import Requeue\n    raise Requeue(0.1)\n\n\nsys.exit(",
    )
    assert "Requeue" in failing
    assert "attempt" in failing
    (examples.home / "failing.py").write_text(failing)
    worker, log = examples.start("failing.py")
    examples.publish("payments", *payments)
    wait_until(lambda: log.read_text().count("attempt 2") == 3, "each message came twice", WAIT_S)
    assert rows_of(examples.home / "ledger.db", "SELECT name, cents FROM accounts") == [("Ada", 15)]
    examples.wait_for_exit(worker, log)
