"""One topic's consumer, and the thread that writes its messages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Final

from pyqd.client.aio import Consumer
from pyqd.client.errors import ClosedError
from pyqd.client.message import Message
from pyqd.tools.to_file.disk import FileStorageError
from pyqd.tools.to_file.recorder import Recorder

DRAIN_S: Final = 5.0


class TopicLog:
    """Consumes one topic into its files. recover: finishes the files of killed instances.

    The event loop receives messages while a thread of the executor writes and syncs those that came before. A message
    is finished when its file is synced. Raises, from run(): FileStorageError and the errors of the consumer.
    """

    def __init__(
        self,
        consumer: Consumer,
        recorder: Recorder,
        executor: Executor,
        recover: Callable[[], None],
        sync_interval_s: float,
    ) -> None:
        self._consumer = consumer
        self._recorder = recorder
        self._executor = executor
        self._recover = recover
        self._sync_interval_s = sync_interval_s
        # Held by the task that works on the recorder.
        self._lock = asyncio.Lock()
        self._is_done = asyncio.Event()
        self._failure: FileStorageError | None = None

    def stop(self) -> None:
        """Take no more messages; run() then makes its messages safe, and ends."""
        self._consumer.stop()

    async def hang_up(self) -> None:
        """Close the file; the next message opens another one."""
        with contextlib.suppress(FileStorageError):  # run() raises it.
            await self._work(self._recorder.close)

    async def run(self) -> None:
        async with self._consumer:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._recover)
            ticking = asyncio.create_task(self._tick())
            try:
                await self._consume()
                await self._work(self._recorder.close)
            finally:
                self._is_done.set()
                await ticking
                await self._consumer.drain(DRAIN_S)

    async def _consume(self) -> None:
        consumer, recorder = self._consumer, self._recorder
        window = consumer.max_in_flight
        while True:
            try:
                messages = await consumer.fetch(max(1, window - len(recorder.held)))
            except ClosedError:
                return
            # Asked before the loop runs again: nothing is in flight now that is not held.
            is_flush_due = consumer.is_starved() or len(recorder.held) + len(messages) >= window
            try:
                await self._work(recorder.record, messages, is_flush_due)
            except FileStorageError:
                give_back(messages)
                raise

    async def _tick(self) -> None:
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._is_done.wait(), self._sync_interval_s)
                return
            with contextlib.suppress(FileStorageError):  # run() raises it.
                await self._work(self._recorder.tick)

    async def _work(self, work: Callable[..., list[Message]], *arguments: object) -> None:
        """Work on the recorder in a thread, and finish the messages that are safe then.

        Raises: FileStorageError, from the first failure on. The consumer stops then, and the messages are given back.
        """
        async with self._lock:
            if self._failure is not None:
                # A later sync could succeed although the disk has lost the pages of an earlier one that failed.
                raise self._failure
            try:
                safe = await asyncio.get_running_loop().run_in_executor(self._executor, work, *arguments)
            except FileStorageError as error:
                self._failure = error
                # Or the messages that are given back would come again at once.
                self._consumer.pause()
                give_back(self._recorder.held)
                self._consumer.stop()
                raise
            self._consumer.finish_many(safe)


def give_back(messages: Iterable[Message]) -> None:
    """Requeue messages that cannot be written, for other instances of the tool."""
    for message in messages:
        if not message.is_answered:
            message.requeue(0, backoff=False)
