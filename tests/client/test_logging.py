"""Lines that the client logs: a handler may publish them by the very producer that they are about."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from pyqd.client import Consumer, Producer, RetryPolicy
from tests.support.publish_broker import PublishBroker
from tests.support.scripted_broker import WAIT_S, scripted_brokers

pytestmark = pytest.mark.timeout(60)


class Publisher(logging.Handler):
    """Publishes each line, and keeps it in `lines`."""

    def __init__(self, producer: Producer) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._producer = producer

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        self._producer.submit("logs", line.encode())
        self.lines.append(line)


@pytest.fixture
def producer(scripted: PublishBroker) -> Iterator[Producer]:
    with Producer(scripted.address, reconnect_first=0.01) as made:
        yield made


@pytest.fixture
def publisher(producer: Producer) -> Iterator[Publisher]:
    """Handler of the client's lines."""
    logger = logging.getLogger("pyqd.client")
    level, handler = logger.level, Publisher(producer)
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


def wait_for_line(broker: PublishBroker, text: str) -> None:
    broker.wait(lambda: any(text.encode() in publish.body for publish in broker.published), f"a line with {text!r}")


def test_a_lost_connection_is_published_by_its_producer(
    producer: Producer, publisher: Publisher, scripted: PublishBroker
) -> None:
    producer.publish("orders", b"before")
    scripted.hang_up()
    producer.publish("orders", b"after")
    wait_for_line(scripted, f"no connection to {scripted.address}: the broker closed the connection; trying again")
    wait_for_line(scripted, f"connected to {scripted.address} again")
    assert producer.flush(WAIT_S)


def test_a_connection_that_is_lost_while_nobody_waits_is_published_too(
    producer: Producer, publisher: Publisher, scripted: PublishBroker
) -> None:
    producer.publish("orders", b"before")
    scripted.hang_up()
    wait_for_line(scripted, "the broker closed the connection; trying again")


def test_a_closed_producer_has_logged_its_last_line(publisher: Publisher) -> None:
    other = Producer("127.0.0.1:1")
    other.submit("orders", b"lost")
    other.close(timeout=0)
    assert "closed with 1 messages that no broker has acknowledged" in publisher.lines


@pytest.mark.slow
def test_lines_about_messages_are_published(publisher: Publisher, scripted: PublishBroker) -> None:
    with scripted_brokers("a") as (broker,):
        broker.admit()
        retry = RetryPolicy(max_attempts=1, dead_letter_topic="failed")
        with Consumer("orders", "email", nsqd=broker.address, retry=retry, backoff=0.0) as consumer:
            assert consumer.fetch(timeout=0) == []
            broker.wait_for("RDY 1")
            broker.deliver(b"body")
            with pytest.raises(ZeroDivisionError), consumer.fetch(timeout=WAIT_S)[0]:
                raise ZeroDivisionError
            wait_for_line(scripted, "of orders/email failed 1 times: moving it to topic failed")
