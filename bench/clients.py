"""Python clients in turns against one pyqd: pyqd.client, pyqd.client.aio, pynsq, gnsq and ansq.

Each run is a fresh process of one client, `python -m bench.clients CLIENT ROW HOST:PORT TOPIC COUNT`, with a topic of
its own; it prints a line of JSON. Every library has its fastest settings; its import and its first WARM_UP publications
are not measured. Every run is checked against the broker's own counts.
"""

import asyncio
import atexit
import itertools
import json
import os
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from bench import accounts
from bench.server import REPOSITORY, Figures, RunError, Server, Target, address_text, running
from bench.setting import Setting, settle
from bench.study import Study
from pyqd.client import Producer

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
WHAT = {
    "publish": "publish 100 B, awaited one by one",
    "pipelined": f"publish 100 B, {ROUND:,} pipelined",
    "consume": "consume 100 B with max_in_flight 1,000, FIN in a handler",
}
SECONDS = 2.0
# A first run of the consuming row finds the number of messages that take about the wanted time.
PROBE_COUNT = 5000
BATCH = 1000
DEADLINE_S = 60.0


class Clock:
    """Time and CPU time of the measured part of a load.

    limit_s: seconds of a publishing load. left: messages that a consuming load still has to handle.
    """

    def __init__(self, limit_s: float = 0.0, left: int = 0) -> None:
        self.limit_s, self.left = limit_s, left
        self.count, self.published = left, 0
        self._begin_s = NOT_WARM
        self._begin_cpu_s = self._elapsed_s = self._cpu_s = 0.0

    def start(self) -> None:
        self._begin_cpu_s, self._begin_s = cpu_s(), time.perf_counter()

    def stop(self) -> None:
        self._elapsed_s, self._cpu_s = time.perf_counter() - self._begin_s, cpu_s() - self._begin_cpu_s

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

    def handled(self, done: Callable[[], object]) -> None:
        """Note a consumed message; call `done` after the last one."""
        self.left -= 1
        if self.left == 0:
            self.stop()
            done()

    def result(self) -> dict[str, float]:
        names = {"seconds": self._elapsed_s, "cpu_s": self._cpu_s}
        return {"messages": self.count, "published": self.published, **names}


def cpu_s() -> float:
    """Return the CPU time of this process: all threads, user and system."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def repeat(clock: Clock, act: Callable[[], object], count: int = 1) -> None:
    """Run an act that publishes so many messages until the time is over."""
    times = max(1, CHECK_EVERY // count)
    while True:
        for _ in range(times):
            act()
        if not clock.more(times * count):
            return


async def repeat_awaited(clock: Clock, act: Callable[[], Awaitable[object]], count: int = 1) -> None:
    """Like `repeat`, but await each act."""
    times = max(1, CHECK_EVERY // count)
    while True:
        for _ in range(times):
            await act()
        if not clock.more(times * count):
            return


# A bare socket, which shows the limit of the broker and the kernel: prepared bytes out, bytes in, no checks.


def bare_publish(address: str, topic: str, clock: Clock, count: int = 1) -> None:
    host, _, port = address.rpartition(":")
    commands = b"PUB %s\n%s%s" % (topic.encode(), struct.pack(">i", len(BODY)), BODY) * count
    with socket.create_connection((host, int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(b"  V2")

        def act() -> None:
            connection.sendall(commands)
            missing = count * OK_BYTES
            while missing:
                missing -= len(connection.recv(missing))

        repeat(clock, act, count)


# pyqd.client


def blocking_publish(address: str, topic: str, clock: Clock, count: int = 1) -> None:
    with Producer(address) as producer:

        def act() -> None:
            for future in [producer.submit(topic, BODY) for _ in range(ROUND)]:
                future.result()

        repeat(clock, act if count > 1 else lambda: producer.publish(topic, BODY), count)


def blocking_consume(address: str, topic: str, clock: Clock) -> None:
    from pyqd.client import Consumer

    is_done = threading.Event()
    consumer = Consumer(topic, CHANNEL, nsqd=address, max_in_flight=MAX_IN_FLIGHT)

    @consumer.handler()
    def handle(_: Any) -> None:
        clock.handled(is_done.set)

    clock.start()
    consumer.start()
    is_done.wait()
    consumer.drain()


def aio_publish(address: str, topic: str, clock: Clock, count: int = 1) -> None:
    from pyqd.client.aio import Producer

    async def run() -> None:
        async with Producer(address) as producer:

            async def act() -> None:
                for future in [producer.submit(topic, BODY) for _ in range(ROUND)]:
                    await future

            await repeat_awaited(clock, act if count > 1 else lambda: producer.publish(topic, BODY), count)

    asyncio.run(run())


def aio_consume(address: str, topic: str, clock: Clock) -> None:
    from pyqd.client.aio import Consumer

    async def run() -> None:
        consumer = Consumer(topic, CHANNEL, nsqd=address, max_in_flight=MAX_IN_FLIGHT)

        @consumer.handler()
        async def handle(_: Any) -> None:
            clock.handled(consumer.stop)

        clock.start()
        await consumer.run()

    asyncio.run(run())


# pynsq: callbacks are called with the answer, on tornado's loop. The next command is sent by the callback of the one
# before, without the future and the coroutine that would make it readable.


def pynsq_publish(address: str, topic: str, clock: Clock, size: int = 1) -> None:
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


def pynsq_consume(address: str, topic: str, clock: Clock) -> None:
    import nsq
    from tornado.ioloop import IOLoop

    loop = IOLoop.current()

    def done() -> None:
        # Its last FINs are written by the loop; closing at once would discard them.
        loop.call_later(0.1, loop.stop)

    def handle(_: Any) -> bool:
        clock.handled(done)
        return True

    nsq.Reader(topic, CHANNEL, message_handler=handle, nsqd_tcp_addresses=[address], max_in_flight=MAX_IN_FLIGHT)
    clock.start()
    loop.start()


# gnsq: greenlets. It waits with gevent by itself, so that nothing needs to be patched.


def gnsq_publish(address: str, topic: str, clock: Clock, count: int = 1) -> None:
    import gnsq

    producer = gnsq.Producer(address)
    producer.start()

    def act() -> None:
        for answer in [producer.publish(topic, BODY, raise_error=False) for _ in range(ROUND)]:
            answer.get()

    repeat(clock, act if count > 1 else lambda: producer.publish(topic, BODY), count)


def gnsq_consume(address: str, topic: str, clock: Clock) -> None:
    import gevent
    import gnsq
    from gevent.event import Event

    is_done = Event()

    def handle(consumer: Any, message: Any) -> None:  # noqa: ARG001 - blinker passes the message by this name
        clock.handled(is_done.set)

    consumer = gnsq.Consumer(topic, CHANNEL, address, message_handler=handle, max_in_flight=MAX_IN_FLIGHT)
    clock.start()
    consumer.start(block=False)
    is_done.wait()
    # The last message is finished after its handler has returned.
    gevent.sleep(0.1)
    consumer.close()


# ansq: asyncio. Its reader knows only RDY 1; its connection takes another one.


def ansq_publish(address: str, topic: str, clock: Clock, count: int = 1) -> None:
    import ansq

    async def run() -> None:
        writer = await ansq.create_writer([address])

        async def act() -> None:
            await asyncio.gather(*(writer.pub(topic, BODY) for _ in range(count)))

        await repeat_awaited(clock, act if count > 1 else lambda: writer.pub(topic, BODY), count)
        await writer.close()

    asyncio.run(run())


def ansq_consume(address: str, topic: str, clock: Clock) -> None:
    import ansq

    async def run() -> None:
        is_done = asyncio.Event()
        clock.start()
        reader = await ansq.create_reader(topic, CHANNEL, [address])
        (connection,) = reader.connections
        await connection.rdy(MAX_IN_FLIGHT)
        async for message in reader.messages():
            clock.handled(is_done.set)
            await message.fin()
            if is_done.is_set():
                break
        await asyncio.sleep(0.1)
        await reader.close()

    asyncio.run(run())


BARE = "bare socket"
LOADS: dict[str, tuple[Callable[..., None], ...]] = {
    "pyqd.client": (blocking_publish, partial(blocking_publish, count=ROUND), blocking_consume),
    "pyqd.client.aio": (aio_publish, partial(aio_publish, count=ROUND), aio_consume),
    "pynsq": (pynsq_publish, partial(pynsq_publish, size=ROUND), pynsq_consume),
    "gnsq": (gnsq_publish, partial(gnsq_publish, count=ROUND), gnsq_consume),
    "ansq": (ansq_publish, partial(ansq_publish, count=ROUND), ansq_consume),
    BARE: (bare_publish, partial(bare_publish, count=ROUND)),
}


def load(server: Server, client: str, row: str, count: float, topic: str) -> Figures:
    """Run one load in a process. count: seconds to publish, or messages to consume. Raises: RunError."""
    address = address_text(server.tcp_address)
    command = [sys.executable, "-m", "bench.clients", client, row, address, topic, str(count)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    if done.returncode:
        raise RunError(f"status {done.returncode}\n{done.stderr[-2000:]}")
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    if row == "consume":
        accounts.require_consumed(server, topic, int(count))
    else:
        accounts.require_published(server, topic, int(found["published"]))
    server.post("/topic/delete", topic=topic)
    messages = found["messages"]
    return {"rate_per_s": messages / found["seconds"], "client_cpu_us": found["cpu_s"] * 1e6 / messages}


def fill(server: Server, topic: str, count: int) -> None:
    server.post("/channel/create", topic=topic, channel=CHANNEL)
    with Producer(address_text(server.tcp_address)) as producer:
        for start in range(0, count, BATCH):
            producer.publish_many(topic, [BODY] * min(BATCH, count - start))
    settle(server)


def study(setting: Setting, scale: float) -> Study:
    stack = ExitStack()
    atexit.register(stack.close)
    target = Target.parse("pyqd")
    server = stack.enter_context(running(target, cores=setting.cores.of(target), data_root=setting.data_root))
    numbers = itertools.count()
    counts: dict[str, int] = {}

    def consume(client: str, count: int) -> Figures:
        topic = f"client-{next(numbers)}"
        server.post("/topic/create", topic=topic)
        fill(server, topic, count)
        return load(server, client, "consume", count, topic)

    def run(row: str, client: str) -> Figures:
        if row != "consume":
            return load(server, client, row, SECONDS * scale, f"client-{next(numbers)}")
        if client not in counts:
            rate = consume(client, PROBE_COUNT)["rate_per_s"]
            counts[client] = max(BATCH, round(rate * SECONDS * scale / BATCH) * BATCH)
        return consume(client, counts[client])

    def can(row: str, client: str) -> bool:
        return list(WHAT).index(row) < len(LOADS[client])

    return Study(rows=WHAT, contenders=list(LOADS), run=run, can=can)


def main() -> None:
    """Run one load and print its figures. COUNT: seconds to publish, or messages to consume."""
    client, row, address, topic, count = sys.argv[1:]
    clock = Clock(left=int(count)) if row == "consume" else Clock(float(count))
    LOADS[client][list(WHAT).index(row)](address, topic, clock)
    print(json.dumps(clock.result()), flush=True)
    # The libraries' threads and connections end with the process: some have no orderly end.
    os._exit(0)


if __name__ == "__main__":
    main()
