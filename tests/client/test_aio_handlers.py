"""Handlers of the asyncio consumer beside other tasks of the loop."""

from __future__ import annotations

import asyncio

from pyqd.client import Producer
from pyqd.client.aio import Consumer
from pyqd.client.message import Message
from tests.support.server import WAIT_S

COUNT = 300


def test_a_handler_that_never_waits_lets_other_tasks_run(url: str) -> None:
    with Producer(url) as producer:
        producer.publish_many("work", [b"x"] * COUNT)

    async def run() -> tuple[int, int]:
        handled = seen = 0
        all_handled = asyncio.Event()
        async with Consumer("work", "all", nsqd=url, max_in_flight=COUNT) as consumer:

            @consumer.handler()
            async def handle(_: Message) -> None:
                nonlocal handled
                sum(range(20_000))
                handled += 1
                if handled == COUNT:
                    all_handled.set()

            async def look() -> None:
                nonlocal seen
                while not all_handled.is_set():
                    seen += 0 < handled < COUNT
                    await asyncio.sleep(0)

            consumer.start()
            await asyncio.wait_for(asyncio.gather(look(), all_handled.wait()), WAIT_S)
        return handled, seen

    handled, seen = asyncio.run(run())
    assert handled == COUNT
    assert seen > 1
