"""Received message, and its answer to the broker: finish, requeue or touch."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from types import TracebackType
from typing import Any, Protocol

from pyqd.client.codecs import Codec
from pyqd.client.errors import SettingError
from pyqd.client.outgoing import Delay, is_number
from pyqd.primitives.durations import SECOND_NS


def requeue_delay_s(delay: Delay) -> float:
    """Return the seconds of a delay, 0 for a negative one. Raises: SettingError, before anything is sent."""
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if not is_number(seconds):
        raise SettingError(f"delay={delay!r}: expected seconds, or a timedelta")
    return max(0.0, seconds)


class Requeue(Exception):  # noqa: N818 - raised by a handler as an instruction, not as an error
    """Raised in a `with message:` block or a handler: give the message back to the broker.

    delay: seconds or timedelta until its next delivery; None for the retry policy's. backoff: slow the consumer down.
    Raises: SettingError.
    """

    def __init__(self, delay: Delay | None = None, *, backoff: bool = False) -> None:
        super().__init__(delay)
        if delay is not None:
            requeue_delay_s(delay)
        self.delay = delay
        self.backoff = backoff


class MessageOwner(Protocol):
    """Consumer of a message. Its methods raise AnsweredError if the message was answered before."""

    topic: str
    channel: str
    codec: Codec | None

    def finish(self, message: Message) -> None: ...

    def requeue(self, message: Message, delay: Delay | None, backoff: bool) -> None: ...

    def touch(self, message: Message) -> None: ...

    def handle_failure(self, message: Message, error: BaseException) -> None:
        """Requeue a message whose handler failed, or move it to the dead-letter topic, as the retry policy says."""


class Message:
    """Message of a channel. It is answered once: finished or requeued.

    body: bytes. attempts: number of deliveries, this one included. timestamp_ns: time of publishing, since 1970.
    broker: address of its broker. is_lost: its connection is gone, so that the broker delivers the message again, or it
    timed out and has come again on the same connection. An answer has no effect then. As a context manager it is
    finished at the end of the block, and requeued by the retry policy if the block raises.
    """

    __slots__ = (
        "attempts", "body", "broker", "is_answered", "is_lost", "key", "link", "owner", "timestamp_ns", "touched_s",
    )  # fmt: skip

    def __init__(self, owner: MessageOwner, link: Any, broker: str, frame: tuple[Any, ...], received_s: float) -> None:
        self.owner = owner
        self.link = link
        self.broker = broker
        _, self.timestamp_ns, self.attempts, self.key, self.body = frame
        self.touched_s = received_s
        self.is_answered = False
        self.is_lost = False

    @property
    def id(self) -> str:
        """16 hexadecimal digits, as the broker names the message."""
        key: bytes = self.key
        return key.decode("latin-1")

    @property
    def topic(self) -> str:
        return self.owner.topic

    @property
    def channel(self) -> str:
        return self.owner.channel

    @property
    def timestamp(self) -> datetime:
        """Time of publishing, in UTC, to the microsecond."""
        seconds, rest = divmod(self.timestamp_ns, SECOND_NS)
        return datetime.fromtimestamp(seconds, timezone.utc) + timedelta(microseconds=rest // 1000)

    @property
    def value(self) -> Any:
        """The body, decoded by the consumer's codec. Raises: CodecError."""
        return self.body if self.owner.codec is None else self.owner.codec.decode(self.body)

    def finish(self) -> None:
        """Tell the broker that the message is done. Raises: AnsweredError if it was answered before."""
        self.owner.finish(self)

    def requeue(self, delay: Delay | None = None, *, backoff: bool = True) -> None:
        """Give the message back to the broker. Raises: AnsweredError, SettingError.

        delay: seconds or timedelta until its next delivery; None for the retry policy's. backoff: count it as a failure
        for the consumer's back-off.
        """
        self.owner.requeue(self, delay, backoff)

    def touch(self) -> None:
        """Begin the message's timeout again. Consumers do so by themselves unless auto_touch is False."""
        self.owner.touch(self)

    def __enter__(self) -> Message:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self.is_answered:
            return isinstance(error, Requeue)
        if error is None:
            self.owner.finish(self)
            return False
        self.owner.handle_failure(self, error)
        return isinstance(error, Requeue)

    async def __aenter__(self) -> Message:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self.__exit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"<Message {self.id} of {self.topic}/{self.channel}, attempt {self.attempts}, {len(self.body)} bytes>"
