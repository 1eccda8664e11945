"""Messages to publish: their due times, and the commands that publish them."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from pyqd.client.codecs import Codec
from pyqd.client.core import commands
from pyqd.client.engine.link import Link
from pyqd.client.errors import ProtocolError, SettingError
from pyqd.client.publishing import Command

Delay = float | timedelta
Time = float | datetime
ID_LOW_BITS: Final = 12
ID_STEP_BITS: Final = 22
ID_LOW_MASK: Final = (1 << ID_LOW_BITS) - 1
PLAIN_ANSWER: Final = re.compile(rb"OK [0-9a-f]{16}")
ANSWER: Final = re.compile(rb"OK ([0-9a-fA-F]{16})(?: [0-9]+)?")
# Times beyond the year 9999 are mistakes, such as milliseconds for seconds.
SECONDS_MAX: Final = 253402300800


@dataclass(frozen=True)
class Outgoing:
    """Message of publish_many() with a due time of its own. delay: seconds; at: an aware datetime, or Unix time."""

    body: Any
    delay: Delay | None = None
    at: Time | None = None


class Due(NamedTuple):
    """Due time of a message. is_delay: by the monotonic clock of this machine, in s; otherwise in Unix ms."""

    is_delay: bool
    time: float

    def delay_ms(self) -> int:
        """Return the ms from now, for the broker to count: clocks of two machines may differ."""
        if self.is_delay:
            return max(0, math.ceil((self.time - time.monotonic()) * 1000))
        return max(0, round(self.time) - round(time.time() * 1000))

    def unix_ms(self) -> int:
        """Return the due time since 1970."""
        return round(time.time() * 1000) + self.delay_ms() if self.is_delay else round(self.time)


def parse_due(delay: Delay | None, at: Time | None) -> Due | None:
    """Return the due time; None without one. Raises: SettingError."""
    if at is not None:
        if delay is not None:
            raise SettingError("give delay= or at=, not both")
        if isinstance(at, datetime):
            if at.tzinfo is None:
                raise SettingError("at= needs a time zone, such as datetime.now(timezone.utc)")
            at = at.timestamp()
        if not is_number(at):
            raise SettingError(f"at={at!r}: expected an aware datetime, or seconds since 1970")
        return Due(False, max(0, round(at * 1000)))
    if delay is None:
        return None
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if not is_number(seconds) or seconds < 0:
        raise SettingError(f"delay={delay!r}: expected seconds from 0, or a timedelta")
    return Due(True, time.monotonic() + seconds)


def is_number(value: object) -> bool:
    """Return whether a value is a number that a time can be."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < SECONDS_MAX


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


def one_command(topic: str, body: bytes, due: Due) -> Command:
    """Return the command that publishes one message when it is due. Raises: InvalidNameError."""
    commands.check_topic(topic)
    # The delay is that of the time of sending: a publication may wait for a connection.
    return lambda link: (_deferred(link, topic, body, due), 1)


def _deferred(link: Link, topic: str, body: bytes, due: Due) -> bytes:
    if link.core.gives_ids and not due.is_delay:
        return commands.dpub_at(topic, body, due.unix_ms())
    return commands.dpub(topic, body, due.delay_ms())


def many_command(topic: str, bodies: Sequence[bytes], dues: Sequence[Due | None]) -> Command:
    """Return the command that publishes all messages or none. Raises: InvalidNameError.

    With due times that takes DMPUB. A broker without it gets single commands, of which some may fail.
    """
    given = [due for due in dues if due is not None]
    if not given:
        return commands.mpub(topic, bodies)
    commands.check_topic(topic)
    has_times = any(not due.is_delay for due in given)

    def command(link: Link) -> tuple[bytes, int]:
        pairs = list(zip(bodies, dues, strict=True))
        if not link.core.gives_ids:
            singles = [
                commands.pub(topic, body) if due is None else commands.dpub(topic, body, due.delay_ms())
                for body, due in pairs
            ]
            return b"".join(singles), len(singles)
        now = Due(True, time.monotonic())
        if has_times:
            return commands.dmpub(topic, [(body, (due or now).unix_ms()) for body, due in pairs], True), 1
        return commands.dmpub(topic, [(body, (due or now).delay_ms()) for body, due in pairs], False), 1

    return command


def published_id(answer: bytes) -> str | None:
    """Return the id in the answer to the publish of one message. None and errors: as published_ids()."""
    # The common form of published_ids(), at a third of its cost.
    if PLAIN_ANSWER.fullmatch(answer) is not None:
        return answer[3:].decode()
    ids = published_ids(answer, 1)
    return None if ids is None else ids[0]


def published_ids(answer: bytes, count: int) -> list[str] | None:
    """Return the ids in the answer to a publish; None if the broker does not return ids. Raises: ProtocolError.

    Source: docs/protocol-extensions.md, "Ids of published messages".
    """
    if answer == b"OK":
        return None
    matched = ANSWER.fullmatch(answer)
    if matched is None:
        raise ProtocolError(f"{answer[:100]!r} instead of OK and an id; the message may have been published")
    first = int(matched[1], 16)
    base, low = first & ~ID_LOW_MASK, first & ID_LOW_MASK
    return [
        f"{base + (number >> ID_LOW_BITS << ID_STEP_BITS) + (number & ID_LOW_MASK):016x}"
        for number in range(low, low + count)
    ]


def split_outgoing(
    messages: Iterable[Any], codec: Codec | None, due: Due | None
) -> tuple[list[bytes], list[Due | None]]:
    """Return the bodies and due times of messages. due: of those that have none of their own."""
    if isinstance(messages, (str, bytes, bytearray, memoryview)):
        raise SettingError("publish_many() takes a list of messages; publish() takes one")
    bodies: list[bytes] = []
    dues: list[Due | None] = []
    for message in messages:
        own = due
        if isinstance(message, Outgoing):
            if message.delay is not None or message.at is not None:
                own = parse_due(message.delay, message.at)
            message = message.body
        bodies.append(encode(message, codec))
        dues.append(own)
    return bodies, dues
