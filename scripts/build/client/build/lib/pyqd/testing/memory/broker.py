"""Broker in memory: topics, channels and deferred messages without a daemon, sockets or threads."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from pyqd.client.codecs import Codec, CodecOption, codec_of
from pyqd.client.consumption import RetryPolicy
from pyqd.client.core.commands import check_channel, check_topic
from pyqd.client.errors import NotFoundError, RefusedError, SettingError, TooBigError
from pyqd.client.http import ChannelResult
from pyqd.client.message import requeue_delay_s
from pyqd.client.outgoing import Delay, Outgoing, Time, encode, parse_due
from pyqd.primitives.durations import MILLISECOND_NS, SECOND_NS
from pyqd.testing.memory.channels import MemoryChannel, MemoryTopic, Stored, Subscriber
from pyqd.testing.memory.clock import ManualClock
from pyqd.testing.memory.consumers import AioMemoryConsumer, MemoryConsumer
from pyqd.testing.memory.producers import AioMemoryProducer, MemoryProducer
from pyqd.testing.published import PublishedMessage, utc

ADDRESS = "memory"
EPHEMERAL = "#ephemeral"
FIRST_ID = 0x0D00_0000_0000_0000
ROUNDS_MAX = 1000


class MemoryBroker:
    """Broker whose time stands still until clock.advance(). For one thread, or one event loop.

    now: first time of the clock; the system's time by default. The other arguments are the daemon's flags of these
    names, with the daemon's defaults: largest message in bytes, longest delay of a published message, timeout of
    messages in flight, the longest time in flight with touches, and the longest delay of a requeue, in seconds.
    """

    def __init__(
        self,
        *,
        now: datetime | None = None,
        max_msg_size: int = 1 << 20,
        max_defer: float = 3600.0,
        msg_timeout: float = 60.0,
        max_msg_timeout: float = 900.0,
        max_req_timeout: float = 3600.0,
    ) -> None:
        self.clock = ManualClock(now)
        self.max_msg_size = max_msg_size
        self.max_defer = max_defer
        self.msg_timeout = msg_timeout
        self.max_msg_timeout = max_msg_timeout
        self.max_req_timeout = max_req_timeout
        self._topics: dict[str, MemoryTopic] = {}
        self._ids = itertools.count(FIRST_ID)
        self._consumers: list[MemoryConsumer] = []

    # Faces.

    def producer(self, codec: CodecOption = None) -> MemoryProducer:
        """Return a producer with the methods of pyqd.client.Producer."""
        return MemoryProducer(self, codec_of(codec))

    def aio_producer(self, codec: CodecOption = None) -> AioMemoryProducer:
        """Return a producer with the methods of pyqd.client.aio.Producer."""
        return AioMemoryProducer(self, codec_of(codec))

    def consumer(
        self,
        topic: str,
        channel: str,
        *,
        max_in_flight: int = 1,
        codec: CodecOption = None,
        retry: RetryPolicy | None = None,
        auto_touch: bool = True,
        backoff: float = 0.0,
        msg_timeout: float | None = None,
    ) -> MemoryConsumer:
        """Return a consumer with the methods of pyqd.client.Consumer; the channel exists from now on.

        backoff: longest pause in seconds after failures, on this broker's clock; none by default.
        """
        timeout = self.msg_timeout if msg_timeout is None else msg_timeout
        made = MemoryConsumer(self, topic, channel, max_in_flight, codec_of(codec), retry, auto_touch, backoff, timeout)
        self._consumers.append(made)
        return made

    def aio_consumer(
        self,
        topic: str,
        channel: str,
        *,
        max_in_flight: int = 1,
        codec: CodecOption = None,
        retry: RetryPolicy | None = None,
        auto_touch: bool = True,
        backoff: float = 0.0,
        msg_timeout: float | None = None,
    ) -> AioMemoryConsumer:
        """Return a consumer with the methods of pyqd.client.aio.Consumer; otherwise as consumer()."""
        timeout = self.msg_timeout if msg_timeout is None else msg_timeout
        return AioMemoryConsumer(
            self, topic, channel, max_in_flight, codec_of(codec), retry, auto_touch, backoff, timeout
        )

    def run_pending(self) -> int:
        """Run the handlers of all blocking consumers until no message is due; return the number of messages.

        Handlers may publish messages for each other. Raises: AssertionError if they never come to an end.
        """
        handled = 0
        for _ in range(ROUNDS_MAX):
            count = sum(consumer.run_pending() for consumer in self._consumers if consumer.has_handler)
            if count == 0:
                return handled
            handled += count
        raise AssertionError(f"handlers publish messages for each other without end: {handled} were handled")

    # Publishing.

    def publish(self, topic: str, body: bytes, *, delay: Delay | None = None, at: Time | None = None) -> str:
        """Publish a message and return its id. delay: seconds, or a timedelta; at: aware datetime, or Unix seconds.

        Raises: RefusedError, TooBigError, SettingError.
        """
        return self.publish_many(topic, [body], delay=delay, at=at)[0]

    def publish_many(
        self,
        topic: str,
        messages: Iterable[Any],
        *,
        delay: Delay | None = None,
        at: Time | None = None,
        codec: Codec | None = None,
    ) -> list[str]:
        """Publish all messages or none, and return their ids. messages: bodies, or Outgoing with a time of its own."""
        check_topic(topic)
        stored = []
        for message in messages:
            own_delay, own_at = delay, at
            if isinstance(message, Outgoing):
                if message.delay is not None or message.at is not None:
                    own_delay, own_at = message.delay, message.at
                message = message.body
            body = encode(message, codec)
            if len(body) > self.max_msg_size:
                text = f"E_BAD_MESSAGE PUB message too big {len(body)} > {self.max_msg_size}"
                raise TooBigError(text, ADDRESS)
            stored.append((body, self._due_ns(own_delay, own_at)))
        target = self._topic(topic)
        made = [Stored(b"%016x" % next(self._ids), body, self.clock.now_ns, due_ns) for body, due_ns in stored]
        for each in made:
            target.publish(each)
        return [each.id.decode() for each in made]

    def _due_ns(self, delay: Delay | None, at: Time | None) -> int:
        """Return the due time; 0 without one. Raises: RefusedError beyond max_defer."""
        due = parse_due(delay, at)
        if due is None:
            return 0
        if delay is not None:
            # parse_due() has checked the delay, but counts it from the system's time.
            due_ns = self.clock.now_ns + round(requeue_delay_s(delay) * SECOND_NS)
        else:
            due_ns = due.unix_ms() * MILLISECOND_NS
        late_ms, most_ms = (due_ns - self.clock.now_ns) // MILLISECOND_NS, round(self.max_defer * 1000)
        if late_ms > most_ms:
            raise RefusedError(f"E_INVALID DPUB timeout {late_ms} out of range 0-{most_ms}", ADDRESS)
        return due_ns

    # Single messages.

    def cancel(self, topic: str, message_id: str) -> list[ChannelResult]:
        """Finish a message unread in each channel; return the results by channel. Raises: NotFoundError."""
        key = message_id.encode()
        return self._topic_of(topic, key).change(key, lambda channel: channel.cancel(key))

    def reschedule(
        self, topic: str, message_id: str, *, delay: Delay | None = None, at: Time | None = None
    ) -> list[ChannelResult]:
        """Change the due time of a message; return the results by channel. Raises: NotFoundError, SettingError."""
        if delay is None and at is None:
            raise SettingError("a message is rescheduled by a delay or to a due time: give one of them")
        key, due_ns = message_id.encode(), self._due_ns(delay, at)
        return self._topic_of(topic, key).change(key, lambda channel: channel.reschedule(key, due_ns))

    def _topic_of(self, topic: str, key: bytes) -> MemoryTopic:
        found = self._topics.get(topic)
        if found is None or key not in found.messages:
            raise NotFoundError("TOPIC_NOT_FOUND" if found is None else "MESSAGE_NOT_FOUND", ADDRESS)
        return found

    # Topics and channels.

    def create_topic(self, topic: str) -> None:
        """Create a topic unless it exists."""
        check_topic(topic)
        self._topic(topic)

    def create_channel(self, topic: str, channel: str) -> None:
        """Create a channel, and its topic, unless they exist."""
        self.channel(topic, channel)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its channels and messages. Consumers create it again. Raises: KeyError."""
        for channel in self._topics.pop(topic).channels.values():
            channel.empty()

    def delete_channel(self, topic: str, channel: str) -> None:
        """Delete a channel with its messages. Consumers create it again. Raises: KeyError."""
        found = self._topics[topic]
        found.channels.pop(channel).empty()
        if topic.endswith(EPHEMERAL) and not found.channels:
            del self._topics[topic]

    def pause(self, topic: str, channel: str | None = None) -> None:
        """Pause a topic, which then holds its messages, or a channel, which then delivers none. Raises: KeyError."""
        self._pausable(topic, channel).paused = True

    def unpause(self, topic: str, channel: str | None = None) -> None:
        """End a pause. Raises: KeyError."""
        self._pausable(topic, channel).paused = False
        self._topics[topic].release()

    def _pausable(self, topic: str, channel: str | None) -> MemoryTopic | MemoryChannel:
        found = self._topics[topic]
        return found if channel is None else found.channels[channel]

    # For the assertions of tests.

    def published(self, topic: str) -> list[bytes]:
        """Return the bodies of all messages published to a topic, in order; an empty list if it does not exist."""
        return [message.body for message in self.published_messages(topic)]

    def published_messages(self, topic: str) -> list[PublishedMessage]:
        """Return all messages published to a topic, in order."""
        found = self._topics.get(topic)
        return [
            PublishedMessage(
                each.id.decode(), each.body, utc(each.timestamp_ns), utc(each.due_ns) if each.due_ns else None
            )
            for each in (found.messages.values() if found is not None else ())
        ]

    def stats(self) -> dict[str, Any]:
        """Return the counts of topics and channels in the form of GET /stats."""
        return {"topics": [topic.stats() for topic in self._topics.values()]}

    def topic_stats(self, topic: str, channel: str | None = None) -> dict[str, Any] | None:
        """Return the counts of a topic or of one of its channels, as in /stats; None if it does not exist."""
        found = self._topics.get(topic)
        if found is None or channel is None:
            return None if found is None else found.stats()
        of_channel = found.channels.get(channel)
        return None if of_channel is None else of_channel.stats()

    # For the consumers.

    def channel(self, topic: str, channel: str) -> MemoryChannel:
        """Return a channel, created if need be. Raises: InvalidNameError."""
        check_topic(topic)
        check_channel(channel)
        return self._topic(topic).channel(channel)

    def unsubscribe(self, topic: str, channel: MemoryChannel, subscriber: Subscriber) -> None:
        """Remove a subscriber. An ephemeral channel ends with the last one."""
        channel.subscribers.remove(subscriber)
        found = self._topics.get(topic)
        is_there = found is not None and found.channels.get(channel.name) is channel
        if is_there and channel.name.endswith(EPHEMERAL) and not channel.subscribers:
            self.delete_channel(topic, channel.name)

    def _topic(self, name: str) -> MemoryTopic:
        if name not in self._topics:
            self._topics[name] = MemoryTopic(name, self.clock, round(self.max_msg_timeout * SECOND_NS))
        return self._topics[name]
