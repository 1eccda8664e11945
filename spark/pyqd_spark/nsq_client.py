"""Connection of NSQ's TCP protocol on blocking sockets, for publishing and consuming in a task.

Every wait has a bound. Heartbeats are answered while frames are read. Needs only the standard library.

Source: docs/nsq/tcp-protocol.md, "Commands"; docs/protocol-extensions.md, "Ids of published messages".
"""

import json
import math
import select
import socket
import ssl
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from pyqd.client.core.tls import lasting_cause
from pyqd.client.errors import TlsError
from pyqd.client.http import refuse_own
from pyqd_spark.brokers import BrokerClient, BrokerError, find_brokers
from pyqd_spark.options import Connection, Option, exactly_one, parse_address, parse_names, parse_text
from pyqd_spark.tls import context_of, names_of

TCP_PORT: Final = 4150
MAGIC: Final = b"  V2"
RESPONSE, ERROR, MESSAGE = 0, 1, 2
OK: Final = b"OK"
CLOSE_WAIT: Final = b"CLOSE_WAIT"
RECEIVE_BYTES: Final = 1 << 18
FRAME_BYTES_MAX: Final = 1 << 30
# For the last frames of a broker that has closed: they have arrived already, or never will.
LAST_WORDS_WAIT_S: Final = 0.2

_HEARTBEAT = b"_heartbeat_"
_HEADER = struct.Struct(">ii")
_INT32 = struct.Struct(">i")


class RefusedError(BrokerError):
    """A broker's error instead of OK. code: such as E_BAD_TOPIC."""

    def __init__(self, address: str, text: str, doing: str = "") -> None:
        super().__init__(f"{address}: {doing + ': ' if doing else ''}{text}")
        self.address = address
        self.text = text
        self.code = text.split(" ", 1)[0]


class BrokenError(BrokerError):
    """The connection broke or timed out: unanswered commands may or may not have been executed."""


class Frame(NamedTuple):
    """One frame. type: RESPONSE, ERROR or MESSAGE."""

    type: int
    data: bytes


def parse_tcp_addresses(text: str) -> tuple[str, ...]:
    """Return TCP addresses, separated by commas: `host:port` or `host`. Raises: ValueError."""
    found = [parse_address(entry, TCP_PORT) for entry in parse_names(text)]
    if any("://" in address for address in found):
        raise ValueError("expected host:port, without a scheme")
    return tuple(dict.fromkeys(found))


# Options of TCP connections, part of the tables of the formats that use TCP.
TCP_CONNECTION: Final = (Option("nsqdTcp", parse_tcp_addresses), Option("authSecret", parse_text))


class Target(NamedTuple):
    """A broker to connect to. address: `host:port`, of TCP, or of HTTP if the TCP port is still unknown."""

    address: str
    is_tcp: bool


@dataclass(frozen=True)
class TcpConnection:
    """Settings of TCP connections to brokers, as sent to the executors.

    connection: over HTTP, for addresses, time limits and TLS. tcp: TCP addresses, if they are given.
    """

    connection: Connection
    tcp: tuple[str, ...] = ()
    auth_secret: str | None = None

    @classmethod
    def of(cls, source: str, values: Mapping[str, Any]) -> "TcpConnection":
        """Return the settings in the options of the tables CONNECTION and TCP_CONNECTION. Raises: OptionError."""
        exactly_one(source, values, ("nsqd", "lookupd", "nsqdTcp"))
        tcp = values["nsqdTcp"] or ()
        connection = Connection.of(source, {**values, "nsqd": tcp} if tcp else values)
        return cls(connection, tcp, values["authSecret"])

    def targets(self, topic: str | None = None) -> list[Target]:
        """Return the brokers, in the same order for all tasks.

        topic: only brokers with it, by the lookup daemons. Raises: UnreachableError, BrokerError for lookup daemons.
        """
        if self.tcp:
            return [Target(address, True) for address in self.tcp]
        addresses = find_brokers(self.connection, topic).addresses
        return [Target(address, False) for address in (addresses if self.connection.nsqd else sorted(addresses))]

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the TLS context of a connection; None without TLS. Raises: TlsError for the files."""
        return context_of(self.connection) if self.connection.tls else None

    def tcp_address(self, target: Target) -> str:
        """Return a broker's TCP address: the host that is known to be reachable, and the port that the broker
        announces.

        Raises: BrokerError, UnreachableError among them.
        """
        if target.is_tcp:
            return target.address
        with BrokerClient(target.address, replace(self.connection, retry_timeout_s=0.0)) as client:
            port = client.info().get("tcp_port")
            if not port:
                raise BrokerError(f"{target.address}: takes no TCP connections on a port")
            return f"[{client.host}]:{port}" if ":" in client.host else f"{client.host}:{port}"

    def open(self, target: Target, **identity: object) -> "NsqClient":
        """Return a connection to a broker, negotiated and authenticated. identity: fields of IDENTIFY.

        Raises: BrokenError, RefusedError, TlsError, BrokerError, UnreachableError.
        """
        context = self.tls_context()
        client = NsqClient(self.tcp_address(target), self.connection.request_timeout_s)
        try:
            client.negotiate(context, self.auth_secret, identity)
        except BaseException as error:
            client.close()
            lasting = lasting_cause(error.__cause__, names_of(self.connection))
            if lasting is not None and isinstance(error, BrokenError):
                raise TlsError(f"{client.address}: {lasting}") from error
            raise
        return client


def sized(data: bytes) -> bytes:
    """Return bytes preceded by their size, as in commands with a body."""
    return _INT32.pack(len(data)) + data


class NsqClient:
    """Connection to the TCP port of a broker, for one thread. timeout_s: of each wait without progress."""

    def __init__(self, address: str, timeout_s: float) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self.identity: dict[str, Any] = {}
        self.used_s = time.monotonic()
        self._received = bytearray()
        self._frames: list[Frame] = []
        host, _, port = address.rpartition(":")
        self._host = host.strip("[]")
        try:
            self._socket = socket.create_connection((self._host, int(port)), timeout=timeout_s)
            refuse_own(self._socket)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise BrokenError(f"{address}: {error}") from error

    def __enter__(self) -> "NsqClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    @property
    def tells_ids(self) -> bool:
        """Return whether the broker understands DMPUB and returns the ids of published messages."""
        return self.identity.get("message_ids") is True

    def negotiate(self, tls: ssl.SSLContext | None, secret: str | None, identity: Mapping[str, object]) -> None:
        """Identify, and apply the granted features. Raises: BrokenError, RefusedError."""
        fields = {
            "feature_negotiation": True,
            "message_ids": True,
            "user_agent": "pyqd_spark",
            "tls_v1": tls is not None,
            **identity,
        }
        self.send(MAGIC + b"IDENTIFY\n" + sized(json.dumps(fields).encode()))
        answer = self.response("IDENTIFY")
        try:
            self.identity = dict(json.loads(answer))
        except (ValueError, TypeError):
            raise RefusedError(self.address, f"{answer[:100]!r} instead of JSON", "IDENTIFY") from None
        if tls is not None:
            self._start_tls(tls)
        if secret is not None:
            self.send(b"AUTH\n" + sized(secret.encode()))
            self.response("AUTH")

    def _start_tls(self, context: ssl.SSLContext) -> None:
        if not self.identity.get("tls_v1"):
            raise RefusedError(self.address, "the broker has no TLS on its TCP port", "option tls")
        try:
            self._socket = context.wrap_socket(self._socket, server_hostname=self._host)
        except (OSError, ValueError) as error:
            raise BrokenError(f"{self.address}: TLS: {error}") from error
        self.expect(OK, "TLS")

    def send(self, data: bytes) -> None:
        """Send all of the data. Raises: RefusedError if the broker gave a reason before it closed, BrokenError."""
        try:
            self._socket.settimeout(self.timeout_s)
            self._socket.sendall(data)
        except OSError as error:
            raise self._reason(error) from error
        self.used_s = time.monotonic()

    def _reason(self, error: OSError) -> BrokerError:
        """Return why a connection broke: the broker's last error, if it has arrived. Other frames stay unread."""
        frames: list[Frame] = []
        try:
            while not any(frame.type == ERROR for frame in frames):
                frames += self.receive(LAST_WORDS_WAIT_S)
        except (BrokerError, TimeoutError):
            pass
        self._frames = frames
        for frame in frames:
            if frame.type == ERROR:
                return RefusedError(self.address, frame.data.decode(errors="replace"))
        return BrokenError(f"{self.address}: {str(error) or type(error).__name__}")

    def answered(self) -> int:
        """Return the number of unread OKs of a broken connection."""
        return sum(frame.type == RESPONSE and frame.data.split(b" ", 1)[0] == OK for frame in self._frames)

    def response(self, doing: str) -> bytes:
        """Return the data of the next response. Raises: RefusedError for an error instead, BrokenError."""
        while not self._frames:
            try:
                self._frames = self.receive(self.timeout_s)
            except TimeoutError:
                raise BrokenError(f"{self.address}: {doing}: no answer for {self.timeout_s:g} s") from None
        frame = self._frames.pop(0)
        if frame.type != RESPONSE:
            raise RefusedError(self.address, frame.data.decode(errors="replace"), doing)
        return frame.data

    def expect(self, data: bytes, doing: str) -> None:
        """Read one response, which must have this content. Raises: RefusedError, BrokenError."""
        got = self.response(doing)
        if got != data:
            raise RefusedError(self.address, f"{got[:100]!r} instead of {data!r}", doing)

    def receive(self, wait_s: float, wake: int | None = None) -> list[Frame]:
        """Return the received frames, at least one; heartbeats are answered and left out.

        wake: a descriptor that ends the wait when it becomes readable. Raises: TimeoutError if none came within wait_s;
        BrokenError at the end of the connection.
        """
        deadline_s = time.monotonic() + wait_s
        while True:
            if self._frames:
                frames, self._frames = self._frames, []
                return frames
            left_s = max(0.0, deadline_s - time.monotonic())
            try:
                if not self._is_readable(left_s, wake):
                    raise TimeoutError
                self._socket.settimeout(self.timeout_s)
                data = self._socket.recv(RECEIVE_BYTES)
            except TimeoutError:
                raise
            except OSError as error:
                raise BrokenError(f"{self.address}: {error}") from error
            if not data:
                raise BrokenError(f"{self.address}: the broker closed the connection")
            self._received += data
            self._split()
            self.used_s = time.monotonic()

    def _is_readable(self, wait_s: float, wake: int | None) -> bool:
        """Wait for bytes. Returns: whether they came in time, before any other event."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if wake is not None:
            poll.register(wake, select.POLLIN)
        ready = poll.poll(math.ceil(wait_s * 1000))
        return any(descriptor != wake for descriptor, _ in ready)

    def _split(self) -> None:
        """Split the whole frames off the received bytes."""
        received = self._received
        at, end = 0, len(received)
        with memoryview(received) as view:
            while end - at >= _HEADER.size:
                size, frame_type = _HEADER.unpack_from(received, at)
                if not 4 <= size <= FRAME_BYTES_MAX:
                    raise BrokenError(f"{self.address}: a frame of {size} bytes; is this NSQ's TCP port?")
                if end - at < 4 + size:
                    break
                frame = Frame(frame_type, bytes(view[at + _HEADER.size : at + 4 + size]))
                at += 4 + size
                if frame.type == RESPONSE and frame.data == _HEARTBEAT:
                    self._send_nop()
                else:
                    self._frames.append(frame)
        del received[:at]

    def _send_nop(self) -> None:
        try:
            self._socket.sendall(b"NOP\n")
        except OSError as error:
            raise BrokenError(f"{self.address}: {error}") from error
