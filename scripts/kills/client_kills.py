#!/usr/bin/env python3
"""Publish and consume numbered messages with the Python client while brokers and consumers are killed.

    scripts/kills/client_kills.py                                   a million messages, blocking face
    scripts/kills/client_kills.py --face=asyncio

Three brokers are killed (SIGKILL) and started again at random, and so are the consumers. The publisher publishes each
number until a broker has acknowledged it: pipelined, in batches, and one by one. A consumer notes each number in a file
before it finishes the message, with one write() of 8 bytes, which survives a SIGKILL. One message in a thousand fails
on purpose and is requeued. At the end no broker has a message left; then a number that no consumer has noted is lost.
Duplicates are allowed: messages are delivered at least once.

The clients are processes of their own, which run this file with the arguments of `as_client`.
"""

import asyncio
import contextlib
import json
import logging
import os
import random
import signal
import struct
import subprocess
import sys
import threading
from array import array
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

from harness import WAIT_S, Loop, Program, found_in, main, messages_in, wait_until

from pyqd.client import ClientError, Consumer, Message, Producer, RetryPolicy, aio

TOPIC, CHANNEL = "numbers", "ledger"
DRAIN_S = 180.0
BROKERS, CONSUMERS = 3, 2
BROKER_SHARE = 0.6
# A killed consumer's messages come again after the timeout, or at once if the broker notices the end of its connection.
MSG_TIMEOUT = "--msg-timeout=5s"
NUMBER: Final = struct.Struct(">Q")
BODY_BYTES: Final = 100
CHUNK: Final = 1000
BATCH: Final = 95
SINGLE_COUNT: Final = 5
# Messages that may wait for an answer.
WINDOW: Final = 20_000
FAILING_SHARE: Final = 0.001
OPTIONS: Final[dict[str, Any]] = {"reconnect_max": 1.0}
CONSUMING: Final = {"max_in_flight": 300, "retry": RetryPolicy(delay=0.1), "backoff": 0, **OPTIONS}
logger = logging.getLogger("client_kills")


class ClientKills(Loop):
    """The run. ledgers: files of the consumers, of which each start has its own."""

    COUNT = None
    OPTIONS = (
        ("--messages", {"type": int, "default": 1_000_000}),
        ("--face", {"choices": ("blocking", "asyncio"), "default": "blocking"}),
    )

    def start(self) -> None:
        self.ledgers: list[Path] = []
        self.broker_kills = self.consumer_kills = 0
        self.brokers = [self.broker(f"broker-{number}", MSG_TIMEOUT) for number in range(BROKERS)]
        self.addresses = [broker.tcp_address for broker in self.brokers]
        self.consumers = [Program(self.directory / f"consumer-{n}.log", __file__) for n in range(CONSUMERS)]
        self.publisher = Program(self.directory / "publisher.log", __file__)
        for program in (*self.consumers, self.publisher):
            self.stack.callback(program.kill)
        for consumer in self.consumers:
            self._consume(consumer)
        self.publisher.start(
            *("publisher", self.given.face, str(self.given.messages), *self.addresses), stdout=subprocess.PIPE
        )

    def goes_on(self, _number: int) -> bool:
        """Return after a random time whether the publisher is still at work."""
        assert self.publisher.process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.publisher.process.wait(self.rng.uniform(0.2, 1.8) * self.given.interval)
            return False
        return True

    def fault(self, _number: int) -> None:
        if self.rng.random() < BROKER_SHARE:
            broker = self.rng.choice(self.brokers)
            broker.kill()
            self.pause(0.5)
            broker.start()
            self.broker_kills += 1
        else:
            consumer = self.rng.choice(self.consumers)
            consumer.kill()
            self._consume(consumer)
            self.consumer_kills += 1

    def note(self) -> str:
        noted = sum(path.stat().st_size for path in self.ledgers if path.exists()) // NUMBER.size
        return f"{noted:,} messages noted"

    def finish(self) -> None:
        assert self.publisher.process is not None
        answer = self.publisher.process.communicate(timeout=WAIT_S)[0]
        if self.publisher.process.returncode != 0:
            raise RuntimeError(f"the publisher has failed: {self.publisher.log_tail()}")
        self.published = json.loads(answer)
        wait_until(self._is_drained, "the end of all messages", DRAIN_S)
        self.exit_codes = [consumer.stop() for consumer in self.consumers]

    def check(self) -> dict[str, Any]:
        found = found_in(counts_in(self.ledgers, self.given.messages))
        return {
            "face": self.given.face,
            "messages": self.given.messages,
            **found,
            "broker_kills": self.broker_kills,
            "consumer_kills": self.consumer_kills,
            **self.published,
            "exit_codes_of_consumers": self.exit_codes,
            "ok": not found["lost"] and self.published["acknowledged"] == self.given.messages,
        }

    def _consume(self, program: Program) -> None:
        number = len(self.ledgers)
        self.ledgers.append(self.directory / f"ledger-{number}")
        program.start("consumer", self.given.face, str(self.ledgers[-1]), str(number), *self.addresses)

    def _is_drained(self) -> bool:
        topics = [topic for broker in self.brokers for topic in broker.stats()["topics"] or ()]
        return not sum(messages_in(topic) for topic in topics)


def counts_in(ledgers: list[Path], count: int) -> "array[int]":
    """Return how often each number was noted."""
    found = array("L", bytes(8 * count))
    for path in ledgers:
        for (number,) in NUMBER.iter_unpack(path.read_bytes() if path.exists() else b""):
            found[number] += 1
    return found


# Clients. A blocking call returns its result, and one of asyncio something to wait for: `settled` takes both.


async def settled(result: Any) -> Any:
    return await result if asyncio.isfuture(result) or asyncio.iscoroutine(result) else result


class Publications:
    """Numbers to publish, and those whose publish failed, which are published again."""

    def __init__(self, count: int) -> None:
        self.acknowledged = self.failed = 0
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

    async def attempt(self, numbers: list[int], call: Callable[[], Any]) -> None:
        try:
            await settled(call())
        except ClientError as error:
            self.note(numbers, error)
        else:
            self.note(numbers, None)


def body_of(number: int) -> bytes:
    return NUMBER.pack(number).ljust(BODY_BYTES, b".")


async def publish(producer: Any, count: int) -> None:
    """Publish all numbers, and print the figures."""
    publications = Publications(count)
    pending: deque[tuple[int, Any]] = deque()
    while (numbers := publications.take(CHUNK)) or pending:
        batch, singles = numbers[:BATCH], numbers[BATCH : BATCH + SINGLE_COUNT]
        pending.extend((number, producer.submit(TOPIC, body_of(number))) for number in numbers[BATCH + SINGLE_COUNT :])
        calls = [([number], partial(producer.publish, TOPIC, body_of(number))) for number in singles]
        if batch:
            calls.append((batch, partial(producer.publish_many, TOPIC, list(map(body_of, batch)))))
        await asyncio.gather(*(publications.attempt(part, call) for part, call in calls))
        while len(pending) > (WINDOW if numbers else 0):
            number, future = pending.popleft()
            if asyncio.isfuture(future):
                await asyncio.wait([future])
            publications.note([number], future.exception())
    await settled(producer.close())
    report = {"acknowledged": publications.acknowledged, "failed": publications.failed}
    print(json.dumps(report | {"retried": producer.stats()["retried"]}), flush=True)


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
    consumer = Consumer(TOPIC, CHANNEL, nsqd=brokers, **CONSUMING)
    if seed % 2:
        consumer.handler(concurrency=2)(ledger.note)
        return consumer.run()

    def iterate() -> None:
        for message in consumer:
            with contextlib.suppress(RuntimeError), message:
                ledger.note(message)

    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    threads = [threading.Thread(target=iterate) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 0 if consumer.drain() else 1


async def consume_aio(ledger: Ledger, seed: int, brokers: list[str]) -> int:
    """Consume with the asyncio face: by a handler in ten tasks, or by iteration."""
    consumer = aio.Consumer(TOPIC, CHANNEL, nsqd=brokers, **CONSUMING)
    if seed % 2:

        @consumer.handler(concurrency=10)
        async def handle(message: Message) -> None:
            ledger.note(message)

        return await consumer.run()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, consumer.stop)
    async for message in consumer:
        with contextlib.suppress(RuntimeError):
            async with message:
                ledger.note(message)
    return 0 if await consumer.drain() else 1


async def as_client(role: str, face: str, *rest: str) -> int:
    """Run a client: `publisher FACE COUNT BROKER...` or `consumer FACE LEDGER SEED BROKER...`."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    if role == "publisher":
        kind = Producer if face == "blocking" else aio.Producer
        await publish(kind(list(rest[1:]), **OPTIONS), int(rest[0]))
        return 0
    # Each failure on purpose is logged with its traceback.
    logging.getLogger("pyqd.client").setLevel(logging.CRITICAL)
    seed, brokers = int(rest[1]), list(rest[2:])
    ledger = Ledger(rest[0], seed)
    return consume(ledger, seed, brokers) if face == "blocking" else await consume_aio(ledger, seed, brokers)


if __name__ == "__main__":
    is_client = sys.argv[1:2] in (["publisher"], ["consumer"])
    sys.exit(asyncio.run(as_client(*sys.argv[1:])) if is_client else main(ClientKills))
