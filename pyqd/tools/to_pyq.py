"""Command `to_pyq`: publishes the records of standard input to a topic, on each of the brokers that are given.

Records that are there together travel as one MPUB, and many of these are under way at a time. A record that comes alone
is sent at once. The order of records is kept on each broker.

Source: docs/tools/to_pyq.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pyqd.client.aio import Producer
from pyqd.client.core.commands import check_topic
from pyqd.client.errors import ClientError, TooBigError
from pyqd.tools.common import (
    EXIT_OK,
    Fatal,
    ProducerOpt,
    ToolOptions,
    client_options,
    declare_flag,
    declare_repeated,
    log,
    run_tool,
    set_done,
    stop_on,
)

TOOL: Final = "to_pyq"
SYNOPSIS: Final = "Publishes the records of standard input to a topic, on every broker that is given."
STDIN: Final = 0
READ_BYTES: Final = 1 << 18
# The size field of a message has 31 bits.
RECORD_BYTES_MAX: Final = (1 << 31) - 1
# MPUBs under way. Brokers keep up with two; more of them outlast a sync of the broker's disk.
BATCHES_MAX: Final = 32
ANSWER_S: Final = 60.0
FLUSH_S: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class ToPyqOptions(ProducerOpt, ToolOptions):
    """Flags of to_pyq."""

    topic: str = declare_flag("", "topic to publish to")
    delimiter: str = declare_flag("\n", "byte at the end of each record of stdin")
    rate: int = declare_flag(0, "most messages per second; 0 for no limit")
    nsqd_tcp_address: tuple[str, ...] = declare_repeated(
        "destination nsqd TCP address (may be given multiple times: each gets every message)"
    )


def main(argv: Sequence[str] | None = None) -> int:
    return run_tool(TOOL, ToPyqOptions, argv, run, SYNOPSIS)


def check(options: ToPyqOptions) -> bytes:
    """Return the delimiter. Raises: Fatal for a mistake in the options, InvalidNameError for the topic."""
    if not options.topic:
        raise Fatal("--topic required")
    delimiter = os.fsencode(options.delimiter)
    if len(delimiter) != 1:
        raise Fatal("--delimiter must be a single byte")
    if not options.nsqd_tcp_address:
        raise Fatal("--nsqd-tcp-address required")
    check_topic(options.topic)
    return delimiter


class Records:
    """Cuts a stream into records, without the delimiter. Empty ones are left out."""

    def __init__(self, delimiter: bytes) -> None:
        self._delimiter = delimiter
        # Pieces of a record whose end is not there yet: joined once, so that a long record costs no copy per piece.
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the records that end in data. Raises: Fatal for one that no message can hold."""
        first, delimiter, rest = data.partition(self._delimiter)
        self._pieces.append(first)
        self._size += len(first)
        if self._size > RECORD_BYTES_MAX:
            raise Fatal(f"a record of standard input has more than {RECORD_BYTES_MAX} bytes; is --delimiter right?")
        if not delimiter:
            return []
        records = [self.end(), *rest.split(self._delimiter)]
        last = records.pop()
        self._pieces.append(last)
        self._size = len(last)
        return [record for record in records if record]

    def end(self) -> bytes:
        """Return the record that has no delimiter behind it; empty if there is none."""
        record = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        return record


class Stdin:
    """Standard input, read without a thread and without changing the mode that other processes share."""

    def __init__(self) -> None:
        if sys.stdin is None:
            # Its descriptor may be one of the event loop by now.
            raise Fatal("cannot read standard input: it is closed")
        self._loop = asyncio.get_running_loop()
        self._may_wait = True

    async def read(self) -> bytes:
        """Return received bytes, as soon as there are some; nothing at the end. Raises: Fatal."""
        while True:
            await self._wait_readable()
            try:
                return os.read(STDIN, READ_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                raise Fatal(f"cannot read standard input: {error.strerror}") from error

    async def _wait_readable(self) -> None:
        readable = self._loop.create_future()
        if self._may_wait:
            try:
                self._loop.add_reader(STDIN, set_done, readable)
            except PermissionError:
                # epoll takes neither files nor /dev/null. Reading from them does not wait.
                self._may_wait = False
        if not self._may_wait:
            # Publications go on between two reads.
            await asyncio.sleep(0)
            return
        try:
            await readable
        finally:
            self._loop.remove_reader(STDIN)


class Credit:
    """Number of messages that may be sent now: one at first, then rate per second, at most those of a second."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._count = 1.0
        self._counted_s = time.monotonic()

    async def take(self, wanted: int) -> int:
        """Wait until at least one message may be sent; return how many of those that are wanted."""
        while True:
            now_s = time.monotonic()
            self._count = min(float(self._rate), self._count + (now_s - self._counted_s) * self._rate)
            self._counted_s = now_s
            count = min(wanted, int(self._count))
            if count:
                self._count -= count
                return count
            await asyncio.sleep((1 - self._count) / self._rate)


class RecordPublisher:
    """Publishes batches of records to all brokers, many at a time. on_failure: called at the first error."""

    def __init__(self, topic: str, producers: Sequence[Producer], on_failure: Callable[[], object]) -> None:
        self.error: ClientError | None = None
        self._topic = topic
        self._producers = producers
        self._on_failure = on_failure
        self._is_connected = False
        # A slot is for one batch at all brokers: the slowest one sets the pace.
        self._slots = asyncio.Semaphore(BATCHES_MAX)
        self._tasks: set[asyncio.Task[None]] = set()

    async def publish(self, records: Sequence[bytes]) -> None:
        """Begin to publish records, behind all earlier ones. Raises: NotConnectedError at the first call."""
        await self._slots.acquire()
        task = asyncio.create_task(self._to_all(records))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if not self._is_connected:
            for producer in self._producers:
                await producer.connect()
            self._is_connected = True

    async def _to_all(self, records: Sequence[bytes]) -> None:
        try:
            await asyncio.gather(*(self._to_one(producer, records) for producer in self._producers))
        except ClientError as error:
            if self.error is None:
                self.error = error
                self._on_failure()
        finally:
            self._slots.release()

    async def _to_one(self, producer: Producer, records: Sequence[bytes]) -> None:
        try:
            await producer.publish_many(self._topic, records)
        except TooBigError:
            # The broker has taken nothing of the batch. Only a record that is too big by itself is an error.
            if len(records) == 1:
                raise
            middle = len(records) // 2
            await self._to_one(producer, records[:middle])
            await self._to_one(producer, records[middle:])

    async def flush(self, timeout_s: float | None) -> int:
        """Wait for the answers to all batches; return how many are missing after the timeout."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        return len(self._tasks)


async def pump(options: ToPyqOptions, delimiter: bytes, publish: Callable[[Sequence[bytes]], Awaitable[None]]) -> None:
    """Publish the records of standard input. Raises: Fatal, NotConnectedError."""
    stdin, records = Stdin(), Records(delimiter)
    credit = Credit(options.rate) if options.rate >= 1 else None
    is_open = True
    while is_open:
        data = await stdin.read()
        is_open = bool(data)
        found = records.feed(data) if is_open else list(filter(None, [records.end()]))
        while found:
            count = len(found) if credit is None else await credit.take(len(found))
            await publish(found[:count])
            found = found[count:]


async def run(options: ToPyqOptions) -> int:
    """Publish until the end of standard input, or until a signal. Returns: the exit code."""
    delimiter = check(options)
    keywords = client_options(TOOL, options.producer_opt).producer_keywords()
    if options.rate >= 1:
        log(f"Throttling messages rate to max:{options.rate}/second")
    async with contextlib.AsyncExitStack() as stack:
        producers = []
        for address in dict.fromkeys(options.nsqd_tcp_address):
            producer = Producer(address, timeout=ANSWER_S, retry_unanswered=False, **keywords)
            stack.push_async_callback(producer.close, 0.0)
            producers.append(producer)
        task: asyncio.Task[None] | None = None

        def cancel() -> None:
            if task is not None:
                task.cancel()

        publisher = RecordPublisher(options.topic, producers, cancel)
        with stop_on(signal.SIGINT, signal.SIGTERM, on_signal=cancel) as stopped:
            task = asyncio.create_task(pump(options, delimiter, publisher.publish))
            with contextlib.suppress(asyncio.CancelledError):
                await task
            missing = 0 if publisher.error else await publisher.flush(FLUSH_S if stopped.is_set() else None)
        if publisher.error is not None:
            raise publisher.error
        if missing:
            raise Fatal(f"stopped; the brokers have not confirmed the last records within {FLUSH_S:g} s")
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
