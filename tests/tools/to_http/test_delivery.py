"""Delivery of messages to HTTP servers: success, redirects, retries, the choice of an address."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from pyqd.tools.targets import HostPool, RoundRobin, Targets
from pyqd.tools.to_http.connection import ServerConnections
from pyqd.tools.to_http.delivery import Delivery, DeliveryError, Sender, get_requests, post_requests
from tests.support.http_target import Answer, HttpTarget, Taken, http_target
from tests.support.server import free_port

TIMEOUT_S = 10.0


def script(*answers: Answer) -> Callable[[Taken], Answer]:
    """Return a function that gives these answers, the last one for ever."""
    rest = list(answers)
    return lambda taken: rest.pop(0) if len(rest) > 1 else rest[0]


def statuses(*numbers: int) -> Callable[[Taken], Answer]:
    return script(*map(Answer, numbers))


def deliver(
    *urls: str,
    targets: Targets | None = None,
    method: str = "post",
    bodies: tuple[bytes, ...] = (b"body",),
    headers: dict[str, str] | None = None,
    retries: int = 0,
    timeout_s: float = TIMEOUT_S,
) -> str:
    """Deliver messages; return the error of the last one, or nothing."""

    async def run() -> str:
        connections = ServerConnections(TIMEOUT_S)
        sender = Sender(connections, headers or {"User-Agent": "x"}, timeout_s)
        make = post_requests if method == "post" else get_requests
        delivery = Delivery(sender, urls, [make(url) for url in urls], targets, retries, 0.001, 0)
        error = ""
        for body in bodies:
            try:
                await delivery.deliver(body)
                error = ""
            except DeliveryError as failure:
                error = str(failure)
        connections.close()
        return error

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("method", "status", "error"),
    [
        ("post", 200, ""),
        ("post", 299, ""),
        ("post", 204, ""),
        ("post", 300, "got status code 300"),
        ("post", 500, "got status code 500"),
        ("get", 200, ""),
        ("get", 204, "got status code 204"),
        ("get", 404, "got status code 404"),
    ],
)
def test_the_status_of_an_answer_decides_whether_a_delivery_has_failed(
    target: HttpTarget, method: str, status: int, error: str
) -> None:
    target.answer = statuses(status)
    path = "/%s" if method == "get" else "/"
    assert deliver(target.url + path, method=method) == error


def test_a_post_has_the_message_as_its_body(target: HttpTarget) -> None:
    bodies = (b"", b"\x00\xff\r\n\r\n", b"x" * 1_000_000)
    assert deliver(target.url, bodies=bodies, headers={"User-Agent": "u", "X-A": "é", "Content-Type": "c"}) == ""
    assert target.bodies == list(bodies)
    assert target.requests[0].headers == {
        "Host": target.url[7:], "User-Agent": "u", "X-A": "\xc3\xa9", "Content-Type": "c", "Content-Length": "0",
    }  # fmt: skip
    assert {taken.connection for taken in target.requests} == {0}


def test_a_get_has_the_message_in_its_url(target: HttpTarget) -> None:
    assert deliver(f"{target.url}/a?m=%s", method="get", bodies=(b"a b&",)) == ""
    assert (target.requests[0].method, target.requests[0].path) == ("GET", "/a?m=a+b%26")


def test_the_host_header_may_be_given(target: HttpTarget) -> None:
    assert deliver(target.url, headers={"host": "other"}) == ""
    assert target.requests[0].headers["Host"] == "other"


class TestRedirects:
    @pytest.mark.parametrize(
        ("status", "method", "body"),
        [(301, "GET", b""), (302, "GET", b""), (303, "GET", b""), (307, "POST", b"body"), (308, "POST", b"body")],
    )
    def test_a_redirect_is_followed(self, target: HttpTarget, status: int, method: str, body: bytes) -> None:
        target.answer = script(Answer(status, {"Location": "/there"}), Answer(200))
        assert deliver(target.url) == ""
        taken = target.requests[1]
        assert (taken.method, taken.path, taken.body) == (method, "/there", body)

    def test_secrets_do_not_follow_to_another_server(self, target: HttpTarget) -> None:
        headers = {"Authorization": "Bearer s", "Cookie": "c", "X-A": "b"}
        with http_target() as other:
            target.answer = script(Answer(307, {"Location": f"{other.url}/"}))
            assert deliver(target.url, headers=headers) == ""
        assert headers.items() <= target.requests[0].headers.items()
        assert set(other.requests[0].headers) == {"Host", "X-A", "Content-Length"}

    def test_user_and_password_of_a_url_are_sent(self, target: HttpTarget) -> None:
        assert deliver(target.url.replace("//", "//me:secret@")) == ""
        assert target.requests[0].headers["Authorization"] == "Basic bWU6c2VjcmV0"

    def test_redirects_without_end_are_an_error(self, target: HttpTarget) -> None:
        target.answer = script(Answer(307, {"Location": "/"}))
        assert deliver(target.url) == "stopped after 10 redirects"
        assert len(target.requests) == 11

    def test_a_redirect_to_no_http_server_is_an_error(self, target: HttpTarget) -> None:
        target.answer = script(Answer(307, {"Location": "ftp://x/"}))
        assert "expected a URL" in deliver(target.url, retries=3)
        assert len(target.requests) == 1


class TestRetries:
    @pytest.mark.parametrize("first", [Answer(429), Answer(500), Answer(503), Answer(is_silent=True)])
    def test_a_failure_that_may_pass_is_retried(self, target: HttpTarget, first: Answer) -> None:
        target.answer = script(first, first, Answer(200))
        assert deliver(target.url, retries=2) == ""
        assert target.bodies == [b"body"] * 3

    def test_the_last_failure_counts(self, target: HttpTarget) -> None:
        target.answer = statuses(503, 502, 500, 200)
        assert deliver(target.url, retries=2) == "got status code 500"

    def test_a_port_without_a_server_is_tried_again(self) -> None:
        assert deliver(f"http://127.0.0.1:{free_port()}", retries=1) == "cannot connect: Connection refused"

    @pytest.mark.parametrize("status", [400, 404, 413, 501])
    def test_a_failure_that_lasts_is_not_retried(self, target: HttpTarget, status: int) -> None:
        target.answer = statuses(status)
        assert deliver(target.url, retries=5) == f"got status code {status}"
        assert len(target.requests) == 1

    def test_a_slow_server_is_not_asked_again(self, target: HttpTarget) -> None:
        released = threading.Event()

        def wait(taken: Taken) -> Answer:
            released.wait(TIMEOUT_S)
            return Answer()

        target.answer = wait
        assert deliver(target.url, retries=5, timeout_s=0.05) == "no response in time"
        released.set()
        assert len(target.requests) == 1


class TestSeveral:
    @pytest.fixture
    def three(self) -> Iterator[list[HttpTarget]]:
        with ExitStack() as stack:
            yield [stack.enter_context(http_target()) for _ in range(3)]

    def test_targets_of_a_round_robin_get_messages_in_turn(self, three: list[HttpTarget]) -> None:
        assert deliver(*(each.url for each in three), targets=RoundRobin(3), bodies=(b"1", b"2", b"3", b"4")) == ""
        assert [each.bodies for each in three] == [[b"3"], [b"1", b"4"], [b"2"]]

    def test_a_retry_goes_to_the_next_server_of_a_pool(self, three: list[HttpTarget]) -> None:
        three[0].answer = statuses(503)
        assert deliver(*(each.url for each in three), targets=HostPool(3), bodies=(b"1", b"2"), retries=1) == ""
        assert [each.bodies for each in three] == [[b"1"], [b"1"], [b"2"]]

    def test_all_get_each_message(self, three: list[HttpTarget]) -> None:
        assert deliver(*(each.url for each in three), bodies=(b"1", b"2")) == ""
        assert [each.bodies for each in three] == [[b"1", b"2"]] * 3

    def test_the_first_failure_of_all_ends_the_delivery(self, three: list[HttpTarget]) -> None:
        three[1].answer = statuses(400)
        assert deliver(*(each.url for each in three)) == "got status code 400"
        assert [len(each.requests) for each in three] == [1, 1, 0]

    def test_a_retry_to_all_repeats_only_the_one_that_failed(self, three: list[HttpTarget]) -> None:
        three[1].answer = statuses(503, 200)
        assert deliver(*(each.url for each in three), retries=1) == ""
        assert [len(each.requests) for each in three] == [1, 2, 1]
