"""OpenTelemetry for producers and consumers: spans, and the trace context in the messages.

NSQ's messages have no headers. The context is therefore in an envelope around the body, which producers write and
consumers read with a codec:

    codec = TraceCodec()
    producer = TracedProducer(Producer("127.0.0.1:4150", codec=codec))
    consumer = Consumer("orders", "email", nsqd="127.0.0.1:4150", codec=codec)

    for message in consumer:
        with message, processing(message):
            handle(message.value)

The envelope is opt-in, since consumers without the codec see its bytes before the body:

    bytes 0xF5 "otel" 0x01 | length of the context, 2 bytes, big-endian | context as JSON | body

No UTF-8 text begins with the byte 0xF5. A body without an envelope passes through the codec as it is, so that consumers
can be changed before producers. Needs opentelemetry-api.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json
import struct
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeVar, cast

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider

from pyqd import __version__
from pyqd.client.codecs import Codec
from pyqd.client.errors import CodecError, SettingError
from pyqd.client.message import Message
from pyqd.client.outgoing import Outgoing

MARK: Final = b"\xf5otel\x01"
LENGTH: Final = struct.Struct(">H")
CONTEXT_BYTES_MAX: Final = (1 << 16) - 1
SYSTEM: Final = "nsq"
BATCH_COUNT: Final = "messaging.batch.message_count"

Handler = TypeVar("Handler", bound=Callable[[Message], Any])


class TraceCodec:
    """Codec that puts the current trace context into an envelope. inner: codec of the values; bytes without it."""

    def __init__(self, inner: Codec | None = None) -> None:
        self.inner = inner

    def encode(self, value: Any) -> bytes:
        """Return the body for a value. Without a current span there is no envelope. Raises: CodecError."""
        if self.inner is not None:
            body = self.inner.encode(value)
        elif isinstance(value, (bytes, bytearray, memoryview)):
            body = bytes(value)
        else:
            raise CodecError(f"a body is bytes, not {type(value).__name__}: give the TraceCodec a codec")
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        return wrap(carrier, body) if carrier else body

    def decode(self, body: bytes) -> Any:
        """Return the value in a body, with or without an envelope. Raises: CodecError."""
        _, bare = unwrap(body)
        return bare if self.inner is None else self.inner.decode(bare)


def wrap(carrier: dict[str, str], body: bytes) -> bytes:
    """Return a body in an envelope. Raises: CodecError."""
    packed = json.dumps(carrier, separators=(",", ":")).encode()
    if len(packed) > CONTEXT_BYTES_MAX:
        raise CodecError(f"a trace context of {len(packed)} bytes; at most {CONTEXT_BYTES_MAX} are possible")
    return b"".join((MARK, LENGTH.pack(len(packed)), packed, body))


def unwrap(body: bytes) -> tuple[dict[str, str], bytes]:
    """Return the carrier of the context, and the body. Raises: CodecError if the envelope is damaged."""
    if not body.startswith(MARK):
        return {}, body
    try:
        (length,) = LENGTH.unpack_from(body, len(MARK))
        start = len(MARK) + LENGTH.size
        if start + length > len(body):
            raise ValueError("it ends early")
        carrier = json.loads(body[start : start + length])
        if not isinstance(carrier, dict):
            raise ValueError("its context is no object")
    except (ValueError, RecursionError, struct.error) as error:
        raise CodecError(f"the envelope of the trace context is damaged: {error}") from None
    return {str(name): str(value) for name, value in carrier.items()}, body[start + length :]


class PublishingSpans:
    """Spans of the publications of a producer. Other attributes are those of the producer. Raises: SettingError."""

    is_for_asyncio = False

    def __init__(self, producer: Any, tracer_provider: TracerProvider | None = None) -> None:
        if inspect.iscoroutinefunction(producer.publish) is not self.is_for_asyncio:
            right = "pyqd.client.aio" if self.is_for_asyncio else "pyqd.client"
            raise SettingError(f"{type(self).__name__} is for a Producer of {right}")
        self.producer: Any = producer
        self._tracer = trace.get_tracer("pyqd.client", __version__, tracer_provider)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.producer, name)

    @contextlib.contextmanager
    def _span(self, topic: str, **attributes: Any) -> Iterator[Span]:
        with trace.use_span(self._start(topic), end_on_exit=True) as span:
            span.set_attributes(attributes)
            yield span

    def _start(self, topic: str) -> Span:
        attributes = {
            "messaging.system": SYSTEM,
            "messaging.destination.name": topic,
            "messaging.operation.name": "publish",
            "messaging.operation.type": "send",
        }
        return self._tracer.start_span(f"publish {topic}", kind=SpanKind.PRODUCER, attributes=attributes)

    def _submitted(self, topic: str, body: Any, options: dict[str, Any]) -> Any:
        """Return the future of a submitted message, whose span ends with the answer."""
        span = self._start(topic)
        with trace.use_span(span, end_on_exit=False):
            try:
                future = self.producer.submit(topic, body, **options)
            except BaseException:
                span.end()
                raise
        future.add_done_callback(partial(end_with, span))
        return future


def end_with(span: Span, future: Future[Any] | asyncio.Future[Any]) -> None:
    """End the span of a message with the result of its future."""
    error = None if future.cancelled() else future.exception()
    if error is not None:
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()


def note_id(span: Span, message_id: str | None) -> None:
    """Note the id of a published message, if the broker gives one."""
    if message_id is not None:
        span.set_attribute("messaging.message.id", message_id)


class TracedProducer(PublishingSpans):
    """Producer of blocking code whose publications are spans."""

    def __enter__(self) -> TracedProducer:
        return self

    def __exit__(self, *_: object) -> None:
        self.producer.close()

    def publish(self, topic: str, body: Any, **options: Any) -> str | None:
        """Publish a message in a span; see Producer.publish."""
        with self._span(topic) as span:
            message_id: str | None = self.producer.publish(topic, body, **options)
            note_id(span, message_id)
            return message_id

    def publish_many(self, topic: str, messages: Iterable[Any | Outgoing], **options: Any) -> list[str] | None:
        """Publish all messages or none, in one span; see Producer.publish_many."""
        listed = list(messages)
        with self._span(topic, **{BATCH_COUNT: len(listed)}):
            ids: list[str] | None = self.producer.publish_many(topic, listed, **options)
            return ids

    def submit(self, topic: str, body: Any, **options: Any) -> Future[str | None]:
        """Publish without waiting. The span ends with the answer; see Producer.submit."""
        future: Future[str | None] = self._submitted(topic, body, options)
        return future


class AioTracedProducer(PublishingSpans):
    """Producer of asyncio whose publications are spans."""

    is_for_asyncio = True

    async def __aenter__(self) -> AioTracedProducer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.producer.close()

    async def publish(self, topic: str, body: Any, **options: Any) -> str | None:
        """Publish a message in a span; see Producer.publish."""
        with self._span(topic) as span:
            message_id: str | None = await self.producer.publish(topic, body, **options)
            note_id(span, message_id)
            return message_id

    async def publish_many(self, topic: str, messages: Iterable[Any | Outgoing], **options: Any) -> list[str] | None:
        """Publish all messages or none, in one span; see Producer.publish_many."""
        listed = list(messages)
        with self._span(topic, **{BATCH_COUNT: len(listed)}):
            ids: list[str] | None = await self.producer.publish_many(topic, listed, **options)
            return ids

    def submit(self, topic: str, body: Any, **options: Any) -> asyncio.Future[str | None]:
        """Publish without waiting. The span ends with the answer; see Producer.submit."""
        future: asyncio.Future[str | None] = self._submitted(topic, body, options)
        return future


@contextlib.contextmanager
def processing(message: Message, tracer_provider: TracerProvider | None = None) -> Iterator[Span]:
    """Make a block the span in which a message is processed. An exception in the block is recorded in the span.

    The span belongs to the trace of the publisher, if the message has an envelope. In a block with another current span
    it begins there, and is linked to the publisher's.
    """
    tracer = trace.get_tracer("pyqd.client", __version__, tracer_provider)
    try:
        carrier, body = unwrap(message.body)
    except CodecError:
        # The codec raises it in the block, if the value is read.
        carrier, body = {}, message.body
    publisher = propagate.extract(carrier, context=contexts.Context())
    is_nested = trace.get_current_span().get_span_context().is_valid
    linked = trace.get_current_span(publisher).get_span_context()
    attributes = {
        "messaging.system": SYSTEM,
        "messaging.destination.name": message.topic,
        "messaging.consumer.group.name": message.channel,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.id": message.id,
        "messaging.message.body.size": len(body),
        "messaging.nsq.message.attempts": message.attempts,
    }
    with tracer.start_as_current_span(
        f"process {message.topic}",
        context=None if is_nested else publisher,
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        links=[Link(linked)] if is_nested and linked.is_valid else None,
    ) as span:
        yield span


def traced(handler: Handler) -> Handler:
    """Return a handler that processes each message in a span: @consumer.handler() above @traced.

    handler: a function, or a coroutine function for asyncio; or an object whose `__call__` is one of them.
    """

    @functools.wraps(handler)
    def handle(message: Message) -> Any:
        with processing(message):
            return handler(message)

    @functools.wraps(handler)
    async def handle_in_loop(message: Message) -> Any:
        with processing(message):
            return await handler(message)

    return cast(Handler, handle_in_loop if is_coroutine_function(handler) else handle)


def is_coroutine_function(handler: Callable[..., Any]) -> bool:
    """Return True if a call of a function, or of an object with `__call__`, returns a coroutine."""
    # `__call__` of the type, as in a call: that of a function is no coroutine function.
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
