"""Channel of the kombu transport: queues and exchanges as topics and channels.

| kombu | NSQ |
| --- | --- |
| queue | topic of that name, with the channel `celery` |
| durable direct or topic exchange | no topic: messages go to the topics of the queues that this process has bound |
| broadcast exchange: fanout, not durable, or named in `broadcast_exchanges` | topic of that name |
| queue bound to a broadcast exchange | channel of that topic; the receiver checks the routing key |

Topics of exchanges that are not durable are ephemeral, and so are channels of queues that end with their program.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from queue import Empty
from typing import Any, ClassVar, Final, NamedTuple

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.utils.uuid import uuid

from pyqd.client import Consumer
from pyqd.client import Message as ClientMessage
from pyqd.client.ecosystem.deferral import requeue_delay_s
from pyqd.client.ecosystem.inbox import Inbox, InboxMessage, Owner, QueueIntake, finish, give_back
from pyqd.client.ecosystem.kombu_messages import TEXT, QoS, Text, decode_payload, due_ms_of, encode_payload
from pyqd.client.ecosystem.names import EPHEMERAL, nsq_name
from pyqd.client.errors import ClientError

# max_in_flight of consumers without a prefetch count: those of control commands, for example.
UNLIMITED: Final = 200
# Time that basic_get waits for a message: the broker sends, it is not asked.
GET_S: Final = 1.0
# Messages that were published earlier than this before an ephemeral channel was opened are not meant for it.
STALE_NS: Final = 2_000_000_000

logger = logging.getLogger("pyqd.client")


class Binding(NamedTuple):
    """Binding of a queue to a broadcast exchange. pattern: of a topic exchange, as a regular expression."""

    exchange: str
    type: str
    routing_key: str
    pattern: str | None

    def accepts(self, routing_key: str) -> bool:
        """Return True if a message with this routing key belongs in the queue."""
        if self.type == "fanout":
            return True
        if self.pattern is not None:
            return re.match(self.pattern, routing_key) is not None
        return routing_key == self.routing_key


class QueueSource(NamedTuple):
    """Topic and channel that a queue's messages come from. exchange: if it is the topic of a broadcast exchange."""

    topic: str
    channel: str
    exchange: str | None = None


class KombuChannel(virtual.Channel):  # type: ignore[misc]
    """Channel of a connection: declares, publishes, consumes."""

    QoS = QoS
    codecs: ClassVar = {**virtual.Channel.codecs, TEXT: Text()}
    supports_fanout = True
    # kombu does not call the broker for these; they are options of broker_transport_options.
    queue_channel = "celery"
    topic_prefix = ""
    dead_letter_topic: str | None = None
    broadcast_exchanges: Any = ("celeryev",)
    from_transport_options = (
        *virtual.Channel.from_transport_options,
        "queue_channel", "topic_prefix", "dead_letter_topic", "broadcast_exchanges",
    )  # fmt: skip

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._bindings: dict[str, list[Binding]] = connection.broadcast_bindings
        self._temporary_queues: set[str] = connection.temporary_queues
        self._intakes: dict[str, list[QueueIntake]] = {}
        self._callbacks: dict[str, Any] = {}
        self._tag_count = 0

    @property
    def _inbox(self) -> Inbox:
        inbox: Inbox = self.connection.inbox
        return inbox

    # Declaring.

    def queue_declare(self, queue: str | None = None, passive: bool = False, **options: Any) -> Any:
        """Declare a queue. Only a passive declaration, which asks for the size, calls the broker's HTTP API."""
        name = queue or f"amq.gen-{uuid()}"
        if not passive:
            self._new_queue(name, **options)
            return queue_declare_ok_t(name, 0, 0)
        if not self._has_queue(name):
            raise ChannelError(f"NOT_FOUND - no queue {name!r}", (50, 10), "Channel.queue_declare", "404")
        return queue_declare_ok_t(name, self._size(name), 0)

    def _new_queue(self, queue: str, **options: Any) -> None:
        if options.get("auto_delete") or options.get("exclusive") or options.get("durable") is False:
            self._temporary_queues.add(queue)

    def _has_queue(self, queue: str, **options: Any) -> bool:
        return any(self.connection.http.has_topic(source.topic) for source in self._sources(queue))

    def is_broadcast(self, exchange: str) -> bool:
        """Return True if messages of the exchange go through a topic of its own."""
        declared = self.state.exchanges.get(exchange, {})
        is_known = exchange in self.broadcast_exchanges or declared.get("type") == "fanout"
        return bool(exchange) and (is_known or declared.get("durable") is False)

    def queue_bind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Any = None, **options: Any
    ) -> None:
        """Bind a queue to an exchange."""
        super().queue_bind(queue, exchange, routing_key, arguments, **options)
        if exchange and self.is_broadcast(exchange):
            pattern = self.typeof(exchange).prepare_bind(queue, exchange, routing_key, arguments)[1]
            kind = self.state.exchanges.get(exchange, {}).get("type", "direct")
            self._bind_broadcast(queue, Binding(exchange, kind, routing_key, pattern))

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        """Called by kombu for each new binding; queue_bind() has done the work."""

    def _bind_broadcast(self, queue: str, binding: Binding) -> None:
        bindings = self._bindings.setdefault(queue, [])
        if binding not in bindings:
            bindings.append(binding)
        source = self._broadcast_source(queue, binding.exchange)
        try:
            # Messages that are published before the consumer has connected wait there.
            self.connection.http.create_channel(source.topic, source.channel)
        except ClientError as error:
            logger.warning("queue %s exists from its first consumer on, and not from now: %s", queue, error)
        if queue in self._active_queues:
            self._open_intakes(queue)

    def queue_unbind(self, queue: str, exchange: str | None = None, routing_key: str = "", **options: Any) -> None:
        """Remove a binding."""
        super().queue_unbind(queue, exchange, routing_key, **options)
        kept = [each for each in self._bindings.get(queue, []) if each[0:3:2] != (exchange, routing_key)]
        self._bindings[queue] = kept

    # Names.

    def topic_of_queue(self, queue: str) -> str:
        """Return the topic of a queue."""
        return nsq_name(self.topic_prefix + queue)

    def topic_of_exchange(self, exchange: str) -> str:
        """Return the topic of a broadcast exchange."""
        is_durable = self.state.exchanges.get(exchange, {}).get("durable") is not False
        is_ephemeral = exchange in self.broadcast_exchanges or not is_durable
        return nsq_name(self.topic_prefix + exchange, is_ephemeral=is_ephemeral)

    def _broadcast_source(self, queue: str, exchange: str) -> QueueSource:
        topic = self.topic_of_exchange(exchange)
        is_ephemeral = topic.endswith(EPHEMERAL) or queue in self._temporary_queues
        return QueueSource(topic, nsq_name(queue, is_ephemeral=is_ephemeral), exchange)

    def _sources(self, queue: str) -> list[QueueSource]:
        exchanges = dict.fromkeys(binding.exchange for binding in self._bindings.get(queue, []))
        if exchanges:
            return [self._broadcast_source(queue, exchange) for exchange in exchanges]
        return [QueueSource(self.topic_of_queue(queue), nsq_name(self.queue_channel))]

    # Publishing.

    def encode_body(self, body: Any, encoding: str | None = None) -> tuple[Any, str | None]:
        """Encode a body: UTF-8 as text, so that people can read it in the broker, and anything else as base64.

        Serializers of text give a str. Raises: UnicodeEncodeError for a lone surrogate: no consumer could decode it.
        """
        if isinstance(body, str):
            body = body.encode()
        if isinstance(body, bytes):
            with contextlib.suppress(UnicodeDecodeError):
                return body.decode(), TEXT
        encoded: tuple[Any, str | None] = super().encode_body(body, encoding)
        return encoded

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **options: Any) -> None:
        """Publish a message; return when the broker has it."""
        if self.is_broadcast(exchange):
            self._inplace_augment_message(message, exchange, routing_key)
            self._put_fanout(exchange, message, routing_key, **options)
        else:
            super().basic_publish(message, exchange, routing_key, **options)

    def _put(self, queue: str, message: dict[str, Any], **options: Any) -> None:
        self._publish(self.topic_of_queue(queue), encode_payload(message), message, options)

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **options: Any) -> None:
        body = encode_payload(message, routing_key=routing_key or "")
        self._publish(self.topic_of_exchange(exchange), body, message, options)

    def _publish(self, topic: str, body: bytes, message: dict[str, Any], options: dict[str, Any]) -> None:
        self.connection.producer.publish(topic, body, due_ms_of(message), options.get("timeout"))

    # Consuming.

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **options: Any) -> None:
        """Receive a queue's messages from now on."""
        super().basic_consume(queue, no_ack, callback, consumer_tag, **options)
        self._callbacks[queue] = callback, no_ack
        self._open_intakes(queue)

    def basic_cancel(self, consumer_tag: str) -> None:
        """Receive nothing more. Messages that no callback has got are requeued; the others can still be answered."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is not None and queue not in self._active_queues:
            self._callbacks.pop(queue, None)
            for intake in self._intakes.get(queue, []):
                intake.pause()

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Set the number of messages that may be unanswered."""
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        for intake in self._all_intakes():
            intake.consumer.max_in_flight = self._prefetch_limit
        self.wake()

    @property
    def _prefetch_limit(self) -> int:
        return self.qos.prefetch_count or UNLIMITED

    def _all_intakes(self) -> list[QueueIntake]:
        return [intake for intakes in list(self._intakes.values()) for intake in intakes]

    def _open_intakes(self, queue: str, limit: int | None = None) -> list[QueueIntake]:
        """Receive from all sources of a queue. limit: of messages in flight from each; the prefetch limit if None."""
        limit = limit or self._prefetch_limit
        intakes = self._intakes.setdefault(queue, [])
        known = {intake.source for intake in intakes}
        for intake in intakes:
            intake.consumer.max_in_flight = limit
            intake.resume()
        for source in self._sources(queue):
            if (queue, source) not in known:
                intakes.append(self._intake(queue, source, limit))
        return intakes

    def _intake(self, queue: str, source: QueueSource, limit: int) -> QueueIntake:
        self.connection.announce(source.topic, source.channel)
        consumer: Consumer = self.connection.new_consumer(source.topic, source.channel, limit)
        opened_ns = time.time_ns() if source.channel.endswith(EPHEMERAL) else 0

        def is_meant(message: ClientMessage) -> bool:
            return bool(message.timestamp_ns >= opened_ns - STALE_NS)

        return QueueIntake(consumer, self._inbox, self.owner_of(queue), (queue, source), is_meant)

    def owner_of(self, queue: str) -> Owner:
        """Return the key of a queue's messages in the inbox."""
        return id(self), queue

    def ready_owners(self) -> list[Owner]:
        """Return the keys of queues whose messages can be delivered now; the queue served last is at the end."""
        if not self._active_queues or not self.qos.can_consume():
            return []
        return [self.owner_of(queue) for queue in self._active_queues]

    def deliver(self, received: InboxMessage) -> bool:
        """Give a message to its consumer's callback. Return False if it was not delivered."""
        queue, _ = received.intake.source
        if queue in self._active_queues:
            # The others come first next time.
            self._active_queues.append(self._active_queues.pop(self._active_queues.index(queue)))
        callback, no_ack = self._callbacks.get(queue, (None, False))
        if callback is None:
            give_back(received.message)
            return False
        message = self._admit(received, no_ack)
        if message is None:
            return False
        callback(message)
        return True

    def _admit(self, received: InboxMessage, no_ack: bool) -> Any:
        """Return kombu's message for a received one; None if it is not due, or not for the queue."""
        (queue, source), message = received.intake.source, received.message
        payload = decode_payload(message.body, self.codecs)
        if payload is None:
            self.bury(message, "not a message of kombu")
            return None
        delay_s = requeue_delay_s(due_ms_of(payload))
        if delay_s is not None:
            give_back(message, delay_s)
            return None
        if source.exchange is not None:
            key = payload.get("routing_key", "")
            if not any(binding.accepts(key) for binding in self._bindings.get(queue, ())):
                finish(message)
                return None
        try:
            return self._unanswered(message, payload, no_ack)
        except ValueError as error:
            self.bury(message, f"its content cannot be decoded: {error}")
            return None

    def _unanswered(self, message: ClientMessage, payload: dict[str, Any], no_ack: bool) -> Any:
        """Return kombu's message, and note that it has no answer yet. Raises: ValueError if it cannot be decoded."""
        self._tag_count += 1
        tag = f"{self.channel_id}.{self._tag_count}"
        # A worker that finds an eta starts a timer, which costs up to a second, even if the eta has passed.
        payload["headers"].pop("eta", None)
        properties = payload["properties"]
        properties["delivery_tag"] = tag
        properties.setdefault("delivery_info", {})["redelivered"] = message.attempts > 1
        result = self.Message(payload, channel=self)
        if no_ack:
            finish(message)
        else:
            self.qos.unanswered[tag] = message
            self.qos.append(result, tag)
        return result

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Any:
        """Return a message of a queue; None if none arrives within a second."""
        is_consumed = queue in self._active_queues
        self._open_intakes(queue, None if is_consumed else len(self.qos.unanswered) + 1)
        deadline_s = time.monotonic() + GET_S
        while True:
            received = self._inbox.take(lambda: [self.owner_of(queue)], max(0.0, deadline_s - time.monotonic()))
            message = self._admit(received, no_ack) if received is not None else None
            if message is not None or received is None:
                break
        if queue not in self._active_queues:
            for intake in self._intakes[queue]:
                intake.pause()
        return message

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        raise Empty

    def wake(self) -> None:
        """Let drain_events() look again: a message was answered."""
        if self.connection is not None:
            self._inbox.notify()

    def bury(self, message: ClientMessage, reason: str) -> None:
        """Move a message to the dead-letter topic. Without such a topic it is finished, and its body is logged."""
        if self.dead_letter_topic is None:
            logger.error("message %s of topic %s is dropped, %s: %r", message.id, message.topic, reason, message.body)
        else:
            logger.warning("message %s of topic %s goes to topic %s: %s",
                           message.id, message.topic, self.dead_letter_topic, reason)  # fmt: skip
            self.connection.producer.publish(self.dead_letter_topic, message.body)
        finish(message)

    # Sizes and ends.

    def _size(self, queue: str) -> int:
        return sum(self.connection.http.size(source.topic, source.channel) for source in self._sources(queue))

    def _purge(self, queue: str) -> int:
        size = self._size(queue)
        for source in self._sources(queue):
            self.connection.http.empty(source.topic, source.channel)
        return size

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **options: Any) -> None:
        """Delete a queue with its messages."""
        if if_empty and self._size(queue):
            return
        self._close_intakes(queue)
        for source in self._sources(queue):
            if source.exchange is None:
                self.connection.http.delete_topic(source.topic)
            else:
                self.connection.http.delete_channel(source.topic, source.channel)
        for binding in list(self.state.queue_bindings(queue)):
            self.queue_unbind(queue, binding.exchange, binding.routing_key, arguments=binding.arguments)
        self.state.queue_bindings_delete(queue)
        self._bindings.pop(queue, None)
        self._temporary_queues.discard(queue)

    def _close_intakes(self, queue: str) -> None:
        for intake in self._intakes.pop(queue, []):
            intake.close()

    def close(self) -> None:
        """Cancel the consumers, requeue unanswered messages, and disconnect."""
        if self.closed:
            return
        intakes = self._all_intakes()
        super().close()
        for intake in intakes:
            intake.close()
        self._intakes.clear()
