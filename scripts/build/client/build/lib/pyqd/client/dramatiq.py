"""Dramatiq broker on pyqd.

    dramatiq.set_broker(PyqdBroker("127.0.0.1:4150"))

Delayed messages and retries wait in the broker, on its disk, and reach a worker when they are due. A queue is a topic
of that name, with the channel `dramatiq`; dead letters go to the topic `<queue>.XQ`.

Source: docs/dramatiq.md.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

import dramatiq
from dramatiq.broker import Broker, MessageProxy
from dramatiq.broker import Consumer as DramatiqConsumer
from dramatiq.errors import ConnectionClosed, DecodeError, QueueJoinTimeout, QueueNotFound
from dramatiq.message import Message as DramatiqMessage

from pyqd.client import Consumer, Producer
from pyqd.client import Message as ClientMessage
from pyqd.client.ecosystem.deferral import DeferringProducer, now_ms, requeue_delay_s
from pyqd.client.ecosystem.inbox import finish, give_back
from pyqd.client.ecosystem.names import nsq_name
from pyqd.client.errors import ClientError
from pyqd.client.http_group import HttpGroup
from pyqd.client.settings import parse_targets

DEAD_LETTERS: Final = ".XQ"
# A queue counts as empty after this many looks that found it so: a message is counted nowhere while it moves.
EMPTY_LOOKS: Final = 2
# Year 10000, in Unix milliseconds. JSON has integers that no float holds.
DUE_MS_MAX: Final = 253_402_300_800_000

__all__ = ["PyqdBroker"]


@contextlib.contextmanager
def connection_errors() -> Iterator[None]:
    """Raise errors of the client as errors of a connection, after which Dramatiq tries again."""
    try:
        yield
    except ClientError as error:
        raise ConnectionClosed(error) from error


class PyqdBroker(Broker):
    """Broker for Dramatiq. Threads may share it.

    nsqd: addresses such as `host:4150`, or URLs such as `pyqd://host:4150?lookupd=host2:4161`; several of them for
    several brokers. lookupd: lookup daemons to ask for brokers. channel: channel of all queues. topic_prefix: prefix of
    all topics. middleware: as for any broker of Dramatiq. timeout: seconds until enqueue() fails if no broker answers;
    that of the URL, or 30, if None. settings: see pyqd.client.settings.Settings.

    Raises: SettingError.
    """

    def __init__(
        self,
        *nsqd: str | Iterable[str],
        lookupd: str | Iterable[str] | None = None,
        channel: str = "dramatiq",
        topic_prefix: str = "",
        middleware: list[dramatiq.Middleware] | None = None,
        timeout: float | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(middleware=middleware)
        self.queues: set[str] = set()
        self.channel = channel
        self.topic_prefix = topic_prefix
        self._place = {"nsqd": list(nsqd) or None, "lookupd": lookupd, **settings}
        self._targets = parse_targets(nsqd, lookupd)
        producer = Producer(*nsqd, lookupd=lookupd, timeout=timeout, **settings)
        self._producer = DeferringProducer(producer)
        self._http = HttpGroup(self._targets, producer.settings, producer.timeout)

    def topic_of(self, queue_name: str) -> str:
        """Return the topic of a queue."""
        return nsq_name(self.topic_prefix + queue_name)

    def dead_letter_topic_of(self, queue_name: str) -> str:
        """Return the topic for messages of a queue that failed for good."""
        return nsq_name(f"{self.topic_prefix}{queue_name}{DEAD_LETTERS}")

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue. The broker creates its topic with the first message."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues.add(queue_name)
            self.emit_after("declare_queue", queue_name)

    def get_declared_queues(self) -> set[str]:
        """Return the names of all declared queues."""
        return self.queues.copy()

    def enqueue(self, message: DramatiqMessage[Any], *, delay: int | None = None) -> DramatiqMessage[Any]:
        """Publish a message; return when the broker has it. delay: milliseconds. Raises: ConnectionClosed."""
        if delay is not None:
            # The millisecond that has begun counts as over, or the message could run early.
            message = message.copy(options={"eta": now_ms() + 1 + delay})
        self.logger.debug("Enqueueing message %r on queue %r.", message.message_id, message.queue_name)
        self.emit_before("enqueue", message, delay)
        with connection_errors():
            self._producer.publish(self.topic_of(message.queue_name), message.encode(), due_ms_of(message))
        self.emit_after("enqueue", message, delay)
        return message

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30000) -> DramatiqConsumer:
        """Return an iterator over a queue's messages. Raises: QueueNotFound."""
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        topic = self.topic_of(queue_name)
        with connection_errors():
            if self._targets.lookupd:
                self._http.announce(topic, self.channel)
            consumer = Consumer(topic, self.channel, max_in_flight=max(prefetch, 1), **self._place)
        return PyqdConsumer(self, queue_name, consumer, timeout / 1000)

    def bury(self, queue_name: str, body: bytes) -> None:
        """Publish a message to the queue's dead-letter topic. Raises: ConnectionClosed."""
        with connection_errors():
            self._producer.publish(self.dead_letter_topic_of(queue_name), body)

    def flush(self, queue_name: str) -> None:
        """Drop all messages of a queue, delayed ones and those in flight included. Raises: QueueNotFound."""
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        with connection_errors():
            self._http.empty(self.topic_of(queue_name), self.channel)

    def flush_all(self) -> None:
        """Drop all messages of all declared queues."""
        for queue_name in self.queues:
            self.flush(queue_name)

    def join(self, queue_name: str, *, interval: int = 100, timeout: int | None = None) -> None:
        """Wait until a queue has no message left, for tests; delayed messages and retries count.

        interval, timeout: milliseconds. Raises: QueueJoinTimeout, QueueNotFound.
        """
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        deadline_s = None if timeout is None else time.monotonic() + timeout / 1000
        empty_count = 0
        while empty_count < EMPTY_LOOKS:
            with connection_errors():
                size = self._http.size(self.topic_of(queue_name), self.channel)
            empty_count = empty_count + 1 if size == 0 else 0
            if deadline_s is not None and time.monotonic() >= deadline_s and empty_count < EMPTY_LOOKS:
                raise QueueJoinTimeout(queue_name)
            if empty_count < EMPTY_LOOKS:
                time.sleep(interval / 1000)

    def close(self) -> None:
        """Wait for the broker's answers and disconnect."""
        self._producer.producer.close()


class PyqdMessage(MessageProxy):
    """Message of a queue and the client's message that it came in."""

    def __init__(self, message: DramatiqMessage[Any], received: ClientMessage) -> None:
        super().__init__(message)
        self.received = received


class PyqdConsumer(DramatiqConsumer):
    """Iterator over a queue's messages. Worker threads answer them while another thread iterates."""

    def __init__(self, broker: PyqdBroker, queue_name: str, consumer: Consumer, timeout_s: float) -> None:
        self.broker = broker
        self.queue_name = queue_name
        self._consumer = consumer
        self._timeout_s = timeout_s

    def __next__(self) -> MessageProxy | None:
        """Return the next message that is due; None if the timeout comes first. Raises: ConnectionClosed."""
        with connection_errors():
            for received in self._consumer.fetch(1, self._timeout_s):
                return self._admit(received)
        return None

    def _admit(self, received: ClientMessage) -> MessageProxy | None:
        """Return the message in a body; None if it was requeued until it is due, or is no message of Dramatiq."""
        try:
            message = DramatiqMessage.decode(received.body)
            check_fields(message)
        except (DecodeError, TypeError, KeyError) as error:
            self.broker.logger.error("Message %s goes to the dead letters: %s", received.id, error)
            self.broker.bury(self.queue_name, received.body)
            finish(received)
            return None
        delay_s = requeue_delay_s(due_ms_of(message))
        if delay_s is not None:
            give_back(received, delay_s)
            return None
        # With an eta, Dramatiq would hold the message in the worker's memory and then publish it once more.
        message.options.pop("eta", None)
        return PyqdMessage(message, received)

    def ack(self, message: MessageProxy) -> None:
        """Finish a message."""
        finish(received_in(message))

    def nack(self, message: MessageProxy) -> None:
        """Move a message to the queue's dead letters. Raises: ConnectionClosed; Dramatiq then tries again."""
        self.broker.bury(self.queue_name, received_in(message).body)
        finish(received_in(message))

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Give messages back to the broker, for any other worker."""
        for message in messages:
            give_back(received_in(message))

    def close(self) -> None:
        """Disconnect. The broker delivers unanswered messages again when they time out."""
        self._consumer.close()


def received_in(message: MessageProxy) -> ClientMessage:
    """Return the client's message of a message that a PyqdConsumer has returned."""
    assert isinstance(message, PyqdMessage)
    return message.received


def check_fields(message: DramatiqMessage[Any]) -> None:
    """Check fields whose type Dramatiq relies on outside the calls of actors. Raises: TypeError."""
    if not isinstance(message.options, dict):
        raise TypeError(f"its options are no object, but {message.options!r}")
    if not isinstance(message.actor_name, str):
        raise TypeError(f"the name of its actor is no text, but {message.actor_name!r}")


def due_ms_of(message: DramatiqMessage[Any]) -> int | None:
    """Return the due time of a message in Unix milliseconds, at most the year 10000; None without one."""
    eta = message.options.get("eta")
    # JSON in Python has NaN and infinity.
    if not isinstance(eta, (int, float)) or (isinstance(eta, float) and not math.isfinite(eta)):
        return None
    return math.ceil(min(eta, DUE_MS_MAX))
