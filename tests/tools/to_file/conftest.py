"""Fixtures of the tests of pyq_to_file's parts."""

from __future__ import annotations

import pytest

from pyqd.client.message import Message

TIMESTAMP_NS = 1_795_446_245_123_456_789


def message(body: bytes, number: int = 0) -> Message:
    """Return a message that belongs to no consumer."""
    frame = (2, TIMESTAMP_NS + number, 1, b"%016x" % number, body)
    return Message(None, None, "127.0.0.1:4150", frame, 0.0)  # type: ignore[arg-type]


def messages(*bodies: bytes) -> list[Message]:
    return [message(body, number) for number, body in enumerate(bodies)]


class HeldClock:
    def __init__(self) -> None:
        self.wall_s = 1_795_446_245.0
        self.monotonic_s = 1000.0

    def pass_s(self, seconds: float) -> None:
        self.wall_s += seconds
        self.monotonic_s += seconds


@pytest.fixture
def clock() -> HeldClock:
    return HeldClock()
