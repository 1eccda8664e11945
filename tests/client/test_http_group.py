"""HTTP calls that go to all brokers of a group."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyqd.client import LookupFailedError, NotConnectedError, Producer, http_group
from pyqd.client.http_group import HttpGroup
from pyqd.client.settings import make_settings, parse_targets
from tests.support.http_stub import Answer, http_stub, json_answer, lookup_answers
from tests.support.server import Daemon, daemons_running, free_port, pyqd
from tests.support.workers import url_of

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[Daemon]]:
    """Two daemons with one message each in the topic `work`, and a second one in the first daemon."""
    with daemons_running() as start:
        daemons = [start(Daemon(pyqd(), tmp_path / str(number))) for number in range(2)]
        for daemon, count in zip(daemons, (2, 1), strict=True):
            with Producer(f"127.0.0.1:{daemon.tcp_port}") as producer:
                for _ in range(count):
                    producer.publish("work", b"x")
        yield daemons


def group(*daemons: Daemon) -> HttpGroup:
    targets = parse_targets(url_of(*daemons), None)
    return HttpGroup(targets, make_settings(targets.settings))


def test_the_size_is_that_of_all_brokers(pair: list[Daemon]) -> None:
    api = group(*pair)
    assert api.size("work", "all") == 3
    api.create_channel("work", "all")
    assert api.size("work", "all") == 3
    assert api.size("nothing", "all") == 0
    assert [api.has_topic(name) for name in ("work", "nothing")] == [True, False]


def test_emptying_drops_what_no_channel_has_received_and_what_the_channel_has(pair: list[Daemon]) -> None:
    api = group(*pair)
    group(pair[0]).create_channel("work", "all")
    api.empty("work", "all")
    assert api.size("work", "all") == 0


@pytest.mark.slow
def test_topics_and_channels_are_deleted_at_all_brokers(pair: list[Daemon]) -> None:
    api = group(*pair)
    api.create_channel("work", "all")
    api.delete_channel("work", "all")
    assert [daemon.channel("work", "all") for daemon in pair] == [None, None]
    api.delete_topic("work")
    api.delete_topic("work")
    assert [daemon.topic("work") for daemon in pair] == [None, None]


@pytest.mark.slow
def test_a_broker_without_http_is_named_in_the_error() -> None:
    port = free_port()
    targets = parse_targets(f"pyqd://127.0.0.1?http=127.0.0.1:{port}", None)
    with pytest.raises(NotConnectedError, match=f"127.0.0.1:{port}"):
        HttpGroup(targets, make_settings(targets.settings)).size("work", "all")


@pytest.mark.parametrize("form", ["{}", "http://{}", "http://{}/"])
def test_a_broker_that_the_settings_and_a_lookup_daemon_name_counts_once(form: str) -> None:
    topics = {"topics": [{"topic_name": "work", "depth": 3, "channels": []}]}

    def answer(path: str, query: dict[str, str]) -> Answer:
        return json_answer(topics) if path == "/stats" else lookup_answers({"work": [stub.address]})(path, query)

    with http_stub(answer) as stub:
        targets = parse_targets(None, stub.address)
        api = HttpGroup(targets, make_settings({"http": form.format(stub.address)}))
        assert api.size("work", "all") == 3


def test_a_broker_with_and_without_its_port_counts_once() -> None:
    http = "LOCALHOST, localhost:4151, http://localhost, https://localhost, [::1], /run/one, /run/two"
    clients = list(HttpGroup(parse_targets("127.0.0.1", None), make_settings({"http": http}))._clients())
    assert [client.address for client in clients] == ["LOCALHOST", "https://localhost", "[::1]", "/run/one", "/run/two"]


class TestWithoutLookupDaemons:
    """No lookup daemon answers, and a broker is given."""

    @pytest.fixture
    def calls(self) -> list[str]:
        """Paths of the calls to the broker."""
        return []

    @pytest.fixture
    def api(self, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpGroup]:
        monkeypatch.setattr(http_group, "RETRY_S", 0.0)

        def answer(path: str, query: dict[str, str]) -> Answer:
            calls.append(path)
            if path == "/stats":
                return json_answer({"topics": [{"topic_name": "work", "depth": 3, "channels": []}]})
            if query.get("id") == "0000000000000001":
                return json_answer({"results": [{"channel": "all", "status": "done", "was": "ready"}]})
            return (404, {}, b'{"message": "MESSAGE_NOT_FOUND"}')

        with http_stub(answer) as stub:
            targets = parse_targets(None, f"127.0.0.1:{free_port()}")
            yield HttpGroup(targets, make_settings({"http": stub.address}))

    def test_a_broker_that_is_given_changes_its_message(self, api: HttpGroup) -> None:
        (result,) = api.cancel("work", "0000000000000001")
        assert result.status == "done"
        assert api.has_topic("work")

    def test_a_message_that_a_given_broker_lacks_may_be_at_another_broker(self, api: HttpGroup) -> None:
        with pytest.raises(NotConnectedError, match="/nodes"):
            api.cancel("work", "0000000000000002")

    def test_a_call_to_all_brokers_is_not_made_in_part(self, api: HttpGroup, calls: list[str]) -> None:
        with pytest.raises(NotConnectedError):
            api.delete_topic("work")
        assert calls == []


class TestLookup:
    @staticmethod
    def named_by(answer: bytes) -> list[str]:
        """Return the HTTP addresses of brokers in the answer of a lookup daemon."""
        with http_stub(lambda path, query: (200, {}, answer)) as stub:
            targets = parse_targets(None, stub.address)
            return list(HttpGroup(targets, make_settings({}))._named_by_lookupd("/nodes"))

    @pytest.mark.parametrize("host", ["a/b", "a@b", "[", "a?b"])
    def test_a_broker_whose_address_can_be_none_is_left_out_with_a_warning(
        self, host: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        rows = [{"broadcast_address": name, "tcp_port": 4150, "http_port": 4151} for name in (host, "right")]
        assert self.named_by(json.dumps({"producers": rows}).encode()) == ["right:4151"]
        assert f"left out: '{host}:4151'" in caplog.text or f"not '{host}:4151'" in caplog.text

    def test_brokers_are_named_in_both_formats(self) -> None:
        producers = (
            b'{"producers": [{"broadcast_address": "::1", "tcp_port": 4150, "http_port": 4151},'
            b' {"broadcast_address": "no-http", "tcp_port": 4150, "http_port": 0}]}'
        )
        wrapped = b'{"status_code": 200, "status_txt": "OK", "data": %b}' % producers
        assert self.named_by(producers) == self.named_by(wrapped) == ["[::1]:4151"]

    @pytest.mark.parametrize(
        "answer", [b"[]", b"<html>", b'{"producers": 5}', b'{"producers": [{"broadcast_address": 5}]}', b"[" * 100_000]
    )
    def test_a_malformed_answer_is_an_error_that_names_the_daemon(self, answer: bytes) -> None:
        with pytest.raises(LookupFailedError, match=r"http://127\.0\.0\.1:\d+: "):
            self.named_by(answer)


def test_the_token_goes_to_brokers_of_lookup_daemons_only_if_they_are_named() -> None:
    topics = {"topics": [{"topic_name": "work", "depth": 3, "channels": []}]}
    with (
        http_stub(lambda *_: json_answer(topics)) as broker,
        http_stub(lookup_answers({"work": [broker.address]})) as lookupd,
    ):
        for trusted, has_token in ((None, False), ("10.0.0.0/8", False), (broker.address, True)):
            settings = make_settings({"http_token": "secret", "trusted_brokers": trusted})
            group = HttpGroup(parse_targets(None, lookupd.address), settings)
            broker.tokens.clear()
            for client in group._clients():
                with client:
                    client.info()
            assert ("Bearer secret" in broker.tokens) is has_token
