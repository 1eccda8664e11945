"""Shared helpers for tests of the Spark package's TCP side: servers, tables, and the messages of a topic."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support import nsq
from tests.support.server import Daemon, Implementation, daemons_running, nsqd, pyqd

# Below those that Linux gives to outgoing connections.
PORTS = (15_000, 32_000)

Starter = Callable[..., Daemon]


def parametrize_implementation(metafunc: pytest.Metafunc) -> None:
    """Run tests that need a server against this project's own, and against Go's nsqd if its path is given."""
    if "implementation" in metafunc.fixturenames:
        path = metafunc.config.getoption("--nsqd")
        servers = [pyqd(), nsqd(path)] if path else [pyqd()]
        metafunc.parametrize("implementation", servers, ids=lambda server: server.name)


@contextlib.contextmanager
def servers(directory: Path) -> Iterator[Starter]:
    """Give a function that starts a daemon, start(implementation, *flags); all end with the block."""
    numbers = itertools.count()

    def start(implementation: Implementation, *flags: str) -> Daemon:
        daemon = Daemon(implementation, directory / f"server-{next(numbers)}", flags)
        daemon.tcp_port, daemon.http_port = lasting_port(), lasting_port()
        return start_daemon(daemon)

    with daemons_running() as start_daemon:
        yield start


def lasting_port() -> int:
    """Return a loopback port that nothing listens on, and that no outgoing connection gets while its server is down.

    A client that waits for a server to come back finds it again only under its old address.
    """
    while True:
        port = random.randrange(*PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def http_address(daemon: Daemon) -> str:
    return "{}:{}".format(*daemon.http_address)


def tcp_address(daemon: Daemon) -> str:
    return "{}:{}".format(*daemon.tcp_address)


def batch(**columns: Any) -> pa.RecordBatch:
    """Return a batch of columns; lists of bytes, text and integers become binary, string and int64."""
    return pa.RecordBatch.from_pydict(columns)


def bodies_of(daemon: Daemon, topic: str, count: int) -> list[bytes]:
    """Take this many messages from a channel of the topic, and finish them. Returns: their bodies in order."""
    with nsq.Client(daemon.tcp_address) as client:
        client.sub(topic, "readers-of-the-test", rdy_count=min(count, 1000))
        bodies = []
        for _ in range(count):
            message = client.read_message()
            bodies.append(message.body)
            client.fin(message)
        return bodies
