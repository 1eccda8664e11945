"""A WSGI application behind the HTTP server: what it sees of a request, and the forms of its answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gevent
import pytest
from gevent import socket as cooperative

from pyqd.http.messages import Request
from pyqd.http.server import HttpServer
from pyqd.http.wsgi import WsgiRouter, environ_of, run
from pyqd.primitives.addresses import TcpAddress

HEADERS = {
    b"host": b"admin.example.org:8080",
    b"x-forwarded-user": b"ada ",
    b"x_forwarded_user": b"eve",
    b"content-type": b"text/plain",
    b"content-length": b"5",
}


def request(method: str = "POST", target: str = "/a%20b/%C3%A9?x=1%20", version: str = "1.1") -> Request:
    made = Request(method, target, version, HEADERS)
    made.body, made.remote = b"hello", "[::1]:40000"
    return made


def test_an_application_sees_the_request_in_the_form_of_the_standard() -> None:
    environ = environ_of(request(), "https")
    expected = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/a b/é".encode().decode("latin-1"),
        "QUERY_STRING": "x=1%20",
        "CONTENT_TYPE": "text/plain",
        "CONTENT_LENGTH": "5",
        "HTTP_HOST": "admin.example.org:8080",
        "SERVER_NAME": "admin.example.org",
        "SERVER_PORT": "8080",
        "REMOTE_ADDR": "::1",
        "REMOTE_PORT": "40000",
        "wsgi.url_scheme": "https",
    }
    assert {name: environ[name] for name in expected} == expected
    assert environ["wsgi.input"].read() == b"hello"


def test_a_header_with_an_underscore_does_not_pass_for_that_of_a_proxy() -> None:
    assert environ_of(request(), "http")["HTTP_X_FORWARDED_USER"] == "ada"


def test_an_answer_is_closed_also_if_its_reader_goes_away() -> None:
    class Pieces:
        closed = False

        def __iter__(self) -> Iterator[bytes]:
            yield b"a"
            yield b"b"

        def close(self) -> None:
            self.closed = True

    pieces = Pieces()

    def application(_environ: Any, start: Any) -> Any:
        start("200 OK", [])
        return pieces

    stream = run(application, {}).stream
    assert stream is not None
    assert next(stream) == b"a"
    stream.close()
    assert pieces.closed


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    """A server over an application that streams, answers at once, and has nothing new."""

    def application(environ: Any, start: Any) -> Any:
        path = environ["PATH_INFO"]
        if path == "/stream":
            start("200 OK", [("Content-Type", "text/plain")])
            return (b"%d\n" % number for number in range(3))
        if path == "/same":
            start("304 NOT MODIFIED", [("ETag", "1")])
            return []
        start("200 OK", [("Content-Length", "5"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")])
        return [b"he", b"llo"]

    server = HttpServer(WsgiRouter(application, scheme="http", body_max=lambda _request: 10))
    bound = server.start(TcpAddress("127.0.0.1", 0))
    assert isinstance(bound, TcpAddress)
    yield bound.host, bound.port
    server.stop()
    gevent.sleep(0)


def asked(address: tuple[str, int], text: bytes) -> bytes:
    """Return all bytes of the answers to a request that ends its connection."""
    with cooperative.create_connection(address, timeout=10) as connection:
        connection.sendall(text)
        return b"".join(iter(lambda: connection.recv(9999), b""))


def test_a_stream_comes_in_chunks_and_the_connection_goes_on(address: tuple[str, int]) -> None:
    last = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = asked(address, b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n" + last)
    assert b"Transfer-Encoding: chunked\r\n\r\n2\r\n0\n\r\n2\r\n1\n\r\n2\r\n2\n\r\n0\r\n\r\nHTTP/1.1 200 OK" in answer
    assert answer.endswith(b"hello")
    assert answer.count(b"Set-Cookie: ") == 2


def test_a_stream_over_http_1_0_ends_with_the_connection(address: tuple[str, int]) -> None:
    answer = asked(address, b"GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert answer.endswith(b"\r\n\r\n0\n1\n2\n")
    assert (b"chunked" in answer, b"Connection: close" in answer) == (False, True)


def test_answers_without_a_body_tell_no_false_length(address: tuple[str, int]) -> None:
    assert b"Content-Length" not in asked(address, b"GET /same HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    head = asked(address, b"HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert (b"Content-Length: 5\r\n" in head, head.endswith(b"\r\n\r\n")) == (True, True)


def test_a_body_beyond_the_limit_is_not_kept(address: tuple[str, int]) -> None:
    answer = asked(address, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 999999\r\n\r\nxx")
    assert b"Connection: close" in answer
