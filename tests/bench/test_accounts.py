"""Comparison of a server's counts with the published messages."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

pytest.importorskip("bench.sink", reason="built only with PYQD_BUILD_BENCH=1")

from bench import accounts, runner
from bench.server import RunError, Server, Target, running
from bench.setting import Cores, Setting
from bench.workloads import Workload, find
from pyqd.client.http import HttpClient
from pyqd.hot.tools.loadgen import Load
from pyqd.tools.bench.connections import Connections, Handshake
from tests.bench.brokers import broker

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

TOPIC = runner.TOPIC
SETTING = Setting(cores=Cores())


@pytest.fixture(params=["pyqd", "nsqd"])
def target(request: pytest.FixtureRequest) -> Target:
    return broker(request, request.param)


@pytest.fixture
def server(target: Target) -> Iterator[Server]:
    with running(target) as started:
        yield started


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the wait for wrong figures; right ones are waited for as long as usual."""
    monkeypatch.setattr(accounts, "UNCHANGED_S", 1.0)


def publish(server: Server, messages: int, defer_ms: int = 0) -> None:
    load = Load(messages=messages, body_bytes=16)
    with Connections.open(server.tcp_address, 1, Handshake(), timeout_s=10.0) as connections:
        load.add_publishers(connections.fds(), topic=TOPIC, batch=1, outstanding=1, defer_ms=defer_ms)
        assert runner.run_load(load, 20.0).confirmed == messages


def test_the_messages_of_a_topic_are_compared_with_those_published(server: Server) -> None:
    publish(server, 10)
    accounts.require_published(server, TOPIC, 10)
    with pytest.raises(RunError, match="1 lost, 0 twice"):
        accounts.require_published(server, TOPIC, 11)
    with pytest.raises(RunError, match="0 lost, 1 twice"):
        accounts.require_published(server, TOPIC, 9)


def test_counted_messages_that_were_dropped_are_lost(server: Server) -> None:
    publish(server, 10)
    server.post("/topic/empty", topic=TOPIC)
    with pytest.raises(RunError, match="10 lost, 0 twice: of 10 answered OK the server counts 10 and keeps 0"):
        accounts.require_published(server, TOPIC, 10)


def test_a_topic_that_the_server_does_not_know_has_lost_everything(server: Server) -> None:
    with pytest.raises(RunError, match="3 lost, 0 twice"):
        accounts.require_published(server, TOPIC, 3)


def test_messages_that_were_to_be_deferred_and_are_not_count_as_lost(server: Server) -> None:
    runner.create_channel(server.tcp_address, TOPIC, "c", timeout_s=10.0)
    publish(server, 2, defer_ms=600_000)
    accounts.require_published(server, TOPIC, 2, deferred=True)
    accounts.require_published(server, TOPIC, 2)
    publish(server, 1)
    with pytest.raises(RunError, match="1 lost, 0 twice"):
        accounts.require_published(server, TOPIC, 3, deferred=True)


def test_messages_that_remain_after_all_were_consumed_are_an_error(server: Server) -> None:
    runner.create_channel(server.tcp_address, TOPIC, "c", timeout_s=10.0)
    publish(server, 2)
    with pytest.raises(RunError, match="2 are left when each message had come once"):
        accounts.require_consumed(server, TOPIC, 2)
    server.post("/channel/empty", topic=TOPIC, channel="c")
    accounts.require_consumed(server, TOPIC, 2)
    with pytest.raises(RunError, match="of 3 published the server counts 2"):
        accounts.require_consumed(server, TOPIC, 3)


def small(name: str) -> Workload:
    return replace(find(name), messages=find(name).batch * 5)


@pytest.mark.parametrize("name", ["mpub", "dpub-64", "http-pub"])
def test_a_server_that_answers_ok_and_drops_the_messages_fails_the_run(
    target: Target, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    require = accounts.require_published

    def drop(server: Server, topic: str, messages: int, *, deferred: bool = False) -> None:
        server.post("/topic/delete", topic=topic)
        require(server, topic, messages, deferred=deferred)

    monkeypatch.setattr(accounts, "require_published", drop)
    with pytest.raises(RunError, match=f"{small(name).messages} lost, 0 twice"):
        runner.run_once(small(name), target, SETTING)


@pytest.mark.parametrize("name", ["consume-4", "consume-snappy", "e2e", "fanout-16"])
def test_a_message_that_lies_in_the_queue_behind_the_last_one_fails_the_run(
    target: Target, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    require = accounts.require_consumed

    def double(server: Server, topic: str, messages: int) -> None:
        publish(server, 1)
        require(server, topic, messages)

    monkeypatch.setattr(accounts, "require_consumed", double)
    workload = small(name)
    text = (
        f"of {workload.messages} published the server counts {workload.messages + 1}, and {workload.channels} are left"
    )
    with pytest.raises(RunError, match=text):
        runner.run_once(workload, target, SETTING)


def test_a_server_without_statistics_of_kept_messages_fails_the_run() -> None:
    silent = replace(Target.parse("sink"), program="pyqd")
    with running(silent) as server:
        silent_client = HttpClient(f"127.0.0.1:{server.http_address[1]}", timeout_s=0.2, retry_timeout_s=0.0)
        server.http = lambda: silent_client  # type: ignore[method-assign]
        with pytest.raises(RunError, match="/stats is not answered"):
            accounts.read_stock(server, TOPIC)


def test_figures_that_are_still_changing_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def stock(depth: int) -> accounts.Stock:
        return accounts.Stock(message_count=3, topic_depth=depth, channel_depth=0, in_flight=0, deferred=0)

    answers = iter([stock(1), stock(2), stock(3)])
    monkeypatch.setattr(accounts, "read_stock", lambda server, topic: next(answers))
    with running(Target.parse("sink")) as server:
        accounts.require_published(server, TOPIC, 3)


@pytest.mark.parametrize("answer", [b"[]", b"{}", b'{"topics": [{"topic_name": "bench"}]}'])
def test_an_answer_without_statistics_is_an_error(answer: bytes) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Print nothing on standard error."""

    with HTTPServer(("127.0.0.1", 0), Answer) as http, running(Target.parse("sink")) as server:
        thread = threading.Thread(target=http.handle_request)
        thread.start()
        with pytest.raises(RunError, match="does not tell of the topic"):
            accounts.read_stock(replace(server, http_address=("127.0.0.1", http.server_port)), TOPIC)
        thread.join()
