"""Program for a Python that has nothing but pyqd-client: publishes and consumes by both faces, as on Windows.

Argument: the broker's TCP address. Prints a JSON object. It needs only the standard library and the client.
"""

import asyncio
import importlib.util
import json
import os
import selectors
import signal
import socket
import sys

TOPIC = "bare"
WAIT_S = 20.0


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Return a pair of sockets as Windows has it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        return server.accept()[0], client


def become_windows() -> None:
    """Take away what Python lacks on Windows. The modules above know their true system already."""
    sys.platform = "win32"
    for module, name in (
        (os, "register_at_fork"),
        (os, "fork"),
        (socket, "AF_UNIX"),
        (socket, "MSG_DONTWAIT"),
        (signal, "pthread_sigmask"),
        (signal, "SIGHUP"),
    ):
        delattr(module, name)
    socket.socketpair = tcp_pair  # type: ignore[assignment]
    # Has no descriptor of its own, and the default loop of Windows watches none.
    selectors.DefaultSelector = selectors.SelectSelector  # type: ignore[misc,assignment]

    asyncio.SelectorEventLoop.add_reader = asyncio.AbstractEventLoop.add_reader  # type: ignore[method-assign]


def blocking(address: str) -> list[str]:
    from pyqd.client import Consumer, Producer

    with Producer(address) as producer:
        producer.publish(TOPIC, b"one")
        producer.publish_many(TOPIC, [b"two", b"three"])
    bodies = []
    with Consumer(TOPIC, "blocking", nsqd=address) as consumer:
        for message in consumer:
            with message:
                bodies.append(message.body.decode())
            if len(bodies) == 3:
                break
    return bodies


async def awaited(address: str) -> list[str]:
    from pyqd.client.aio import Consumer, Producer

    bodies: list[str] = []
    async with Producer(address) as producer, Consumer(TOPIC + "-aio", "awaited", nsqd=address) as consumer:

        @consumer.handler()
        async def handle(message):
            bodies.append(message.body.decode())
            if len(bodies) == 3:
                consumer.stop()

        await producer.publish(TOPIC + "-aio", b"one")
        await producer.publish_many(TOPIC + "-aio", [b"two", b"three"])
        assert await asyncio.wait_for(consumer.run(), WAIT_S) == 0
    return bodies


def refusal(address: str) -> str:
    """Return the error of an address that cannot exist here."""
    from pyqd.client import Producer, SettingError

    try:
        Producer(address)
    except SettingError as error:
        return str(error)
    return ""


def main() -> None:
    address = sys.argv[1]
    found = {name: importlib.util.find_spec(name) is not None for name in ("gevent", "cffi", "Cython", "pip")}
    become_windows()
    result = {
        "installed": [name for name in found if found[name]],
        "blocking": blocking(address),
        "awaited": asyncio.run(awaited(address)),
        "compiled": sorted(name for name in sys.modules if name.startswith("pyqd.hot")),
        "unix socket": refusal("nsq:///run/pyqd.sock"),
    }
    print(json.dumps(result))


main()
