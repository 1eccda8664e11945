"""One topic's consumer, and the thread that writes its messages. A message is safe when its file is synced."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import Final

from pyqd.client.aio import Consumer
from pyqd.client.errors import ClosedError
from pyqd.client.message import Message
from pyqd.tools.to_file.disk import FileStorageError
from pyqd.tools.to_file.output import FileOutput

DRAIN_S: Final = 5.0

logger = logging.getLogger("pyqd.tools.to_file")


class Recorder:
    """Messages that are in the output and not safe yet. skips_empty_files: open no file without a message for it.

    Each method returns the messages that it made safe, and raises FileStorageError, after which none is. They block,
    and one thread calls them at a time.
    """

    def __init__(self, output: FileOutput, subject: str, *, skips_empty_files: bool) -> None:
        self._output = output
        self._subject = subject
        self._skips_empty_files = skips_empty_files
        # Messages that are not safe.
        self.held: list[Message] = []

    def record(self, messages: Sequence[Message], is_flush_due: bool) -> list[Message]:
        """Write messages. is_flush_due: make all safe. The first messages of a file are made safe in any case."""
        safe: list[Message] = []
        while messages:
            if self._output.needs_rotation():
                safe += self.flush()
                self._output.rotate()
                is_flush_due = True
            count = self._output.write(messages)
            self.held += messages[:count]
            messages = messages[count:]
        return safe + self.flush() if is_flush_due else safe

    def tick(self) -> list[Message]:
        """Make all messages safe, and rotate if a limit of the file is over."""
        safe = self.flush()
        if self._output.needs_rotation():
            if self._skips_empty_files:
                self._output.close()
            else:
                self._output.rotate()
        return safe

    def close(self) -> list[Message]:
        """Make all messages safe, and close the file. The next message opens another one."""
        safe = self.flush()
        self._output.close()
        return safe

    def flush(self) -> list[Message]:
        if not self.held:
            return []
        logger.info("%s syncing %d records to disk", self._subject, len(self.held))
        self._output.flush()
        safe, self.held = self.held, []
        return safe


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
