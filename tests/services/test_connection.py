"""A client's connection at its end."""

import gc
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest

from pyqd.apps.listeners import tls_server
from pyqd.durability.group_commit import GroupCommit
from pyqd.hot.tcp.ioloop import IoLoop
from pyqd.hot.tcp.output import ClientOutput
from pyqd.hot.tcp.publisher import Publisher
from pyqd.tcp.authd import AuthServers
from pyqd.tcp.connection import Connection
from pyqd.tcp.server import TcpServer
from tests.support.nsq import pub
from tests.support.storage import broker_on

PARTS = (Connection, IoLoop, ClientOutput, Publisher)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TcpServer]:
    broker = broker_on(tmp_path)
    hub: Any = gevent.get_hub()
    broker.scheduler.on_wake_wanted = lambda: hub.loop.run_callback(broker.scheduler.run_wakes)
    durability = GroupCommit(broker, hub.threadpool.spawn, hub.loop.run_callback)
    tls, auth = tls_server(broker.options), AuthServers(broker.options)
    bugs: list[BaseException] = []
    yield TcpServer(broker, broker.options, hub, tls, auth, bugs.append, durability)
    broker.close()
    assert bugs == []


def count_parts() -> int:
    return sum(isinstance(each, PARTS) for each in gc.get_objects())


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
