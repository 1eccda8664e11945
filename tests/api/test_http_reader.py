"""The reader alone: the same requests come out however the bytes are cut."""

from __future__ import annotations

import pytest

from pyqd.http.messages import Request, Response, Route
from pyqd.http.reader import DROPPED_BYTES_MAX, ReaderState, RequestReader
from pyqd.http.router import Router
from tests.support.ambiguous_http import AMBIGUOUS, AMBIGUOUS_CHUNKS, CHUNKED_BODY

LIMIT_BYTES = 10
STREAM = (
    b"POST /take?a=b HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
    b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"
    b"\r\nPOST /take HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\nTrailer: z\r\n\r\n"
    b"POST /take HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\n\r\nfar too long"
    b"POST /take HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nis far\r\n6\r\n too l\r\n0\r\n\r\n"
    b"GET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
)
EXPECTED = [
    ("POST", "/take?a=b", b"hello", False, True),
    ("GET", "/ping", b"", False, True),
    ("POST", "/take", b"abcdefg", False, True),
    ("POST", "/take", b"", True, True),
    ("POST", "/take", b"is far too", True, True),
    ("GET", "/ping", b"", False, False),
]


def nothing(_request: Request) -> Response:
    raise AssertionError("a reader does not answer")


def reader() -> RequestReader:
    routes = [Route("GET", "/ping", nothing), Route("POST", "/take", nothing, lambda: LIMIT_BYTES)]
    return RequestReader(Router(routes))


def seen(requests: list[Request]) -> list[tuple[str, str, bytes, bool, bool]]:
    return [(r.method, r.target, r.body, r.body_too_big, r.keep_alive) for r in requests]


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64, len(STREAM)])
def test_requests_do_not_depend_on_how_the_bytes_come(step: int) -> None:
    taken = reader()
    for start in range(0, len(STREAM), step):
        taken.feed(memoryview(STREAM)[start : start + step])
    assert seen(taken.ready) == EXPECTED
    assert taken.state == ReaderState.IDLE


def test_requests_split_once_at_any_byte_are_read_alike() -> None:
    for cut in range(len(STREAM)):
        taken = reader()
        taken.feed(memoryview(STREAM)[:cut])
        taken.feed(memoryview(STREAM)[cut:])
        assert seen(taken.ready) == EXPECTED, cut


def assert_refused(data: bytes) -> None:
    """Whole and byte by byte: the reader fails with 400, and later bytes are no request."""
    following = b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"
    whole = reader()
    whole.feed(memoryview(data + following))
    assert (whole.state, whole.failure, whole.ready) == (ReaderState.FAILED, 400, [])
    bytewise = reader()
    for at in range(len(data)):
        if bytewise.state < ReaderState.CUT_SHORT:
            bytewise.feed(memoryview(data)[at : at + 1])
    assert (bytewise.state, bytewise.failure, bytewise.ready) == (ReaderState.FAILED, 400, [])


@pytest.mark.parametrize("headers", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_headers_that_can_be_read_in_two_ways_are_refused(headers: bytes) -> None:
    assert_refused(b"POST /take HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n\r\n" + CHUNKED_BODY)


@pytest.mark.parametrize("body", AMBIGUOUS_CHUNKS.values(), ids=AMBIGUOUS_CHUNKS)
def test_chunks_that_can_be_read_in_two_ways_are_refused(body: bytes) -> None:
    assert_refused(b"POST /take HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + body)


def test_a_chunked_body_of_http_1_0_is_refused() -> None:
    assert_refused(b"POST /take HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED_BODY)


OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\nUpgrade: h2c\r\n\r\n"
OFFERING = (
    b"POST /take HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n" + OFFER + b"hello"
    b"GET /ping HTTP/1.1\r\nHost: x\r\n"
    + OFFER
    + b"POST /take HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
    + OFFER
    + CHUNKED_BODY
    + b"GET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    + OFFER
)


@pytest.mark.parametrize("step", [1, 5, len(OFFERING)])
def test_a_request_that_offers_another_protocol_is_read_as_one_that_does_not(step: int) -> None:
    taken = reader()
    for start in range(0, len(OFFERING), step):
        taken.feed(memoryview(OFFERING)[start : start + step])
    assert seen(taken.ready) == [
        ("POST", "/take", b"hello", False, True),
        ("GET", "/ping", b"", False, True),
        ("POST", "/take", b"abc", False, True),
        ("GET", "/ping", b"", False, False),
    ]


def test_nothing_is_read_behind_a_request_for_a_tunnel() -> None:
    taken = reader()
    taken.feed(memoryview(b"CONNECT /ping HTTP/1.1\r\nHost: x\r\n\r\n" + STREAM))
    assert seen(taken.ready) == [("CONNECT", "/ping", b"", False, False)]


def test_a_repeated_header_that_decides_nothing_is_taken() -> None:
    taken = reader()
    taken.feed(memoryview(b"POST /take HTTP/1.1\r\nHost: x\r\nAccept: a\r\nAccept: b\r\nContent-Length: 1\r\n\r\nx"))
    assert [request.body for request in taken.ready] == [b"x"]


def test_a_body_is_never_held_beyond_the_limit() -> None:
    taken = reader()
    taken.feed(memoryview(b"POST /take HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"))
    count = 0
    while taken.state == ReaderState.BODY:
        taken.feed(memoryview(b"400\r\n" + bytes(1024) + b"\r\n"))
        count += 1
    assert taken.state == ReaderState.CUT_SHORT
    assert taken.cut is not None
    assert len(taken.cut.body) == LIMIT_BYTES
    assert count == DROPPED_BYTES_MAX // 1024 + 1


@pytest.mark.slow
def test_a_long_body_of_tiny_chunks_is_no_overhead() -> None:
    routes = [Route("POST", "/take", nothing, lambda: 1 << 20)]
    taken = RequestReader(Router(routes))
    taken.feed(memoryview(b"POST /take HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"))
    for _ in range(100):
        taken.feed(memoryview(b"1\r\nx\r\n" * 1000))
    taken.feed(memoryview(b"0\r\n\r\n"))
    assert [len(request.body) for request in taken.ready] == [100_000]


def test_a_short_request_after_a_long_one_is_no_overhead() -> None:
    routes = [Route("POST", "/take", nothing, lambda: 1 << 20)]
    taken = RequestReader(Router(routes))
    taken.feed(memoryview(b"POST /take HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" + bytes(999_999)))
    taken.feed(memoryview(b"xPOST /take HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n"))
    taken.feed(memoryview(b"x"))
    assert [len(request.body) for request in taken.ready] == [1_000_000, 1]


def test_chunk_extensions_have_an_end() -> None:
    taken = reader()
    taken.feed(memoryview(b"POST /take HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;"))
    for _ in range(20):
        taken.feed(memoryview(8192 * b"x"))
    assert (taken.state, taken.failure) == (ReaderState.FAILED, 431)


def test_empty_lines_between_requests_have_an_end() -> None:
    taken = reader()
    for _ in range(20):
        taken.feed(memoryview(b"\r\n" * 8192))
    assert (taken.state, taken.failure) == (ReaderState.FAILED, 431)


def test_leave_to_continue_is_asked_for_until_the_body_comes() -> None:
    taken = reader()
    taken.feed(memoryview(b"POST /take HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"))
    assert taken.wants_continue
    taken.feed(memoryview(b"a"))
    assert (taken.wants_continue, taken.ready) == (False, [])
    taken.feed(memoryview(b"b"))
    assert [request.body for request in taken.ready] == [b"ab"]
