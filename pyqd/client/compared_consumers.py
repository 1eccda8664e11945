"""Comparison of the consumers of a channel: rates since an earlier look, and which of them differ from the others.

Brokers count what each client has got, finished and requeued. Rates come from two looks at these counts.
"""

from __future__ import annotations

import dataclasses
import statistics
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

# A rate is over at most this long, and over at least MIN_S.
WINDOW_S: Final = 30.0
MIN_S: Final = 1.5
CHANNELS_MAX: Final = 256
# A consumer is slow below this part of the median rate.
SLOW_SHARE: Final = 0.5
# Requeues and time-outs stand out above both.
ODD_SHARE: Final = 0.05
ODD_FACTOR: Final = 3.0
ODD_COUNT: Final = 3
FEW: Final = 10

SLOW: Final = "slow"
REQUEUES: Final = "requeues"
TIMES_OUT: Final = "times_out"
NOT_READY: Final = "not_ready"

Client = Mapping[str, Any]
Counts = dict[tuple[str, str], int]


@dataclasses.dataclass(slots=True)
class ComparedConsumer:
    """One consumer. rate: messages finished per second. took_s: time that a message is with the client, if known.

    timed_out_count: messages that were neither finished nor requeued and are not in flight any more. share: of all
    messages that the channel's consumers finish, 0 to 1. marks: SLOW, REQUEUES, TIMES_OUT, NOT_READY.
    """

    client: Client
    rate: float
    timed_out_count: int
    requeued_share: float
    timed_out_share: float
    took_s: float | None
    share: float = 0.0
    marks: list[str] = dataclasses.field(default_factory=list)


class Usual(NamedTuple):
    """Medians of some consumers."""

    rate: float
    requeued_share: float
    timed_out_share: float

    @classmethod
    def of(cls, consumers: Sequence[ComparedConsumer]) -> Usual:
        """Return the medians. consumers: at least one."""
        return cls(*(statistics.median(getattr(each, name) for each in consumers) for name in cls._fields))


class Looks:
    """Earlier looks at the consumers of channels, the latest channels only. Belongs to all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looks: OrderedDict[tuple[str, str], deque[tuple[float, Counts]]] = OrderedDict()

    def compare(self, channel: tuple[str, str], clients: Sequence[Client], now_s: float) -> list[ComparedConsumer]:
        """Return the consumers of a channel, those that differ from the others with marks."""
        counts = {key_of(client): int(client["finish_count"]) for client in clients}
        with self._lock:
            then_s, before = self._exchange(channel, counts, now_s)
        consumers = []
        for client in clients:
            rate = average_rate(client)
            if now_s - then_s >= MIN_S and counts[key_of(client)] >= before.get(
                key_of(client), counts[key_of(client)] + 1
            ):
                rate = (counts[key_of(client)] - before[key_of(client)]) / (now_s - then_s)
            consumers.append(consumer_of(client, rate))
        total = sum(each.rate for each in consumers)
        for each in consumers:
            each.share = each.rate / total if total else 0.0
        mark(consumers)
        return consumers

    def _exchange(self, channel: tuple[str, str], counts: Counts, now_s: float) -> tuple[float, Counts]:
        """Keep a look, and return the oldest one within the window."""
        looks = self._looks.setdefault(channel, deque())
        self._looks.move_to_end(channel)
        while looks and looks[0][0] < now_s - WINDOW_S:
            looks.popleft()
        oldest = looks[0] if looks else (now_s, counts)
        if not looks or now_s - looks[-1][0] >= MIN_S:
            looks.append((now_s, counts))
        if len(self._looks) > CHANNELS_MAX:
            self._looks.popitem(last=False)
        return oldest


def key_of(client: Client) -> tuple[str, str]:
    return client["node"], client["remote_address"]


def average_rate(client: Client) -> float:
    """Return the messages finished per second since the client has connected."""
    return float(client["finish_count"] / max(1.0, client["connected"] / 1e9))


def consumer_of(client: Client, rate: float) -> ComparedConsumer:
    """Return a consumer without its share and marks."""
    got = client["message_count"]
    answered = client["finish_count"] + client["requeue_count"] + client["in_flight_count"]
    timed_out = max(0, got - answered)
    # By Little's law: of N messages that stay for T seconds each, N / T leave per second.
    took_s = client["in_flight_count"] / rate if rate > 0 and client["in_flight_count"] else None
    return ComparedConsumer(
        client, rate, timed_out, client["requeue_count"] / got if got else 0.0, timed_out / got if got else 0.0, took_s
    )


def mark(consumers: Sequence[ComparedConsumer]) -> None:
    """Mark the consumers that differ from the others; one alone does not."""
    if len(consumers) < 2:
        return
    if len(consumers) > FEW:
        usual = Usual.of(consumers)
    some_work = any(each.rate for each in consumers)
    for number, each in enumerate(consumers):
        if len(consumers) <= FEW:
            # A consumer among few would hide in a median of which it is a part.
            usual = Usual.of([*consumers[:number], *consumers[number + 1 :]])
        client = each.client
        if each.rate < SLOW_SHARE * usual.rate:
            each.marks.append(SLOW)
        if client["requeue_count"] >= ODD_COUNT and is_odd(each.requeued_share, usual.requeued_share):
            each.marks.append(REQUEUES)
        if each.timed_out_count >= ODD_COUNT and is_odd(each.timed_out_share, usual.timed_out_share):
            each.marks.append(TIMES_OUT)
        # Clients that manage their RDY count have 0 for moments.
        if some_work and not (each.rate or client["ready_count"] or client["in_flight_count"]):
            each.marks.append(NOT_READY)


def is_odd(share: float, usual: float) -> bool:
    return share >= ODD_SHARE and share >= ODD_FACTOR * usual
