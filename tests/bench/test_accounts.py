"""Comparison of a server's counts with the published messages."""

import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

pytest.importorskip("bench.sink", reason="built only with PYQD_BUILD_BENCH=1")

from bench import accounts, runner
from bench.accounts import Account
from bench.server import Server, ServerError, Target, running
from bench.setting import Cores, Setting
from bench.workloads import Workload, find
from pyqd.hot.tools.loadgen import Load
from pyqd.tools.bench.connections import Connections, Handshake, create_channel
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
        assert load.run(20.0).confirmed == messages


def post(server: Server, path: str) -> None:
    host, port = server.http_address
    urllib.request.urlopen(urllib.request.Request(f"http://{host}:{port}{path}", method="POST"), timeout=10).close()


def counts(account: Account) -> tuple[int, int, bool]:
    return account.losses, account.duplicates, bool(account.problem)


def test_the_messages_of_a_topic_are_compared_with_those_published(server: Server) -> None:
    publish(server, 10)
    assert accounts.of_publication(server, TOPIC, 10) == Account()
    assert counts(accounts.of_publication(server, TOPIC, 11)) == (1, 0, True)
    assert counts(accounts.of_publication(server, TOPIC, 9)) == (0, 1, True)


def test_counted_messages_that_were_dropped_are_lost(server: Server) -> None:
    publish(server, 10)
    post(server, f"/topic/empty?topic={TOPIC}")
    account = accounts.of_publication(server, TOPIC, 10)
    assert counts(account) == (10, 0, True)
    assert account.problem.startswith("10 lost, 0 twice: of 10 answered OK the server counts 10 and keeps 0")


def test_a_topic_that_the_server_does_not_know_has_lost_everything(server: Server) -> None:
    assert counts(accounts.of_publication(server, TOPIC, 3)) == (3, 0, True)


def test_messages_that_were_to_be_deferred_and_are_not_count_as_lost(server: Server) -> None:
    create_channel(server.tcp_address, TOPIC, "c", timeout_s=10.0)
    publish(server, 2, defer_ms=600_000)
    assert accounts.of_publication(server, TOPIC, 2, deferred=True) == Account()
    assert accounts.of_publication(server, TOPIC, 2) == Account()
    publish(server, 1)
    assert counts(accounts.of_publication(server, TOPIC, 3, deferred=True)) == (1, 0, True)


def test_messages_that_remain_after_all_were_consumed_are_duplicates(server: Server) -> None:
    create_channel(server.tcp_address, TOPIC, "c", timeout_s=10.0)
    publish(server, 2)
    account = accounts.of_consumption(server, TOPIC, 2)
    assert counts(account) == (0, 2, True)
    assert account.problem.startswith("2 left when each message had come once")
    post(server, f"/channel/empty?topic={TOPIC}&channel=c")
    assert accounts.of_consumption(server, TOPIC, 2) == Account()
    assert accounts.of_consumption(server, TOPIC, 3).problem == "of 3 published the server counts 2"


def small(name: str) -> Workload:
    return replace(find(name), messages=find(name).batch * 5)


@pytest.mark.parametrize("name", ["mpub", "dpub-64", "http-pub"])
def test_a_server_that_answers_ok_and_drops_the_messages_fails_the_run(
    target: Target, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = accounts.of_publication

    def drop(server: Server, topic: str, messages: int, *, deferred: bool = False) -> Account:
        post(server, f"/topic/delete?topic={topic}")
        return ask(server, topic, messages, deferred=deferred)

    monkeypatch.setattr(accounts, "of_publication", drop)
    result = runner.run_once(small(name), target, SETTING)
    assert (result.losses, result.duplicates) == (result.messages, 0)
    assert f"{result.messages} lost, 0 twice" in result.problem


@pytest.mark.parametrize("name", ["consume-4", "consume-snappy", "e2e", "fanout-16"])
def test_a_message_that_lies_in_the_queue_behind_the_last_one_fails_the_run(
    target: Target, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = accounts.of_consumption

    def double(server: Server, topic: str, messages: int) -> Account:
        publish(server, 1)
        return ask(server, topic, messages)

    monkeypatch.setattr(accounts, "of_consumption", double)
    workload = small(name)
    result = runner.run_once(workload, target, SETTING)
    assert (result.losses, result.duplicates) == (0, workload.channels)
    assert f"0 lost, {workload.channels} twice" in result.problem
    assert f"of {workload.messages} published the server counts {workload.messages + 1}" in result.problem


def test_a_server_without_statistics_of_kept_messages_fails_the_run() -> None:
    silent = replace(Target.parse("sink"), program="pyqd")
    result = runner.run_once(small("mpub"), silent, SETTING)
    assert result.problem.startswith("ServerError: /stats is not answered: ")


def test_losses_and_duplicates_are_figures_and_a_sink_has_no_duplicates_of_a_publication(target: Target) -> None:
    for name in ("mpub", "e2e"):
        figures = runner.run_once(small(name), target, SETTING).figures
        assert (figures["lost_count"], figures["twice_count"]) == (0, 0)
    assert "twice_count" not in runner.run_once(small("mpub"), Target.parse("sink"), SETTING).figures


def test_figures_that_are_still_changing_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def stock(depth: int) -> accounts.Stock:
        return accounts.Stock(message_count=3, topic_depth=depth, channel_depth=0, in_flight=0, deferred=0)

    answers = iter([stock(1), stock(2), stock(3)])
    monkeypatch.setattr(accounts, "read_stock", lambda server, topic: next(answers))
    with running(Target.parse("sink")) as server:
        assert accounts.of_publication(server, TOPIC, 3) == Account()


@pytest.mark.parametrize("answer", [b"OK", b"[]", b"{}", b'{"topics": [{"topic_name": "bench"}]}'])
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
        with pytest.raises(ServerError, match="does not tell of the topic"):
            accounts.read_stock(replace(server, http_address=("127.0.0.1", http.server_port)), TOPIC)
        thread.join()
