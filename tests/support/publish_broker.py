"""A broker that answers publishes as a test says: late, wrongly, or never.

Frames and commands are those of docs/nsq/tcp-protocol.md. A message is only counted.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import IO, NamedTuple

from tests.support.scripted_broker import RESPONSE, WAIT_S, frame

OK = b"OK"
WITH_BODY = (b"IDENTIFY", b"AUTH", b"PUB", b"MPUB", b"DPUB", b"DMPUB")


class Publish(NamedTuple):
    """One publish command. number: counted from 1, over all clients."""

    number: int
    line: bytes
    body: bytes


def ok(_publish: Publish) -> bytes:
    return frame(RESPONSE, OK)


class PublishBroker:
    """answer: called for each publish, in a thread of the connection; returns bytes to send, or None to hang up.

    greeting: sent instead of the answer to IDENTIFY. info: fields of that answer.
    """

    def __init__(self) -> None:
        self.answer: Callable[[Publish], bytes | None] = ok
        self.greeting: bytes | None = None
        self.after_identify = b""
        self.info: dict[str, object] = {"max_rdy_count": 2500}
        self.published: list[Publish] = []
        self.connection_count = 0
        self.changed = threading.Condition()
        self.released = threading.Event()
        self._clients: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    @property
    def address(self) -> str:
        return "{}:{}".format(*self._listener.getsockname())

    def wait(self, is_reached: Callable[[], bool], text: str) -> None:
        """Wait until a condition on what was published, or on the connections, holds."""
        with self.changed:
            assert self.changed.wait_for(is_reached, WAIT_S), text

    def wait_for_connection(self) -> None:
        self.wait(lambda: self.connection_count > 0, "a connection")

    def bodies(self) -> list[bytes]:
        with self.changed:
            return [publish.body for publish in self.published]

    def hang_up(self) -> None:
        for client in self._clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        self.released.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join(WAIT_S)
        self._listener.close()
        self.hang_up()
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self.changed:
                self.connection_count += 1
                self._clients.append(client)
                self.changed.notify_all()
            thread = threading.Thread(target=self._serve, args=(client,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), client.makefile("rb") as stream:
            if stream.read(4) != b"  V2":
                return
            for line in stream:
                answer = self._answer(line.strip(), stream)
                if answer is None:
                    # A close with bytes unread would reset the connection, and the client might lose earlier answers.
                    client.shutdown(socket.SHUT_WR)
                    while stream.read1():
                        pass
                    return
                client.sendall(answer)

    def _answer(self, line: bytes, stream: IO[bytes]) -> bytes | None:
        kind = line.split(b" ", 1)[0]
        body = stream.read(struct.unpack(">i", stream.read(4))[0]) if kind in WITH_BODY else b""
        if kind == b"IDENTIFY":
            greeting = frame(RESPONSE, json.dumps(self.info).encode()) if self.greeting is None else self.greeting
            return greeting + self.after_identify
        if kind not in WITH_BODY:
            return b""
        with self.changed:
            publish = Publish(len(self.published) + 1, line, body)
            self.published.append(publish)
            self.changed.notify_all()
        return self.answer(publish)


@contextlib.contextmanager
def publish_brokers(count: int) -> Iterator[list[PublishBroker]]:
    with contextlib.ExitStack() as stack:
        brokers = [PublishBroker() for _ in range(count)]
        for broker in brokers:
            stack.callback(broker.stop)
        yield brokers
