"""The channels of a new topic are asked from the lookup daemons, and exist before its first message is passed on."""

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gevent
import pytest

from pyqd.broker.broker import Broker
from pyqd.lookupd import channel_query, peer_queries
from pyqd.lookupd.channel_query import ChannelQuery, QueryError, channels_in
from pyqd.lookupd.channel_search import ChannelSearch
from pyqd.lookupd.registration import Registration
from tests.lookupd.scripted import INFO, LoopWatch, ScriptedLookupd, Talk, wait_for
from tests.support.http_stub import Answer, HttpStub
from tests.support.storage import broker_on, finish_all, publish

# Most tests start a broker with lookup daemons.
pytestmark = pytest.mark.slow

# A lookup daemon that answers is never given up, however busy the machine is: wait_for fails first.
PATIENCE_S = 60.0
# For lookup daemons that are given up, beside one that must not be.
SEARCH_S = 1.5
Handler = Callable[[str, dict[str, str]], Answer]


def telling(*channels: str, after_s: float = 0.0) -> Handler:
    """Return a handler that names channels."""

    def handle(path: str, query: dict[str, str]) -> Answer:
        assert path == "/channels"
        time.sleep(after_s)
        return 200, {"Content-Type": "application/json"}, json.dumps({"channels": channels}).encode()

    return handle


class World:
    """A broker and lookup daemons, each a scripted TCP server and an HTTP server in a thread."""

    def __init__(
        self, directory: Path, exits: contextlib.ExitStack, silent_s: float = PATIENCE_S, **flags: Any
    ) -> None:
        self.broker: Broker = broker_on(directory, **flags)
        self.registration = Registration(self.broker.topics_by_name, dict, ChannelSearch(ChannelQuery(), silent_s))
        self.broker.observer = self.registration
        self.addresses: list[str] = []
        self._exits = exits
        exits.callback(self.broker.close)
        exits.callback(gevent.sleep, 0)
        exits.callback(self.registration.stop)

    def lookupd(self, handler: Handler) -> HttpStub:
        """Add a lookup daemon and wait for the connection."""
        stub = HttpStub(handler)
        self._exits.callback(stub.stop)
        self.announce(int(stub.address.rpartition(":")[2]))
        return stub

    def announce(self, http_port: int) -> ScriptedLookupd:
        def script(talk: Talk) -> None:
            talk.introduce({**INFO, "http_port": http_port})
            talk.serve()

        daemon = ScriptedLookupd(script)
        self._exits.callback(daemon.stop)
        self.addresses.append(daemon.address)
        self.registration.set_addresses(self.addresses)
        wait_for(lambda: self.registration.peers[-1].is_connected)
        return daemon


@pytest.fixture
def exits() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def world(tmp_path: Path, exits: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(peer_queries, "QUERY_S_MAX", PATIENCE_S)
    return World(tmp_path, exits)


@pytest.fixture
def hasty_world(tmp_path: Path, exits: contextlib.ExitStack) -> World:
    return World(tmp_path, exits, SEARCH_S)


def passed_on(topic: Any) -> bool:
    return not topic.awaits_channels


def test_all_channels_of_all_lookup_daemons_get_the_first_message(world: World) -> None:
    first, second = world.lookupd(telling("a", "b", "x#ephemeral")), world.lookupd(telling("b", "c"))
    topic = world.broker.topic("t")
    publish(topic, 3)
    assert topic.depth == 3
    wait_for(lambda: passed_on(topic))
    assert sorted(topic.channels_by_name) == ["a", "b", "c"]
    for channel in topic.channels_by_name.values():
        assert finish_all(channel) == [0, 1, 2]
    assert first.requests == second.requests == [("/channels", {"topic": "t"})]


def test_a_channel_of_a_consumer_waits_for_the_others(world: World) -> None:
    world.lookupd(telling("a", after_s=0.1))
    topic = world.broker.topic("t#ephemeral")
    mine = topic.channel("mine")
    publish(topic, 2)
    assert mine.depth == 0
    wait_for(lambda: passed_on(topic))
    assert finish_all(mine) == finish_all(topic.channel("a")) == [0, 1]


def test_without_lookup_daemons_a_topic_passes_on_at_once(world: World) -> None:
    topic = world.broker.topic("t")
    channel = topic.channel("c")
    publish(topic, 1)
    assert channel.depth == 1


def test_a_topic_that_was_loaded_asks_nothing(tmp_path: Path, exits: contextlib.ExitStack) -> None:
    with contextlib.closing(broker_on(tmp_path)) as former:
        publish(former.topic("t"), 1)
    world = World(tmp_path, exits)
    stub = world.lookupd(telling("a"))
    topic = world.broker.topic("t")
    assert passed_on(topic)
    gevent.sleep(0.05)
    assert stub.requests == []
    assert not topic.channels_by_name


def test_a_slow_lookup_daemon_delays_a_topic_up_to_the_deadline_and_no_other_topic(
    hasty_world: World, exits: contextlib.ExitStack
) -> None:
    slow = hasty_world.lookupd(telling("late", after_s=PATIENCE_S))
    fast = ScriptedLookupd(body(b'{"channels":["a"]}'))
    exits.callback(fast.stop)
    hasty_world.announce(fast.port)
    old = hasty_world.broker.topic("old")
    wait_for(lambda: passed_on(old))
    began_s = time.monotonic()
    # More than are asked at a time.
    topics = [hasty_world.broker.topic(f"t{number}") for number in range(4 * peer_queries.ASKED_AT_ONCE)]
    publish(topics[-1], 1)
    publish(old, 1)
    assert old.channels_by_name["a"].depth == 1
    wait_for(lambda: all(passed_on(topic) for topic in topics))
    assert time.monotonic() - began_s > SEARCH_S * 0.9
    assert all(list(topic.channels_by_name) == ["a"] for topic in topics)
    assert topics[-1].channels_by_name["a"].depth == 1
    assert len(slow.requests) < len(topics)


def test_a_dead_lookup_daemon_delays_topics_only_until_it_is_known(hasty_world: World) -> None:
    # Connections to it succeed, and nothing ever answers.
    mute = ScriptedLookupd(lambda talk: talk.read(1 << 20))
    try:
        daemon = hasty_world.announce(mute.port)
        topic = hasty_world.broker.topic("t")
        assert not passed_on(topic)
        wait_for(lambda: passed_on(topic))
        daemon.stop()
        wait_for(lambda: not hasty_world.registration.peers[0].is_connected)
        asked_count = len(mute.talks)
        topic = hasty_world.broker.topic("u")
        wait_for(lambda: passed_on(topic))
        assert len(mute.talks) == asked_count
    finally:
        mute.stop()


def raw(answer: bytes) -> Callable[[Talk], None]:
    """Return the script of an HTTP server that sends some bytes for each request and closes."""

    def script(talk: Talk) -> None:
        talk.lines()
        talk.socket.sendall(answer)

    return script


def body(text: bytes, status: bytes = b"200 OK") -> Callable[[Talk], None]:
    return raw(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(text), text))


ANSWER_A = b'HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n{"channels":["a"]}'
BAD = {
    "closing": (raw(b""), "Remote end closed connection without response"),
    "status": (body(b"{}", b"503 Busy"), "status 503; check"),
    "no-json": (body(b"\xff"), "no list of channels"),
    "oversize": (body(b'{"channels":["%b"]}' % (b"x" * (1 << 20))), "more than 1048576 bytes"),
    "tls-required": (body(b'{"https_port":1}', b"403 Forbidden"), "connection refused"),
    "tls-on-no-port": (body(b'{"https_port":70000}', b"403 Forbidden"), "status 403; check"),
}


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b"7", b'{"topics":[]}', b'{"channels":[1]}', b'{"channels":"abc"}', b"\xff"]
)
def test_an_answer_without_a_list_of_names_is_an_error(text: bytes) -> None:
    with pytest.raises(QueryError, match="the answer has no list of channels"):
        channels_in(text)


def expect_one_warning(
    world: World, script: Callable[[Talk], object], expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Ask a lookup daemon that answers as script says, and another one, for the channels of three topics."""
    server = ScriptedLookupd(script)
    try:
        world.announce(server.port)
        world.lookupd(telling("a"))
        for number in range(3):
            topic = world.broker.topic(f"t{number}")
            publish(topic, 1)
            wait_for(partial(passed_on, topic), expected)
            assert topic.channels_by_name["a"].depth == 1
            assert list(topic.channels_by_name) == ["a"]
    finally:
        server.stop()
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warning.startswith(f"LOOKUPD({world.addresses[0]}): cannot ask for the channels of new topics at 127.0.0.1:")
    assert expected in warning
    assert "check the --broadcast-address and --http-address" in warning


@pytest.mark.parametrize("name", BAD)
def test_a_bad_answer_is_logged_once_and_the_topic_goes_on(
    world: World, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    expect_one_warning(world, *BAD[name], caplog)


def test_silence_is_logged_once_and_the_topic_goes_on(hasty_world: World, caplog: pytest.LogCaptureFixture) -> None:
    expect_one_warning(hasty_world, lambda talk: talk.read(1 << 20), "no answer in time", caplog)


def test_no_channels_are_an_answer_as_null_too() -> None:
    assert channels_in(b'{"channels":null}') == channels_in(b'{"channels":[]}') == []


def test_invalid_names_are_left_out(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.lookupd(telling("a", "b c", "", "../x", "x" * 65, "é"))
    topic = world.broker.topic("t")
    wait_for(lambda: passed_on(topic))
    assert list(topic.channels_by_name) == ["a"]
    assert "returned an invalid channel name '../x'" in caplog.text


def test_a_limit_of_channels_ends_the_creation_and_the_topic_goes_on(
    tmp_path: Path, exits: contextlib.ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, exits, max_channels_per_topic=2)
    world.lookupd(telling("a", "b", "c"))
    for name in ("t", "u"):
        topic = world.broker.topic(name)
        wait_for(partial(passed_on, topic))
        assert list(topic.channels_by_name) == ["a", "b"]
    assert "TOPIC(u): cannot create a channel of the lookup daemons" in caplog.text


def test_a_topic_that_is_deleted_meanwhile_does_not_come_back(world: World) -> None:
    world.lookupd(telling("a", after_s=0.1))
    gone = world.broker.topic("t")
    world.broker.delete_topic("t")
    new = world.broker.topic("t")
    publish(new, 1)
    wait_for(lambda: passed_on(new))
    assert new.channels_by_name["a"].depth == 1
    assert not gone.channels_by_name
    world.broker.delete_topic("t")
    assert world.broker.topics == {}


def test_a_broker_that_has_just_started_waits_for_the_first_connection(world: World) -> None:
    stub = HttpStub(telling("a"))

    def late(talk: Talk) -> None:
        gevent.sleep(SEARCH_S / 4)
        talk.introduce({**INFO, "http_port": int(stub.address.rpartition(":")[2])})
        talk.serve()

    daemon = ScriptedLookupd(late)
    try:
        world.registration.set_addresses([daemon.address])
        topic = world.broker.topic("t")
        publish(topic, 1)
        wait_for(lambda: passed_on(topic))
        assert topic.channels_by_name["a"].depth == 1
    finally:
        daemon.stop()
        stub.stop()


def test_lookup_daemons_that_are_not_there_delay_nothing(world: World) -> None:
    world.registration.set_addresses(["127.0.0.1:1"])
    wait_for(lambda: world.registration.peers[0].last_error)
    topic = world.broker.topic("t")
    wait_for(lambda: passed_on(topic))


def test_many_channels_are_created_without_holding_the_loop(world: World) -> None:
    world.lookupd(telling(*(f"c{number}" for number in range(1000))))
    with LoopWatch() as loop:
        topic = world.broker.topic("t")
        publish(topic, 1)
        wait_for(lambda: passed_on(topic))
    assert len(topic.channels_by_name) == 1000
    assert all(channel.depth == 1 for channel in topic.channels_by_name.values())
    assert loop.longest_s < 0.02


def test_a_busy_lookup_daemon_is_not_given_up_while_it_answers(hasty_world: World, exits: contextlib.ExitStack) -> None:
    def slow(talk: Talk) -> None:
        talk.lines()
        gevent.sleep(SEARCH_S / 4)
        talk.socket.sendall(ANSWER_A)

    server = ScriptedLookupd(slow)
    exits.callback(server.stop)
    hasty_world.announce(server.port)
    # Each takes a quarter of the time after which a silent one is given up.
    topics = [hasty_world.broker.topic(f"t{number}") for number in range(8 * peer_queries.ASKED_AT_ONCE)]
    wait_for(lambda: all(passed_on(topic) for topic in topics))
    assert all(list(topic.channels_by_name) == ["a"] for topic in topics)


def test_a_lookup_daemon_that_is_too_slow_for_all_is_given_up_in_the_end(
    hasty_world: World, exits: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_queries, "QUERY_S_MAX", 2 * SEARCH_S)
    monkeypatch.setattr(peer_queries, "ASKED_AT_ONCE", 1)

    def slow(talk: Talk) -> None:
        talk.lines()
        gevent.sleep(SEARCH_S / 4)
        talk.socket.sendall(ANSWER_A)

    server = ScriptedLookupd(slow)
    exits.callback(server.stop)
    hasty_world.announce(server.port)
    began_s = time.monotonic()
    topics = [hasty_world.broker.topic(f"t{number}") for number in range(20)]
    wait_for(lambda: all(passed_on(topic) for topic in topics))
    assert time.monotonic() - began_s > 2 * SEARCH_S * 0.9
    assert list(topics[0].channels_by_name) == ["a"]
    assert not topics[-1].channels_by_name


def test_a_lookup_daemon_that_is_removed_delays_nothing_any_more(world: World) -> None:
    world.lookupd(telling("a", after_s=PATIENCE_S))
    topics = [world.broker.topic(f"t{number}") for number in range(2 * peer_queries.ASKED_AT_ONCE)]
    gevent.sleep(0.02)
    world.registration.set_addresses([])
    wait_for(lambda: all(passed_on(topic) for topic in topics))


def test_the_bounds_are_those_of_the_documentation() -> None:
    assert (peer_queries.SILENT_S, peer_queries.QUERY_S_MAX) == (2.0, 10.0)
    assert channel_query.ANSWER_BYTES_MAX == 1 << 20
