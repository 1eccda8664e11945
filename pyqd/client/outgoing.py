"""Messages to publish: their due times, and the commands that publish them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

from pyqd.client.core import commands
from pyqd.client.engine import Link
from pyqd.client.errors import SettingError
from pyqd.client.publishing import Command

Delay = float | timedelta
Time = float | datetime
ID_LOW_BITS: Final = 12
ID_STEP_BITS: Final = 22
ID_LOW_MASK: Final = (1 << ID_LOW_BITS) - 1


class Codec(Protocol):
    """Translates between values and bodies: see pyqd.client.codecs."""

    def encode(self, value: Any) -> bytes: ...

    def decode(self, body: bytes) -> Any: ...


@dataclass(frozen=True)
class Outgoing:
    """Message of publish_many() with a due time of its own. delay: seconds; at: an aware datetime, or Unix time."""

    body: Any
    delay: Delay | None = None
    at: Time | None = None


def due_ms(delay: Delay | None, at: Time | None) -> int | None:
    """Return the due time in ms since 1970; None without one. Raises: SettingError."""
    if at is not None:
        if delay is not None:
            raise SettingError("give delay= or at=, not both")
        if isinstance(at, datetime):
            if at.tzinfo is None:
                raise SettingError("at= needs a time zone, such as datetime.now(timezone.utc)")
            at = at.timestamp()
        return max(0, round(at * 1000))
    if delay is None:
        return None
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if seconds < 0:
        raise SettingError(f"delay={seconds}: expected seconds from 0")
    return round((time.time() + seconds) * 1000)


def delay_of(due: int) -> int:
    """Return the ms from now to a due time."""
    return max(0, due - round(time.time() * 1000))


def encode(body: Any, codec: Codec | None) -> bytes:
    """Return a body's bytes. Raises: SettingError, CodecError."""
    if codec is not None:
        data = codec.encode(body)
    elif isinstance(body, (bytes, bytearray, memoryview)):
        data = bytes(body)
    elif isinstance(body, str):
        raise SettingError("a body is bytes: write text.encode(), or give the producer a codec=")
    else:
        raise SettingError(f"a body is bytes, not {type(body).__name__}: give the producer a codec=")
    if not data:
        raise SettingError("a message has at least one byte")
    return data


def one_command(topic: str, body: bytes, due: int | None) -> Command:
    """Return the command that publishes one message."""
    if due is None:
        return commands.pub(topic, body)
    # The delay is that of the time of sending: a publication may wait for a connection.
    return lambda link: (_deferred(link, topic, body, due), 1)


def _deferred(link: Link, topic: str, body: bytes, due: int) -> bytes:
    if link.core.gives_ids:
        return commands.dpub_at(topic, body, due)
    return commands.dpub(topic, body, delay_of(due))


def many_command(topic: str, bodies: Sequence[bytes], dues: Sequence[int | None]) -> Command:
    """Return the command that publishes all messages or none.

    With due times that takes DMPUB. A broker without it gets single commands, of which some may fail.
    """
    if all(due is None for due in dues):
        return commands.mpub(topic, bodies)
    now = round(time.time() * 1000)
    pairs = [(body, now if due is None else due) for body, due in zip(bodies, dues, strict=True)]

    def command(link: Link) -> tuple[bytes, int]:
        if link.core.gives_ids:
            return commands.dmpub(topic, pairs, True), 1
        singles = [commands.dpub(topic, body, delay_of(due)) for body, due in pairs]
        return b"".join(singles), len(singles)

    return command


def published_ids(answer: bytes, count: int) -> list[str] | None:
    """Return the ids in the answer to a publish; None if the broker does not return ids.

    Source: docs/protocol-extensions.md, "Ids of published messages".
    """
    words = answer.split(b" ")
    if len(words) < 2:
        return None
    first = int(words[1], 16)
    base, low = first & ~ID_LOW_MASK, first & ID_LOW_MASK
    return [
        f"{base + (number >> ID_LOW_BITS << ID_STEP_BITS) + (number & ID_LOW_MASK):016x}"
        for number in range(low, low + count)
    ]


def split_outgoing(
    messages: Iterable[Any], codec: Codec | None, due: int | None
) -> tuple[list[bytes], list[int | None]]:
    """Return the bodies and due times of messages. due: of those that have none of their own."""
    bodies: list[bytes] = []
    dues: list[int | None] = []
    for message in messages:
        own = due
        if isinstance(message, Outgoing):
            if message.delay is not None or message.at is not None:
                own = due_ms(message.delay, message.at)
            message = message.body
        bodies.append(encode(message, codec))
        dues.append(own)
    return bodies, dues
