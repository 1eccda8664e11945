"""Handlers of the wrong kind, on both faces and in the broker in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import pyqd.client
from pyqd.client import SettingError, aio
from pyqd.client.message import Message
from pyqd.testing import MemoryBroker

ADDRESS = "127.0.0.1:1"


def consumers() -> list[Any]:
    broker = MemoryBroker()
    return [
        pyqd.client.Consumer("work", "all", nsqd=ADDRESS),
        aio.Consumer("work", "all", nsqd=ADDRESS),
        broker.consumer("work", "all"),
        broker.aio_consumer("work", "all"),
    ]


def close(consumer: Any) -> None:
    closing = consumer.close()
    if closing is not None:
        asyncio.run(closing)


@pytest.mark.parametrize("number", range(4), ids=["blocking", "asyncio", "memory", "memory, asyncio"])
def test_a_decorator_without_parentheses_is_refused_with_advice(number: int) -> None:
    for index, consumer in enumerate(consumers()):
        try:
            if index == number:
                with pytest.raises(SettingError, match=r"@consumer\.handler\(\)"):
                    consumer.handler(print)

                for wrong in (0, -1, 1.5):
                    with pytest.raises(SettingError, match="concurrency="):
                        consumer.handler(concurrency=wrong)
        finally:
            close(consumer)


@pytest.mark.parametrize("number", [0, 2], ids=["blocking", "memory"])
def test_a_coroutine_function_on_a_blocking_consumer_is_refused_at_once(number: int) -> None:
    made = consumers()

    async def handle(_: Message) -> None: ...

    try:
        with pytest.raises(SettingError, match=r"its consumer is pyqd\.client\.aio\.Consumer"):
            made[number].handler()(handle)
    finally:
        for consumer in made:
            close(consumer)


def test_a_coroutine_that_a_blocking_handler_returns_finishes_no_message() -> None:
    broker = MemoryBroker()
    consumer = broker.consumer("work", "all")

    async def handle(_: Message) -> None: ...

    @consumer.handler()
    def forward(message: Message) -> Any:
        return handle(message)

    broker.publish("work", b"x")
    assert broker.run_pending() == 1
    assert [str(error) for error in consumer.errors] == [
        "the handler is a coroutine function: its consumer is pyqd.client.aio.Consumer"
    ]
    assert consumer.stats()["finished"] == 0


def test_a_plain_function_on_an_asyncio_consumer_finishes_its_message() -> None:
    broker = MemoryBroker()

    async def run() -> list[bytes]:
        bodies = []
        consumer = broker.aio_consumer("work", "all")

        @consumer.handler()  # type: ignore[arg-type] # as a program without type checks does
        def handle(message: Message) -> None:
            bodies.append(message.body)

        broker.publish("work", b"x")
        await consumer.run_pending()
        assert consumer.stats()["finished"] == 1
        return bodies

    assert asyncio.run(run()) == [b"x"]
