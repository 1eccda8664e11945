"""Consumers of tools that pass messages on: connected, stopped by signals, drained.

Source: docs/tools/README.md.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from pyqd.client.aio import Consumer
from pyqd.client.message import Message
from pyqd.tools.client_options import ClientOptions
from pyqd.tools.common import Fatal, Sources, log, stop_on

DRAIN_S: Final = 30.0


def consumer_of(sources: Sources, options: ClientOptions, topic: str, channel: str, max_in_flight: int) -> Consumer:
    """Return a consumer with the options of a command line. Raises: SettingError, Fatal."""
    if max_in_flight < 0:
        raise Fatal(f"invalid max_in_flight ! {max_in_flight} < 0")
    consumer = Consumer(
        topic,
        channel,
        nsqd=sources.nsqd_tcp_address,
        lookupd=sources.lookupd_http_address,
        max_in_flight=max(1, max_in_flight),
        **options.consumer_keywords(),
    )
    if max_in_flight == 0:
        consumer.pause()
    return consumer


async def consume(consumers: Sequence[Consumer], work: Callable[[Consumer], Coroutine[Any, Any, None]]) -> None:
    """Run work for each consumer until SIGINT or SIGTERM stops them, and drain them.

    work: takes messages until the consumer is closed, and returns when all are answered. Raises: NotConnectedError if a
    broker that was given by address cannot be reached at the start, and the errors of work.
    """

    def stop() -> None:
        for consumer in consumers:
            consumer.stop()

    try:
        with stop_on(signal.SIGINT, signal.SIGTERM, on_signal=stop) as stopped:
            for consumer in consumers:
                if not stopped.is_set():
                    await consumer.connect()
            await asyncio.gather(*map(work, consumers))
            await asyncio.gather(*(consumer.drain(DRAIN_S) for consumer in consumers))
    finally:
        for consumer in consumers:
            await consumer.close()


class Tasks:
    """Tasks that work on a consumer's messages. The error of a task stops the consumer."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_ended = asyncio.Event()
        self._error: BaseException | None = None

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin work."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._has_ended.set()
        if not task.cancelled() and task.exception() is not None:
            self._error = task.exception()
            self._consumer.stop()

    async def fewer_than(self, count: int) -> None:
        """Wait until there are fewer tasks."""
        while len(self._tasks) >= count:
            self._has_ended.clear()
            await self._has_ended.wait()

    async def end(self) -> None:
        """Wait until all have ended, at most DRAIN_S seconds. Raises: the error of one."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=DRAIN_S)
        if self._error is not None:
            raise self._error


def without_spent(consumer: Consumer, messages: list[Message], options: ClientOptions) -> list[Message]:
    """Return the messages whose attempts are not over; finish the others, as Go's client does.

    Only with the option max_attempts: Go's client has 5 by default, and drops a message that fails so often.
    """
    limit = options.values.get("max_attempts", 0)
    spent = [message for message in messages if message.attempts > limit] if limit else []
    if not spent:
        return messages
    for message in spent:
        log(f"WRN [{message.topic}/{message.channel}] msg {message.id} attempted {message.attempts} times, giving up")
    consumer.finish_many(spent)
    return [message for message in messages if message.attempts <= limit]
