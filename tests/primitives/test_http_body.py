"""Bodies of HTTP answers: complete, cut off, too long, with and without an announced length."""

from __future__ import annotations

import http.client
import socket

import pytest

from pyqd.primitives.http_body import read_body

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
