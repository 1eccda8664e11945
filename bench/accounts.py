"""Comparison of the messages published with the server's own counts, read over HTTP.

A generator sees answers and deliveries. Only the server knows of messages that were answered OK and dropped, or that
lie twice in a queue which has no consumer any more.
"""

import json
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

from bench.server import Server, ServerError

ANSWER_TIMEOUT_S = 30.0
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


@dataclass(frozen=True)
class Account:
    """Difference between the server's figures and the expected ones; problem: in words, "" if they agree."""

    losses: int = 0
    duplicates: int = 0
    problem: str = ""


def read_stock(server: Server, topic: str) -> Stock:
    """Query the server. Raises: ServerError if it does not answer, or if the answer lacks the topic."""
    host, port = server.http_address
    url = f"http://{host}:{port}/stats?format=json&include_clients=false&topic={topic}"
    # No proxy that the environment names stands between this machine and itself.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=ANSWER_TIMEOUT_S) as reply:
            answer: bytes = reply.read()
    except (OSError, HTTPException) as error:
        raise ServerError(f"/stats is not answered: {error}") from error
    try:
        found: dict[str, Any] = {each["topic_name"]: each for each in json.loads(answer)["topics"] or []}
        if topic not in found:
            return Stock(0, 0, 0, 0, 0)
        channels = found[topic]["channels"] or []
        return Stock(
            message_count=int(found[topic]["message_count"]),
            topic_depth=int(found[topic]["depth"]),
            channel_depth=sum(channel["depth"] for channel in channels),
            in_flight=sum(channel["in_flight_count"] for channel in channels),
            deferred=sum(channel["deferred_count"] for channel in channels),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ServerError(f"/stats is answered with {answer[:100]!r}, which does not tell of the topic") from error


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


def of_publication(server: Server, topic: str, messages: int, *, deferred: bool = False) -> Account:
    """Compare the server's counts with the messages published into a topic with at most one channel.

    deferred: all messages must be kept as deferred. Raises: ServerError if the server does not answer.
    """

    def kept(stock: Stock) -> int:
        return stock.deferred if deferred else stock.kept

    stock = settled_stock(server, topic, lambda stock: stock.message_count == messages == kept(stock))
    figures = (stock.message_count, kept(stock))
    if figures == (messages, messages):
        return Account()
    losses, duplicates = max(0, messages - min(figures)), max(0, max(figures) - messages)
    return Account(
        losses=losses,
        duplicates=duplicates,
        problem=(
            f"{losses} lost, {duplicates} twice: of {messages} answered OK the server counts {stock.message_count}"
            f" and keeps {kept(stock)}{' deferred' if deferred else ''}: {stock}"
        ),
    )


def of_consumption(server: Server, topic: str, messages: int) -> Account:
    """Compare the server's counts with a load that was published and finished completely in each channel.

    Raises: ServerError if the server does not answer.
    """
    stock = settled_stock(server, topic, lambda stock: (stock.message_count, stock.kept) == (messages, 0))
    wrong = []
    if stock.kept:
        wrong.append(f"{stock.kept} left when each message had come once: {stock}")
    if stock.message_count != messages:
        wrong.append(f"of {messages} published the server counts {stock.message_count}")
    return Account(duplicates=stock.kept, problem="; ".join(wrong))
