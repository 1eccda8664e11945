"""Calls of the HTTP API that go to each broker of a group: sizes of queues, emptying, deleting."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from pyqd.client.http_group import NOT_FOUND, OK, HttpGroup

ANNOUNCE_S: Final = 2.0
ANNOUNCE_POLL_S: Final = 0.02


class GroupHttp(HttpGroup):
    """HTTP API of a group of brokers. A call goes to each of them; a topic that a broker lacks is no error."""

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


def unfinished(stats: dict[str, Any], channel: str) -> int:
    """Return the number of messages that a channel has to finish, by the statistics of its topic."""
    count: int = stats["depth"]
    for found in stats["channels"] or ():
        if found["channel_name"] == channel:
            count += found["depth"] + found["in_flight_count"] + found["deferred_count"]
    return count
