"""Consumers of tools that pass messages on: connected, stopped by signals, drained.

Source: docs/tools/README.md.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from pyqd.client.aio import Consumer
from pyqd.client.message import Message
from pyqd.tools.client_options import ClientOptions
from pyqd.tools.common import Fatal, Sources, log, stop_on

# Limits after a signal: for everything, for the work under way, and for the brokers' part of it after that.
DRAIN_S: Final = 30.0
LEAVE_S: Final = 2.0
WORK_S: Final = DRAIN_S - LEAVE_S


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
    """Run work for each consumer until SIGINT or SIGTERM stops them, and drain them, within DRAIN_S seconds.

    work: takes messages until the consumer is closed, and returns when all are answered. Raises: NotConnectedError if a
    broker that was given by address cannot be reached at the start, and the errors of work.
    """

    deadline_s = math.inf

    def stop() -> None:
        nonlocal deadline_s
        deadline_s = time.monotonic() + DRAIN_S
        for consumer in consumers:
            consumer.stop()

    try:
        with stop_on(signal.SIGINT, signal.SIGTERM, on_signal=stop) as stopped:
            for consumer in consumers:
                if not stopped.is_set():
                    await consumer.connect()
            await asyncio.gather(*map(work, consumers))
            left_s = min(DRAIN_S, max(LEAVE_S, deadline_s - time.monotonic()))
            await asyncio.gather(*(consumer.drain(left_s) for consumer in consumers))
    finally:
        for consumer in consumers:
            await consumer.close()


class Tasks:
    """Tasks that work on a consumer's messages. The error of a task stops the consumer."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        # With the messages that each of them answers.
        self._tasks: dict[asyncio.Task[None], Sequence[Message]] = {}
        self._has_ended = asyncio.Event()
        self._error: BaseException | None = None

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None], messages: Sequence[Message]) -> None:
        task = asyncio.create_task(work)
        self._tasks[task] = messages
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        self._has_ended.set()
        if not task.cancelled() and task.exception() is not None:
            self._error = task.exception()
            self._consumer.stop()

    async def fewer_than(self, count: int) -> None:
        while len(self._tasks) >= count:
            self._has_ended.clear()
            await self._has_ended.wait()

    async def end(self) -> None:
        """Wait until all have ended. After WORK_S seconds their messages go back to the broker.

        nsqd would keep the messages of a consumer that leaves until their timeout. Raises: the error of one.
        """
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=WORK_S)
        late = dict(self._tasks)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        for message in itertools.chain(*late.values()):
            if not message.is_answered:
                message.requeue(0, backoff=False)
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
