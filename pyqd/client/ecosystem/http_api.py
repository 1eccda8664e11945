"""Calls of the HTTP API that go to each broker of a group: sizes of queues, emptying, deleting."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from pyqd.client.errors import NotConnectedError
from pyqd.client.http import HttpClient
from pyqd.client.settings import Settings, Targets
from pyqd.primitives.addresses import TcpAddress

# Lookup daemons and brokers that are restarting get this long.
RETRY_S: Final = 2.0
TIMEOUT_S: Final = 10.0
ANNOUNCE_S: Final = 2.0
ANNOUNCE_POLL_S: Final = 0.02
OK: Final = 200
NOT_FOUND: Final = 404

logger = logging.getLogger("pyqd.client")


class GroupHttp:
    """HTTP API of a group of brokers. A call goes to each of them; a topic that a broker lacks is no error.

    The brokers are those of `http` in the settings, otherwise port 4151 of each broker; and those that the lookup
    daemons name at the time of the call. All methods raise ClientError.
    """

    def __init__(self, targets: Targets, settings: Settings) -> None:
        self._settings = settings
        self._addresses = _flat(settings.http) or tuple(_host(address) for address in targets.brokers)
        # The settings have the URLs of queries, such as http://host:4161/lookup.
        self._lookupd = tuple(urlunsplit((*urlsplit(url)[:2], "", "", "")) for url in targets.lookupd)

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
        for client in self._clients():
            with client:
                reply = client.request("POST", path, query)
                if reply.status not in (OK, NOT_FOUND):
                    raise client.refusal(path, query, reply)

    def _clients(self) -> Iterator[HttpClient]:
        for address in dict.fromkeys((*self._addresses, *self._named_by_lookupd("/nodes"))):
            yield self._client(address, self._settings.http_token)

    def _named_by_lookupd(self, path: str, **query: str) -> Iterator[str]:
        """Yield the HTTP addresses of brokers in the answers of the lookup daemons.

        Raises: NotConnectedError if none of the daemons can be reached.
        """
        failures = []
        for daemon in self._lookupd:
            try:
                answer = self._ask_lookupd(daemon, path, query)
            except NotConnectedError as error:
                logger.warning("cannot ask a lookup daemon: %s", error)
                failures.append(error)
                continue
            # Before version 1.0 the answer was wrapped.
            for node in (answer.get("data") or answer).get("producers") or ():
                yield f"{node['broadcast_address']}:{node['http_port']}"
        if failures and len(failures) == len(self._lookupd):
            raise failures[0]

    def _ask_lookupd(self, daemon: str, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the answer of a lookup daemon; one without brokers if the topic is unknown to the daemon."""
        with self._client(daemon, self._settings.lookupd_token) as client:
            reply = client.request("GET", path, query)
            if reply.status not in (OK, NOT_FOUND):
                raise client.refusal(path, query, reply)
            answer: dict[str, Any] = client.parsed(path, reply)
            return answer

    def _client(self, address: str, token: str | None) -> HttpClient:
        return HttpClient(address, token=token, timeout_s=TIMEOUT_S, retry_timeout_s=RETRY_S)


def unfinished(stats: dict[str, Any], channel: str) -> int:
    """Return the number of messages that a channel has to finish, by the statistics of its topic."""
    count: int = stats["depth"]
    for found in stats["channels"] or ():
        if found["channel_name"] == channel:
            count += found["depth"] + found["in_flight_count"] + found["deferred_count"]
    return count


def _flat(addresses: str | Iterable[str] | None) -> Sequence[str]:
    texts = [addresses] if isinstance(addresses, str) else addresses or ()
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())


def _host(address: object) -> str:
    """Return the HTTP address of a broker, without a port: that is then 4151."""
    if not isinstance(address, TcpAddress):
        return "localhost"
    return f"[{address.host}]" if ":" in address.host else address.host
