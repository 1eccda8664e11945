"""Spans of producers and consumers, and the envelope that carries their context."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from pyqd.client import CodecError, Consumer, Message, Producer, RefusedError, SettingError, aio
from pyqd.client.codecs import JsonCodec
from pyqd.client.opentelemetry import (
    MARK,
    AioTracedProducer,
    TraceCodec,
    TracedProducer,
    processing,
    traced,
    unwrap,
    wrap,
)
from tests.support.server import WAIT_S, Daemon

PARENT = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


class Recorder:
    """Provider of tracers that keeps finished spans."""

    def __init__(self) -> None:
        self.provider = TracerProvider()
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def span(self, name: str) -> ReadableSpan:
        """Return the only span of that name."""
        (found,) = [span for span in self._exporter.get_finished_spans() if span.name == name]
        return found


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def context_of(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def parent_of(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def test_a_message_continues_the_trace_of_its_publisher(url: str, recorder: Recorder) -> None:
    codec = TraceCodec(JsonCodec())
    with (
        TracedProducer(Producer(url, codec=codec), recorder.provider) as producer,
        Consumer("orders", "email", nsqd=url, codec=codec) as consumer,
    ):
        message_id = producer.publish("orders", {"number": 1})
        (message,) = consumer.fetch(timeout=WAIT_S)
        with message, processing(message, recorder.provider):
            assert message.value == {"number": 1}
    published, processed = recorder.span("publish orders"), recorder.span("process orders")
    assert parent_of(processed) == context_of(published)
    assert (published.kind, processed.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    for span in (published, processed):
        assert span.attributes is not None
        assert span.attributes["messaging.system"] == "nsq"
        assert span.attributes["messaging.destination.name"] == "orders"
        assert span.attributes["messaging.message.id"] == message_id
    assert processed.attributes is not None
    assert processed.attributes["messaging.message.body.size"] == len(JsonCodec().encode({"number": 1}))


def test_a_span_inside_another_is_linked_to_the_publisher(url: str, recorder: Recorder) -> None:
    codec = TraceCodec()
    tracer = recorder.provider.get_tracer("test")
    with (
        TracedProducer(Producer(url, codec=codec), recorder.provider) as producer,
        Consumer("orders", "email", nsqd=url, codec=codec) as consumer,
    ):
        producer.publish("orders", b"x")
        (message,) = consumer.fetch(timeout=WAIT_S)
        with tracer.start_as_current_span("batch"), message, processing(message, recorder.provider):
            pass
    processed = recorder.span("process orders")
    assert parent_of(processed) == context_of(recorder.span("batch"))
    (link,) = processed.links
    assert (link.context.trace_id, link.context.span_id) == context_of(recorder.span("publish orders"))


def test_batches_and_submitted_messages_have_spans(url: str, recorder: Recorder) -> None:
    codec = TraceCodec()
    with TracedProducer(Producer(url, codec=codec), recorder.provider) as producer:
        producer.publish_many("batch", [b"1", b"2"])
        producer.submit("single", b"3").result(WAIT_S)
        assert producer.stats()["published"] > 0
    batch = recorder.span("publish batch")
    assert batch.attributes is not None
    assert batch.attributes["messaging.batch.message_count"] == 2
    with Consumer("single", "all", nsqd=url, codec=codec) as consumer:
        (message,) = consumer.fetch(timeout=WAIT_S)
        with message, processing(message, recorder.provider):
            pass
    assert parent_of(recorder.span("process single")) == context_of(recorder.span("publish single"))


@pytest.mark.flags("-max-msg-size=200")
def test_a_refused_message_is_an_error_of_its_span(url: str, recorder: Recorder) -> None:
    with TracedProducer(Producer(url), recorder.provider) as producer:
        with pytest.raises(RefusedError):
            producer.publish("one", b"x" * 300)
        with pytest.raises(RefusedError):
            producer.submit("two", b"x" * 300).result(WAIT_S)
    assert recorder.span("publish one").status.status_code is StatusCode.ERROR
    assert recorder.span("publish two").status.status_code is StatusCode.ERROR


def test_a_failing_handler_is_an_error_of_its_span(url: str, recorder: Recorder, daemon: Daemon) -> None:
    with Producer(url) as producer, Consumer("orders", "email", nsqd=url) as consumer:
        producer.publish("orders", b"x")
        (message,) = consumer.fetch(timeout=WAIT_S)
        with pytest.raises(ValueError, match="broken"), message, processing(message, recorder.provider):
            raise ValueError("broken")
        daemon.wait_for_channel("orders", "email", deferred_count=1)
    span = recorder.span("process orders")
    assert span.status.status_code is StatusCode.ERROR
    assert [event.name for event in span.events] == ["exception"]
    assert parent_of(span) is None


def test_a_traced_handler_gets_the_message(url: str) -> None:
    seen = []

    @traced
    def handle(message: Message) -> str:
        seen.append(message)
        return "done"

    with Producer(url) as producer, Consumer("orders", "email", nsqd=url) as consumer:
        producer.publish("orders", b"x")
        (message,) = consumer.fetch(timeout=WAIT_S)
        with message:
            assert handle(message) == "done"
    assert seen == [message]


def test_publications_of_asyncio_have_spans_that_last_until_the_answer(url: str, recorder: Recorder) -> None:
    codec = TraceCodec()

    async def publish() -> str | None:
        async with AioTracedProducer(aio.Producer(url, codec=codec), recorder.provider) as producer:
            message_id = await producer.publish("single", b"1")
            await producer.publish_many("batch", [b"2", b"3"])
            await producer.submit("submitted", b"4")
            return message_id

    message_id = asyncio.run(publish())
    single, batch = recorder.span("publish single"), recorder.span("publish batch")
    assert single.attributes is not None
    assert single.attributes["messaging.message.id"] == message_id
    assert batch.attributes is not None
    assert batch.attributes["messaging.batch.message_count"] == 2
    for topic in ("single", "batch", "submitted"):
        with Consumer(topic, "all", nsqd=url, codec=codec) as consumer:
            (message,) = consumer.fetch(timeout=WAIT_S)
            with message, processing(message, recorder.provider):
                pass
        assert parent_of(recorder.span(f"process {topic}")) == context_of(recorder.span(f"publish {topic}"))


@pytest.mark.flags("-max-msg-size=200")
def test_a_refused_message_of_asyncio_is_an_error_of_its_span(url: str, recorder: Recorder) -> None:
    async def publish() -> None:
        async with AioTracedProducer(aio.Producer(url), recorder.provider) as producer:
            with pytest.raises(RefusedError):
                await producer.publish("one", b"x" * 300)
            with pytest.raises(RefusedError):
                await producer.submit("two", b"x" * 300)
            cancelled = producer.submit("three", b"x")
            cancelled.cancel()

    asyncio.run(publish())
    assert recorder.span("publish one").status.status_code is StatusCode.ERROR
    assert recorder.span("publish two").status.status_code is StatusCode.ERROR
    assert recorder.span("publish three").status.status_code is StatusCode.UNSET


class Delivery:
    """Stand-in for the owner of a message."""

    topic, channel, codec = "orders", "email", None


@pytest.fixture
def message() -> Any:
    """A message in an envelope."""
    fields = (2, 0, 1, b"0" * 16, wrap(PARENT, b"body"))
    return Message(Delivery(), None, "broker", fields, 0.0)  # type: ignore[arg-type]


class SpanKeeper:
    """Handler of asyncio that is an object, and keeps the current spans of its calls."""

    def __init__(self) -> None:
        self.spans: list[Any] = []

    async def __call__(self, message: Message) -> str:
        await asyncio.sleep(0)
        self.spans.append(trace.get_current_span())
        return "done"


@pytest.mark.parametrize("form", ["object", "function"])
def test_a_traced_handler_of_asyncio_is_in_its_span_until_it_ends(message: Any, form: str) -> None:
    keeper = SpanKeeper()
    handle = traced(keeper if form == "object" else keeper.__call__)
    assert inspect.iscoroutinefunction(handle)
    assert asyncio.run(handle(message)) == "done"
    assert f"{keeper.spans[0].get_span_context().trace_id:032x}" in PARENT["traceparent"]


def test_a_producer_of_the_wrong_face_is_refused() -> None:
    with Producer("127.0.0.1:1") as producer, pytest.raises(SettingError, match=r"a Producer of pyqd\.client\.aio"):
        AioTracedProducer(producer)
    other = aio.Producer("127.0.0.1:1")
    with pytest.raises(SettingError, match=r"TracedProducer is for a Producer of pyqd\.client$"):
        TracedProducer(other)
    asyncio.run(other.close())


def test_without_a_current_span_there_is_no_envelope() -> None:
    assert not trace.get_current_span().get_span_context().is_valid
    assert TraceCodec().encode(b"body") == b"body"
    assert TraceCodec().decode(b"body") == b"body"


def test_an_envelope_keeps_body_and_context() -> None:
    carrier = PARENT
    for body in (b"x", b"\xf5otel", b"\x00" * 1000):
        assert unwrap(wrap(carrier, body)) == (carrier, body)


@pytest.mark.parametrize(
    "body",
    [
        MARK,
        MARK + b"\x00",
        MARK + b"\x00\x05{}",
        MARK + b"\x00\x02[]x",
        MARK + b"\x00\x02\xff\xffx",
        MARK + b"\xff\xff" + b"[" * 65_535,
    ],
    ids=range(6),
)
def test_a_damaged_envelope_is_a_codec_error(body: bytes) -> None:
    with pytest.raises(CodecError):
        TraceCodec().decode(body)


def test_a_message_with_a_damaged_envelope_is_processed_without_its_context(url: str, recorder: Recorder) -> None:
    with Producer(url) as producer, Consumer("orders", "email", nsqd=url, codec=TraceCodec()) as consumer:
        producer.publish("orders", MARK)
        (message,) = consumer.fetch(timeout=WAIT_S)
        with pytest.raises(CodecError), message, processing(message, recorder.provider):
            _ = message.value
    assert parent_of(recorder.span("process orders")) is None


def test_a_value_that_is_not_bytes_needs_a_codec() -> None:
    with pytest.raises(CodecError):
        TraceCodec().encode("text")


def test_a_context_that_is_too_long_is_an_error() -> None:
    with pytest.raises(CodecError):
        wrap({"tracestate": "x" * (1 << 16)}, b"body")
