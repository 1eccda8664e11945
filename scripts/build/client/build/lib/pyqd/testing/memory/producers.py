"""Producers of a MemoryBroker, with the methods of the client's producers."""

# ruff: noqa: ARG002 - the client's methods have timeouts; nothing waits here

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from pyqd.client.codecs import Codec
from pyqd.client.errors import ClosedError, RefusedError
from pyqd.client.faces import OneFace
from pyqd.client.http import ChannelResult
from pyqd.client.outgoing import Delay, Time

if TYPE_CHECKING:
    from pyqd.testing.memory.broker import MemoryBroker


class MemoryProducerBase(OneFace):
    """Producer of a MemoryBroker, without its face."""

    def __init__(self, broker: MemoryBroker, codec: Codec | None) -> None:
        self.codec = codec
        self._broker = broker
        self._is_closed = False
        self._published_count = self._failed_count = 0

    def _connect(self) -> None:
        if self._is_closed:
            raise ClosedError("the producer is closed")

    def _publish(self, topic: str, messages: Iterable[Any], delay: Delay | None, at: Time | None) -> list[str]:
        self._connect()
        try:
            ids = self._broker.publish_many(topic, messages, delay=delay, at=at, codec=self.codec)
        except RefusedError:
            self._failed_count += 1
            raise
        self._published_count += 1
        return ids

    def stats(self) -> dict[str, Any]:
        """Return the counters of pyqd.client.Producer.stats()."""
        counts = {"published": self._published_count, "failed": self._failed_count}
        return {**counts, "retried": 0, "pending": 0, "pending_bytes": 0, "brokers": {}}


class MemoryProducer(MemoryProducerBase):
    """Producer with the methods of pyqd.client.Producer; made by MemoryBroker.producer()."""

    def __enter__(self) -> MemoryProducer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self) -> None:
        """Return at once: the broker is here. Raises: ClosedError."""
        self._connect()

    def publish(
        self, topic: str, body: Any, *, delay: Delay | None = None, at: Time | None = None, timeout: float | None = None
    ) -> str | None:
        """Publish a message and return its id. Raises: RefusedError, TooBigError, SettingError, ClosedError."""
        return self._publish(topic, [body], delay, at)[0]

    def publish_many(
        self,
        topic: str,
        messages: Iterable[Any],
        *,
        delay: Delay | None = None,
        at: Time | None = None,
        timeout: float | None = None,
    ) -> list[str] | None:
        """Publish all messages or none, and return their ids. Raises: as publish()."""
        return self._publish(topic, messages, delay, at)

    def submit(
        self, topic: str, body: Any, *, delay: Delay | None = None, at: Time | None = None
    ) -> Future[str | None]:
        """Publish and return a future, which has its result already. Raises: SettingError, ClosedError."""
        future: Future[str | None] = Future()
        try:
            future.set_result(self._publish(topic, [body], delay, at)[0])
        except RefusedError as error:
            future.set_exception(error)
        return future

    def cancel(self, topic: str, message_id: str) -> list[ChannelResult]:
        """Finish a message unread in each channel; return the results by channel. Raises: NotFoundError."""
        return self._broker.cancel(topic, message_id)

    def reschedule(
        self, topic: str, message_id: str, *, delay: Delay | None = None, at: Time | None = None
    ) -> list[ChannelResult]:
        """Change the due time of a message; return the results by channel. Raises: NotFoundError."""
        return self._broker.reschedule(topic, message_id, delay=delay, at=at)

    def flush(self, timeout: float | None = None) -> bool:
        """Return True: nothing waits."""
        return True

    def close(self, timeout: float | None = None) -> None:
        """Publish no more."""
        self._is_closed = True


class AioMemoryProducer(MemoryProducerBase):
    """Producer with the methods of pyqd.client.aio.Producer, as MemoryProducer; made by MemoryBroker.aio_producer()."""

    async def __aenter__(self) -> AioMemoryProducer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self) -> None:
        self._connect()

    async def publish(
        self, topic: str, body: Any, *, delay: Delay | None = None, at: Time | None = None, timeout: float | None = None
    ) -> str | None:
        return self._publish(topic, [body], delay, at)[0]

    async def publish_many(
        self,
        topic: str,
        messages: Iterable[Any],
        *,
        delay: Delay | None = None,
        at: Time | None = None,
        timeout: float | None = None,
    ) -> list[str] | None:
        return self._publish(topic, messages, delay, at)

    def submit(
        self, topic: str, body: Any, *, delay: Delay | None = None, at: Time | None = None
    ) -> asyncio.Future[str | None]:
        future: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(self._publish(topic, [body], delay, at)[0])
        except RefusedError as error:
            future.set_exception(error)
        return future

    async def cancel(self, topic: str, message_id: str) -> list[ChannelResult]:
        return self._broker.cancel(topic, message_id)

    async def reschedule(
        self, topic: str, message_id: str, *, delay: Delay | None = None, at: Time | None = None
    ) -> list[ChannelResult]:
        return self._broker.reschedule(topic, message_id, delay=delay, at=at)

    async def flush(self, timeout: float | None = None) -> bool:
        return True

    async def close(self, timeout: float | None = None) -> None:
        self._is_closed = True
