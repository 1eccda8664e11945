"""The two brokers of the conformance tests behind one interface: pyqd.testing.MemoryBroker, and a real daemon.

Time passes by itself at the daemon, and by advance() in memory. Counts are awaited at the daemon, and there at once in
memory.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Protocol

from pyqd.client import Consumer, Message, Producer
from pyqd.client.http import BrokerHttp, ChannelResult
from pyqd.testing import BrokerProcess, MemoryBroker
from pyqd.testing.published import PublishedMessage
from tests.support.server import wait_until

WAIT_S = 10.0
# Of messages that must not come during a test.
LONG_S = 600.0
# Of messages that a test waits for: a daemon takes its time, too.
SHORT_S = 0.2
# The shortest timeout that a consumer may ask for.
TIMEOUT_S = 1.0


class World(Protocol):
    """A broker with the client's faces, whose types both brokers can only share by name."""

    @property
    def producer(self) -> Callable[..., Any]: ...

    @property
    def consumer(self) -> Callable[..., Any]:
        """Return a consumer whose channel exists. Back-off is off."""

    def receive(self, consumer: Any, count: int) -> list[Message]:
        """Return that many messages."""

    def advance(self, seconds: float) -> object: ...

    def run(self, consumer: Any) -> None:
        """Have the handler of a consumer take what is due."""

    def settle(self, topic: str, channel: str | None = None, **counts: int) -> None:
        """Assert counts of /stats, as soon as they are reached."""

    def settle_ready(self, topic: str, channel: str, count: int) -> None:
        """Wait until the broker knows the RDY count of the only consumer."""

    def eventually(self, condition: Callable[[], bool], what: str) -> None: ...

    def exists(self, topic: str, channel: str | None = None) -> bool: ...

    def pause(self, topic: str, channel: str | None = None) -> None: ...

    def unpause(self, topic: str, channel: str | None = None) -> None: ...

    def create_topic(self, topic: str) -> None: ...

    def create_channel(self, topic: str, channel: str) -> None: ...

    def delete_topic(self, topic: str) -> None: ...

    def published(self, topic: str) -> list[bytes]: ...

    def published_messages(self, topic: str) -> list[PublishedMessage]: ...

    def cancel(self, topic: str, message_id: str) -> list[ChannelResult]: ...

    def reschedule(self, topic: str, message_id: str, *, delay: float) -> list[ChannelResult]: ...


class MemoryWorld:
    """MemoryBroker as it is."""

    def __init__(self) -> None:
        self.broker = broker = MemoryBroker()
        self.producer = broker.producer
        self.consumer = broker.consumer
        self.advance = broker.clock.advance
        self.pause, self.unpause = broker.pause, broker.unpause
        self.create_topic, self.create_channel = broker.create_topic, broker.create_channel
        self.delete_topic = broker.delete_topic
        self.published, self.published_messages = broker.published, broker.published_messages
        self.cancel, self.reschedule = broker.cancel, broker.reschedule

    def receive(self, consumer: Any, count: int) -> list[Message]:
        messages: list[Message] = consumer.fetch(count)
        assert len(messages) == count
        return messages

    def run(self, consumer: Any) -> None:
        consumer.run_pending()

    def settle(self, topic: str, channel: str | None = None, **counts: int) -> None:
        found = self.broker.topic_stats(topic, channel)
        assert found is not None
        assert {name: found[name] for name in counts} == counts

    def settle_ready(self, topic: str, channel: str, count: int) -> None:
        pass

    def eventually(self, condition: Callable[[], bool], what: str) -> None:
        assert condition(), what

    def exists(self, topic: str, channel: str | None = None) -> bool:
        return self.broker.topic_stats(topic, channel) is not None


class DaemonWorld:
    """Real daemon, by the blocking face of the client."""

    def __init__(self, broker: BrokerProcess, stack: ExitStack) -> None:
        self.broker = broker
        self._stack = stack
        self._numbers = itertools.count()
        self._http = stack.enter_context(BrokerHttp(broker.http_address))
        self.published, self.published_messages = broker.published, broker.published_messages

    def producer(self, **options: Any) -> Producer:
        return self._stack.enter_context(Producer(self.broker.tcp_address, http=self.broker.http_address, **options))

    def consumer(self, topic: str, channel: str, **options: Any) -> Consumer:
        name = f"consumer-{next(self._numbers)}"
        options = {"backoff": 0.0, "client_id": name, **options}
        made = self._stack.enter_context(Consumer(topic, channel, nsqd=self.broker.tcp_address, **options))
        # Messages that come from now on wait in the consumer.
        with made._engine.lock:
            made._consumption.start()
        wait_until(lambda: name in self._clients(topic, channel), "the consumer has subscribed")
        return made

    def _clients(self, topic: str, channel: str) -> dict[str, dict[str, Any]]:
        """Return the clients of a channel in /stats by their names."""
        found = json.loads(self.broker.request("GET", "/stats", format="json", topic=topic, channel=channel))
        channels = [each for listed in found["topics"] or () for each in listed["channels"] or ()]
        return {client["client_id"]: client for each in channels for client in each["clients"] or ()}

    def receive(self, consumer: Consumer, count: int) -> list[Message]:
        messages: list[Message] = []
        while len(messages) < count:
            fetched = consumer.fetch(count - len(messages), timeout=WAIT_S)
            assert fetched, f"{len(messages)} of {count} messages came within {WAIT_S} s"
            messages += fetched
        return messages

    def advance(self, seconds: float) -> None:
        """Do nothing: the next call waits for its effect."""

    def run(self, consumer: Consumer) -> None:
        consumer.start()

    def settle(self, topic: str, channel: str | None = None, **counts: int) -> None:
        seen: dict[str, int] = {}

        def settled() -> bool:
            found = self.broker.topic_stats(topic, channel) or {}
            seen.update({name: found.get(name, -1) for name in counts})
            return seen == counts

        try:
            wait_until(settled, "settled")
        except AssertionError:
            assert seen == counts, f"{topic}/{channel}: {seen}"

    def settle_ready(self, topic: str, channel: str, count: int) -> None:
        def settled() -> bool:
            (client,) = self._clients(topic, channel).values()
            return bool(client["ready_count"] == count)

        wait_until(settled, f"a RDY count of {count}")

    def eventually(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, what)

    def exists(self, topic: str, channel: str | None = None) -> bool:
        return self.broker.topic_stats(topic, channel) is not None

    def pause(self, topic: str, channel: str | None = None) -> None:
        self._call("pause", topic, channel)

    def unpause(self, topic: str, channel: str | None = None) -> None:
        self._call("unpause", topic, channel)

    def create_topic(self, topic: str) -> None:
        self._call("create", topic, None)

    def create_channel(self, topic: str, channel: str) -> None:
        self.create_topic(topic)
        self._call("create", topic, channel)

    def delete_topic(self, topic: str) -> None:
        self._call("delete", topic, None)

    def cancel(self, topic: str, message_id: str) -> list[ChannelResult]:
        return self._http.cancel(topic, message_id)

    def reschedule(self, topic: str, message_id: str, *, delay: float) -> list[ChannelResult]:
        return self._http.reschedule(topic, message_id, delay_ms=round(delay * 1000))

    def _call(self, verb: str, topic: str, channel: str | None) -> None:
        query: dict[str, Any] = {"topic": topic} if channel is None else {"topic": topic, "channel": channel}
        self.broker.request("POST", f"/{'topic' if channel is None else 'channel'}/{verb}", **query)


def bodies(messages: list[Message]) -> list[bytes]:
    return [message.body for message in messages]


def finish(messages: list[Message]) -> None:
    for message in messages:
        message.finish()
