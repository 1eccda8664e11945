"""HTTP connection and single requests: bodies, limits of bytes and time, redirects, refusals of plain HTTP."""

from __future__ import annotations

import http.client
import socket
import time
from typing import Any

import pytest

from pyqd.primitives.addresses import HostNameError
from pyqd.primitives.http_client import (
    AnswerTooLongError,
    HttpAddress,
    HttpClientConnection,
    LateAnswerError,
    fetch,
    read_body,
)
from tests.support.http_stub import HttpStub, http_stub, json_answer

LENGTH = b"Content-Length: 10\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


def body_of(rest: bytes, bytes_max: int = 10) -> bytes:
    """Return the body of an answer that ends with its connection."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"HTTP/1.1 200 OK\r\n" + rest)
        theirs.shutdown(socket.SHUT_WR)
        with http.client.HTTPResponse(ours) as answer:
            answer.begin()
            return read_body(answer, bytes_max)


@pytest.mark.parametrize(
    "rest", [LENGTH + b"0123456789", CHUNKED + b"a\r\n0123456789\r\n0\r\n\r\n", b"\r\n0123456789"],
    ids=["length", "chunked", "neither"],
)  # fmt: skip
def test_a_complete_body_is_returned(rest: bytes) -> None:
    assert body_of(rest) == b"0123456789"


@pytest.mark.parametrize(
    "rest", [LENGTH, LENGTH + b"012345678", CHUNKED + b"a\r\n012", CHUNKED + b"3\r\n012\r\n"],
    ids=["nothing", "length", "within-chunk", "between-chunks"],
)  # fmt: skip
def test_a_body_that_is_cut_off_is_an_error(rest: bytes) -> None:
    with pytest.raises(http.client.IncompleteRead):
        body_of(rest)


def test_of_a_body_that_is_too_long_one_byte_more_is_read() -> None:
    assert body_of(LENGTH + b"0123456789", 5) == b"012345"


def connection_to(stub: HttpStub, **options: Any) -> HttpClientConnection:
    host, port = stub.address.split(":")
    return HttpClientConnection(HttpAddress(host, int(port), False), **options)


def test_a_connection_is_kept_and_opened_again_after_it_was_closed() -> None:
    with http_stub(lambda *_: json_answer({})) as stub, connection_to(stub) as connection:
        assert connection.open()
        connection.exchange("GET", "/")
        assert not connection.open()
        connection.close()
        with pytest.raises(http.client.NotConnected):
            connection.exchange("GET", "/")
        assert connection.open()


def test_an_answer_that_is_too_long_closes_the_connection() -> None:
    with http_stub(lambda *_: (200, {}, bytes(1001))) as stub, connection_to(stub, bytes_max=1000) as connection:
        connection.open()
        with pytest.raises(AnswerTooLongError, match=r"^an answer of more than 1000 bytes$"):
            connection.exchange("GET", "/")
        assert not connection.is_open


def test_a_limit_of_one_answer_does_not_hold_for_the_next() -> None:
    def answer(path: str, _query: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        if path == "/slow":
            time.sleep(0.3)
        return 200, {}, b"body"

    with http_stub(answer) as stub, connection_to(stub) as connection:
        connection.open()
        assert connection.exchange("GET", "/", within_s=0.1).body == b"body"
        assert connection.exchange("GET", "/slow").body == b"body"
        with pytest.raises(LateAnswerError, match=r"^no whole answer within 0\.1 s$"):
            connection.exchange("GET", "/slow", within_s=0.1)


def test_redirects_are_followed_up_to_a_limit() -> None:
    with http_stub(lambda *_: (302, {"Location": "/again"}, b"")) as stub:
        with pytest.raises(http.client.HTTPException, match=r"^stopped after 3 redirects$"):
            fetch(f"http://{stub.address}/", redirects_max=3)
        assert [path for path, _query in stub.requests] == ["/", "/again", "/again"]
        assert fetch(f"http://{stub.address}/", redirects_max=0).status == 302


@pytest.mark.parametrize("url", ["ftp://host/", "http:///path"])
def test_a_url_that_cannot_be_requested_is_an_error(url: str) -> None:
    with pytest.raises(ValueError, match=r"^unsupported URL "):
        fetch(url)


def test_a_host_name_that_no_host_can_have_is_an_error_of_its_own() -> None:
    with pytest.raises(HostNameError, match="is no host name"):
        fetch("http://a..b/")
