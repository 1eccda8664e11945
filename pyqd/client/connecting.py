"""Connections of one producer or consumer: their settings, and the brokers that lookup daemons name."""

from __future__ import annotations

import logging
import random
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from pyqd.client.core.connection import ConnectionCore
from pyqd.client.core.discovery import (
    LOOKUP_MEDIA_TYPE,
    BrokerAddress,
    LookupSchedule,
    TopicUnknownError,
    lookup_url,
    parse_lookup_answer,
)
from pyqd.client.core.layers import TlsLayer
from pyqd.client.core.reconnect import BrokerHealth
from pyqd.client.engine.engine import Engine
from pyqd.client.engine.link import Link, LinkHandler
from pyqd.client.engine.timers import Timer
from pyqd.client.errors import (
    AuthenticationError,
    ClientError,
    LookupFailedError,
    ProtocolError,
    QuotaError,
    RefusedError,
    SettingError,
    TlsError,
)
from pyqd.client.settings import Settings
from pyqd.primitives.addresses import Address, TcpAddress

# An answer of a lookup daemon names some kilobytes of brokers; a longer one is not read.
ANSWER_BYTES_MAX: Final = 64 << 20
# A new attempt to connect is likely to fail in the same way, so that the user should know at once.
LASTING_ERRORS: Final = (TlsError, AuthenticationError, ProtocolError, SettingError)
OPEN_S: Final = 5.0


class Connector:
    """Opens connections to brokers with the settings of one producer or consumer."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine = engine
        self.settings = settings
        self._identity = settings.identity()
        self._tls_context = settings.ssl_context()
        self._local = settings.local_endpoint()

    def connect(self, address: Address, handler: LinkHandler) -> Link:
        """Begin to connect; the handler gets the events of the link. The caller holds the engine's lock."""
        settings = self.settings
        core = ConnectionCore(
            self._identity,
            new_tls=None if self._tls_context is None else lambda: self._tls_layer(address),
            auth_secret=settings.auth_secret,
            broker=str(address),
        )
        link = self.engine.connect(address, core, handler, settings.connect_timeout, self._local)
        self._watch(link)
        return link

    def _watch(self, link: Link) -> None:
        """Close the link after a silence of two heartbeats: the broker's machine is gone, or the network is."""
        interval_s = self.settings.heartbeat_interval
        silence_s = self.settings.silence_timeout or 2 * interval_s

        def check() -> None:
            if not link.is_open:
                return
            if link.core.is_ready and time.monotonic() - link.heard_s > silence_s:
                link.fail(TimeoutError(f"silent for {silence_s:g} s"))
                return
            self._watch(link)

        self.engine.call_later(interval_s, check)

    def _tls_layer(self, address: Address) -> TlsLayer:
        assert self._tls_context is not None
        host = address.host if isinstance(address, TcpAddress) else "localhost"
        return TlsLayer(self._tls_context, self.settings.tls_server_name or host)


class PoolMember:
    """One broker: its link, if there is one, and why there is none."""

    def __init__(self, address: Address, health: BrokerHealth) -> None:
        self.address = address
        self.health = health
        self.link: Link | None = None
        self.last_error: ClientError | None = None
        self.is_error_lasting = False
        self.retry: Timer | None = None
        # Whether there was a connection, if only for a short time.
        self.was_reached = False

    @property
    def is_ready(self) -> bool:
        return self.link is not None and self.link.is_open and self.link.core.is_ready


class BrokerPool:
    """Brokers of one producer or consumer, each with a link that is opened again when it is lost.

    handler: gets the events of the links; it calls connected() and lost(). lookup: asked for more brokers. A broker
    that the lookup daemons no longer name is forgotten when its link is lost, unless no other is known: it may come
    back before they are asked again. on_change: called when a link is ready or
    lost. Methods are called with the lock held.
    """

    def __init__(
        self, connector: Connector, handler: LinkHandler, addresses: Iterable[Address], lookup: Lookup | None = None
    ) -> None:
        self.lookup = lookup
        self.has_started = False
        self.on_change: Callable[[], None] = connector.engine.wake_waiters
        self._connector = connector
        self._engine = connector.engine
        self._handler = handler
        self._is_closed = False
        self._brokers: dict[Address, PoolMember] = {}
        self._named: set[Address] = set()
        self._by_link: dict[Link, PoolMember] = {}
        self._given = frozenset(addresses)
        self._add(self._given)

    @property
    def brokers(self) -> list[PoolMember]:
        return list(self._brokers.values())

    def start(self) -> None:
        """Connect to all brokers, and ask the lookup daemons for more. May be repeated."""
        if not self.has_started:
            self.has_started = True
            for broker in self.brokers:
                self._connect(broker)
            if self.lookup is not None:
                self.lookup.start(self._found)

    def _found(self, addresses: list[Address]) -> None:
        self._named = set(addresses)
        self._add(addresses)

    def _add(self, addresses: Iterable[Address]) -> None:
        for address in addresses:
            if address not in self._brokers:
                self._brokers[address] = broker = PoolMember(address, self._new_health())
                if self.has_started:
                    self._connect(broker)

    def _new_health(self) -> BrokerHealth:
        settings = self._connector.settings
        return BrokerHealth(
            settings.reconnect_first,
            settings.reconnect_max,
            open_s=min(OPEN_S, settings.reconnect_max),
            rng=random.Random(),
        )

    def _connect(self, broker: PoolMember) -> None:
        """Connect to a broker: now, or when its health allows it."""
        if broker.link is not None or broker.retry is not None or self._is_closed:
            return
        now_s = time.monotonic()
        if broker.health.may_try(now_s):
            broker.link = self._connector.connect(broker.address, self._handler)
            self._by_link[broker.link] = broker
        else:
            wait_s = broker.health.next_try_s(now_s) - now_s
            broker.retry = self._engine.call_later(wait_s, lambda: self._retry(broker))

    def connected(self, link: Link) -> None:
        """Note that a link is ready."""
        broker = self._by_link[link]
        broker.health.connected(time.monotonic())
        if broker.last_error is not None:
            self._engine.log(logging.INFO, "connected to %s again", broker.address)
        broker.last_error = None
        broker.was_reached = True
        self.on_change()

    def lost(self, link: Link, error: Exception, *, is_refusal: bool = False) -> None:
        """Note that a link is gone, and connect again: at once after a refused command, otherwise after a pause."""
        broker = self._by_link.pop(link)
        broker.link = None
        assert isinstance(error, ClientError)
        if not is_refusal:
            broker.health.failed(time.monotonic())
            # Once for each cause: that of the loss is often another one than that of the attempts which follow.
            if str(broker.last_error) != str(error) and not self._is_closed:
                reason = str(error).removeprefix(f"{broker.address}: ")
                self._engine.log(logging.WARNING, "no connection to %s: %s; trying again", broker.address, reason)
            broker.last_error = error
            broker.is_error_lasting = is_lasting(error, link)
            self.on_change()
        if self.lookup is not None and self.has_started:
            self.lookup.poll_soon()
            is_wanted = broker.address in self._given or broker.address in self._named
            if not is_wanted and len(self._brokers) > 1:
                del self._brokers[broker.address]
                return
        self._connect(broker)

    def is_connecting(self) -> bool:
        """Return whether an attempt to connect is under way, or the first question for brokers."""
        if not self._brokers:
            return self.lookup is not None and self.lookup.is_asking
        return any(broker.link is not None and not broker.is_ready for broker in self._brokers.values())

    def hurry(self) -> None:
        """Shorten the waits between attempts to connect: commands wait, and no broker is ready."""
        now_s = time.monotonic()
        if self.lookup is not None and not self._brokers:
            self.lookup.poll_soon()
        for broker in self.brokers:
            if broker.retry is not None and broker.health.hasten(now_s):
                broker.retry.cancel()
                self._retry(broker)

    def _retry(self, broker: PoolMember) -> None:
        broker.retry = None
        if self._brokers.get(broker.address) is broker:
            self._connect(broker)

    def has_tried_all(self) -> bool:
        """Return whether the first attempt to connect is over for each broker that was given by address."""
        return all(broker.was_reached or broker.last_error is not None for broker in self._given_brokers())

    def unreached_error(self) -> ClientError | None:
        """Return why one of the brokers that were given by address was never reached; None if all were."""
        errors = (broker.last_error for broker in self._given_brokers() if not broker.was_reached)
        return next((error for error in errors if error is not None), None)

    def _given_brokers(self) -> list[PoolMember]:
        return [self._brokers[address] for address in self._given]

    def lasting_error(self) -> ClientError | None:
        """Return the error if every broker refuses connections for a reason that lasts, such as a wrong certificate."""
        if self.lookup is None and all(
            broker.last_error is not None and broker.is_error_lasting for broker in self._brokers.values()
        ):
            return self.last_error()
        return None

    def last_error(self) -> ClientError | None:
        """Return why there is no connection to one of the brokers."""
        errors = (broker.last_error for broker in self._brokers.values())
        return next((error for error in errors if error is not None), None)

    def reasons(self) -> str:
        """Return why there is no connection."""
        found = [str(broker.last_error) for broker in self._brokers.values() if broker.last_error is not None]
        if self.lookup is not None and self.lookup.last_error:
            found.append(self.lookup.last_error)
        return "; ".join(found) or ("no broker answers" if self._brokers else "the lookup daemons name no broker")

    def close(self) -> None:
        """Close all links; the handler is not told."""
        self._is_closed = True
        if self.lookup is not None:
            self.lookup.stop()
        for link in list(self._by_link):
            link.close()
        self._by_link.clear()

    def forget_links(self) -> None:
        """In the child of a fork: begin without connections."""
        self._by_link.clear()
        self.has_started = False
        for broker in self._brokers.values():
            broker.link = None
            broker.retry = None
            broker.last_error = None
            broker.was_reached = False
            broker.health = self._new_health()

    def stats(self) -> dict[str, Any]:
        """Return the state of each broker."""
        return {
            str(broker.address): {
                "connected": broker.is_ready,
                "breaker": broker.health.state.value,
                "error": str(broker.last_error) if broker.last_error is not None else None,
            }
            for broker in self._brokers.values()
        }


def is_lasting(error: ClientError, link: Link) -> bool:
    """Return whether a new connection is likely to fail in the same way. A refused IDENTIFY stays refused."""
    if isinstance(error, ProtocolError) and link.was_ready:
        # Wrong bytes after a good beginning are an accident; at the beginning they are those of a wrong port.
        return False
    is_refused_set_up = isinstance(error, RefusedError) and not isinstance(error, QuotaError) and not link.was_ready
    return isinstance(error, LASTING_ERRORS) or is_refused_set_up


class Lookup:
    """Polls lookup daemons for brokers. topic: brokers with this topic; None for all brokers."""

    def __init__(
        self,
        engine: Engine,
        addresses: Sequence[str],
        settings: Settings,
        topic: str | None,
    ) -> None:
        self.last_error = ""
        # Why each daemon could not be asked; logged when it changes.
        self._reasons: dict[str, str] = {}
        self._engine = engine
        self._settings = settings
        self._topic = topic
        self._addresses = addresses
        self._on_found: Callable[[list[Address]], None] | None = None
        self._timer: Timer | None = None
        self.is_asking = False
        self._schedule = LookupSchedule(
            addresses, settings.lookupd_poll_interval, settings.lookupd_poll_jitter, random.Random()
        )
        self._ssl = settings.ssl_context()

    def start(self, on_found: Callable[[list[Address]], None]) -> None:
        """Ask now, and then at intervals; call on_found with the addresses of each answer, with the lock held."""
        self._on_found = on_found
        self.is_asking = False
        self._schedule.poll_now(time.monotonic())
        self._arm()
        # Without a broker's address there is no link yet that would start it.
        self._engine.ensure_stand_in()

    def copy(self, topic: str | None) -> Lookup:
        """Return another one that asks the same lookup daemons for another topic, or for all brokers."""
        return Lookup(self._engine, self._addresses, self._settings, topic)

    def poll_soon(self) -> None:
        """Ask now, because a connection was lost."""
        self._schedule.poll_now(time.monotonic())
        self._arm()

    def stop(self) -> None:
        """Ask no more."""
        self._on_found = None
        self._disarm()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if not self.is_asking and self._on_found is not None:
            self._disarm()
            now_s = time.monotonic()
            self._timer = self._engine.call_later(max(0.0, self._schedule.next_poll_s(now_s) - now_s), self._ask)

    def _ask(self) -> None:
        self.is_asking = True
        address = self._schedule.begin(time.monotonic())
        self._engine.run_aside(lambda: self._query(address), "lookupd")

    def _query(self, address: str) -> Callable[[], None]:
        """Ask one lookup daemon, in a thread; return the function that notes the answer."""
        try:
            found = self.ask(address)
        except LookupFailedError as error:
            reason = str(error)
            return lambda: self._failed(address, reason)
        return lambda: self._succeeded(address, found)

    def ask(self, address: str) -> list[BrokerAddress]:
        """Return the brokers that a lookup daemon names. Raises: LookupFailedError."""
        # HTTP is a fifth of the time that `import pyqd.client` takes, and most programs name their brokers.
        from pyqd.primitives.http_client import fetch

        url = lookup_url(address, self._topic)
        token, timeout_s = self._settings.lookupd_token, self._settings.lookupd_timeout
        try:
            reply = fetch(
                url,
                headers={"Accept": LOOKUP_MEDIA_TYPE},
                private={"Authorization": f"Bearer {token}"} if token else {},
                within_s=timeout_s,
                timeout_s=timeout_s,
                bytes_max=ANSWER_BYTES_MAX,
                new_context=lambda: self._ssl or ssl.create_default_context(),
            )
            return parse_lookup_answer(reply.status, reply.headers, reply.body)
        except TopicUnknownError:
            raise TopicUnknownError(f"{url}: no broker has the topic yet") from None
        except Exception as error:  # http.client raises many kinds for malformed answers
            raise LookupFailedError(f"{url}: {error}") from error

    def _failed(self, address: str, reason: str) -> None:
        self.is_asking = False
        if self._reasons.get(address) != reason:
            self._reasons[address] = reason
            self._engine.log(logging.WARNING, "no brokers from a lookup daemon: %s", reason)
        self.last_error = reason
        self._schedule.failed(time.monotonic())
        self._arm()

    def _succeeded(self, address: str, found: list[BrokerAddress]) -> None:
        self.is_asking = False
        self._reasons.pop(address, None)
        self.last_error = ""
        self._schedule.succeeded(time.monotonic())
        try:
            if self._on_found is not None:
                self._on_found([TcpAddress(broker.host, broker.tcp_port) for broker in found])
        finally:
            # The next answer may be usable, even if this one caused an error.
            self._arm()
