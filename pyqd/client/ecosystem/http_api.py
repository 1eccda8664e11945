"""Calls of the HTTP API that go to each broker of a group: sizes of queues, emptying, deleting."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from pyqd.client.http import HttpClient
from pyqd.client.settings import Settings, Targets
from pyqd.primitives.addresses import TcpAddress

# Lookup daemons and brokers that are restarting get this long.
RETRY_S: Final = 2.0
TIMEOUT_S: Final = 10.0
OK: Final = 200
NOT_FOUND: Final = 404


class GroupHttp:
    """HTTP API of a group of brokers. A call goes to each of them; a topic that a broker lacks is no error.

    The brokers are those of `http` in the settings, otherwise port 4151 of each broker; and those that the lookup
    daemons name at the time of the call. All methods raise ClientError.
    """

    def __init__(self, targets: Targets, settings: Settings) -> None:
        self._settings = settings
        self._addresses = _flat(settings.http) or tuple(_host(address) for address in targets.brokers)
        self._lookupd = targets.lookupd

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
        for address in dict.fromkeys((*self._addresses, *self._named_by_lookupd())):
            yield self._client(address, self._settings.http_token)

    def _named_by_lookupd(self) -> Iterator[str]:
        for daemon in self._lookupd:
            with self._client(daemon, self._settings.lookupd_token) as client:
                answer = client.json("/nodes")
            # Before version 1.0 the answer was wrapped.
            for node in answer.get("data", answer).get("producers") or ():
                yield f"{node['broadcast_address']}:{node['http_port']}"

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
