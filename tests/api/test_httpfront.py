"""Bytes that the callback of the loop passes to the greenlet of a connection."""

import socket
import struct
from collections.abc import Iterator

import gevent
import pytest

from pyqd.hot.api.plain_publish import PlainPublisher
from pyqd.hot.broker.topic import TopicCore
from pyqd.hot.http.front import HttpFront

PLAIN = b"POST /pub?topic=t HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx"
OTHER = b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n"


def missing(name: bytes) -> TopicCore | None:
    """Leave every publish to the routes."""
    return None


def broken(name: bytes) -> TopicCore | None:
    """Fail as only an internal error of the daemon does."""
    raise AssertionError(f"no place for {name.decode()}")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        served, _ = listening.accept()
    served.setblocking(False)
    with client, served:
        yield client, served


def front_of(served: socket.socket, publisher: PlainPublisher | None) -> HttpFront:
    return HttpFront(served.fileno(), gevent.get_hub(), publisher)


@pytest.mark.parametrize("publisher", [None, PlainPublisher(100, 100, 10, missing)])
def test_requests_that_the_loop_does_not_answer_are_handed_over(
    pair: tuple[socket.socket, socket.socket], publisher: PlainPublisher | None
) -> None:
    client, served = pair
    front = front_of(served, publisher)
    for data in (PLAIN, OTHER, PLAIN[:20]):
        client.sendall(data)
        given = front.next_bytes(True)
        assert given is not None
        assert bytes(given) == data
    client.shutdown(socket.SHUT_WR)
    ended = front.next_bytes(True)
    assert ended is not None
    assert len(ended) == 0
    front.close_front()


def test_a_bug_found_on_the_loop_is_raised_in_the_greenlet_of_its_connection(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    client, served = pair
    front = front_of(served, PlainPublisher(100, 100, 10, broken))
    client.sendall(PLAIN)
    with pytest.raises(AssertionError, match="no place for t"):
        front.next_bytes(True)
    client.sendall(OTHER)
    given = front.next_bytes(False)
    assert given is not None
    assert bytes(given) == OTHER
    front.close_front()


def test_a_connection_that_breaks_is_an_error_of_its_greenlet(pair: tuple[socket.socket, socket.socket]) -> None:
    client, served = pair
    front = front_of(served, PlainPublisher(100, 100, 10, missing))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    with pytest.raises(ConnectionResetError):
        front.next_bytes(True)
    front.close_front()


def test_requests_go_to_the_greenlet_once_the_short_path_is_closed(pair: tuple[socket.socket, socket.socket]) -> None:
    client, served = pair
    front = front_of(served, PlainPublisher(100, 100, 10, broken))
    client.sendall(PLAIN)
    gevent.spawn(front.close_short_path)
    given = front.next_bytes(True)
    assert given is not None
    assert bytes(given) == PLAIN
    front.close_front()
