"""kombu transport: Celery on pyqd, with `broker_url = "pyqd://127.0.0.1:4150"`.

An installed pyqd makes kombu know the scheme. Programs that use kombu without Celery import this module first.

Tasks with an eta or a countdown wait in the broker, on its disk, and reach a worker when they are due. Priorities are
not supported: NSQ has none.

Source: docs/celery.md.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from kombu.transport import base, virtual

import pyqd.client.ecosystem.kombu_alias  # noqa: F401 - registers the scheme
from pyqd import __version__
from pyqd.client import Consumer, Producer
from pyqd.client.ecosystem.deferral import DeferringProducer
from pyqd.client.ecosystem.inbox import Inbox, Owner
from pyqd.client.ecosystem.kombu_channel import Binding, KombuChannel
from pyqd.client.errors import ClientError, ClosedError, NotConnectedError, SettingError, TimedOutError
from pyqd.client.http_group import HttpGroup
from pyqd.client.settings import NAMES, TCP_PORT, check_timeout, make_settings, parse_targets
from pyqd.primitives.addresses import Address, UnixAddress, check_host

DEFAULT_HOST: Final = "127.0.0.1"
SCHEME: Final = "pyqd"
CONNECT_S: Final = 5.0
# Users of kombu expect an error soon: kombu has retries of its own.
NOT_CONNECTED_S: Final = 1.0

__all__ = ["Transport"]


class Transport(virtual.Transport):  # type: ignore[misc]
    """Connection of kombu to one or several brokers. The settings of the client are in the URL's query, or in the
    transport option `client`, a dictionary."""

    Channel = KombuChannel
    can_parse_url = True
    default_port = TCP_PORT
    driver_type = SCHEME
    driver_name = SCHEME
    polling_interval = None
    connection_errors = (*base.Transport.connection_errors, NotConnectedError, TimedOutError, ClosedError)
    channel_errors = (*base.Transport.channel_errors, ClientError)
    implements = virtual.Transport.implements.extend(
        asynchronous=False, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.inbox = Inbox()
        self.broadcast_bindings: dict[str, list[Binding]] = {}
        self.temporary_queues: set[str] = set()
        self._url = broker_url(client.hostname)
        check_place(client.transport_options)
        self._options = dict(client.transport_options.get("client") or {})
        # Of publishes; consumers have none.
        self._timeout = self._options.pop("timeout", None)
        self._targets = parse_targets(self._url, None)
        if "not_connected_timeout" not in self._targets.settings:
            self._options.setdefault("not_connected_timeout", NOT_CONNECTED_S)
        self._settings = make_settings({**self._targets.settings, **self._options})
        timeout = self._targets.timeout if self._timeout is None else self._timeout
        if timeout is not None:
            check_timeout(timeout)
        self.http = HttpGroup(self._targets, self._settings, timeout)
        self._producer: DeferringProducer | None = None
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def driver_version(self) -> str:
        """Return the version of pyqd."""
        return __version__

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the URL for people; without the secret unless include_password is set."""
        parts = urlsplit(broker_url(uri))
        credentials, at, hosts = parts.netloc.rpartition("@")
        if at and not include_password:
            user, colon, _ = credentials.partition(":")
            credentials = f"{user}{colon}{mask}" if colon else mask
        return urlunsplit((parts.scheme, f"{credentials}{at}{hosts}", parts.path, parts.query, ""))

    # Used by channels.

    @property
    def producer(self) -> DeferringProducer:
        """Producer of this connection."""
        with self._lock:
            if self._producer is None:
                self._producer = DeferringProducer(Producer(self._url, timeout=self._timeout, **self._options))
            return self._producer

    def new_consumer(self, topic: str, channel: str, max_in_flight: int) -> Consumer:
        """Return a consumer at the brokers of this connection."""
        return Consumer(topic, channel, nsqd=self._url, max_in_flight=max_in_flight, **self._options)

    def announce(self, topic: str, channel: str) -> None:
        """Create a topic and channel at all brokers, so that lookup daemons name the brokers from now on."""
        if self._targets.lookupd:
            self.http.announce(topic, channel)

    # Used by kombu.

    def establish_connection(self) -> Any:
        """Connect. Raises: NotConnectedError if no broker accepts connections."""
        self._check_reachable()
        return super().establish_connection()

    def _check_reachable(self) -> None:
        errors = []
        for address in self._targets.brokers:
            try:
                knock(address, self.client.connect_timeout or CONNECT_S)
                return
            except OSError as error:
                errors.append(f"{address}: {error}")
        if errors and not self._targets.lookupd:
            raise NotConnectedError(f"cannot connect to a broker: {'; '.join(errors)}")

    def verify_connection(self, connection: Any) -> bool:
        """Return True: consumers and producers reconnect by themselves."""
        return True

    def close_connection(self, connection: Any) -> None:
        """Requeue unanswered messages, and disconnect. The child of a fork leaves the parent's connections alone."""
        if self._pid != os.getpid():
            return
        super().close_connection(connection)
        with self._lock:
            if self._producer is not None:
                self._producer.producer.close()
                self._producer = None

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver one message. Raises: TimeoutError if none arrives in time."""
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while True:
            left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            received = self.inbox.take(self._ready_owners, left_s)
            if received is None:
                raise TimeoutError
            for channel in list(self.channels):
                if id(channel) == received.intake.owner[0] and channel.deliver(received):
                    return

    def _ready_owners(self) -> list[Owner]:
        return [owner for channel in list(self.channels) for owner in channel.ready_owners()]


def check_place(options: Mapping[str, Any]) -> None:
    """Check that transport options are none of the client's, which kombu would ignore. Raises: SettingError."""
    for name in options:
        if name in NAMES or name == "timeout":
            raise SettingError(f"transport option {name}: give it in the dictionary of the transport option client")


def broker_url(text: str | None) -> str:
    """Return a complete URL: kombu gives a host without its scheme in some places, and `pyqd://` names no host."""
    url = text or f"{SCHEME}://"
    if "://" not in url:
        url = f"{SCHEME}://{url}"
    parts = urlsplit(url)
    if parts.netloc or parts.path.strip("/") or "lookupd=" in parts.query:
        return url
    return urlunsplit(parts._replace(netloc=f"{DEFAULT_HOST}:{TCP_PORT}"))


def knock(address: Address, timeout_s: float) -> None:
    """Connect to a broker and disconnect. Raises: OSError."""
    if isinstance(address, UnixAddress):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(timeout_s)
            probe.connect(address.path)
    else:
        check_host(address.host)
        socket.create_connection((address.host, address.port), timeout=timeout_s).close()
