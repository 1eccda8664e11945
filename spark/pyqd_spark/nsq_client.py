"""Connection of NSQ's TCP protocol on a blocking socket, for publishing and consuming in a task.

The protocol is that of pyqd.client.core; here are the socket and its waits, each of which has a bound. Heartbeats are
answered while events are read.
"""

import contextlib
import math
import select
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from pyqd.client.core.connection import CommandAnswer, ConnectionCore, Event, Ready, Refusal
from pyqd.client.core.layers import TlsLayer
from pyqd.client.core.tls import lasting_cause
from pyqd.client.errors import (
    AuthenticationError,
    ClientError,
    NotConnectedError,
    ProtocolError,
    RefusedError,
    TlsError,
    UnansweredError,
    refusal,
)
from pyqd.client.settings import TCP_PORT
from pyqd.primitives.addresses import TcpAddress
from pyqd.primitives.http_client import refuse_own
from pyqd_spark.brokers import BrokerClient, BrokerError, find_brokers
from pyqd_spark.options import BrokerOptions, Option, exactly_one, parse_address, parse_names, parse_text
from pyqd_spark.tls import context_of, names_of

OK: Final = b"OK"
RECEIVE_BYTES: Final = 1 << 18
# For the last frames of a broker that has closed: they have arrived already, or never will.
LAST_WORDS_WAIT_S: Final = 0.2

# The connection broke or timed out: unanswered commands may or may not have been executed.
BrokenError = UnansweredError


def parse_tcp_addresses(text: str) -> tuple[str, ...]:
    """Return TCP addresses, separated by commas: `host:port` or `host`. Raises: ValueError."""
    found = [parse_address(entry, TCP_PORT) for entry in parse_names(text)]
    if any("://" in address for address in found):
        raise ValueError("expected host:port, without a scheme")
    return tuple(dict.fromkeys(found))


# Options of TCP connections, part of the tables of the formats that use TCP.
TCP_CONNECTION: Final = (Option("nsqdTcp", parse_tcp_addresses), Option("authSecret", parse_text))


class BrokerTarget(NamedTuple):
    """A broker to connect to. address: `host:port`, of TCP, or of HTTP if the TCP port is still unknown."""

    address: str
    is_tcp: bool


@dataclass(frozen=True)
class TcpConnection:
    """Settings of TCP connections to brokers, as sent to the executors.

    connection: over HTTP, for addresses, time limits and TLS. tcp: TCP addresses, if they are given.
    """

    connection: BrokerOptions
    tcp: tuple[str, ...] = ()
    auth_secret: str | None = None

    @classmethod
    def of(cls, source: str, values: Mapping[str, Any]) -> "TcpConnection":
        """Return the settings in the options of the tables CONNECTION and TCP_CONNECTION. Raises: OptionError."""
        exactly_one(source, values, ("nsqd", "lookupd", "nsqdTcp"))
        tcp = values["nsqdTcp"] or ()
        connection = BrokerOptions.of(source, {**values, "nsqd": tcp} if tcp else values)
        return cls(connection, tcp, values["authSecret"])

    def targets(self, topic: str | None = None) -> list[BrokerTarget]:
        """Return the brokers, in the same order for all tasks.

        topic: only brokers with it, by the lookup daemons. Raises: UnreachableError, BrokerError for lookup daemons.
        """
        if self.tcp:
            return [BrokerTarget(address, True) for address in self.tcp]
        addresses = find_brokers(self.connection, topic).addresses
        return [BrokerTarget(address, False) for address in (addresses if self.connection.nsqd else sorted(addresses))]

    def tcp_address(self, target: BrokerTarget) -> str:
        """Return a broker's TCP address: the host that is known to be reachable, and the port that the broker
        announces.

        Raises: BrokerError, UnreachableError among them.
        """
        if target.is_tcp:
            return target.address
        with BrokerClient(target.address, replace(self.connection, retry_timeout_s=0.0)) as client:
            port = client.json("/info").get("tcp_port")
            if not port:
                raise BrokerError(f"{target.address}: takes no TCP connections on a port")
            return str(TcpAddress(client.place.host, port))

    def open(self, target: BrokerTarget, **identity: object) -> "NsqClient":
        """Return a connection to a broker, negotiated and authenticated. identity: fields of IDENTIFY.

        Raises: BrokenError, RefusedError, TlsError, BrokerError, UnreachableError.
        """
        context = context_of(self.connection) if self.connection.tls else None
        client = NsqClient(self.tcp_address(target), self.connection.request_timeout_s)
        secret = self.auth_secret
        if secret is not None and not target.is_tcp and not self.connection.may_have_secrets(target.address):
            secret = None
        try:
            client.negotiate(context, secret, identity)
        except BaseException as error:
            client.close()
            lasting = lasting_cause(error.__cause__, names_of(self.connection))
            if lasting is not None and isinstance(error, TlsError):
                raise TlsError(f"{client.address}: {lasting}") from error
            if secret is None and isinstance(error, AuthenticationError):
                option = "authSecret" if self.auth_secret is None else "trustedBrokers, with this broker"
                said = f"E_AUTH_FIRST the broker requires a secret: option {option}"
                raise AuthenticationError(said, client.address) from error
            raise
        return client


class NsqClient:
    """Connection to the TCP port of a broker, for one thread. timeout_s: of each wait without progress."""

    def __init__(self, address: str, timeout_s: float) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self.used_s = time.monotonic()
        self._core = ConnectionCore({}, broker=address)
        self._events: list[Event] = []
        host, _, port = address.rpartition(":")
        self._host = host.strip("[]")
        try:
            self._socket = socket.create_connection((self._host, int(port)), timeout=timeout_s)
            refuse_own(self._socket)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, UnicodeError) as error:
            # UnicodeError: a host name that cannot exist.
            raise BrokenError(f"{address}: {error}") from error

    def close(self) -> None:
        self._socket.close()

    @property
    def identity(self) -> Mapping[str, Any]:
        """The broker's answer to IDENTIFY."""
        return self._core.info

    @property
    def returns_ids(self) -> bool:
        """Return whether the broker understands DMPUB and returns the ids of published messages."""
        return self._core.gives_ids

    def negotiate(self, tls: ssl.SSLContext | None, secret: str | None, identity: Mapping[str, object]) -> None:
        """Identify, and apply the granted features. Raises: BrokenError, RefusedError, TlsError."""
        fields = {"feature_negotiation": True, "message_ids": True, "user_agent": "pyqd_spark", **identity}
        self._core = ConnectionCore(
            {**fields, "tls_v1": tls is not None},
            new_tls=None if tls is None else lambda: TlsLayer(tls, self._host),
            auth_secret=secret,
            broker=self.address,
        )
        while not self._core.is_ready:
            self._send_output()
            try:
                self._events += self._receive(self.timeout_s)
            except TimeoutError:
                raise BrokenError(f"{self.address}: IDENTIFY: no answer for {self.timeout_s:g} s") from None
        self._events = [event for event in self._events if not isinstance(event, Ready)]

    def send(self, data: bytes) -> None:
        """Send commands. Raises: RefusedError if the broker gave a reason before it closed, BrokenError."""
        self._core.send(data)
        self._send_output()

    def _send_output(self) -> None:
        try:
            data = self._core.take_output()
            if not data:
                return
            self._socket.settimeout(self.timeout_s)
            self._socket.sendall(data)
        except OSError as error:
            raise self._reason(error) from error
        self.used_s = time.monotonic()

    def _reason(self, error: OSError) -> BrokerError:
        """Return why a connection broke: the broker's last error, if it has arrived. Other events stay unread."""
        try:
            while not any(isinstance(event, Refusal) for event in self._events):
                self._events += self._receive(LAST_WORDS_WAIT_S)
        except RefusedError as refused:
            return refused
        except (ClientError, TimeoutError):
            pass
        for event in self._events:
            if isinstance(event, Refusal):
                return refusal(event.data, self.address)
        return BrokenError(f"{self.address}: {str(error) or type(error).__name__}")

    def answered(self) -> int:
        """Return the number of unread OKs of a broken connection."""
        return sum(isinstance(event, CommandAnswer) and event.data.split(b" ", 1)[0] == OK for event in self._events)

    def response(self, doing: str) -> bytes:
        """Return the data of the next response. Raises: RefusedError for an error instead, BrokenError."""
        if not self._events:
            try:
                self._events = self.receive(self.timeout_s)
            except TimeoutError:
                raise BrokenError(f"{self.address}: {doing}: no answer for {self.timeout_s:g} s") from None
        event = self._events.pop(0)
        if isinstance(event, CommandAnswer):
            return event.data
        if isinstance(event, Refusal):
            raise refusal(event.data, self.address, doing)
        raise RefusedError(f"{type(event).__name__} instead of an answer", self.address, doing)

    def expect(self, data: bytes, doing: str) -> None:
        """Read one response, which must have this content. Raises: RefusedError, BrokenError."""
        got = self.response(doing)
        if got != data:
            raise RefusedError(f"{got[:100]!r} instead of {data!r}", self.address, doing)

    def receive(self, wait_s: float, wake: int | None = None) -> list[Event]:
        """Return the events of received bytes, at least one; heartbeats are answered.

        wake: a descriptor that ends the wait when it becomes readable. Raises: TimeoutError if none came within wait_s;
        BrokenError at the end of the connection.
        """
        deadline_s = time.monotonic() + wait_s
        while not self._events:
            self._events = self._receive(max(0.0, deadline_s - time.monotonic()), wake)
            self._send_output()
        events, self._events = self._events, []
        return events

    def _receive(self, wait_s: float, wake: int | None = None) -> list[Event]:
        """Receive once. Raises: TimeoutError, BrokenError; RefusedError and TlsError before the connection is ready."""
        if not self._is_readable(wait_s, wake):
            raise TimeoutError
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except OSError as error:
            raise BrokenError(f"{self.address}: {error}") from error
        if not data:
            raise BrokenError(f"{self.address}: the broker closed the connection")
        self.used_s = time.monotonic()
        try:
            return self._core.receive(data)
        except TlsError:
            # The broker logs the alert.
            with contextlib.suppress(OSError):
                self._socket.sendall(self._core.take_output())
            raise
        except (NotConnectedError, ProtocolError) as error:
            raise BrokenError(f"{self.address}: {error}") from error

    def _is_readable(self, wait_s: float, wake: int | None) -> bool:
        """Wait for bytes. Returns: whether they came in time, before any other event."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if wake is not None:
            poll.register(wake, select.POLLIN)
        ready = poll.poll(math.ceil(wait_s * 1000))
        return any(descriptor != wake for descriptor, _ in ready)
