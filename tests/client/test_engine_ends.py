"""Ends of producers and consumers that other threads use, and forks of processes that have several of them."""

from __future__ import annotations

import subprocess
import sys
import threading

from pyqd.client import ClosedError, Consumer
from tests.support.server import REPOSITORY, WAIT_S

CLOSE_COUNT = 100
FORKING = """
import gc, os, sys, warnings
from pyqd.client import Consumer, Producer
# Python 3.12 and newer warn of every fork beside threads.
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)

producers = [Producer(sys.argv[1]) for _ in range(5)]
consumers = [Consumer(f"t{n}", "c", nsqd=sys.argv[1]) for n in range(5)]
for number, producer in enumerate(producers):
    producer.publish(f"t{number}", b"parent")
held = [consumer.fetch()[0] for consumer in consumers]
child = os.fork()
if child == 0:
    pipes = [os.pipe() for _ in range(20)]
    gc.collect()
    for producer in producers:
        producer.publish("child", b"child")
    for read, write in pipes:
        os.write(write, b"x")
        assert os.read(read, 1) == b"x"
    for producer in producers:
        producer.close()
    for consumer in consumers:
        consumer.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
for message in held:
    message.finish()
for each in (*producers, *consumers):
    each.close()
"""


def test_a_consumer_can_be_closed_while_another_thread_fetches(url: str) -> None:
    ends: list[BaseException] = []

    def fetch(consumer: Consumer) -> None:
        try:
            while True:
                consumer.fetch(timeout=WAIT_S)
        except BaseException as error:
            ends.append(error)

    for _ in range(CLOSE_COUNT):
        consumer = Consumer("idle", "all", nsqd=url)
        thread = threading.Thread(target=fetch, args=(consumer,))
        thread.start()
        while not any(broker["connected"] for broker in consumer.stats()["brokers"].values()):
            pass
        consumer.close()
        thread.join(WAIT_S)
    assert [type(error) for error in ends] == [ClosedError] * CLOSE_COUNT


def test_the_child_of_a_fork_has_producers_that_work_and_descriptors_of_its_own(url: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", FORKING, url],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=WAIT_S * 2,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
