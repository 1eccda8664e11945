"""Loads of bench.client, one per client library: `python -m bench.client_loads CLIENT ROW HOST:PORT TOPIC COUNT`.

A process of its own for each run. It prints a line of JSON: messages, seconds, CPU seconds of the process. Every
library has its fastest settings. Its import and its first WARM_UP publications are not measured.

A publishing load runs for COUNT seconds; a consuming load handles COUNT messages of the channel CHANNEL.
"""

import argparse
import asyncio
import json
import os
import resource
import socket
import struct
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

CHANNEL = "bench"
BODY = bytes(range(100))
# Publications without an answer, in the row "pipelined": each round submits so many and waits for all.
ROUND = 1000
WARM_UP = 200
CHECK_EVERY = 50
MAX_IN_FLIGHT = 1000
NOT_WARM = -1.0
# Size of the frame of an OK.
OK_BYTES = 10


class Clock:
    """Time and CPU time of the measured part of a load. limit_s: seconds of a publishing load."""

    def __init__(self, limit_s: float = 0.0) -> None:
        self.limit_s = limit_s
        self.count = 0
        self.published = 0
        self._begin_s = NOT_WARM
        self._begin_cpu_s = 0.0
        self._elapsed_s = self._cpu_s = 0.0

    def start(self) -> None:
        """Begin the measured part."""
        self._begin_cpu_s, self._begin_s = cpu_s(), time.perf_counter()

    def more(self, count: int) -> bool:
        """Note publications; return whether to go on."""
        self.published += count
        if self._begin_s == NOT_WARM:
            if self.published >= WARM_UP:
                self.start()
            return True
        self.count += count
        if time.perf_counter() - self._begin_s < self.limit_s:
            return True
        self.stop()
        return False

    def stop(self) -> None:
        """End the measured part."""
        self._elapsed_s, self._cpu_s = time.perf_counter() - self._begin_s, cpu_s() - self._begin_cpu_s

    def result(self) -> dict[str, float]:
        """Return the figures."""
        return {
            "messages": self.count,
            "published": self.published,
            "seconds": self._elapsed_s,
            "cpu_s": self._cpu_s,
        }


def cpu_s() -> float:
    """Return the CPU time of this process: all threads, user and system."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Countdown:
    """Messages that a consuming load still has to handle; done() is called by the last one."""

    def __init__(self, clock: Clock, count: int, done: Callable[[], object]) -> None:
        self.clock = clock
        self.left = clock.count = count
        self._done = done

    def handled(self) -> None:
        """Note a message."""
        self.left -= 1
        if self.left == 0:
            self.clock.stop()
            self._done()


# A bare socket, which shows the limit of the broker and the kernel: prepared bytes out, bytes in, no checks.


def bare_publish(address: str, topic: str, clock: Clock) -> None:
    bare_publishing(address, topic, clock, CHECK_EVERY, 1)


def bare_pipelined(address: str, topic: str, clock: Clock) -> None:
    bare_publishing(address, topic, clock, 1, ROUND)


def bare_publishing(address: str, topic: str, clock: Clock, rounds: int, size: int) -> None:
    host, _, port = address.rpartition(":")
    commands = b"PUB %s\n%s%s" % (topic.encode(), struct.pack(">i", len(BODY)), BODY) * size
    with socket.create_connection((host, int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(b"  V2")
        while True:
            for _ in range(rounds):
                connection.sendall(commands)
                missing = size * OK_BYTES
                while missing:
                    missing -= len(connection.recv(missing))
            if not clock.more(rounds * size):
                return


# pyqd.client


def blocking_publish(address: str, topic: str, clock: Clock) -> None:
    from pyqd.client import Producer

    with Producer(address) as producer:
        publish = producer.publish
        while True:
            for _ in range(CHECK_EVERY):
                publish(topic, BODY)
            if not clock.more(CHECK_EVERY):
                return


def blocking_pipelined(address: str, topic: str, clock: Clock) -> None:
    from pyqd.client import Producer

    with Producer(address) as producer:
        while True:
            futures = [producer.submit(topic, BODY) for _ in range(ROUND)]
            for future in futures:
                future.result()
            if not clock.more(ROUND):
                return


def blocking_consume(address: str, topic: str, clock: Clock, count: int) -> None:
    from pyqd.client import Consumer

    is_done = threading.Event()
    countdown = Countdown(clock, count, is_done.set)
    consumer = Consumer(topic, CHANNEL, nsqd=address, max_in_flight=MAX_IN_FLIGHT)

    @consumer.handler()
    def handle(_: Any) -> None:
        countdown.handled()

    clock.start()
    consumer.start()
    is_done.wait()
    consumer.drain()


def aio_publish(address: str, topic: str, clock: Clock) -> None:
    from pyqd.client.aio import Producer

    async def run() -> None:
        async with Producer(address) as producer:
            await publish_awaited(lambda: producer.publish(topic, BODY), clock)

    asyncio.run(run())


def aio_pipelined(address: str, topic: str, clock: Clock) -> None:
    from pyqd.client.aio import Producer

    async def run() -> None:
        async with Producer(address) as producer:
            while True:
                futures = [producer.submit(topic, BODY) for _ in range(ROUND)]
                for future in futures:
                    await future
                if not clock.more(ROUND):
                    return

    asyncio.run(run())


def aio_consume(address: str, topic: str, clock: Clock, count: int) -> None:
    from pyqd.client.aio import Consumer

    async def run() -> None:
        countdown = Countdown(clock, count, lambda: consumer.stop())
        consumer = Consumer(topic, CHANNEL, nsqd=address, max_in_flight=MAX_IN_FLIGHT)

        @consumer.handler()
        async def handle(_: Any) -> None:
            countdown.handled()

        clock.start()
        await consumer.run()

    asyncio.run(run())


async def publish_awaited(publish: Callable[[], Awaitable[object]], clock: Clock) -> None:
    """Publish one by one."""
    while True:
        for _ in range(CHECK_EVERY):
            await publish()
        if not clock.more(CHECK_EVERY):
            return


# pynsq: callbacks are called with the answer, on tornado's loop. The next command is sent by the callback of the one
# before, without the future and the coroutine that would make it readable.


def pynsq_publish(address: str, topic: str, clock: Clock) -> None:
    pynsq_publishing(address, topic, clock, 1)


def pynsq_pipelined(address: str, topic: str, clock: Clock) -> None:
    pynsq_publishing(address, topic, clock, ROUND)


def pynsq_publishing(address: str, topic: str, clock: Clock, size: int) -> None:
    import nsq
    from tornado.ioloop import IOLoop

    loop = IOLoop.current()
    writer = nsq.Writer([address])
    unanswered = 0

    def send() -> None:
        nonlocal unanswered
        unanswered = size
        for _ in range(size):
            writer.pub(topic, BODY, answered)

    def answered(_: object, data: object) -> None:
        nonlocal unanswered
        if isinstance(data, nsq.Error):
            sys.exit(f"pynsq: {data}")
        unanswered -= 1
        if unanswered == 0:
            if clock.more(size):
                send()
            else:
                loop.stop()

    def begin() -> None:
        if any(connection.connected() for connection in writer.conns.values()):
            send()
        else:
            loop.call_later(0.01, begin)

    loop.add_callback(begin)
    loop.start()


def pynsq_consume(address: str, topic: str, clock: Clock, count: int) -> None:
    import nsq
    from tornado.ioloop import IOLoop

    loop = IOLoop.current()

    def done() -> None:
        # Its last FINs are written by the loop; closing at once would discard them.
        loop.call_later(0.1, loop.stop)

    countdown = Countdown(clock, count, done)

    def handle(_: Any) -> bool:
        countdown.handled()
        return True

    nsq.Reader(topic, CHANNEL, message_handler=handle, nsqd_tcp_addresses=[address], max_in_flight=MAX_IN_FLIGHT)
    clock.start()
    loop.start()


# gnsq: greenlets. It waits with gevent by itself, so that nothing needs to be patched.


def gnsq_publish(address: str, topic: str, clock: Clock) -> None:
    producer = gnsq_producer(address)
    while True:
        for _ in range(CHECK_EVERY):
            producer.publish(topic, BODY)
        if not clock.more(CHECK_EVERY):
            return


def gnsq_pipelined(address: str, topic: str, clock: Clock) -> None:
    producer = gnsq_producer(address)
    while True:
        answers = [producer.publish(topic, BODY, raise_error=False) for _ in range(ROUND)]
        for answer in answers:
            answer.get()
        if not clock.more(ROUND):
            return


def gnsq_producer(address: str) -> Any:
    import gnsq

    producer = gnsq.Producer(address)
    producer.start()
    return producer


def gnsq_consume(address: str, topic: str, clock: Clock, count: int) -> None:
    import gevent
    import gnsq
    from gevent.event import Event

    is_done = Event()
    countdown = Countdown(clock, count, is_done.set)

    def handle(consumer: Any, message: Any) -> None:  # noqa: ARG001 - blinker passes the message by this name
        countdown.handled()

    consumer = gnsq.Consumer(topic, CHANNEL, address, message_handler=handle, max_in_flight=MAX_IN_FLIGHT)
    clock.start()
    consumer.start(block=False)
    is_done.wait()
    # The last message is finished after its handler has returned.
    gevent.sleep(0.1)
    consumer.close()


# ansq: asyncio. Its reader knows only RDY 1; its connection takes another one.


def ansq_publish(address: str, topic: str, clock: Clock) -> None:
    import ansq

    async def run() -> None:
        writer = await ansq.create_writer([address])
        await publish_awaited(lambda: writer.pub(topic, BODY), clock)
        await writer.close()

    asyncio.run(run())


def ansq_pipelined(address: str, topic: str, clock: Clock) -> None:
    import ansq

    async def run() -> None:
        writer = await ansq.create_writer([address])
        while True:
            await asyncio.gather(*(writer.pub(topic, BODY) for _ in range(ROUND)))
            if not clock.more(ROUND):
                break
        await writer.close()

    asyncio.run(run())


def ansq_consume(address: str, topic: str, clock: Clock, count: int) -> None:
    import ansq

    async def run() -> None:
        is_done = asyncio.Event()
        countdown = Countdown(clock, count, is_done.set)
        clock.start()
        reader = await ansq.create_reader(topic, CHANNEL, [address])
        (connection,) = reader.connections
        await connection.rdy(MAX_IN_FLIGHT)
        async for message in reader.messages():
            countdown.handled()
            await message.fin()
            if is_done.is_set():
                break
        await asyncio.sleep(0.1)
        await reader.close()

    asyncio.run(run())


ROWS = ("publish", "pipelined", "consume")
# The first two are this project's.
OWN = ("pyqd.client", "pyqd.client.aio")
BARE = "bare socket"
LOADS: dict[str, tuple[Callable[..., None], ...]] = {
    "pyqd.client": (blocking_publish, blocking_pipelined, blocking_consume),
    "pyqd.client.aio": (aio_publish, aio_pipelined, aio_consume),
    "pynsq": (pynsq_publish, pynsq_pipelined, pynsq_consume),
    "gnsq": (gnsq_publish, gnsq_pipelined, gnsq_consume),
    "ansq": (ansq_publish, ansq_pipelined, ansq_consume),
    BARE: (bare_publish, bare_pipelined),
}


def main() -> None:
    """Run one load and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.client_loads", description=__doc__.partition("\n\n")[0])
    parser.add_argument("client", choices=LOADS)
    parser.add_argument("row", choices=ROWS)
    parser.add_argument("address", help="host:port of the broker")
    parser.add_argument("topic")
    parser.add_argument("count", type=float, help="seconds to publish, or messages to consume")
    parser.add_argument("--core", type=int, help="the only core to use")
    given = parser.parse_args()
    if given.core is not None:
        os.sched_setaffinity(0, {given.core})
    load = LOADS[given.client][ROWS.index(given.row)]
    if given.row == "consume":
        clock = Clock()
        load(given.address, given.topic, clock, int(given.count))
    else:
        clock = Clock(given.count)
        load(given.address, given.topic, clock)
    print(json.dumps(clock.result()), flush=True)
    # The libraries' threads and connections end with the process: some have no orderly end.
    os._exit(0)


if __name__ == "__main__":
    main()
