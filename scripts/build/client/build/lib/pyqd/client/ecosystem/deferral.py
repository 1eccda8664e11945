"""Publishing with due times that may lie behind the broker's limit.

A broker accepts due times up to `--max-defer` (one hour by default) ahead. A message that is due later is published
with the longest delay that the broker accepts. The consumer finds it not yet due and requeues it for the rest, as often
as it takes. The message carries its due time itself, and is on the broker's disk the whole time.
"""

from __future__ import annotations

import re
import time
from typing import Final

from pyqd.client import Producer
from pyqd.client.errors import RefusedError

# Text of the refusal; a due time's limit is a time, a delay's limit is a duration. Both are in milliseconds.
LIMIT: Final = re.compile(r"\b(timeout|due time) \S+ out of range 0-(\d+)")
# The limit moves with the broker's clock, which may be behind ours.
SLACK_MS: Final = 1000


def now_ms() -> int:
    """Return the time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class DeferringProducer:
    """Producer that publishes messages for any due time. Threads may share it."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self._limit_ms: int | None = None

    def publish(self, topic: str, body: bytes, due_ms: int | None = None, timeout: float | None = None) -> None:
        """Publish a message; return when the broker has it. due_ms: Unix time in milliseconds. Raises: ClientError."""
        if due_ms is None or due_ms <= now_ms():
            self.producer.publish(topic, body, timeout=timeout)
            return
        try:
            self.producer.publish(topic, body, at=self._accepted_ms(due_ms) / 1000, timeout=timeout)
        except RefusedError as error:
            limit_ms = limit_in(error.text)
            if limit_ms is None:
                raise
            self._limit_ms = limit_ms
            self.producer.publish(topic, body, at=self._accepted_ms(due_ms) / 1000, timeout=timeout)

    def _accepted_ms(self, due_ms: int) -> int:
        return due_ms if self._limit_ms is None else min(due_ms, now_ms() + self._limit_ms)


def limit_in(text: str) -> int | None:
    """Return the longest delay in milliseconds that a refusal allows; None if the text is another error's."""
    found = LIMIT.search(text)
    if found is None:
        return None
    limit_ms = int(found[2]) - (now_ms() if found[1] == "due time" else 0)
    return max(limit_ms - SLACK_MS, 0)


def requeue_delay_s(due_ms: int | None) -> float | None:
    """Return the delay with which to requeue a received message; None if the message is due.

    A broker cuts it to --max-req-timeout.
    """
    left_ms = 0 if due_ms is None else due_ms - now_ms()
    return left_ms / 1000 if left_ms > 0 else None
