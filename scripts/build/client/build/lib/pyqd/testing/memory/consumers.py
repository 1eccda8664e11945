"""Consumers of a MemoryBroker, with the methods of the client's consumers.

Nothing waits: iteration and fetch() end when no message is due. The handler runs when the test calls run_pending().
"""

# ruff: noqa: ARG002 - the client's methods have timeouts; nothing waits here

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pyqd.client.codecs import Codec
from pyqd.client.consumer import CLOSED, call_handler, check_concurrency, check_count, check_handler
from pyqd.client.consumption import RetryPolicy, check_max_in_flight
from pyqd.client.core.flow import ConsumerFlow, FlowSettings, SetRdy
from pyqd.client.errors import AnsweredError, ClosedError, SettingError
from pyqd.client.faces import OneFaceIterable
from pyqd.client.message import Message, Requeue, requeue_delay_s
from pyqd.client.outgoing import Delay
from pyqd.primitives.durations import SECOND_NS
from pyqd.testing.memory.channels import ChannelEntry, MemoryChannel, Subscriber

if TYPE_CHECKING:
    from pyqd.testing.memory.broker import MemoryBroker

RDY_MAX = 2500
# Of one message without an advance of the clock: it would be delivered without end.
DELIVERIES_MAX = 1000
MSG_TIMEOUT_S_MIN = 1.0
LINK = "memory"

Handler = TypeVar("Handler", bound=Callable[[Message], Any])
logger = logging.getLogger("pyqd.client")


class MemoryConsumerBase(OneFaceIterable, Generic[Handler]):
    """Consumer of a MemoryBroker, without the ways of taking messages. Owner of its messages.

    errors: exceptions of the handler, oldest first; they are also logged, as by the client.
    """

    def __init__(
        self,
        broker: MemoryBroker,
        topic: str,
        channel: str,
        max_in_flight: int,
        codec: Codec | None,
        retry: RetryPolicy | None,
        auto_touch: bool,
        backoff: float,
        msg_timeout: float,
    ) -> None:
        check_max_in_flight(max_in_flight)
        if not MSG_TIMEOUT_S_MIN <= msg_timeout <= broker.max_msg_timeout:
            raise SettingError(
                f"msg_timeout={msg_timeout}: expected {MSG_TIMEOUT_S_MIN} to {broker.max_msg_timeout} seconds"
            )
        self.topic = topic
        self.channel = channel
        self.codec = codec
        self.retry = retry or RetryPolicy()
        self.errors: list[Exception] = []
        self._broker = broker
        self._msg_timeout_ns = round(msg_timeout * SECOND_NS)
        # The client touches its messages in time, until the broker takes them back all the same.
        timeout_s = broker.max_msg_timeout if auto_touch else msg_timeout
        self._subscriber = Subscriber(round(timeout_s * SECOND_NS))
        self._channel = self._subscribed()
        self._in_flight: dict[bytes, Message] = {}
        self._is_stopping = self._is_closed = False
        self._counts = dict.fromkeys(("received", "finished", "requeued", "dead_letters", "answered_late"), 0)
        self._deliveries: Counter[bytes] = Counter()
        self._deliveries_ns = 0
        self._handler: Handler | None = None
        self._rdy = 0
        self._flow = ConsumerFlow(max_in_flight, FlowSettings(backoff_max_s=backoff), random.Random(0))
        self._apply(self._flow.connected(LINK, RDY_MAX, self._now_s))

    # Messages.

    def _take(self) -> Message | None:
        """Take the next message that is due; None if there is none, or none may be taken."""
        while not self._is_stopping:
            self._tick()
            self._reconnect()
            if self._channel.in_flight_of(self._subscriber) >= self._rdy:
                return None
            entry = self._channel.take(self._subscriber)
            if entry is None:
                return None
            message = self._delivered(entry)
            if not self.retry.max_attempts or message.attempts <= self.retry.max_attempts:
                return message
            self._publish_dead_letter(message)
        return None

    def _connect(self) -> None:
        if self._is_stopping:
            raise ClosedError("the consumer is closed")

    def _subscribed(self) -> MemoryChannel:
        found = self._broker.channel(self.topic, self.channel)
        found.subscribers.append(self._subscriber)
        return found

    def _reconnect(self) -> None:
        """Subscribe again if the channel was deleted, and with it the messages in flight."""
        if self._channel is not self._broker.channel(self.topic, self.channel):
            self._lose_messages()
            self._apply(self._flow.disconnected(LINK, self._now_s))
            self._channel = self._subscribed()
            self._apply(self._flow.connected(LINK, RDY_MAX, self._now_s))

    def _lose_messages(self) -> None:
        for message in self._in_flight.values():
            message.is_lost = True
        self._in_flight.clear()

    def _delivered(self, entry: ChannelEntry) -> Message:
        stored = entry.message
        if self._deliveries_ns != self._broker.clock.now_ns:
            self._deliveries.clear()
            self._deliveries_ns = self._broker.clock.now_ns
        self._deliveries[stored.id] += 1
        if self._deliveries[stored.id] > DELIVERIES_MAX:
            raise AssertionError(
                f"message {stored.id.decode()} of {self.topic}/{self.channel} was delivered {DELIVERIES_MAX} times at "
                "the same time: it is requeued without a delay, again and again"
            )
        frame = (2, stored.timestamp_ns, entry.attempts, stored.id, stored.body)
        message = Message(self, LINK, LINK, frame, self._now_s)
        self._in_flight[stored.id] = message
        self._counts["received"] += 1
        self._flow.received(LINK, 1, self._now_s)
        return message

    def finish(self, message: Message) -> None:
        """Finish a message. Raises: AnsweredError."""
        if self._finish(message):
            self._apply(self._flow.finished(LINK, self._now_s))

    def _finish(self, message: Message) -> bool:
        """Finish a message; return False if it is lost. Raises: AnsweredError."""
        if not self._answer(message):
            return False
        self._count("finished", self._channel.finish(message.key, self._subscriber))
        return True

    def finish_many(self, messages: Iterable[Message]) -> None:
        """Finish messages. Raises: AnsweredError if some were answered before, after the others are finished."""
        answered = 0
        for message in messages:
            if message.is_answered:
                answered += 1
            else:
                self.finish(message)
        if answered:
            raise AnsweredError(f"{answered} of the messages were answered before")

    def is_starved(self) -> bool:
        """Return whether the messages in flight are at least 85 % of those that may be."""
        return self._flow.is_starved

    def requeue(self, message: Message, delay: Delay | None, backoff: bool) -> None:
        """Requeue a message. Raises: AnsweredError, SettingError."""
        seconds = self.retry.delay_after(message.attempts) if delay is None else requeue_delay_s(delay)
        if not self._answer(message):
            return
        delay_ns = round(min(seconds, self._broker.max_req_timeout) * SECOND_NS)
        self._count("requeued", self._channel.requeue(message.key, self._subscriber, delay_ns))
        self._apply(self._flow.requeued(LINK, self._now_s, backoff))

    def touch(self, message: Message) -> None:
        """Touch a message. Raises: AnsweredError."""
        if message.is_answered:
            raise AnsweredError(f"message {message.id} was answered before")
        if not message.is_lost:
            self._channel.touch(message.key, self._subscriber, self._subscriber.timeout_ns)

    def handle_failure(self, message: Message, error: BaseException) -> None:
        """Requeue or bury a message whose handler raised."""
        if isinstance(error, Requeue):
            self.requeue(message, error.delay, error.backoff)
        elif not isinstance(error, Exception):
            # The program ends, or a task is cancelled: the message is not to blame.
            self.requeue(message, 0.0, False)
        elif self.retry.max_attempts and message.attempts >= self.retry.max_attempts:
            self._apply(self._flow.failed(LINK, self._now_s))
            self._publish_dead_letter(message)
        else:
            self.requeue(message, None, True)

    def _publish_dead_letter(self, message: Message) -> None:
        """Publish a message to the dead-letter topic and finish it."""
        topic = self.retry.dead_letter_topic
        assert topic is not None
        self._broker.publish(topic, message.body)
        self._counts["dead_letters"] += 1
        if self._finish(message):
            self._apply(self._flow.released(LINK, 1, self._now_s))

    def _answer(self, message: Message) -> bool:
        """Record an answer; return False if the message is lost. Raises: AnsweredError."""
        if message.is_answered:
            raise AnsweredError(f"message {message.id} was answered before")
        message.is_answered = True
        if message.is_lost:
            self._counts["answered_late"] += 1
            return False
        # A message that timed out may have come here again.
        if self._in_flight.get(message.key) is message:
            del self._in_flight[message.key]
        return True

    def _count(self, name: str, is_in_time: bool) -> None:
        """Count an answer. One that comes after the message's timeout has no effect at the broker."""
        self._counts[name] += 1
        self._counts["answered_late"] += not is_in_time

    # Flow control, by the client's own core.

    @property
    def _now_s(self) -> float:
        return self._broker.clock.now_s

    def _apply(self, changes: list[SetRdy]) -> None:
        for change in changes:
            self._rdy = change.count

    def _tick(self) -> None:
        deadline_s = self._flow.next_deadline
        if deadline_s is not None and deadline_s <= self._now_s:
            self._apply(self._flow.tick(self._now_s))

    @property
    def max_in_flight(self) -> int:
        """Maximum number of messages that are not answered."""
        return self._flow.max_in_flight

    @max_in_flight.setter
    def max_in_flight(self, count: int) -> None:
        check_max_in_flight(count)
        self._apply(self._flow.set_max_in_flight(count, self._now_s))

    def pause(self) -> None:
        """Take no more messages until resume(). Those in flight may be answered."""
        self._apply(self._flow.pause(self._now_s))

    def resume(self) -> None:
        """End pause()."""
        self._apply(self._flow.resume(self._now_s))

    def stop(self) -> None:
        """Take no more messages."""
        if not self._is_stopping:
            self._is_stopping = True
            self._apply(self._flow.stop(self._now_s))

    def _disconnect(self) -> bool:
        """Stop and unsubscribe; return whether all messages were answered. The others time out."""
        self.stop()
        is_drained = not self._in_flight
        if not self._is_closed:
            self._is_closed = True
            for key in self._in_flight:
                self._channel.touch(key, self._subscriber, self._msg_timeout_ns)
            self._lose_messages()
            self._broker.unsubscribe(self.topic, self._channel, self._subscriber)
        return is_drained

    # Handlers.

    @property
    def has_handler(self) -> bool:
        """True if a function was decorated with handler()."""
        return self._handler is not None

    def handler(self, concurrency: int = 1) -> Callable[[Handler], Handler]:
        """Return a decorator: the function handles the messages of run_pending(), one after the other.

        max_in_flight is raised to the concurrency, as by the client.
        """
        check_concurrency(concurrency)

        def register(function: Handler) -> Handler:
            if self._handler is not None:
                raise SettingError("the consumer has a handler already")
            self._check_handler(function)
            self._handler = function
            if self.max_in_flight < concurrency:
                self.max_in_flight = concurrency
            return function

        return register

    def _check_handler(self, function: Handler) -> None:
        """Check a handler of this face. Raises: SettingError."""

    def start(self) -> None:
        """Check that there is a handler. Nothing runs before run_pending()."""
        self._registered()

    def _registered(self) -> Handler:
        if self._handler is None:
            raise SettingError("no handler: decorate a function with @consumer.handler()")
        return self._handler

    def _failed(self, message: Message, error: Exception) -> None:
        self.errors.append(error)
        if not isinstance(error, Requeue):
            logger.exception("handler of %s/%s failed for message %s", self.topic, self.channel, message.id)

    def _fetch(self, count: int) -> list[Message]:
        check_count(count)
        messages: list[Message] = []
        while len(messages) < count and (message := self._take()) is not None:
            messages.append(message)
        if not messages and self._is_stopping:
            raise ClosedError(CLOSED)
        return messages

    def stats(self) -> dict[str, Any]:
        """Return the counters of pyqd.client.Consumer.stats()."""
        state = {"in_flight": len(self._in_flight), "ready": 0, "backoff_level": self._flow.backoff_level}
        return {**self._counts, **state, "brokers": {}}


class MemoryConsumer(MemoryConsumerBase[Callable[[Message], Any]]):
    """Consumer with the methods of pyqd.client.Consumer; made by MemoryBroker.consumer()."""

    def __enter__(self) -> MemoryConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self) -> None:
        """Return at once: the broker is here. Raises: ClosedError."""
        self._connect()

    def __iter__(self) -> Iterator[Message]:
        """Yield messages until none is due, or max_in_flight are not answered. Raises: ClosedError."""
        if self._is_closed:
            raise ClosedError(CLOSED)
        while (message := self._take()) is not None:
            yield message

    def fetch(self, count: int = 1, timeout: float | None = None) -> list[Message]:
        """Return up to count messages that are due, at once. Raises: ClosedError."""
        return self._fetch(count)

    def _check_handler(self, function: Callable[[Message], Any]) -> None:
        check_handler(function)

    def run_pending(self) -> int:
        """Handle messages until none is due; return their number. Exceptions of the handler are in `errors`."""
        handler, handled = self._registered(), 0
        while (message := self._take()) is not None:
            handled += 1
            try:
                with message:
                    call_handler(handler, message)
            except Exception as error:
                self._failed(message, error)
        return handled

    def run(self, drain_timeout: float = 0.0) -> int:
        """Handle messages until none is due, drain, and return the exit code."""
        self.run_pending()
        return 0 if self.drain(drain_timeout) else 1

    def drain(self, timeout: float | None = None) -> bool:
        """Disconnect; return whether all messages were answered."""
        return self._disconnect()

    def close(self) -> None:
        """Disconnect. Messages that are not answered are delivered again after their timeout."""
        self._disconnect()


class AioMemoryConsumer(MemoryConsumerBase[Callable[[Message], Awaitable[Any]]]):
    """Consumer with the methods of pyqd.client.aio.Consumer, as MemoryConsumer; made by MemoryBroker.aio_consumer()."""

    async def __aenter__(self) -> AioMemoryConsumer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self) -> None:
        self._connect()

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield messages until none is due, or max_in_flight are not answered."""
        while (message := self._take()) is not None:
            yield message

    async def fetch(self, count: int = 1, timeout: float | None = None) -> list[Message]:
        return self._fetch(count)

    async def run_pending(self) -> int:
        handler, handled = self._registered(), 0
        async for message in self:
            handled += 1
            try:
                with message:
                    waiting = handler(message)
                    if waiting is not None:
                        await waiting
            except Exception as error:
                self._failed(message, error)
        return handled

    async def run(self, drain_timeout: float = 0.0) -> int:
        await self.run_pending()
        return 0 if await self.drain(drain_timeout) else 1

    async def drain(self, timeout: float | None = None) -> bool:
        return self._disconnect()

    async def close(self) -> None:
        self._disconnect()
