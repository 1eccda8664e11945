"""A broker's registration with lookup daemons, with scripted ones that behave well or badly."""

import logging
import struct
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gevent
import pytest

from pyqd.broker.broker import Broker
from pyqd.lookupd import peer, peer_connection
from pyqd.lookupd.channel_query import ChannelQuery
from pyqd.lookupd.channel_search import ChannelSearch
from pyqd.lookupd.peer import LookupPeer
from pyqd.lookupd.registration import Registration
from tests.lookupd.scripted import LoopWatch, ScriptedLookupd, Talk, behave, framed, wait_for
from tests.support.storage import broker_on

IDENTITY = {"broadcast_address": "b", "hostname": "h", "http_port": 4151, "tcp_port": 4150, "version": "1.3.0"}
HELD_S_MAX = 0.02


class World:
    """A broker, its registration, and lookup daemons."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        search = ChannelSearch(ChannelQuery())
        self.registration = Registration(broker.topics_by_name, lambda: IDENTITY, search)
        broker.observer = self.registration
        self.daemons: list[ScriptedLookupd] = []

    def daemon(self, *args: Any, **kwargs: Any) -> ScriptedLookupd:
        self.daemons.append(ScriptedLookupd(*args, **kwargs))
        return self.daemons[-1]

    def register(self, *addresses: str) -> list[LookupPeer]:
        self.registration.set_addresses(addresses)
        return self.registration.peers

    def stop(self) -> None:
        self.registration.stop()
        for daemon in self.daemons:
            daemon.stop()
        gevent.sleep(0)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(peer, "BACKOFF_FIRST_S", 0.005)
    monkeypatch.setattr(peer, "BACKOFF_MAX_S", 0.02)
    broker = broker_on(tmp_path)
    world = World(broker)
    yield world
    world.stop()
    broker.close()


def test_names_that_exist_are_registered_first_and_changes_follow_in_their_order(world: World) -> None:
    broker, lookupd = world.broker, world.daemon()
    broker.topic("bare")
    broker.topic("t").channel("a")
    broker.topic("t").channel("b#ephemeral")
    (registered,) = world.register(lookupd.address)
    wait_for(lambda: len(lookupd.commands) == 3)
    assert lookupd.talks[0].identity == IDENTITY
    assert lookupd.commands == ["REGISTER bare", "REGISTER t a", "REGISTER t b#ephemeral"]
    broker.topic("new#ephemeral").channel("c")
    broker.topic("t").delete_channel("a")
    broker.topic("t").channel("a")
    wait_for(lambda: len(lookupd.commands) == 7)
    assert lookupd.commands[3:] == [
        "REGISTER new#ephemeral",
        "REGISTER new#ephemeral c",
        "UNREGISTER t a",
        "REGISTER t a",
    ]
    wait_for(lambda: registered.registration_count == 6)
    assert registered.stats() == {
        "address": lookupd.address,
        "connected": True,
        "last_error": "",
        "reconnect_count": 0,
        "registration_count": 6,
    }


def test_a_deleted_topic_leaves_with_its_channels_before_it(world: World) -> None:
    broker, lookupd = world.broker, world.daemon()
    for number in range(60):
        broker.topic("t").channel(f"c{number}")
    world.register(lookupd.address)
    wait_for(lambda: len(lookupd.commands) == 60)
    broker.delete_topic("t")
    # The channels of the deleted topic are dropped in several runs, and the name is in use again.
    broker.topic("t").channel("c3")
    wait_for(lambda: len(lookupd.commands) == 123)
    assert lookupd.commands[60:] == [
        *(f"UNREGISTER t c{number}" for number in range(60)),
        "UNREGISTER t",
        "REGISTER t",
        "REGISTER t c3",
    ]


def test_an_ephemeral_topic_leaves_with_its_last_channel(world: World) -> None:
    lookupd = world.daemon()
    world.register(lookupd.address)
    wait_for(lambda: world.registration.peers[0].is_connected)
    topic = world.broker.topic("t#ephemeral")
    topic.channel("c#ephemeral")
    topic.delete_channel("c#ephemeral")
    wait_for(lambda: len(lookupd.commands) == 4)
    assert lookupd.commands[2:] == ["UNREGISTER t#ephemeral c#ephemeral", "UNREGISTER t#ephemeral"]


def test_every_lookup_daemon_gets_the_registration_and_a_silent_one_delays_none(world: World) -> None:
    silent = world.daemon(lambda talk: talk.read(1 << 20))
    others = [world.daemon(), world.daemon(host="::1")]
    world.register(silent.address, *(other.address for other in others), "127.0.0.1:1", others[0].address)
    assert len(world.registration.peers) == 4
    began_s = time.monotonic()
    wait_for(lambda: all(other.talks for other in others))
    wait_for(lambda: sum(each.is_connected for each in world.registration.peers) == 2)
    world.broker.topic("t")
    wait_for(lambda: all(other.commands == ["REGISTER t"] for other in others))
    assert time.monotonic() - began_s < peer_connection.ANSWERS_S


def test_a_broken_connection_is_reconnected_soon(world: World) -> None:
    lookupd = world.daemon()
    (registered,) = world.register(lookupd.address)
    wait_for(lambda: registered.is_connected)
    world.broker.topic("t")
    for _ in range(3):
        talk_count = len(lookupd.talks)
        lookupd.drop()
        wait_for(partial(lookupd.has_more_than, talk_count))
        wait_for(lambda: lookupd.commands == ["REGISTER t"])
    assert registered.stats()["reconnect_count"] == 3
    assert "closed the connection" in registered.last_error


def test_a_daemon_that_was_not_there_at_first_is_found_later(world: World) -> None:
    first = world.daemon()
    first.stop()
    (registered,) = world.register(first.address)
    wait_for(lambda: "connection refused" in registered.last_error)
    world.daemon(port=first.port)
    wait_for(lambda: registered.is_connected)


def test_addresses_come_and_go(world: World) -> None:
    kept, dropped, added = world.daemon(), world.daemon(), world.daemon()
    world.broker.topic("t")
    world.register(kept.address, dropped.address)
    wait_for(lambda: kept.commands and dropped.commands)
    world.register(added.address, kept.address)
    wait_for(lambda: added.commands and not dropped.running)
    assert [peer.address for peer in world.registration.peers] == [added.address, kept.address]
    world.broker.topic("u")
    wait_for(lambda: added.commands == kept.commands == ["REGISTER t", "REGISTER u"])
    assert len(kept.talks) == 1
    assert dropped.commands == ["REGISTER t"]
    world.register()
    wait_for(lambda: not kept.running and not added.running)


@pytest.mark.slow
def test_pings_are_sent_while_nothing_changes_and_while_much_changes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer, "PING_S", 0.05)
    lookupd = world.daemon()
    world.register(lookupd.address)
    wait_for(lambda: lookupd.commands.count("PING") >= 3)
    seen = lookupd.commands.count("PING")

    def pings_among_changes() -> bool:
        world.broker.topic("t#ephemeral")
        world.broker.delete_topic("t#ephemeral")
        return lookupd.commands.count("PING") > seen + 2

    wait_for(pings_among_changes)
    assert len(lookupd.talks) == 1


@pytest.mark.slow
def test_pings_are_sent_if_there_is_always_another_change(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "PING_S", 0.05)

    def keep_busy(talk: Talk) -> None:
        talk.introduce()
        while True:
            lines = talk.lines()
            world.registration.peers[0].change(b"REGISTER t\n")
            talk.socket.sendall(framed(b"OK") * len(lines))

    world.broker.topic("t")
    lookupd = world.daemon(keep_busy)
    world.register(lookupd.address)
    wait_for(lambda: lookupd.commands.count("PING") >= 2)
    assert len(lookupd.talks) == 1


def answer(data: bytes) -> Callable[[Talk], None]:
    """Return a script that reads IDENTIFY, sends some bytes and waits for the broker to leave."""

    def script(talk: Talk) -> None:
        talk.read_identity()
        talk.socket.sendall(data)
        talk.read(1 << 20)

    return script


def then(data: bytes) -> Callable[[Talk], None]:
    """Return a script that answers IDENTIFY, sends some bytes and waits for the broker to leave."""

    def script(talk: Talk) -> None:
        talk.introduce()
        talk.socket.sendall(data)
        talk.read(1 << 20)

    return script


def close_at_once(_talk: Talk) -> None:
    pass


def close_within_an_answer(talk: Talk) -> None:
    talk.read_identity()
    talk.socket.sendall(struct.pack(">i", 100) + b"{")


def refuse_registrations(talk: Talk) -> None:
    talk.introduce()
    talk.lines()
    talk.socket.sendall(framed(b"E_BAD_TOPIC REGISTER topic name 't' is not valid"))


def unasked_later(talk: Talk) -> None:
    talk.introduce()
    talk.lines()
    talk.socket.sendall(framed(b"OK"))
    gevent.sleep(0.01)
    talk.socket.sendall(framed(b"OK"))
    talk.read(1 << 20)


def trickle(talk: Talk) -> None:
    talk.read_identity()
    talk.socket.sendall(struct.pack(">i", 1000))
    while True:
        talk.socket.sendall(b"x")
        gevent.sleep(0.01)


BAD = {
    "silent": (lambda talk: talk.read(1 << 20), "no answer within 0.1 s; check that the lookup daemon runs"),
    "trickling": (trickle, "no answer within 0.1 s; "),
    "closing": (close_at_once, "the lookup daemon closed the connection; check"),
    "closing-within": (close_within_an_answer, "the lookup daemon closed the connection; check"),
    "oversize": (answer(struct.pack(">i", 1 << 30)), "an answer of 1073741824 bytes, 65536 are allowed; --lookupd-tcp"),
    "negative": (answer(struct.pack(">i", -1)), "an answer of -1 bytes, 65536 are allowed"),
    "http": (answer(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "the address is that of an HTTP server, not"),
    "broker": (answer(framed(b"\0\0\0\1E_BAD_PROTOCOL")), "the address is that of a broker, not of a lookup daemon"),
    "no-json": (answer(framed(b"\xff\n")), r'IDENTIFY was answered with "\xff\n"; --lookupd-tcp-address'),
    "no-object": (answer(framed(b"[]")), 'IDENTIFY was answered with "[]"'),
    "deep": (answer(framed(b"[" * 60_000)), 'IDENTIFY was answered with "[[['),
    "invalid": (answer(framed(b"E_INVALID cannot IDENTIFY again")), 'answered with "E_INVALID cannot IDENTIFY again"'),
    "no-port": (answer(framed(b"E_BAD_BODY IDENTIFY missing fields")), "set --broadcast-tcp-port and --broadcast-http"),
    "refusing": (refuse_registrations, "REGISTER t was answered with \"E_BAD_TOPIC REGISTER topic name 't' is not"),
    "unsolicited": (then(framed(b"OK") * 2), 'OK" came without a command; --lookupd-tcp-address'),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_a_bad_lookup_daemon_is_logged_once_and_used_when_it_is_good(
    world: World, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(peer_connection, "ANSWERS_S", 0.1)
    script, expected = BAD[name]
    world.broker.topic("t")
    lookupd = world.daemon(script)
    with caplog.at_level(logging.INFO):
        (registered,) = world.register(lookupd.address)
        wait_for(lambda: len(lookupd.talks) >= 3, name)
        errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert [error for error in errors if expected in error] == errors[:1], errors
        assert errors[0].startswith(f"LOOKUPD({lookupd.address}): not registered: ")
        assert expected in registered.last_error
        lookupd.script = behave
        wait_for(lambda: lookupd.commands[:1] == ["REGISTER t"] and registered.is_connected)
    assert len(errors) == 1


def test_bytes_that_come_while_nothing_is_asked_end_the_connection(world: World) -> None:
    world.broker.topic("t")
    lookupd = world.daemon(unasked_later)
    (registered,) = world.register(lookupd.address)
    wait_for(lambda: len(lookupd.talks) >= 2)
    assert r'"\x00\x00\x00\x02OK" came without a command; --lookupd' in registered.last_error
    lookupd.script = behave
    lookupd.drop()
    wait_for(lambda: lookupd.commands == ["REGISTER t"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:1", "cannot connect: connection refused; check"),
        ("nowhere.invalid:4160", "cannot connect: "),
        ("", "cannot connect: missing address; --lookupd-tcp-address must name the TCP port"),
        ("127.0.0.1", "cannot connect: address 127.0.0.1: missing port in address; --lookupd"),
        ("localhost", "cannot connect: address localhost: missing port in address; --lookupd"),
        ("127.0.0.1:99999", "cannot connect: address 99999: invalid port; --lookupd"),
        ("[::1:4160", "missing port in address"),
        ("ü" * 70 + ":4160", "cannot connect: "),
    ],
)
def test_an_address_that_cannot_be_reached_is_named_with_the_cause(
    world: World, address: str, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    (registered,) = world.register(address)
    wait_for(lambda: registered.last_error)
    gevent.sleep(0.1)
    (error,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert error.startswith(f"LOOKUPD({address}): not registered: cannot connect")
    assert expected in error


def test_a_reply_without_a_broadcast_address_is_reported(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def script(talk: Talk) -> None:
        talk.introduce({"http_port": -5, "broadcast_address": 3, "version": None})
        talk.serve()

    lookupd = world.daemon(script)
    world.broker.topic("t")
    (registered,) = world.register(lookupd.address)
    wait_for(lambda: lookupd.commands == ["REGISTER t"] and "no broadcast address" in caplog.text)
    assert registered.is_connected


@pytest.mark.slow
def test_changes_beyond_the_queue_are_sent_after_reconnecting(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "CHANGES_MAX", 10)
    held = gevent.event.Event()

    def hold_the_second(talk: Talk) -> None:
        talk.introduce()
        talk.lines()
        held.wait()
        talk.socket.sendall(framed(b"OK"))
        talk.serve()

    lookupd = world.daemon(hold_the_second)
    (registered,) = world.register(lookupd.address)
    wait_for(lambda: registered.is_connected)
    world.broker.topic("t")
    wait_for(lambda: lookupd.commands == ["REGISTER t"])
    for number in range(100):
        world.broker.topic(f"t{number}")
        assert len(registered._changes) <= 10
    lookupd.script = behave
    held.set()
    wait_for(lambda: len(lookupd.talks) == 2 and len(lookupd.commands) == 101)
    assert "changed faster than the lookup daemon answered" in registered.last_error
    assert registered.is_connected


def test_a_topic_with_many_channels_leaves_by_reconnecting(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyqd.lookupd.registration.CHANNELS_AT_ONCE_MAX", 10)
    for number in range(11):
        world.broker.topic("t").channel(f"c{number}")
    lookupd = world.daemon()
    world.register(lookupd.address)
    wait_for(lambda: len(lookupd.commands) == 11)
    world.broker.delete_topic("t")
    world.broker.topic("u")
    wait_for(lambda: len(lookupd.talks) == 2 and lookupd.commands == ["REGISTER u"])


@pytest.mark.slow
def test_a_burst_of_many_topics_does_not_hold_the_loop() -> None:
    count = 50_000
    lookupd = ScriptedLookupd()
    registered = LookupPeer(
        lookupd.address, lambda: IDENTITY, lambda: (b"REGISTER topic-%d channel\n" % number for number in range(count))
    )
    with LoopWatch() as loop:
        registered.start()
        try:
            wait_for(lambda: registered.registration_count == count)
        finally:
            registered.stop()
            lookupd.stop()
    assert len(lookupd.commands) == count
    assert loop.longest_s < HELD_S_MAX


def test_a_host_name_that_no_host_can_have_is_an_error_without_a_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        peer_connection.PeerError, match=r"cannot connect: 'a\.\.b' is no host name: .*; check that the "
    ):
        peer_connection.PeerConnection("a..b:4160", gevent.get_hub())
    assert capfd.readouterr().err == ""
