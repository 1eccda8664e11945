"""HTTP API of the brokers of one producer, consumer or task queue: calls that NSQ's TCP protocol does not have."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from pyqd.client.core.discovery import BrokerAddress, TopicUnknownError, parse_lookup_answer
from pyqd.client.errors import ClientError, LookupFailedError, NotConnectedError, NotFoundError, SettingError
from pyqd.client.http import BrokerHttp, ChannelResult, HttpClient, parse_http_address
from pyqd.client.outgoing import Delay, Time, parse_due
from pyqd.client.settings import BrokerTargets, Settings
from pyqd.client.trust import TrustedBrokers
from pyqd.primitives.addresses import TcpAddress

# Lookup daemons and brokers that are restarting get this long.
RETRY_S: Final = 2.0
TIMEOUT_S: Final = 10.0
OK: Final = 200
NOT_FOUND: Final = 404
ANNOUNCE_S: Final = 2.0
ANNOUNCE_POLL_S: Final = 0.02

logger = logging.getLogger("pyqd.client")


class HttpGroup:
    """HTTP addresses of a group of brokers.

    The brokers are those of `http` in the settings, otherwise port 4151 of each broker; and those that the lookup
    daemons name at the time of the call. Calls about topics and channels go to each of them; a topic that a broker
    lacks is no error. timeout_s: of one request, if it is shorter than TIMEOUT_S. All methods raise ClientError.
    """

    def __init__(self, targets: BrokerTargets, settings: Settings, timeout_s: float | None = None) -> None:
        self._settings = settings
        self._timeout_s = TIMEOUT_S if timeout_s is None else min(TIMEOUT_S, timeout_s)
        self._addresses = _flat(settings.http) or tuple(_host(address) for address in targets.brokers)
        # The settings have the URLs of queries, such as http://host:4161/lookup.
        self._trusted = TrustedBrokers(_flat(settings.trusted_brokers))
        self._lookupd = tuple(urlunsplit((*urlsplit(url)[:2], "", "", "")) for url in targets.lookupd)

    def cancel(self, topic: str, message_id: str) -> list[ChannelResult]:
        """Finish a message unread, on all channels. Raises: NotFoundError, SettingError."""
        check_id(message_id)
        return self._change(lambda client: client.cancel(topic, message_id))

    def reschedule(self, topic: str, message_id: str, delay: Delay | None, at: Time | None) -> list[ChannelResult]:
        """Change the due time of a message. Raises: NotFoundError, SettingError."""
        check_id(message_id)
        due = parse_due(delay, at)
        if due is None:
            raise SettingError("a message is rescheduled by delay= or at=: give one of them")
        if due.is_delay:
            return self._change(lambda client: client.reschedule(topic, message_id, delay_ms=due.delay_ms()))
        return self._change(lambda client: client.reschedule(topic, message_id, due_ms=due.unix_ms()))

    def _change(self, call: Callable[[BrokerHttp], list[ChannelResult]]) -> list[ChannelResult]:
        """Make a call at the broker that has the message.

        Raises: NotFoundError if no broker has it; NotConnectedError, LookupFailedError if one that may have it does not
        answer, or no lookup daemon does.
        """
        missing: ClientError = NotConnectedError("no broker is known: the lookup daemons name none")
        silent: ClientError | None = None
        try:
            for client in self._clients():
                with client:
                    try:
                        return call(client)
                    except NotFoundError as error:
                        missing = error
                    except NotConnectedError as error:
                        silent = error
        except (NotConnectedError, LookupFailedError) as error:
            # Of the lookup daemons, which are asked last.
            silent = silent or error
        raise silent or missing

    def size(self, topic: str, channel: str) -> int:
        """Return the number of unfinished messages, deferred ones and those in flight included."""
        return sum(unfinished(stats, channel) for stats in self._stats(topic))

    def has_topic(self, topic: str) -> bool:
        """Return True if a broker has the topic."""
        return any(True for _ in self._stats(topic))

    def create_channel(self, topic: str, channel: str) -> None:
        """Create the topic and its channel."""
        self._post("/topic/create", topic=topic)
        self._post("/channel/create", topic=topic, channel=channel)

    def announce(self, topic: str, channel: str) -> None:
        """Create a topic and its channel, and wait a moment until the lookup daemons name its brokers.

        Consumers ask the lookup daemons once a minute. A topic without messages would be found that late otherwise.
        """
        self.create_channel(topic, channel)
        count = len(set(self._named_by_lookupd("/nodes")))
        deadline_s = time.monotonic() + ANNOUNCE_S
        while len(set(self._named_by_lookupd("/lookup", topic=topic))) < count and time.monotonic() < deadline_s:
            time.sleep(ANNOUNCE_POLL_S)

    def empty(self, topic: str, channel: str) -> None:
        """Drop the messages of a channel, and those that no channel has received yet."""
        self._post("/topic/empty", topic=topic)
        self._post("/channel/empty", topic=topic, channel=channel)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its channels and messages."""
        self._post("/topic/delete", topic=topic)

    def delete_channel(self, topic: str, channel: str) -> None:
        """Delete a channel with its messages."""
        self._post("/channel/delete", topic=topic, channel=channel)

    def _stats(self, topic: str) -> Iterator[dict[str, Any]]:
        """Yield the statistics of a topic, from each broker that has it."""
        for client in self._clients():
            with client:
                answer = client.json("/stats", format="json", topic=topic, include_clients="false", include_mem="false")
            yield from (stats for stats in answer["topics"] or () if stats["topic_name"] == topic)

    def _post(self, path: str, **query: str) -> None:
        # All are known before the first call: a failure of the lookup daemons must leave nothing done in part.
        for client in list(self._clients()):
            with client:
                reply = client.request("POST", path, query)
                if reply.status not in (OK, NOT_FOUND):
                    raise client.refusal(path, query, reply)

    def _clients(self) -> Iterator[BrokerHttp]:
        """Yield a client of each broker. Host and port identify it: a host with two names counts as two brokers.

        The lookup daemons are asked after the last of the brokers that are given. Raises: as `_named_by_lookupd`.
        """
        places = set()
        given = ((address, True) for address in self._addresses)
        named = ((address, self._trusted.has(address)) for address in self._named_by_lookupd("/nodes"))
        for address, is_trusted in chain(given, named):
            token = self._settings.http_token if is_trusted else None
            if self._settings.http_token and not is_trusted:
                logger.info("%s is asked without http_token: trusted_brokers does not name it", address)
            client = BrokerHttp(address, **self._options(token))
            # Not by the text: users leave out the port or write http://, and lookup daemons do neither.
            place = client.place._replace(secure=False)
            if place not in places:
                places.add(place)
                yield client

    def _named_by_lookupd(self, path: str, **query: str) -> Iterator[str]:
        """Yield the HTTP addresses of brokers in the answers of the lookup daemons.

        Raises: NotConnectedError, LookupFailedError if none of the daemons has an answer.
        """
        failures: list[ClientError] = []
        for daemon in self._lookupd:
            try:
                brokers = self._ask_lookupd(daemon, path, query)
            except (NotConnectedError, LookupFailedError) as error:
                logger.warning("cannot ask a lookup daemon: %s", error)
                failures.append(error)
                continue
            addresses = (str(TcpAddress(broker.host, broker.http_port)) for broker in brokers if broker.http_port)
            yield from filter(_is_address, addresses)
        if failures and len(failures) == len(self._lookupd):
            raise failures[0]

    def _ask_lookupd(self, daemon: str, path: str, query: Mapping[str, str]) -> list[BrokerAddress]:
        """Return the brokers that a lookup daemon names; none if the topic is unknown to the daemon."""
        with HttpClient(daemon, **self._options(self._settings.lookupd_token)) as client:
            reply = client.request("GET", path, query)
        try:
            return parse_lookup_answer(reply.status, reply.headers, reply.body)
        except TopicUnknownError:
            return []
        except LookupFailedError as error:
            raise LookupFailedError(f"{daemon}: {error}") from None

    def _options(self, token: str | None) -> dict[str, Any]:
        options: dict[str, Any] = {
            "token": token,
            "timeout_s": self._timeout_s,
            "retry_timeout_s": min(RETRY_S, self._timeout_s),
        }
        if self._settings.ssl_context() is not None:
            options["new_context"] = self._settings.ssl_context
        return options


def unfinished(stats: dict[str, Any], channel: str) -> int:
    """Return the number of messages that a channel has to finish, by the statistics of its topic."""
    count: int = stats["depth"]
    for found in stats["channels"] or ():
        if found["channel_name"] == channel:
            count += found["depth"] + found["in_flight_count"] + found["deferred_count"]
    return count


def check_id(message_id: str | None) -> None:
    """Check that there is an id. Raises: SettingError."""
    if not message_id:
        raise SettingError(
            f"message_id={message_id!r}: expected the id that publish() has returned; nsqd gives none, because only"
            " messages of pyqd can be changed"
        )


def _flat(addresses: str | Iterable[str] | None) -> Sequence[str]:
    texts = [addresses] if isinstance(addresses, str) else addresses or ()
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())


def _is_address(address: str) -> bool:
    """Return True if a broker's address in the answer of a lookup daemon can be one; log it otherwise."""
    try:
        parse_http_address(address)
    except SettingError as error:
        logger.warning("a broker that a lookup daemon names is left out: %s", error)
        return False
    return True


def _host(address: object) -> str:
    """Return the HTTP address of a broker, without a port: that is then 4151."""
    if not isinstance(address, TcpAddress):
        return "localhost"
    return f"[{address.host}]" if ":" in address.host else address.host
