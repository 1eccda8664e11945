"""Consumers over TLS, snappy and deflate: a thread between the load generator and the upgraded connection.

The generator has one end of a socket pair and speaks the plain protocol. The thread encodes and decodes some hundred
KiB at once, by the layers of pyqd's own client, which call C libraries.
"""

import atexit
import contextlib
import json
import select
import shutil
import socket
import ssl
import struct
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from pyqd.client.core.commands import MAGIC
from pyqd.client.core.layers import DeflateLayer, SnappyLayer, TlsLayer
from pyqd.tools.bench.connections import Address, LoadHandshakeError, expect_ok
from tests.support.certificates import Certificate, certify

CHUNK_BYTES = 512 << 10
TIMEOUT_S = 30.0


@cache
def certificate() -> Certificate:
    """Return a certificate for 127.0.0.1, signed by itself, in files for the life of the process."""
    directory = tempfile.mkdtemp(prefix="bench-tls-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return certify(Path(directory), "127.0.0.1")


def server_flags(upgrade: str) -> tuple[str, ...]:
    """Return the flags that a server needs to grant an upgrade."""
    if upgrade != "tls_v1":
        return ()
    made = certificate()
    return (f"-tls-cert={made.path}", f"-tls-key={made.key_path}", "-https-address=127.0.0.1:0")


def new_layer(upgrade: str) -> SnappyLayer | DeflateLayer | TlsLayer:
    if upgrade == "snappy":
        return SnappyLayer()
    if upgrade == "deflate":
        return DeflateLayer(level=1)
    layer = TlsLayer(ssl.create_default_context(cafile=str(certificate().path)), "127.0.0.1")
    layer.start()
    return layer


def relay(upgrade: str, connection: socket.socket, plain: socket.socket) -> None:
    """Move bytes between a connection and the plain side until one of them ends: a thread."""
    layer, poll = new_layer(upgrade), select.poll()
    poll.register(connection, select.POLLIN)
    poll.register(plain, select.POLLIN)
    with plain, contextlib.suppress(OSError):
        while True:
            # Of a handshake, and answers to key updates.
            if isinstance(layer, TlsLayer):
                connection.sendall(layer.take_output())
            for fd, _ in poll.poll():
                data = (plain if fd == plain.fileno() else connection).recv(CHUNK_BYTES)
                if not data:
                    return
                if fd == plain.fileno():
                    connection.sendall(layer.send(data))
                else:
                    plain.sendall(layer.receive(data))


@contextmanager
def subscribed(address: Address, upgrade: str, topic: str, channel: str) -> Iterator[socket.socket]:
    """Open an upgraded connection and subscribe. Yields: the plain side. Raises: LoadHandshakeError, OSError."""
    with socket.create_connection(address, timeout=TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        body = json.dumps({"feature_negotiation": True, upgrade: True}).encode()
        connection.sendall(MAGIC + b"IDENTIFY\n" + struct.pack(">i", len(body)) + body)
        if f'"{upgrade}":true'.encode() not in (answer := expect_ok(connection)):
            raise LoadHandshakeError(f"{upgrade} was not granted: {answer.decode('utf-8', 'replace')}")
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CHUNK_BYTES)
        thread = threading.Thread(target=relay, args=(upgrade, connection, theirs))
        thread.start()
        try:
            with ours:
                ours.settimeout(TIMEOUT_S)
                expect_ok(ours)
                ours.sendall(f"SUB {topic} {channel}\n".encode())
                expect_ok(ours)
                ours.setblocking(False)
                yield ours
        finally:
            thread.join()
