"""Brokers whose OK means "on stable storage": how they are started, and publishing in their protocols.

Sources: nsq.io/clients/tcp_protocol_spec.html, redis.io/docs/reference/protocol-spec, beanstalkd's doc/protocol.txt,
docs.nats.io (client protocol, JetStream API).
"""

import json
import os
import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from bench.server import RunError, Target, nsqd_options
from pyqd.tools.bench.connections import Address

TIMEOUT_S = 20.0
TIME_TO_RUN_S = 120


@dataclass(frozen=True)
class Client:
    """Connection that cycles through its topics; its number tells it from the others of the load."""

    number: int
    topics: tuple[str, ...]


def connect(address: Address) -> socket.socket:
    connection = socket.create_connection(address, timeout=TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def ask(connection: socket.socket, request: bytes, end: bytes) -> bytes:
    """Send a request and return the bytes up to `end`. Raises: RunError if the server closes the connection."""
    connection.sendall(request)
    received = b""
    while not received.endswith(end):
        piece = connection.recv(65536)
        if not piece:
            raise RunError(f"{request[:60]!r} was answered with {received[-200:]!r}")
        received += piece
    return received


class Nsq:
    """PUB, or MPUB for a batch, which has one answer.

    answer: a regular expression of one answer that says OK. idle: of bytes that are no answer. is_batched: a batch is
    one request. hello_end: end of the answer to the first bytes of a connection, if they have one.
    """

    answer: ClassVar[bytes] = rb"\0\0\0\x06\0\0\0\0OK"
    idle: ClassVar[bytes] = rb"\0\0\0\x0f\0\0\0\0_heartbeat_"
    is_batched: ClassVar[bool] = True
    hello_end: ClassVar[bytes] = b""

    def options(self, tcp: Address, http: Address, data_path: Path) -> Sequence[str]:
        return nsqd_options(tcp, http, data_path)

    def prepare(self, address: Address, topics: Sequence[str]) -> None:
        """Make the topics ready to be published to."""

    def hello(self, _client: Client) -> bytes:
        """Return the first bytes of a connection."""
        return b"  V2"

    def request(self, topic: str, body: bytes, batch: int, _client: Client) -> bytes:
        """Return a connection's request for a batch."""
        sized = len(body).to_bytes(4, "big") + body
        if batch == 1:
            return f"PUB {topic}\n".encode() + sized
        content = batch.to_bytes(4, "big") + sized * batch
        return f"MPUB {topic}\n".encode() + len(content).to_bytes(4, "big") + content


class Redis(Nsq):
    """XADD to a stream for each topic. A batch is so many requests sent in one piece, each with its answer."""

    answer = rb"\$\d+\r\n\d+-\d+\r\n"
    is_batched = False

    def options(self, tcp: Address, _http: Address, data_path: Path) -> Sequence[str]:
        flags = {"port": tcp[1], "bind": "127.0.0.1", "dir": data_path, "appendonly": "yes", "appendfsync": "always"}
        return [word for name, value in flags.items() for word in (f"--{name}", str(value))] + ["--save", ""]

    def hello(self, _client: Client) -> bytes:
        return b""

    def request(self, topic: str, body: bytes, batch: int, _client: Client) -> bytes:
        words = (b"XADD", topic.encode(), b"*", b"m", body)
        return (b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)) * batch


class Beanstalk(Redis):
    """`put` into a tube for each topic; `use` before each put of a connection that takes the topics in turn."""

    answer = rb"(?:USING \w+\r\n)?INSERTED \d+\r\n"
    hello_end = b"\r\n"

    def options(self, tcp: Address, _http: Address, data_path: Path) -> Sequence[str]:
        return ["-l", "127.0.0.1", "-p", str(tcp[1]), "-b", str(data_path), "-f", "0"]

    def hello(self, client: Client) -> bytes:
        return f"use {client.topics[0]}\r\n".encode()

    def request(self, topic: str, body: bytes, batch: int, client: Client) -> bytes:
        use = f"use {topic}\r\n".encode() if len(client.topics) > 1 else b""
        return (use + b"put 0 0 %d %d\r\n%b\r\n" % (TIME_TO_RUN_S, len(body), body)) * batch


class Nats(Redis):
    """PUB with a reply subject to a JetStream stream in files for each topic; the acknowledgement is a message."""

    answer = rb'MSG \S+ \d+ \d+\r\n\{"stream":[^\r]*\r\n'
    idle = rb"PING\r\n"
    hello_end = b"PONG\r\n"

    def options(self, tcp: Address, _http: Address, data_path: Path) -> Sequence[str]:
        configuration = data_path.parent / "nats.conf"
        configuration.write_text(f'jetstream {{ store_dir: "{data_path}", sync_interval: always }}\n')
        return ["-a", "127.0.0.1", "-p", str(tcp[1]), "-c", str(configuration)]

    def inbox(self, client: Client) -> bytes:
        # Acknowledgements go to every subscriber of the subject, so each connection has its own, of a fixed width.
        return b"inbox%05d" % client.number

    def prepare(self, address: Address, topics: Sequence[str]) -> None:
        client = Client(0, tuple(topics))
        with connect(address) as connection:
            ask(connection, self.hello(client), self.hello_end)
            for topic in topics:
                stream = json.dumps({"name": topic, "subjects": [topic], "storage": "file"}).encode()
                request = b"PUB $JS.API.STREAM.CREATE.%b %b %d\r\n%b\r\n"
                answer = ask(connection, request % (topic.encode(), self.inbox(client), len(stream), stream), b"}\r\n")
                if b'"error"' in answer:
                    raise RunError(f"no stream for {topic}: {answer.decode(errors='replace')}")

    def hello(self, client: Client) -> bytes:
        return b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB %b 1\r\nPING\r\n' % self.inbox(client)

    def request(self, topic: str, body: bytes, batch: int, client: Client) -> bytes:
        return b"PUB %b %b %d\r\n%b\r\n" % (topic.encode(), self.inbox(client), len(body), body) * batch


# The environment variable of the name in capitals has the path of the program.
PROTOCOLS: dict[str, Nsq] = {"pyqd": Nsq(), "redis": Redis(), "beanstalkd": Beanstalk(), "nats": Nats()}


def find_brokers() -> list[Target]:
    """Return pyqd with `--sync-every=1` and the brokers of the environment. Raises: ValueError for no such program."""
    found = [replace(Target.parse("pyqd --sync-every=1"), name="pyqd")]
    for name, protocol in list(PROTOCOLS.items())[1:]:
        given = os.environ.get(name.upper())
        if not given:
            print(f"{name} is left out: {name.upper()} does not name a program")
            continue
        program = shutil.which(given)
        if program is None:
            raise ValueError(f"{name.upper()}: no such program: {given}")
        # Only Go's servers use it; more running threads than cores would only add switches.
        one_core = (("GOMAXPROCS", "1"),)
        found.append(Target(name, (program,), one_core, program=name, options=protocol.options))
    return found
