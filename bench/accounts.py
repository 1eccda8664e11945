"""Comparison of the messages published with the server's own counts, read over HTTP.

A generator sees answers and deliveries. Only the server knows of messages that were answered OK and dropped, or that
lie twice in a queue which has no consumer any more.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.server import RunError, Server
from pyqd.client.errors import ClientError

# Messages may still be on their way from the topic to its channels: figures that stay wrong for so long are wrong.
UNCHANGED_S = 5.0
DEADLINE_S = 60.0
POLL_S = 0.1


@dataclass(frozen=True)
class Stock:
    """The figures of one topic: taken in since the start, queued before its channels, and the sums over these."""

    message_count: int
    topic_depth: int
    channel_depth: int
    in_flight: int
    deferred: int

    @property
    def kept(self) -> int:
        return self.topic_depth + self.channel_depth + self.in_flight + self.deferred


def read_stock(server: Server, topic: str) -> Stock:
    """Query the server. Raises: RunError if it does not answer, or if the answer lacks the topic."""
    try:
        with server.http() as client:
            answer = client.json("/stats", format="json", include_clients="false", topic=topic)
        found: dict[str, Any] = {each["topic_name"]: each for each in answer["topics"] or []}
        channels = found[topic]["channels"] or [] if topic in found else []
        return Stock(
            message_count=int(found[topic]["message_count"]) if topic in found else 0,
            topic_depth=int(found[topic]["depth"]) if topic in found else 0,
            channel_depth=sum(channel["depth"] for channel in channels),
            in_flight=sum(channel["in_flight_count"] for channel in channels),
            deferred=sum(channel["deferred_count"] for channel in channels),
        )
    except ClientError as error:
        raise RunError(f"/stats is not answered: {error}") from error
    except (KeyError, TypeError) as error:
        raise RunError(f"/stats is answered with {answer!r}, which does not tell of the topic") from error


def settled_stock(server: Server, topic: str, right: Callable[[Stock], bool]) -> Stock:
    """Ask until the figures are right, or wrong and at rest; return the last. Raises: as read_stock."""
    begin_s = changed_s = time.monotonic()
    stock = read_stock(server, topic)
    while not right(stock):
        now_s = time.monotonic()
        if now_s - changed_s > UNCHANGED_S or now_s - begin_s > DEADLINE_S:
            break
        time.sleep(POLL_S)
        before, stock = stock, read_stock(server, topic)
        if stock != before:
            changed_s = time.monotonic()
    return stock


def require_published(server: Server, topic: str, messages: int, *, deferred: bool = False) -> None:
    """Check that the server has counted and kept the messages of a topic with at most one channel.

    deferred: all messages must be kept as deferred. Raises: RunError.
    """

    def kept(stock: Stock) -> int:
        return stock.deferred if deferred else stock.kept

    stock = settled_stock(server, topic, lambda stock: stock.message_count == messages == kept(stock))
    figures = (stock.message_count, kept(stock))
    if figures != (messages, messages):
        losses, duplicates = max(0, messages - min(figures)), max(0, max(figures) - messages)
        raise RunError(
            f"{losses} lost, {duplicates} twice: of {messages} answered OK the server counts {stock.message_count}"
            f" and keeps {kept(stock)}{' deferred' if deferred else ''}: {stock}"
        )


def require_consumed(server: Server, topic: str, messages: int) -> None:
    """Check that a load was counted once and that no channel has a message of it. Raises: RunError."""
    stock = settled_stock(server, topic, lambda stock: (stock.message_count, stock.kept) == (messages, 0))
    if (stock.message_count, stock.kept) != (messages, 0):
        raise RunError(
            f"of {messages} published the server counts {stock.message_count}, and {stock.kept} are left when each"
            f" message had come once: {stock}"
        )
