"""Both faces of the client behind the names of the blocking one, so that a test runs on either.

The asyncio face runs on an event loop in a thread. Each call goes to that loop and waits for the result there.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

from pyqd.client import Consumer, Message, Producer, aio
from tests.support.server import wait_until

WAIT_S = 30.0


class LoopThread:
    """Event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="event loop of a test")
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(WAIT_S)

    def call(self, function: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return function()

        return self.run(run())

    def stop(self) -> None:
        """Stop the loop. Raises: AssertionError if a task is left."""
        left = self.call(lambda: [task for task in asyncio.all_tasks() if task is not asyncio.current_task()])
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(WAIT_S)
        self.loop.close()
        assert not left


class AioProducer:
    """Producer of the asyncio face with the methods of the blocking one."""

    def __init__(self, thread: LoopThread, *nsqd: Any, **options: Any) -> None:
        self._thread = thread
        self.real = aio.Producer(*nsqd, **options)

    def connect(self) -> None:
        self._thread.run(self.real.connect())

    def publish(self, *arguments: Any, **options: Any) -> Any:
        return self._thread.run(self.real.publish(*arguments, **options))

    def publish_many(self, *arguments: Any, **options: Any) -> Any:
        return self._thread.run(self.real.publish_many(*arguments, **options))

    def submit(self, *arguments: Any, **options: Any) -> Future[str | None]:
        future = self._thread.call(lambda: self.real.submit(*arguments, **options))

        async def result() -> Any:
            return await future

        return asyncio.run_coroutine_threadsafe(result(), self._thread.loop)

    def flush(self, timeout: float | None = None) -> Any:
        return self._thread.run(self.real.flush(timeout))

    def close(self, timeout: float | None = None) -> None:
        self._thread.run(self.real.close(timeout))

    def stats(self) -> Any:
        return self._thread.call(self.real.stats)


class AioConsumer:
    """Consumer of the asyncio face with the methods of the blocking one. Handlers run in threads."""

    def __init__(self, thread: LoopThread, *arguments: Any, **options: Any) -> None:
        self._thread = thread
        self.real = aio.Consumer(*arguments, **options)

    def __iter__(self) -> Iterator[Message]:
        iterator = self.real.__aiter__()

        async def following() -> Message | None:
            return await anext(iterator, None)

        while True:
            message = self._thread.run(following())
            if message is None:
                return
            yield message

    def connect(self) -> None:
        self._thread.run(self.real.connect())

    def fetch(self, count: int = 1, timeout: float | None = None) -> Any:
        return self._thread.run(self.real.fetch(count, timeout))

    def handler(self, concurrency: int = 1) -> Callable[[Callable[[Message], Any]], Callable[[Message], Any]]:
        decorate = self.real.handler(concurrency)

        def register(function: Callable[[Message], Any]) -> Callable[[Message], Any]:
            @decorate
            async def handle(message: Message) -> None:
                await asyncio.to_thread(function, message)

            return function

        return register

    def start(self) -> None:
        self._thread.call(self.real.start)

    def run(self, drain_timeout: float = WAIT_S) -> Any:
        return self._thread.run(self.real.run(drain_timeout))

    def drain(self, timeout: float | None = None) -> Any:
        return self._thread.run(self.real.drain(timeout))

    def close(self) -> None:
        self._thread.run(self.real.close())

    def stop(self) -> None:
        self.real.stop()

    def finish_many(self, messages: Iterable[Message]) -> None:
        self.real.finish_many(messages)

    def is_starved(self) -> Any:
        return self._thread.call(self.real.is_starved)

    def pause(self) -> None:
        self._thread.call(self.real.pause)

    def resume(self) -> None:
        self._thread.call(self.real.resume)

    def stats(self) -> Any:
        return self._thread.call(self.real.stats)

    @property
    def max_in_flight(self) -> int:
        return self.real.max_in_flight

    @max_in_flight.setter
    def max_in_flight(self, count: int) -> None:
        def change() -> None:
            self.real.max_in_flight = count

        self._thread.call(change)


class Face:
    """Makes producers and consumers of one face, and closes them. name: "blocking" or "asyncio"."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._stack = ExitStack()
        self._thread: LoopThread | None = None

    @property
    def loop_thread(self) -> LoopThread:
        if self._thread is None:
            self._thread = LoopThread()
        return self._thread

    def producer(self, *nsqd: Any, **options: Any) -> Any:
        made = AioProducer(self.loop_thread, *nsqd, **options) if self.name == "asyncio" else Producer(*nsqd, **options)
        self._stack.callback(made.close)
        return made

    def consumer(self, topic: str, channel: str = "c", **options: Any) -> Any:
        if self.name == "asyncio":
            made: Any = AioConsumer(self.loop_thread, topic, channel, **options)
        else:
            made = Consumer(topic, channel, **options)
        self._stack.callback(made.close)
        return made

    def close(self) -> None:
        """Close everything. Raises: AssertionError if a thread or a task of the client is left."""
        try:
            self._stack.close()
        finally:
            if self._thread is not None:
                self._thread.stop()
        wait_until(lambda: not threads_of_clients(), "no thread of the client is left")


def threads_of_clients() -> list[str]:
    """Return the names of the client's threads."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("pyqd ")]
