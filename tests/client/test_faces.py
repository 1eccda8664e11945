"""A program that uses one face of the client like the other is told so, and mistakes of newcomers have advice."""

from __future__ import annotations

import asyncio
import inspect
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


def test_both_faces_have_the_same_names() -> None:
    assert aio.__all__ == pyqd.client.__all__
    shared = set(aio.__all__) - {"Consumer", "Producer"}
    assert {name: getattr(aio, name) for name in shared} == {name: getattr(pyqd.client, name) for name in shared}


@pytest.mark.parametrize("face", ["Consumer", "Producer"])
def test_both_faces_have_the_same_methods(face: str) -> None:
    blocking, asynchronous = getattr(pyqd.client, face), getattr(aio, face)

    def methods(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert methods(blocking) == methods(asynchronous)
    for name in methods(blocking):
        member = getattr(blocking, name)
        if callable(member):
            assert list(inspect.signature(member).parameters) == list(
                inspect.signature(getattr(asynchronous, name)).parameters
            )


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
