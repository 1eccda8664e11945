"""A channel's limits: how they are kept, put in force and shown.

They lie in the ledger's header, as bytes that mean something here only. Source: docs/storage.md, "Ledger".
"""

import struct
from typing import Any, NamedTuple

from pyqd.hot.broker.limited import LimitedChannel
from pyqd.hot.broker.ratelimit import TokenBucket
from pyqd.hot.primitives.clock import mono

ATTEMPTS_MAX = 0xFFFF
_FORM = struct.Struct("<ddHB")


class ChannelLimits(NamedTuple):
    """What a channel is limited to.

    rate: messages a second; 0: no limit. burst: delivered at once after a pause; 0: as many as in a second.
    max_attempts: deliveries of a message before it goes to the dead-letter topic; 0: no limit, and no such topic.
    """

    rate: float = 0.0
    burst: float = 0.0
    max_attempts: int = 0
    dead_letter_topic: str = ""

    def text(self) -> str:
        """Return the limits that are set, for a log line."""
        set_to = [f"{name} {value:g}" for name, value in (("rate", self.rate), ("burst", self.burst)) if value]
        if self.max_attempts:
            set_to.append(f"max_attempts {self.max_attempts}, dead_letter_topic {self.dead_letter_topic or 'none'}")
        return ", ".join(set_to) or "no limits"


NO_LIMITS = ChannelLimits()


def encoded(limits: ChannelLimits) -> bytes:
    """Return limits as a ledger keeps them; of none, nothing."""
    if limits == NO_LIMITS:
        return b""
    name = limits.dead_letter_topic.encode("ascii")
    return _FORM.pack(limits.rate, limits.burst, limits.max_attempts, len(name)) + name


def decoded(settings: bytes) -> ChannelLimits:
    """Return the limits that a ledger keeps."""
    if not settings:
        return NO_LIMITS
    rate, burst, max_attempts, size = _FORM.unpack_from(settings)
    return ChannelLimits(rate, burst, max_attempts, settings[_FORM.size : _FORM.size + size].decode("ascii"))


def put_in_force(channel: LimitedChannel, limits: ChannelLimits) -> None:
    """Let a channel keep to limits from now on."""
    before = channel.bucket
    bucket = None
    if limits.rate:
        bucket = TokenBucket(limits.rate, limits.burst or limits.rate, mono())
        if before is not None:
            # Or saying the same again would be worth a burst.
            bucket.keep(before.left(mono()))
    channel.limit_rate(bucket)
    channel.limit_attempts(limits.max_attempts)


def shown(channel: LimitedChannel, limits: ChannelLimits) -> dict[str, Any]:
    """Return limits, and what came of them, as dictionaries for people and programs."""
    return {
        "rate": number(limits.rate),
        "burst": number(channel.bucket.burst) if channel.bucket is not None else 0,
        "max_attempts": limits.max_attempts,
        "dead_letter_topic": limits.dead_letter_topic or None,
        "dead_letter_count": channel.dead_letter_count,
        "dead_letters_waiting": channel.doomed_count,
    }


def number(value: float) -> float | int:
    """Return a number without a fraction as an int."""
    return int(value) if value.is_integer() else value
