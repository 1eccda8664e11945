"""pyq_to_http and nsq_to_http: messages go to HTTP servers, and are finished when these took them."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator

import pytest

from tests.support.http_target import Answer, HttpTarget, http_target
from tests.support.server import free_port, wait_until
from tests.support.tools import finished

TOOL = "pyq_to_http"
NSQD = "--nsqd-tcp-address=127.0.0.1:1"
LOOKUPD = "--lookupd-http-address=127.0.0.1:1"
POST = "--post=http://127.0.0.1:1/"
GET = "--get=http://127.0.0.1:1/%s"
# Messages that fail come again soon.
QUICK = ("--consumer-opt=max_requeue_delay,10ms", "--consumer-opt=backoff_multiplier,10ms")


@pytest.fixture
def to_http(start, address, topic):
    base = (f"--topic={topic}", "--channel=c", f"--nsqd-tcp-address={address}", "--consumer-opt=output_buffer_size,-1")
    return lambda *arguments: start(TOOL, *base, *arguments)


class TestRequests:
    def test_a_message_is_posted(self, to_http, publish, broker, topic, target) -> None:
        bodies = [b"one", b"\x00\xff", b"a\r\n\r\nb", b"x" * 100_000]
        publish(*bodies)
        tool = to_http(f"--post={target.url}/path?query=1", "--header=X-Own: a: b", "--content-type=text/plain")
        finished(broker, topic)
        assert tool.stop().code == 0
        assert sorted(target.bodies) == sorted(bodies)
        for taken in target.requests:
            assert (taken.method, taken.path, taken.headers["Host"]) == ("POST", "/path?query=1", target.url[7:])
            assert (taken.headers["X-Own"], taken.headers["Content-Type"]) == ("a: b", "text/plain")
            assert taken.headers["Content-Length"] == str(len(taken.body))
            assert re.fullmatch(r"(pyq|nsq)_to_http v[0-9.]+", taken.headers["User-Agent"])

    def test_the_default_content_type_and_own_values_of_known_headers(
        self, to_http, publish, broker, topic, target
    ) -> None:
        publish(b"one")
        tool = to_http(f"--post={target.url}", "--header=user-agent: mine")
        finished(broker, topic)
        assert tool.stop(signal.SIGINT).code == 0
        headers = {name.lower(): value for name, value in target.requests[0].headers.items()}
        assert (headers["content-type"], headers["user-agent"]) == ("application/octet-stream", "mine")
        assert target.requests[0].path == "/"

    def test_a_message_is_a_part_of_a_get(self, to_http, publish, broker, topic, target) -> None:
        publish(b"a b", "ü/&%\0".encode())
        tool = to_http(f"--get={target.url}/p?m=%s&x=y")
        finished(broker, topic)
        assert tool.stop().code == 0
        paths = sorted(taken.path for taken in target.requests)
        assert paths == ["/p?m=%C3%BC%2F%26%25%00&x=y", "/p?m=a+b&x=y"]
        assert {taken.method for taken in target.requests} == {"GET"}
        assert "Content-Type" not in target.requests[0].headers

    def test_many_requests_run_at_the_same_time(self, to_http, publish, broker, topic, target) -> None:
        together = threading.Barrier(5)

        def answer(taken):
            together.wait(10)
            return Answer()

        target.answer = answer
        publish(*[b"%d" % number for number in range(10)])
        tool = to_http(f"--post={target.url}", "-n=5")
        finished(broker, topic)
        assert tool.stop().code == 0
        assert len(target.bodies) == 10
        assert not together.broken


class TestFailures:
    @pytest.mark.parametrize(("method", "status"), [("post", 300), ("post", 404), ("get", 204)])
    def test_a_message_that_is_refused_comes_again(
        self, to_http, publish, broker, topic, target, method, status
    ) -> None:
        first = iter([Answer(status)])
        target.answer = lambda taken: next(first, Answer())
        publish(b"one")
        tool = to_http(f"--{method}={target.url}/{'%s' if method == 'get' else ''}", *QUICK)
        finished(broker, topic, requeue_count=1)
        assert tool.stop().code == 0
        assert len(target.requests) == 2
        assert f"got status code {status}" in tool.err

    def test_a_server_that_is_down_gets_the_messages_later(self, to_http, publish, broker, topic, target) -> None:
        url = f"http://127.0.0.1:{free_port()}"
        publish(b"one")
        tool = to_http(f"--post={url}", *QUICK)
        wait_until(lambda: (broker.channel(topic, "c") or {"requeue_count": 0})["requeue_count"] >= 1, "a requeue")
        assert tool.stop().code == 0
        tool = to_http(f"--post={target.url}")
        finished(broker, topic)
        assert tool.stop().code == 0
        assert target.bodies == [b"one"]

    def test_a_message_for_a_slow_server_comes_again(self, to_http, publish, broker, topic, target) -> None:
        released = threading.Event()
        slow = iter([True])

        def answer(taken):
            if next(slow, False):
                released.wait(10)
            return Answer()

        target.answer = answer
        publish(b"one")
        tool = to_http(f"--post={target.url}", "--http-client-request-timeout=100ms", *QUICK)
        finished(broker, topic, requeue_count=1)
        released.set()
        assert tool.stop().code == 0
        assert target.bodies == [b"one"] * 2

    def test_a_timeout_of_zero_is_none(self, to_http, publish, broker, topic, target) -> None:
        publish(b"one")
        tool = to_http(f"--post={target.url}", "--http-client-request-timeout=0", "--http-client-connect-timeout=0s")
        finished(broker, topic)
        assert tool.stop().code == 0
        assert target.bodies == [b"one"]

    def test_a_signal_waits_for_the_requests(self, to_http, publish, broker, topic, target) -> None:
        asked, released = threading.Event(), threading.Event()

        def answer(taken):
            asked.set()
            released.wait(10)
            return Answer()

        target.answer = answer
        publish(b"one")
        tool = to_http(f"--post={target.url}")
        assert asked.wait(10)
        tool.process.send_signal(signal.SIGTERM)
        released.set()
        assert tool.wait().code == 0
        finished(broker, topic)


class TestModes:
    @pytest.fixture
    def two(self) -> Iterator[list[HttpTarget]]:
        with http_target() as first, http_target() as second:
            yield [first, second]

    def test_any_other_mode_means_all(self, to_http, publish, broker, topic, two) -> None:
        publish(b"1", b"2")
        tool = to_http("--mode=multicast", *(f"--post={each.url}" for each in two))
        finished(broker, topic)
        assert tool.stop().code == 0
        assert [sorted(each.bodies) for each in two] == [[b"1", b"2"]] * 2

    @pytest.mark.parametrize("mode", ["hostpool", "epsilon-greedy"])
    def test_a_server_that_is_down_is_avoided(self, to_http, publish, broker, topic, target, mode) -> None:
        bodies = [b"%d" % number for number in range(20)]
        publish(*bodies)
        down = f"--post=http://127.0.0.1:{free_port()}"
        tool = to_http(f"--mode={mode}", down, f"--post={target.url}", "-n=1", *QUICK)
        finished(broker, topic)
        assert tool.stop().code == 0
        assert sorted(target.bodies) == sorted(bodies)

    def test_a_sample_of_nothing_finishes_all(self, to_http, publish, broker, topic, target) -> None:
        publish(*[b"%d" % number for number in range(50)])
        tool = to_http("--sample=0", f"--post={target.url}")
        finished(broker, topic)
        assert tool.stop().code == 0
        assert target.bodies == []

    def test_status_lines_come_after_every_so_many_messages(self, to_http, publish, broker, topic, two) -> None:
        publish(*[b"%d" % number for number in range(250)])
        tool = to_http("--status-every=100", "--mode=all", *(f"--post={each.url}" for each in two))
        finished(broker, topic)
        assert tool.stop().code == 0
        times = r"99th: \d+\.\d\dms - 95th: \d+\.\d\dms - avg: \d+\.\d\dms"
        for prefix in ("aggregate", two[0].url, two[1].url):
            assert len(re.findall(rf"\[{re.escape(prefix)}\]: finished 100 - {times}\n", tool.err)) == 2


@pytest.mark.parametrize("tools", ["ours"], indirect=True)
class TestWhatTheOriginalLacks:
    def test_a_passing_failure_is_retried_before_the_message_is_requeued(
        self, to_http, publish, broker, topic, target
    ) -> None:
        failures = iter([Answer(503), Answer(is_silent=True)])
        target.answer = lambda taken: next(failures, Answer())
        publish(b"one")
        tool = to_http(f"--post={target.url}", "--retry-delay=1ms")
        finished(broker, topic, requeue_count=0)
        assert tool.stop().code == 0
        assert target.bodies == [b"one"] * 3

    @pytest.mark.parametrize(
        ("arguments", "mistake"),
        [
            (("--post=localhost:80/",), "localhost:80/: expected a URL that begins with http:// or https://"),
            ((POST, "-n=0"), "--n should be positive"),
            ((POST, "--http-client-request-timeout=-1s"), "--http-client-request-timeout must not be negative"),
            ((POST, "--header=Content-Length: 5"), "--header: Content-Length is set by the tool"),
        ],
    )
    def test_more_mistakes_are_found_at_the_start(self, run, arguments, mistake) -> None:
        result = run(TOOL, "--topic=t", NSQD, *arguments)
        assert (result.code, result.mistake()) == (1, mistake)

    def test_a_message_is_given_up_after_the_attempts_that_are_wanted(
        self, to_http, publish, broker, topic, target
    ) -> None:
        target.answer = lambda taken: Answer(400)
        publish(b"one")
        tool = to_http(f"--post={target.url}", *QUICK, "--consumer-opt=max_attempts,2")
        tool.wait_for_error("attempted 3 times, giving up")
        finished(broker, topic)
        assert tool.stop().code == 0
        assert target.bodies == [b"one"] * 2
