"""A client's connection at its end."""

import gc
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest
from OpenSSL import SSL

from pyqd.apps.listeners import tls_server
from pyqd.durability.group_commit import GroupCommit
from pyqd.hot.net.tls import Tls
from pyqd.hot.net.transport import CodecTransport
from pyqd.hot.primitives.clock import mono, wall
from pyqd.hot.tcp.ioloop import IoLoop, set_pass_limit_for_tests
from pyqd.hot.tcp.output import ClientOutput
from pyqd.hot.tcp.publisher import Publisher
from pyqd.primitives.durations import MINUTE_NS
from pyqd.tcp.authd import AuthServers
from pyqd.tcp.connection import Connection
from pyqd.tcp.server import TcpServer
from tests.support.nsq import dpub, fin, mpub, pub, req
from tests.support.storage import broker_on

PARTS = (Connection, IoLoop, ClientOutput, Publisher)


@pytest.fixture
def errors() -> list[BaseException]:
    """Errors of scheduled runs."""
    return []


@pytest.fixture
def server(tmp_path: Path, errors: list[BaseException]) -> Iterator[TcpServer]:
    broker = broker_on(tmp_path)
    broker.scheduler.on_error = errors.append
    hub: Any = gevent.get_hub()
    broker.scheduler.on_wake_wanted = lambda: hub.loop.run_callback(broker.scheduler.run_wakes)
    durability = GroupCommit(broker, hub.threadpool.spawn, hub.loop.run_callback)
    tls, auth = tls_server(broker.options), AuthServers(broker.options)
    internal_errors: list[BaseException] = []
    yield TcpServer(broker, broker.options, hub, tls, auth, internal_errors.append, durability)
    broker.close()
    assert internal_errors == []


def count_parts() -> int:
    return sum(isinstance(each, PARTS) for each in gc.get_objects())


@pytest.mark.parametrize(("magic", "shown"), [(b"GET ", '"GET "'), (b"\x16\x03\x01\xff", r'"\x16\x03\x01\xff"')])
def test_the_log_shows_the_bytes_of_a_wrong_magic(
    server: TcpServer, caplog: pytest.LogCaptureFixture, magic: bytes, shown: str
) -> None:
    client, accepted = socket.socketpair()
    with client, gevent.Timeout(10):
        accepted.setblocking(False)
        server.accept_client(accepted, "127.0.0.1:1")
        client.sendall(magic)
        gevent.socket.wait_read(client.fileno())
        while server.connections:
            gevent.sleep(0.001)
    assert f"[127.0.0.1:1] - E_BAD_PROTOCOL - magic {shown}" in caplog.messages


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (b"  V1", b"E_BAD_PROTOCOL"),
        (b"  V2" + pub("t", b"x"), b"OK"),
        (b"  V2SUB t c\nRDY 1\n", b"OK"),
        (b"  V2PUB t\n\0\0\0\5half", b""),
    ],
    ids=["silent", "refused", "publisher", "consumer", "half a command"],
)
def test_a_client_that_leaves_is_freed_without_the_collector(server: TcpServer, sent: bytes, answer: bytes) -> None:
    gc.collect()
    before = count_parts()
    gc.disable()
    try:
        client, accepted = socket.socketpair()
        with client:
            accepted.setblocking(False)
            server.accept_client(accepted, "127.0.0.1:1")
            del accepted
            assert count_parts() == before + len(PARTS)
            client.setblocking(False)
            client.sendall(sent)
            received = b""
            with gevent.Timeout(10):
                while answer not in received:
                    gevent.socket.wait_read(client.fileno())
                    received += client.recv(4096)
        with gevent.Timeout(10):
            while server.connections:
                gevent.sleep(0.001)
        # The greenlets end in callbacks of the next passes of the loop.
        for _ in range(3):
            gevent.sleep(0)
        assert count_parts() == before
    finally:
        gc.enable()


class FailingTls:
    """Connection of OpenSSL that has nothing to read and cannot encrypt."""

    def recv_into(self, _into: object) -> int:
        raise SSL.WantReadError

    def send(self, _data: object) -> int:
        raise MemoryError

    def bio_read(self, _size_bytes: int) -> bytes:
        raise SSL.WantReadError

    def shutdown(self) -> None:
        raise SSL.Error


def receive(client: socket.socket, text: bytes) -> bytes:
    """Return what comes up to a text."""
    received = b""
    with gevent.Timeout(10):
        while text not in received:
            gevent.socket.wait_read(client.fileno())
            received += client.recv(4096)
    return received


def connect(server: TcpServer, name: str) -> tuple[socket.socket, Connection]:
    """Return the client's end of a new connection, and its server's half."""
    client, accepted = socket.socketpair()
    accepted.setblocking(False)
    client.setblocking(False)
    server.accept_client(accepted, name)
    (connection,) = (each for each in server.connections if each.remote_address == name)
    return client, connection


def wait_for_end(server: TcpServer) -> None:
    with gevent.Timeout(10):
        while server.connections:
            gevent.sleep(0.001)


COMMANDS = 300


@pytest.fixture
def short_passes() -> Iterator[None]:
    """Passes end at their second look at the clock, or their first slow command."""
    former = set_pass_limit_for_tests(0)
    yield
    set_pass_limit_for_tests(former)


@pytest.mark.parametrize(
    "command",
    [
        lambda number: fin(b"%016x" % number),
        lambda number: req(b"%016x" % number, 1000),
        lambda number: pub(f"t{number}", b"x"),
        lambda _number: dpub("t", 1000, b"x"),
        lambda _number: pub("t", b"x"),
        lambda _number: mpub("t", [b"x", b"y"]),
        lambda _number: b"NOP\n",
    ],
    ids=["FIN of unknown messages", "REQ", "PUB to new topics", "DPUB", "PUB", "MPUB", "NOP"],
)
def test_a_client_with_many_commands_lets_the_loop_serve_others_in_between(
    server: TcpServer, short_passes: None, command: Callable[[int], bytes]
) -> None:
    busy, connection = connect(server, "127.0.0.1:1")
    other, _ = connect(server, "127.0.0.1:2")
    busy.sendall(b"  V2SUB s c\n")
    receive(busy, b"OK")
    before = connection.ioloop.command_count
    busy.sendall(b"".join(command(number) for number in range(COMMANDS)))
    other.sendall(b"  V2" + pub("other", b"x"))
    receive(other, b"OK")
    assert 0 < connection.ioloop.command_count - before < COMMANDS
    with gevent.Timeout(10):
        while connection.ioloop.command_count < before + COMMANDS:
            gevent.sleep(0.001)
    busy.close()
    other.close()
    wait_for_end(server)


class UnsentTls(FailingTls):
    """Connection of OpenSSL whose bytes no socket takes."""

    def send(self, _data: object) -> int:
        raise SSL.Error


def test_a_client_that_cannot_be_sent_anything_gets_no_more_messages_and_is_closed(
    server: TcpServer, errors: list[BaseException]
) -> None:
    client, connection = connect(server, "127.0.0.1:1")
    client.sendall(b"  V2SUB t c\n")
    receive(client, b"OK")
    connection.ioloop.upgrade(CodecTransport(connection.socket.fileno(), Tls(UnsentTls())))  # type: ignore[arg-type]
    connection.output.rdy = 10
    topic = server.broker.topic("t")
    channel = topic.channel("c")
    topic.publish_body(b"first", wall())
    with gevent.Timeout(10):
        while not channel.in_flight_count:
            gevent.sleep(0.001)
    topic.publish_body(b"second", wall())
    wait_for_end(server)
    assert (channel.in_flight_count, channel.depth) == (1, 1)
    assert errors == []
    client.close()


def test_a_client_is_closed_if_a_delivery_fails_between_its_messages(
    server: TcpServer, errors: list[BaseException]
) -> None:
    topic = server.broker.topic("t")
    clients = []
    for number in range(2):
        client, accepted = socket.socketpair()
        clients.append(client)
        accepted.setblocking(False)
        client.setblocking(False)
        server.accept_client(accepted, f"127.0.0.1:{number}")
        client.sendall(b"  V2SUB t c%d\n" % number)
        receive(client, b"OK")
    failing, other = sorted(server.connections, key=lambda each: each.remote_address)
    failing.ioloop.upgrade(CodecTransport(failing.socket.fileno(), Tls(FailingTls())))  # type: ignore[arg-type]
    failing.output.rdy = other.output.rdy = 10
    topic.publish_body(b"message", wall())
    receive(clients[1], b"message")
    assert [type(error) for error in errors] == [MemoryError]
    assert failing.gone
    assert not other.gone
    with gevent.Timeout(10):
        while failing in server.connections:
            gevent.sleep(0.001)
    channel = topic.channel("c0")
    assert channel.in_flight_count == 1
    server.broker.scheduler.run_timers(mono() + 2 * MINUTE_NS)
    assert (channel.in_flight_count, channel.timeout_count) == (0, 1)
    clients[0].close()
    clients[1].close()
    with gevent.Timeout(10):
        while server.connections:
            gevent.sleep(0.001)
