"""Settings of a channel: its rate limit and dead-letter policy, as the ledger stores them and as JSON shows them.

The ledger's header holds them as bytes in the format of this module. Source: docs/storage.md, "Ledger".
"""

import struct
from typing import Any, NamedTuple

from pyqd.hot.broker.channel import ChannelCore
from pyqd.hot.broker.rate_limit import RateLimit
from pyqd.hot.primitives.clock import mono

ATTEMPTS_MAX = 0xFFFF
_FORM = struct.Struct("<ddHB")


class ChannelSettings(NamedTuple):
    """Limits of a channel.

    rate: messages per second; 0: no limit. burst: delivered at once after a pause; 0: as many as in a second.
    max_attempts: deliveries of a message before it goes to the dead-letter topic; 0: no limit, and no such topic.
    """

    rate: float = 0.0
    burst: float = 0.0
    max_attempts: int = 0
    dead_letter_topic: str = ""

    def text(self) -> str:
        """Return the limits as text for a log line."""
        set_to = [f"{name} {value:g}" for name, value in (("rate", self.rate), ("burst", self.burst)) if value]
        if self.max_attempts:
            set_to.append(f"max_attempts {self.max_attempts}, dead_letter_topic {self.dead_letter_topic or 'none'}")
        return ", ".join(set_to) or "no limits"


NO_LIMITS = ChannelSettings()


def encode_settings(limits: ChannelSettings) -> bytes:
    """Return limits as a ledger stores them: no bytes if there are none."""
    if limits == NO_LIMITS:
        return b""
    name = limits.dead_letter_topic.encode("ascii")
    return _FORM.pack(limits.rate, limits.burst, limits.max_attempts, len(name)) + name


def decode_settings(settings: bytes) -> ChannelSettings:
    """Return the limits that a ledger stores."""
    if not settings:
        return NO_LIMITS
    rate, burst, max_attempts, size = _FORM.unpack_from(settings)
    return ChannelSettings(rate, burst, max_attempts, settings[_FORM.size : _FORM.size + size].decode("ascii"))


def apply_settings(channel: ChannelCore, limits: ChannelSettings) -> None:
    """Apply limits to a channel from now on."""
    before = channel.rate_limit
    rate_limit = None
    if limits.rate:
        rate_limit = RateLimit(limits.rate, limits.burst or limits.rate, mono())
        if before is not None:
            # Otherwise repeating a request would be worth a burst.
            rate_limit.discard_above(before.remaining(mono()))
    channel.limit_rate(rate_limit)
    channel.dead_letters.target.topic_name = limits.dead_letter_topic
    channel.limit_attempts(limits.max_attempts)


def limits_to_dict(channel: ChannelCore, limits: ChannelSettings) -> dict[str, Any]:
    """Return limits and their effects for JSON."""
    return {
        "rate": int_if_whole(limits.rate),
        "burst": int_if_whole(channel.rate_limit.burst) if channel.rate_limit is not None else 0,
        "max_attempts": limits.max_attempts,
        "dead_letter_topic": limits.dead_letter_topic or None,
        "dead_letter_count": channel.dead_letter_count,
        "dead_letters_waiting": channel.dead_letters_pending,
    }


def int_if_whole(value: float) -> float | int:
    """Return a number without a fraction as an int, so that JSON has 1 and not 1.0."""
    return int(value) if value.is_integer() else value
