"""A program that uses one face of the client like the other is told so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import pyqd.client
from pyqd.client import aio

ADDRESS = "127.0.0.1:1"
FOR_ASYNCIO = "this Consumer is for asyncio: write `async with` and `async for`"
FOR_BLOCKING = "this Consumer is for blocking code: write `with` and `for`"


def blocking_with(consumer: Any) -> None:
    with consumer:
        pass


def blocking_for(consumer: Any) -> None:
    for _ in consumer:
        pass


async def asyncio_with(consumer: Any) -> None:
    async with consumer:
        pass


async def asyncio_for(consumer: Any) -> None:
    async for _ in consumer:
        pass


@pytest.mark.parametrize("use", [blocking_with, blocking_for])
def test_an_asyncio_consumer_names_itself_in_blocking_code(use: Any) -> None:
    consumer = aio.Consumer("topic", "channel", nsqd=ADDRESS)
    with pytest.raises(TypeError, match=FOR_ASYNCIO):
        use(consumer)
    asyncio.run(consumer.close())


@pytest.mark.parametrize("use", [asyncio_with, asyncio_for])
def test_a_blocking_consumer_names_itself_in_asyncio(use: Any) -> None:
    with (
        pyqd.client.Consumer("topic", "channel", nsqd=ADDRESS) as consumer,
        pytest.raises(TypeError, match=FOR_BLOCKING),
    ):
        asyncio.run(use(consumer))
