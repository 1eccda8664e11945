"""A program that uses one face of the client like the other is told so, and mistakes of newcomers have advice."""

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


def test_producers_name_their_face_too() -> None:
    with pyqd.client.Producer(ADDRESS) as blocking, pytest.raises(TypeError, match="this Producer is for blocking"):
        asyncio.run(asyncio_with(blocking))
    producer = aio.Producer(ADDRESS)
    with pytest.raises(TypeError, match="this Producer is for asyncio"):
        blocking_with(producer)
    asyncio.run(producer.close())


def test_brokers_may_be_given_without_a_name() -> None:
    with pyqd.client.Consumer("topic", "channel", ADDRESS) as consumer:
        assert list(consumer.stats()["brokers"]) == [ADDRESS]
    other = aio.Consumer("topic", "channel", ADDRESS)
    assert list(other.stats()["brokers"]) == [ADDRESS]
    asyncio.run(other.close())


def test_an_unknown_option_of_a_producer_is_named_before_its_addresses() -> None:
    wrong: Any = {"nsqd_tcp_addresses": ADDRESS}
    with pytest.raises(pyqd.client.SettingError, match=r"unknown option nsqd_tcp_addresses; did you mean nsqd\?"):
        pyqd.client.Producer(**wrong)


@pytest.mark.parametrize("messages", [b"one", "one"])
def test_one_message_is_no_batch(messages: Any) -> None:
    with (
        pyqd.client.Producer(ADDRESS) as producer,
        pytest.raises(pyqd.client.SettingError, match=r"publish_many\(\) takes a list"),
    ):
        producer.publish_many("topic", messages)
