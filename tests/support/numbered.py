"""Numbered messages, so that a test can count the occurrences of each."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable

from pyqd_spark.brokers import BrokerClient
from pyqd_spark.options import BrokerOptions
from tests.support.server import Daemon

PER_REQUEST = 5000
BATCHES_MAX = 50


def how_many(usual: int) -> int:
    """Return the number of messages in a test of kills: as usual, or PYQD_KILL_MESSAGES from the environment."""
    return int(os.environ.get("PYQD_KILL_MESSAGES") or usual)


def addresses_of(*daemons: Daemon) -> str:
    """Return the value for the option nsqd."""
    return ",".join(f"127.0.0.1:{daemon.http_port}" for daemon in daemons)


def body_of(number: int, size_bytes: int = 8) -> bytes:
    """Return the body of a message: its number in decimal, with zeros before it."""
    return b"%0*d" % (size_bytes, number)


def publish_bodies(daemon: Daemon, topic: str, bodies: Iterable[bytes]) -> None:
    framed = [struct.pack(">i", len(body)) + body for body in bodies]
    body = struct.pack(">i", len(framed)) + b"".join(framed)
    reply = daemon.http("POST", "/mpub", body, topic=topic, binary="true")
    assert reply.status == 200, reply


def publish_numbers(daemon: Daemon, topic: str, start: int, stop: int, size_bytes: int = 8) -> None:
    for first in range(start, stop, PER_REQUEST):
        numbers = range(first, min(first + PER_REQUEST, stop))
        publish_bodies(daemon, topic, [body_of(number, size_bytes) for number in numbers])


def publish_until_dropped(daemon: Daemon, topic: str, start: int) -> int:
    """Publish from a number on, each with the position of its number, until the log has dropped all earlier messages.

    Returns: the position of the oldest kept message.
    """
    with BrokerClient(addresses_of(daemon), BrokerOptions(retry_timeout_s=0)) as client:
        for first in range(start, start + 100 * BATCHES_MAX, 100):
            publish_numbers(daemon, topic, first, first + 100, 2000)
            daemon.http("POST", "/topic/empty", topic=topic)
            earliest = client.positions(topic).earliest
            if earliest > start:
                return earliest
    raise AssertionError(f"all of topic {topic} is kept")
