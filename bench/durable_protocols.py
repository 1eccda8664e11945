"""Publishing in the protocols of NSQ, Redis, beanstalkd and NATS: connections, requests, and the form of an answer.

A protocol makes bytes only; `bench.durable_load` moves them. Sources: nsq.io/clients/tcp_protocol_spec.html,
redis.io/docs/reference/protocol-spec, beanstalkd's doc/protocol.txt, docs.nats.io (client protocol, JetStream API).
"""

import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from pyqd.tools.bench.connections import Address

TIMEOUT_S = 20.0
TIME_TO_RUN_S = 120


@dataclass(frozen=True)
class Client:
    """Connection that cycles through its topics; its number tells it from the others of the load."""

    number: int
    topics: tuple[str, ...]

    @property
    def in_turn(self) -> bool:
        return len(self.topics) > 1


class ProtocolError(Exception):
    """A server gave an unexpected answer to the preparation of a load."""


def connect(address: Address) -> socket.socket:
    connection = socket.create_connection(address, timeout=TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def ask(connection: socket.socket, request: bytes, end: bytes) -> bytes:
    """Send a request and return the bytes up to `end`. Raises: ProtocolError if the server closes the connection."""
    connection.sendall(request)
    received = b""
    while not received.endswith(end):
        piece = connection.recv(65536)
        if not piece:
            raise ProtocolError(f"{request[:60]!r} was answered with {received[-200:]!r}")
        received += piece
    return received


class Nsq:
    """PUB, or MPUB for a batch, which has one answer.

    answer: a regular expression of one answer that says OK, as it leaves the server.
    """

    answer = rb"\0\0\0\x06\0\0\0\0OK"

    def prepare(self, address: Address, topics: Sequence[str]) -> None:
        """Make the topics ready to be published to."""

    def hello(self, _client: Client) -> bytes:
        """Return the first bytes of the connection."""
        return b"  V2"

    def greet(self, connection: socket.socket, hello: bytes) -> None:
        """Send it and read the answers."""
        connection.sendall(hello)

    def request(self, topic: str, body: bytes, batch: int, _client: Client) -> bytes:
        """Return the client's request for a batch."""
        sized = len(body).to_bytes(4, "big") + body
        if batch == 1:
            return f"PUB {topic}\n".encode() + sized
        content = batch.to_bytes(4, "big") + sized * batch
        return f"MPUB {topic}\n".encode() + len(content).to_bytes(4, "big") + content

    def answers(self, _batch: int) -> int:
        """Return how many answers the request for a batch has."""
        return 1

    def lines(self, _client: Client) -> tuple[bytes, ...]:
        """Return how the lines of one answer begin, for `DurableLoad`."""
        return ()


class Pipelined(Nsq):
    """A protocol without batches: a batch is so many requests sent in one piece, each with its answer."""

    def answers(self, batch: int) -> int:
        return batch


class Redis(Pipelined):
    """XADD to a stream for each topic."""

    answer = rb"\$\d+\r\n\d+-\d+\r\n"

    def hello(self, _client: Client) -> bytes:
        return b""

    def request(self, topic: str, body: bytes, batch: int, _client: Client) -> bytes:
        words = (b"XADD", topic.encode(), b"*", b"m", body)
        return (b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)) * batch

    def lines(self, _client: Client) -> tuple[bytes, ...]:
        return (b"$", b"")


class Beanstalk(Pipelined):
    """`put` into a tube for each topic; `use` before each put of a connection that takes the topics in turn."""

    answer = rb"INSERTED \d+\r\n"

    def hello(self, client: Client) -> bytes:
        return f"use {client.topics[0]}\r\n".encode()

    def greet(self, connection: socket.socket, hello: bytes) -> None:
        ask(connection, hello, b"\r\n")

    def request(self, topic: str, body: bytes, batch: int, client: Client) -> bytes:
        use = f"use {topic}\r\n".encode() if client.in_turn else b""
        return (use + b"put 0 0 %d %d\r\n%b\r\n" % (TIME_TO_RUN_S, len(body), body)) * batch

    def lines(self, client: Client) -> tuple[bytes, ...]:
        return (b"USING ", b"INSERTED ") if client.in_turn else (b"INSERTED ",)


class Nats(Pipelined):
    """PUB with a reply subject to a JetStream stream in files for each topic; the acknowledgement is a message."""

    answer = rb'MSG \S+ \d+ \d+\r\n\{"stream":[^\r]*\r\n'
    options = b'CONNECT {"verbose":false,"pedantic":false}\r\n'

    def inbox(self, client: Client) -> bytes:
        # Acknowledgements go to every subscriber of the subject, so each connection has its own, of a fixed width.
        return b"inbox%05d" % client.number

    def prepare(self, address: Address, topics: Sequence[str]) -> None:
        client = Client(0, tuple(topics))
        with connect(address) as connection:
            self.greet(connection, self.hello(client))
            for topic in topics:
                stream = json.dumps({"name": topic, "subjects": [topic], "storage": "file"}).encode()
                request = b"PUB $JS.API.STREAM.CREATE.%b %b %d\r\n%b\r\n" % (
                    topic.encode(),
                    self.inbox(client),
                    len(stream),
                    stream,
                )
                answer = ask(connection, request, b"}\r\n")
                if b'"error"' in answer:
                    raise ProtocolError(f"no stream for {topic}: {answer.decode(errors='replace')}")

    def hello(self, client: Client) -> bytes:
        return self.options + b"SUB %b 1\r\nPING\r\n" % self.inbox(client)

    def greet(self, connection: socket.socket, hello: bytes) -> None:
        ask(connection, hello, b"PONG\r\n")

    def request(self, topic: str, body: bytes, batch: int, client: Client) -> bytes:
        return b"PUB %b %b %d\r\n%b\r\n" % (topic.encode(), self.inbox(client), len(body), body) * batch

    def lines(self, _client: Client) -> tuple[bytes, ...]:
        return (b"MSG ", b'{"stream":')
