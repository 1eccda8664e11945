"""Publisher and consumers of scripts/kills/client_kills.py: processes that use one face of the client.

    client_workers.py publisher FACE COUNT BROKER...          publishes the numbers from 0, until each has an answer
    client_workers.py consumer FACE LEDGER SEED BROKER...     notes each number in a file before it finishes the message

A number is noted with one write() of 8 bytes, which survives a SIGKILL of the process. One message in a thousand fails
on purpose and is requeued.
"""

import asyncio
import json
import logging
import os
import random
import signal
import struct
import sys
import threading
from collections import deque
from concurrent.futures import Future
from itertools import islice
from types import FrameType
from typing import Any, Final

from pyqd.client import ClientError, Consumer, Message, Producer, RetryPolicy, aio

TOPIC, CHANNEL = "numbers", "ledger"
NUMBER: Final = struct.Struct(">Q")
BODY_BYTES: Final = 100
CHUNK: Final = 1000
BATCH: Final = 95
SINGLE_COUNT: Final = 5
# Messages that may wait for an answer.
WINDOW: Final = 20_000
FAILING_SHARE: Final = 0.001
MAX_IN_FLIGHT: Final = 300
OPTIONS: Final[dict[str, Any]] = {"reconnect_max": 1.0}
RETRY: Final = RetryPolicy(delay=0.1)
logger = logging.getLogger("client_workers")


def body_of(number: int) -> bytes:
    return NUMBER.pack(number).ljust(BODY_BYTES, b".")


class Publications:
    """Numbers to publish, and those whose publish failed, which are published again."""

    def __init__(self, count: int) -> None:
        self.acknowledged = 0
        self.failed = 0
        self._fresh = iter(range(count))
        self._again: deque[int] = deque()

    def take(self, count: int) -> list[int]:
        """Return numbers that are not published yet."""
        taken = [self._again.popleft() for _ in range(min(count, len(self._again)))]
        return taken + list(islice(self._fresh, count - len(taken)))

    def note(self, numbers: list[int], error: BaseException | None) -> None:
        """Note the end of a publish."""
        if error is None:
            self.acknowledged += len(numbers)
            return
        logger.info("%d numbers failed: %s", len(numbers), error)
        self.failed += len(numbers)
        self._again.extend(numbers)

    def report(self, stats: dict[str, Any]) -> None:
        report = {"acknowledged": self.acknowledged, "failed": self.failed, "retried": stats["retried"]}
        print(json.dumps(report), flush=True)


def publish(count: int, brokers: list[str]) -> None:
    """Publish with the blocking face: pipelined, in batches, and one by one."""
    publications = Publications(count)
    pending: deque[tuple[int, Future[str | None]]] = deque()
    with Producer(brokers, **OPTIONS) as producer:
        while True:
            numbers = publications.take(CHUNK)
            if not numbers and not pending:
                break
            batch, singles, rest = split(numbers)
            for number in rest:
                pending.append((number, producer.submit(TOPIC, body_of(number))))
            if batch:
                attempt(publications, batch, lambda batch=batch: producer.publish_many(TOPIC, map(body_of, batch)))
            for number in singles:
                attempt(publications, [number], lambda number=number: producer.publish(TOPIC, body_of(number)))
            while len(pending) > (WINDOW if numbers else 0):
                number, future = pending.popleft()
                publications.note([number], future.exception())
        publications.report(producer.stats())


def attempt(publications: Publications, numbers: list[int], call: Any) -> None:
    try:
        call()
    except ClientError as error:
        publications.note(numbers, error)
    else:
        publications.note(numbers, None)


def split(numbers: list[int]) -> tuple[list[int], list[int], list[int]]:
    """Return the numbers for a batch, for single publishes, and for the pipeline."""
    return numbers[:BATCH], numbers[BATCH : BATCH + SINGLE_COUNT], numbers[BATCH + SINGLE_COUNT :]


async def publish_aio(count: int, brokers: list[str]) -> None:
    """Publish with the asyncio face, as publish()."""
    publications = Publications(count)
    pending: deque[tuple[int, asyncio.Future[str | None]]] = deque()
    async with aio.Producer(brokers, **OPTIONS) as producer:
        while True:
            numbers = publications.take(CHUNK)
            if not numbers and not pending:
                break
            batch, singles, rest = split(numbers)
            for number in rest:
                pending.append((number, producer.submit(TOPIC, body_of(number))))
            calls: list[Any] = [producer.publish_many(TOPIC, map(body_of, batch))] if batch else []
            calls += [producer.publish(TOPIC, body_of(number)) for number in singles]
            for part, result in zip(
                ([batch] if batch else []) + [[number] for number in singles],
                await asyncio.gather(*calls, return_exceptions=True),
                strict=True,
            ):
                publications.note(part, result if isinstance(result, BaseException) else None)
            while len(pending) > (WINDOW if numbers else 0):
                number, future = pending.popleft()
                await asyncio.wait([future])
                publications.note([number], future.exception())
        publications.report(producer.stats())


class Ledger:
    """File of the numbers that a consumer has got."""

    def __init__(self, path: str, seed: int) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._rng = random.Random(seed)

    def note(self, message: Message) -> None:
        """Note a message. Raises: RuntimeError for a message that is to fail."""
        if self._rng.random() < FAILING_SHARE:
            raise RuntimeError("fails on purpose")
        os.write(self._file, message.body[: NUMBER.size])


def consume(ledger: Ledger, seed: int, brokers: list[str]) -> int:
    """Consume with the blocking face: by a handler in two threads, or by two threads that iterate."""
    consumer = Consumer(TOPIC, CHANNEL, nsqd=brokers, max_in_flight=MAX_IN_FLIGHT, retry=RETRY, backoff=0, **OPTIONS)
    if seed % 2:
        consumer.handler(concurrency=2)(ledger.note)
        return consumer.run()

    def stop(_number: int, _frame: FrameType | None) -> None:
        consumer.stop()

    signal.signal(signal.SIGTERM, stop)
    threads = [threading.Thread(target=iterate, args=(consumer, ledger)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 0 if consumer.drain() else 1


def iterate(consumer: Consumer, ledger: Ledger) -> None:
    for message in consumer:
        try:
            with message:
                ledger.note(message)
        except RuntimeError:
            continue


async def consume_aio(ledger: Ledger, seed: int, brokers: list[str]) -> int:
    """Consume with the asyncio face: by a handler in ten tasks, or by iteration."""
    consumer = aio.Consumer(
        TOPIC, CHANNEL, nsqd=brokers, max_in_flight=MAX_IN_FLIGHT, retry=RETRY, backoff=0, **OPTIONS
    )
    if seed % 2:

        @consumer.handler(concurrency=10)
        async def handle(message: Message) -> None:
            ledger.note(message)

        return await consumer.run()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, consumer.stop)
    async for message in consumer:
        try:
            async with message:
                ledger.note(message)
        except RuntimeError:
            continue
    return 0 if await consumer.drain() else 1


def main(arguments: list[str]) -> int:
    role, face, *rest = arguments
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    if role == "publisher":
        count, brokers = int(rest[0]), rest[1:]
        if face == "asyncio":
            asyncio.run(publish_aio(count, brokers))
        else:
            publish(count, brokers)
        return 0
    # Each failure on purpose is logged with its traceback.
    logging.getLogger("pyqd.client").setLevel(logging.CRITICAL)
    ledger, seed, brokers = Ledger(rest[0], int(rest[1])), int(rest[1]), rest[2:]
    return asyncio.run(consume_aio(ledger, seed, brokers)) if face == "asyncio" else consume(ledger, seed, brokers)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
