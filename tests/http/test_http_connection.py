"""Answers that an HTTP connection sends in pieces, and requests that came in one, over a real socket."""

import itertools
import socket
import threading
import tracemalloc
from collections.abc import Iterator

import gevent
import pytest

from pyqd.http.connection import SENT_AT_ONCE_BYTES, HttpConnection
from pyqd.http.messages import TEXT, Request, Response
from pyqd.http.router import Router
from pyqd.net.slice_queue import SliceQueue

LINE = b"a line of sixteen" * 512
COUNT = 8000


class Reader:
    """A client's half of a connection, read to its end in a thread of its own."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.head = b""
        self.body_bytes = 0
        self._buffer = bytearray(1 << 16)
        self._thread = threading.Thread(target=self._read)

    def ask(self, method: str) -> None:
        self._connection.sendall(f"{method} /large HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
        self._thread.start()

    def join(self) -> None:
        self._thread.join(60)

    def _read(self) -> None:
        while b"\r\n\r\n" not in self.head:
            self.head += self._connection.recv(4096)
        self.head, _, body = self.head.partition(b"\r\n\r\n")
        self.body_bytes = len(body)
        while count := self._connection.recv_into(self._buffer):
            self.body_bytes += count


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    client, served = socket.socketpair()
    served.setblocking(False)
    with client, served:
        yield client, served


def in_pieces(_request: Request, _remote: str) -> Response:
    return Response(200, b"first\n", TEXT, pieces=[LINE] * COUNT)


def serve(method: str, pair: tuple[socket.socket, socket.socket]) -> Reader:
    """Serve one request. Returns: what the client received."""
    client, served = pair
    reader = Reader(client)
    connection = HttpConnection(served, "client", Router([]), in_pieces)
    reader.ask(method)
    connection.run()
    reader.join()
    return reader


def test_all_pieces_arrive_and_their_length_is_announced(pair: tuple[socket.socket, socket.socket]) -> None:
    reader = serve("GET", pair)
    assert reader.body_bytes == len(b"first\n") + len(LINE) * COUNT
    assert f"Content-Length: {reader.body_bytes}".encode() in reader.head


def test_the_answer_to_head_announces_the_pieces_without_sending_them(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    reader = serve("HEAD", pair)
    assert reader.body_bytes == 0
    assert f"Content-Length: {len(b'first') + 1 + len(LINE) * COUNT}".encode() in reader.head


def test_an_answer_in_pieces_is_never_copied_as_a_whole(pair: tuple[socket.socket, socket.socket]) -> None:
    # All pieces are one object, so memory of the order of the whole answer can only be a copy.
    assert len(LINE) * COUNT > 100 * SENT_AT_ONCE_BYTES
    tracemalloc.start()
    try:
        serve("GET", pair)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 8 * SENT_AT_ONCE_BYTES


def test_requests_that_came_together_and_take_long_let_others_be_answered_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered: list[str] = []
    times = itertools.count()
    queue = SliceQueue(gevent.get_hub(), lambda: next(times))
    monkeypatch.setattr("pyqd.http.connection.slice_queue_of", lambda _hub: queue)

    def answer(request: Request, remote: str) -> Response:
        answered.append(remote)
        return Response(200, b"OK", TEXT)

    clients, greenlets = [], []
    for name, count in (("many", 100), ("one", 1)):
        client, served = socket.socketpair()
        served.setblocking(False)
        client.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n" * count)
        client.shutdown(socket.SHUT_WR)
        clients.append(client)
        greenlets.append(gevent.spawn(HttpConnection(served, name, Router([]), answer).run))
    gevent.joinall(greenlets, timeout=10, raise_error=True)
    assert answered.count("many") == 100
    assert answered.index("one") < 10
    for client in clients:
        client.close()
