"""The client for asyncio: the names of pyqd.client, with await.

    from pyqd.client.aio import Consumer, Producer

The event loop drives the connections. If a handler blocks the loop, a thread answers heartbeats and touches messages
until the loop runs again. finish(), requeue() and touch() of a message only queue a command: they are plain functions.

Source: docs/client.md, "asyncio".
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pyqd.client import errors
from pyqd.client.connecting import BrokerPool
from pyqd.client.consumer import CLOSE_S, CLOSED, DRAIN_S, ConsumerBase, check_concurrency, check_count
from pyqd.client.consumption import RetryPolicy
from pyqd.client.engine.engine import Engine
from pyqd.client.engine.loop_driver import AsyncioDriver
from pyqd.client.errors import *  # noqa: F403 - its __all__ is the list
from pyqd.client.errors import ClientError, ClosedError, SettingError
from pyqd.client.message import Message, Requeue
from pyqd.client.outgoing import Delay, Outgoing, Time, published_id, published_ids
from pyqd.client.producer import ProducerBase
from pyqd.client.publishing import Publication
from pyqd.client.settings import Settings
from pyqd.client.stop_signals import STOP_SIGNALS

if TYPE_CHECKING:
    from pyqd.client.http import ChannelResult

# The names of pyqd.client.
__all__ = ["Consumer", "Message", "Outgoing", "Producer", "Requeue", "RetryPolicy", "Settings"]
__all__ += errors.__all__

# Messages that an iteration yields before it lets other tasks run.
YIELD_COUNT = 64
# Time for which a handler's task takes messages before it lets other tasks run.
YIELD_S = 0.001

Handler = TypeVar("Handler", bound=Callable[[Message], Awaitable[Any]])
logger = logging.getLogger("pyqd.client")


async def connect(driver: AsyncioDriver, engine: Engine, begin: Callable[[], BrokerPool]) -> None:
    """Connect to all brokers. Raises: the error of one that cannot be reached; ClosedError."""
    # Outside of the lock: the loop must drive the engine before there are links.
    _ = driver.loop
    with engine.lock:
        pool = begin()
    await driver.until(lambda: pool.has_tried_all() or engine.is_closed)
    error = pool.unreached_error()
    if error is not None:
        raise error


class Producer(ProducerBase):
    """Publishes messages to any of several brokers; many tasks share one. Parameters: as pyqd.client.Producer."""

    def _begin_driving(self) -> None:
        self._driver = driver = AsyncioDriver(self._engine)
        # These refer to the driver alone: neither the pool nor a publication must keep its producer alive.
        self._publishing.pool.on_change = partial(driver.call_in_loop, driver.wake_watchers)
        self._on_done: Callable[[Publication], None] = partial(driver.call_in_loop, settle, driver)

    def __del__(self) -> None:
        driver = getattr(self, "_driver", None)
        if driver is not None:
            driver.call_in_loop(driver.detach)
        super().__del__()

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Connect now, and wait until each broker that was given has been reached. Errors: as pyqd.client.Producer."""
        await connect(self._driver, self._engine, self._begin_connecting)

    async def publish(
        self, topic: str, body: Any, *, delay: Delay | None = None, at: Time | None = None, timeout: float | None = None
    ) -> str | None:
        """Publish a message; return its id when the broker has it. Parameters, errors: as pyqd.client.Producer."""
        publication = self._one(topic, body, delay, at, timeout)
        if timeout is not None or self._publishing.pending_bytes >= self.max_pending_bytes:
            return await self._run(publication, timeout)
        # As _run(), without its coroutine.
        try:
            return await self._start(publication, self._driver.loop)
        except asyncio.CancelledError:
            self._abandon(publication)
            raise

    async def publish_many(
        self,
        topic: str,
        messages: Iterable[Any],
        *,
        delay: Delay | None = None,
        at: Time | None = None,
        timeout: float | None = None,
    ) -> list[str] | None:
        """Publish all messages or none; return their ids. Parameters and errors: as pyqd.client.Producer."""
        publication, count = self._many(topic, messages, delay, at, timeout)
        if publication is None:
            return []
        await self._run(publication, timeout)
        return published_ids(publication.answer, count)

    async def _run(self, publication: Publication, timeout: float | None) -> str | None:
        """Submit a publication, and wait for the broker's answer; return the first id in it."""
        loop = self._driver.loop
        if self._is_full() and not await self._driver.until(lambda: not self._is_full(), publication.deadline_s):
            raise self._full_error()
        future = self._start(publication, loop)
        # The default timeout is watched by the pool for all publications together.
        timer = None if timeout is None else loop.call_later(timeout, self._give_up, publication)
        try:
            return await future
        except asyncio.CancelledError:
            self._abandon(publication)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _abandon(self, publication: Publication) -> None:
        with self._engine.lock:
            self._publishing.abandon(publication, ClosedError("cancelled"))

    def _give_up(self, publication: Publication) -> None:
        with self._engine.lock:
            if not publication.is_done():
                self._publishing.abandon(publication, self._publishing.timed_out(publication))

    def _start(self, publication: Publication, loop: asyncio.AbstractEventLoop) -> asyncio.Future[str | None]:
        future: asyncio.Future[str | None] = loop.create_future()
        publication.future = future
        publication.on_done = self._on_done
        with self._engine.lock:
            self._publishing.submit(publication, at_once=False)
        return future

    def submit(
        self, topic: str, body: Any, *, delay: Delay | None = None, at: Time | None = None
    ) -> asyncio.Future[str | None]:
        """Publish without waiting; return a future of the id.

        Raises: BufferFullError if max_pending_bytes are pending, SettingError, ClosedError.
        """
        loop = self._driver.loop
        if self._is_full():
            raise self._full_error()
        return self._start(self._one(topic, body, delay, at, None), loop)

    async def cancel(self, topic: str, message_id: str) -> list[ChannelResult]:
        """Finish a message unread in each channel, by a thread. Results and errors: as pyqd.client.Producer."""
        return await asyncio.to_thread(self._http().cancel, topic, message_id)

    async def reschedule(
        self, topic: str, message_id: str, *, delay: Delay | None = None, at: Time | None = None
    ) -> list[ChannelResult]:
        """Change the due time of a message, by a thread. Results and errors: as pyqd.client.Producer."""
        return await asyncio.to_thread(self._http().reschedule, topic, message_id, delay, at)

    async def flush(self, timeout: float | None = None) -> bool:
        """Wait until every submitted message has its answer; return False if the timeout (seconds) came first."""
        deadline_s = None if timeout is None else time.monotonic() + timeout
        return await self._driver.until(lambda: self._publishing.pending_count == 0, deadline_s)

    async def close(self, timeout: float | None = None) -> None:
        """Wait for the answers to submitted messages, at most timeout seconds (5 by default), and disconnect."""
        if self._engine.is_closed:
            return
        await self.flush(5.0 if timeout is None else timeout)
        self._disconnect()

    def _disconnect(self) -> None:
        self._driver.detach()
        super()._disconnect()


def settle(driver: AsyncioDriver, publication: Publication) -> None:
    """Give the future of a publication its result. Called in the loop's thread."""
    future: asyncio.Future[str | None] = publication.future
    if not future.done():
        try:
            if publication.error is not None:
                raise publication.error
            future.set_result(published_id(publication.answer))
        except ClientError as error:
            future.set_exception(error)
            if isinstance(error, ClosedError):
                # Counts as retrieved: asyncio would log a traceback for each future that is not awaited, though close()
                # has logged their number and the user can do nothing else.
                future.exception()
    driver.wake_watchers()


class WorkerTask(asyncio.Task[None]):
    """Task of a handler, which tells its own cancellation from that of a task that the handler awaits."""

    if sys.version_info < (3, 11):
        _cancel_count = 0

        def cancel(self, msg: Any | None = None) -> bool:
            self._cancel_count += 1
            return super().cancel(msg)

        def cancelling(self) -> int:
            return self._cancel_count


def is_cancelled() -> bool:
    """Return whether the present task, a WorkerTask, is cancelled itself."""
    task = asyncio.current_task()
    assert isinstance(task, WorkerTask)
    return task.cancelling() > 0


class Consumer(ConsumerBase):
    """Receives the messages of a channel from all brokers that have the topic. Parameters: as pyqd.client.Consumer."""

    def __del__(self) -> None:
        driver = getattr(self, "_driver", None)
        if driver is not None:
            driver.call_in_loop(driver.detach)
        super().__del__()

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _begin_driving(self) -> None:
        # The callback refers to the driver alone: the consumption must not keep its consumer alive.
        self._driver = driver = AsyncioDriver(self._engine)
        self._consumption.on_ready = lambda: driver.call_in_loop(driver.wake_watchers)
        self._consumption.pool.on_change = self._consumption.on_ready

    async def connect(self) -> None:
        """Connect now, and wait until each broker that was given has been reached. Errors: as pyqd.client.Consumer."""
        await connect(self._driver, self._engine, self._begin_connecting)

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield messages until stop(), drain() or close().

        Raises: ClosedError if it begins after that; AuthenticationError, TlsError, ProtocolError.
        """
        if self._engine.is_closed:
            raise ClosedError(CLOSED)
        count = 0
        while True:
            message = await self._take(None)
            if message is None:
                return
            yield message
            if not message.is_answered:
                self._consumption.leaves_unanswered = True
            count += 1
            if count % YIELD_COUNT == 0:
                await asyncio.sleep(0)

    async def _take(self, deadline_s: float | None) -> Message | None:
        """Return the next message; None at the end, or after the deadline."""
        driver, consumption = self._driver, self._consumption
        while True:
            # Without contextlib.suppress(), which costs more than the rest of this.
            try:
                return consumption.ready.popleft()
            except IndexError:
                pass
            if self._has_ended():
                return None
            _ = driver.loop
            with self._engine.lock:
                consumption.start()
            is_in_time = await driver.until(self._has_news, deadline_s)
            if not is_in_time and not consumption.ready:
                return None
            if consumption.error is not None and not consumption.ready and not consumption.is_stopping:
                raise consumption.error

    async def fetch(self, count: int = 1, timeout: float | None = None) -> list[Message]:
        """Return up to count messages: as soon as there is one, those that are there; none after timeout seconds.

        Raises: ClosedError, AuthenticationError, TlsError, ProtocolError.
        """
        check_count(count)
        return self._fetched(await self._take(None if timeout is None else time.monotonic() + timeout), count)

    def handler(self, concurrency: int = 1) -> Callable[[Handler], Handler]:
        """Return a decorator: the coroutine function handles each message, in that many tasks, after run() or start().

        The message is finished when the function returns, and requeued by the retry policy if it raises. max_in_flight
        is raised to the number of tasks.
        """
        check_concurrency(concurrency)

        def register(function: Handler) -> Handler:
            self._register(function, concurrency)
            return function

        return register

    def start(self) -> None:
        """Start the handler's tasks. Raises: ClosedError, SettingError."""
        if self._handler is None:
            raise SettingError("no handler: decorate a coroutine function with @consumer.handler()")
        if self._engine.is_closed:
            raise ClosedError(CLOSED)
        if not self._workers:
            loop = self._driver.loop
            self._workers = [WorkerTask(self._work(self._handler), loop=loop) for _ in range(self._concurrency)]

    async def _work(self, handler: Callable[[Message], Awaitable[Any]]) -> None:
        """Task of a handler."""
        yielded_s = time.monotonic()
        while True:
            try:
                message = await self._take(None)
            except Exception as error:
                # run() raises it.
                logger.error("consumer of %s/%s ends: %s", self.topic, self.channel, error)
                self.stop()
                return
            if message is None:
                return
            try:
                with message:
                    try:
                        waiting = handler(message)
                        # A plain function has finished when it returns, whatever it returns.
                        if inspect.isawaitable(waiting):
                            await waiting
                    except asyncio.CancelledError as error:
                        if is_cancelled():
                            raise
                        raise RuntimeError("the handler has awaited a task that was cancelled") from error
            except Exception:
                logger.exception("handler of %s/%s failed for message %s", self.topic, self.channel, message.id)
            # A handler that never waits, and messages that are there already, must not hold the loop. A switch after
            # each message would cost ten times as much as the message.
            if time.monotonic() - yielded_s >= YIELD_S:
                await asyncio.sleep(0)
                yielded_s = time.monotonic()

    async def run(self, drain_timeout: float = DRAIN_S) -> int:
        """Handle messages until stop(), SIGTERM or SIGINT; then drain and return an exit code for sys.exit().

        0: every message that was taken is answered. 1: some were not, within drain_timeout seconds; the broker delivers
        them again. Raises: AuthenticationError, TlsError, ProtocolError, SettingError, ClosedError.

        If the task is cancelled, the consumer is closed.
        """
        consumption = self._consumption
        try:
            with STOP_SIGNALS.stopping(self.stop):
                self.start()
                await self._driver.until(lambda: consumption.is_stopping or consumption.error is not None)
                is_drained = await self.drain(drain_timeout)
        except asyncio.CancelledError:
            # The program waits no longer, as after asyncio.timeout(): no handler may go on without it.
            await self.close()
            raise
        if consumption.error is not None:
            raise consumption.error
        return 0 if is_drained else 1

    async def drain(self, timeout: float | None = None) -> bool:
        """Take no more messages, wait until those in flight are answered, and disconnect.

        timeout: seconds; 30 by default. Returns whether all were answered; the broker delivers the others again.
        """
        deadline_s = time.monotonic() + (DRAIN_S if timeout is None else timeout)
        if not self._engine.is_closed:
            with self._engine.lock:
                self._consumption.stop()
            await self._driver.until(lambda: self._consumption.is_drained, deadline_s)
        is_drained = self._consumption.is_drained
        self._disconnect()
        # A handler may call this.
        tasks = [task for task in self._workers if task is not asyncio.current_task()]
        self._workers.clear()
        if tasks:
            _, unfinished = await asyncio.wait(tasks, timeout=CLOSE_S if is_drained else 0)
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return is_drained

    async def close(self) -> None:
        """Disconnect. Messages that are not answered are delivered again, to any consumer of the channel."""
        await self.drain(0.0)

    def _disconnect(self) -> None:
        self._driver.detach()
        super()._disconnect()
