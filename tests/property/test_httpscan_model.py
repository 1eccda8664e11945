"""The fast path of a plain publish against the parser and the routes, which define the meaning of a request."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyqd.api.publish import is_binary
from pyqd.hot.api.plain_scan import plain_publish
from pyqd.http.messages import Request, Response, Route
from pyqd.http.reader import ReaderState, RequestReader
from pyqd.http.router import Router
from pyqd.primitives.names import is_valid_name_str
from tests.support.ambiguous_http import AMBIGUOUS, CHUNKED_BODY

BODY_MAX = 12
BATCH_MAX = 14
END = b" HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
PLAIN = b"POST /pub?topic=t" + END
PLAIN_OF = {"pub": PLAIN, "lines": b"POST /mpub?topic=t" + END, "binary": b"POST /mpub?topic=t&binary=true" + END}


def unused(_request: Request) -> Response:
    raise AssertionError("a reader does not answer")


def parsed(data: bytes) -> tuple[list[Request], RequestReader]:
    routes = [Route("POST", "/pub", unused, lambda: BODY_MAX), Route("POST", "/mpub", unused, lambda: BATCH_MAX)]
    reader = RequestReader(Router(routes))
    reader.feed(memoryview(data))
    return reader.ready, reader


def assert_agrees(data: bytes) -> None:
    """The parser takes every publish that the scan takes as the same publish, with nothing left over."""
    found = plain_publish(data, BODY_MAX, BATCH_MAX)
    if found is None:
        return
    form, topic, body, used = found
    requests, reader = parsed(data[:used])
    assert reader.state == ReaderState.IDLE
    (request,) = requests
    query = request.query()
    assert (request.method, request.path, request.version) == ("POST", "/pub" if form == "pub" else "/mpub", "1.1")
    assert request.query_text == f"topic={topic.decode()}" + "&binary=true" * (form == "binary")
    assert is_binary(query.get("binary")) == (form == "binary")
    assert query.get("topic") == topic.decode()
    assert is_valid_name_str(topic.decode())
    assert request.body == body
    assert not request.body_too_big
    assert request.keep_alive


HEADERS = st.sampled_from(
    [
        b"Host: x",
        b"host:x",
        b"Content-Length: 5",
        b"Content-Length: 14",
        b"content-length:5",
        b"Content-Length:  5",
        b"Content-Length: 05",
        b"Content-Length: 4, 5",
        b"Content-Length: -1",
        b"Content-Length: 99",
        b"Content-Length : 5",
        b"User-Agent: curl",
        b"Accept: */*",
        b"Connection: keep-alive",
        b"Connection: Keep-Alive",
        b"Connection: close",
        b"Connection: keep-alive, upgrade",
        b"Upgrade: h2c",
        b"Transfer-Encoding: chunked",
        b"Expect: 100-continue",
        b"Content-Type: text/plain\x00",
        b"Content-Type: \xc3\xa4",
        b" folded",
        b"no colon",
        b": empty",
    ]
)
STARTS = st.sampled_from(
    [
        b"POST /pub?topic=t HTTP/1.1",
        b"POST /pub?topic=t#ephemeral HTTP/1.1",
        b"POST /pub?topic=%74 HTTP/1.1",
        b"POST /pub?topic= HTTP/1.1",
        b"POST /pub?topic=t&defer=5 HTTP/1.1",
        b"POST /pub?topic=t HTTP/1.0",
        b"POST /pub?topic=t  HTTP/1.1",
        b"POST /pub?topic=" + b"n" * 65 + b" HTTP/1.1",
        b"POST /pub?topic=a.b-c_D9 HTTP/1.1",
        b"GET /pub?topic=t HTTP/1.1",
        b"POST /pub?topic=t&binary=true HTTP/1.1",
        b"POST /mpub?topic=t HTTP/1.1",
        b"POST /mpub?topic=t&binary=true HTTP/1.1",
        b"POST /mpub?topic=t&binary=false HTTP/1.1",
        b"POST /mpub?topic=&binary=true HTTP/1.1",
        b"POST /mpub?topic=t&defer=5&binary=true HTTP/1.1",
        b"POST /mpub?topic=a&topic=t&binary=true HTTP/1.1",
        b"POST /mpub?binary=true&topic=t HTTP/1.1",
    ]
)


@given(STARTS, st.lists(HEADERS, max_size=5), st.sampled_from([b"\r\n", b"\n"]), st.binary(max_size=16))
def test_the_scan_and_the_parser_accept_the_same_requests(
    start: bytes, headers: list[bytes], line_end: bytes, body: bytes
) -> None:
    assert_agrees(line_end.join([start, *headers, b"", b""]) + body)


@given(
    st.sampled_from(sorted(PLAIN_OF)), st.integers(0, len(PLAIN_OF["binary"]) - 1), st.integers(0, 255), st.booleans()
)
@example("pub", 17, 0x20, True)
def test_one_byte_changed_or_added_makes_no_difference_between_them(
    form: str, at: int, value: int, added: bool
) -> None:
    plain = PLAIN_OF[form]
    assert_agrees(plain[:at] + bytes([value]) + plain[at if added else at + 1 :])


@pytest.mark.parametrize("headers", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_requests_that_the_parser_finds_ambiguous_are_not_plain(headers: bytes) -> None:
    start = b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\n"
    # A body of 13 bytes, which each of the lengths has.
    assert plain_publish(start + headers + b"\r\n\r\n" + CHUNKED_BODY, 20, 20) is None


@pytest.mark.parametrize("form", PLAIN_OF)
def test_no_prefix_of_a_request_is_plain(form: str) -> None:
    plain = PLAIN_OF[form]
    for size in range(len(plain)):
        assert plain_publish(plain[:size], BODY_MAX, BATCH_MAX) is None
    assert plain_publish(plain + plain, BODY_MAX, BATCH_MAX) == (form, b"t", b"hello", len(plain))


def test_the_requests_of_common_clients_are_plain() -> None:
    curl = (
        b"POST /pub?topic=test HTTP/1.1\r\nHost: 127.0.0.1:4151\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n"
        b"Content-Length: 5\r\nContent-Type: application/x-www-form-urlencoded\r\n\r\nhello"
    )
    requests = (
        b"POST /pub?topic=test HTTP/1.1\r\nHost: 127.0.0.1:4151\r\nUser-Agent: python-requests/2.31.0\r\n"
        b"Accept-Encoding: gzip, deflate\r\nAccept: */*\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello"
    )
    go = (
        b"POST /pub?topic=test HTTP/1.1\r\nHost: 127.0.0.1:4151\r\nUser-Agent: Go-http-client/1.1\r\n"
        b"Content-Length: 5\r\nContent-Type: text/plain\r\nAccept-Encoding: gzip\r\n\r\nhello"
    )
    for data in (curl, requests, go):
        assert plain_publish(data, BODY_MAX, BATCH_MAX) == ("pub", b"test", b"hello", len(data))


def test_a_body_beyond_the_limit_is_not_plain() -> None:
    over = b"/pub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: 13\r\n\r\n" + b"x" * 13
    assert plain_publish(b"POST " + over, 12, 13) is None
    assert plain_publish(b"POST " + over, 13, 12) is not None
    over = over.replace(b"/pub", b"/mpub")
    assert plain_publish(b"POST " + over, 13, 12) is None
    assert plain_publish(b"POST " + over, 12, 13) is not None
