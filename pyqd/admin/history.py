"""Depths and rates of the last hour, in memory: one ring of points per topic and channel."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Set
from typing import Final

STEP_S: Final = 10.0
POINT_COUNT: Final = 360
# Points of the spans that a chart has while the history is young.
SPANS: Final = (60, 180)

Key = tuple[str, ...]


class Series:
    """Ring of values at intervals of STEP_S seconds. NaN where there is none; 4 bytes per value."""

    __slots__ = ("last_slot", "points")

    def __init__(self) -> None:
        self.points = array("f", [math.nan]) * POINT_COUNT
        self.last_slot = -1

    def put(self, slot: int, value: float, filler: float = math.nan) -> None:
        """Set the value of a slot, and `filler` for those since the last. A slot: seconds since 1970 // STEP_S."""
        assert slot >= self.last_slot
        if self.last_slot >= 0:
            for skipped in range(max(self.last_slot + 1, slot - POINT_COUNT + 1), slot):
                self.points[skipped % POINT_COUNT] = filler
        self.points[slot % POINT_COUNT] = value
        self.last_slot = slot

    def values(self, slot: int) -> list[float]:
        """Return the values up to a slot, oldest first: POINT_COUNT of them."""
        if self.last_slot < 0:
            return [math.nan] * POINT_COUNT
        newest = self.last_slot % POINT_COUNT + 1
        values = [*self.points[newest:], *self.points[:newest]]
        missing = min(slot - self.last_slot, POINT_COUNT)
        return values[missing:] + [math.nan] * missing if missing > 0 else values


class History:
    """Series by name and key: ("topic",) or ("topic", "channel"); the whole cluster has the key ()."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, Key], Series] = {}
        # Counters of each broker, and the time at which they were read.
        self._counts: dict[str, tuple[float, Mapping[Key, int]]] = {}
        self.rates: dict[Key, float] = {}
        self.node_rates: dict[str, dict[Key, float]] = {}
        self.slot = 0
        # The slot of the last poll, if the time since then is the usual one between polls.
        self._bridged: int | None = None
        self._incomplete: Set[str] = frozenset()

    def record(
        self,
        now_s: float,
        gauges: Mapping[str, Mapping[Key, int]],
        counters: Mapping[str, Mapping[Key, int]],
        bridged_s: float = 0.0,
        incomplete: Set[str] = frozenset(),
    ) -> None:
        """Take the numbers of one poll. gauges: by name and key. bridged_s: longest time between polls that is no gap.

        incomplete: topics that get no values, and neither do their channels and the cluster.

        counters: messages so far by broker and key, for the series `rate`, `node_rate` of each broker, and `taken` from
        all channels. Rates are those of the brokers, added: the sum of counters would jump by all messages of a broker
        that has missed a poll.
        """
        before = self.slot
        self._bridged = before if now_s - before * STEP_S <= bridged_s + STEP_S else None
        self._incomplete = incomplete
        self.slot = max(before, int(now_s // STEP_S))
        for name, values in gauges.items():
            for key, value in values.items():
                self._put(name, key, value)
        self.node_rates = {node: self._rates_of(node, now_s, counts) for node, counts in counters.items()}
        sums: dict[Key, float] = {}
        taken: list[float] = []
        for node, rates in self.node_rates.items():
            whole = 0.0
            taken += [rate for key, rate in rates.items() if len(key) == 2]
            for key, rate in rates.items():
                sums[key] = sums.get(key, 0.0) + rate
                if len(key) == 1:
                    whole += rate
            if rates:
                self._put("node_rate", (node,), whole)
                sums[()] = sums.get((), 0.0) + whole
        for key, rate in sums.items():
            self._put("rate", key, rate)
        if sums:
            self._put("taken", (), sum(taken))
        self.rates = sums
        self._counts = {node: (now_s, counts) for node, counts in counters.items()}
        # A ring that got no value for this long belongs to a deleted topic or channel.
        limit = self.slot - POINT_COUNT
        self._series = {key: series for key, series in self._series.items() if series.last_slot >= limit}

    def values(self, name: str, key: Key) -> list[float]:
        """Return POINT_COUNT values, oldest first, NaN where there is none."""
        series = self._series.get((name, key))
        return [math.nan] * POINT_COUNT if series is None else series.values(self.slot)

    def _rates_of(self, node: str, now_s: float, counts: Mapping[Key, int]) -> dict[Key, float]:
        """Return the growth of a broker's counters per second since the last poll; none if there was no such poll."""
        then_s, before = self._counts.get(node, (now_s, {}))
        if now_s <= then_s:
            return {}
        # A counter that went down belongs to a broker that was started again.
        grown = ((key, count - before[key]) for key, count in counts.items() if key in before)
        return {key: growth / (now_s - then_s) for key, growth in grown if growth >= 0}

    def _put(self, name: str, key: Key, value: float) -> None:
        if key[0] in self._incomplete if key else self._incomplete:
            return
        series = self._series.get((name, key))
        if series is None:
            series = self._series[name, key] = Series()
        # A series without a value in the last poll has a gap: its broker did not answer.
        series.put(self.slot, value, value if series.last_slot == self._bridged else math.nan)


def thinned(values: list[float], count: int) -> list[float]:
    """Return `count` values: the greatest of each group, NaN for a group without any."""
    size = len(values) / count
    groups = (values[round(number * size) : round((number + 1) * size)] for number in range(count))
    return [greatest(group) for group in groups]


def greatest(values: Iterable[float]) -> float:
    """Return the greatest number; NaN if there is none."""
    return max((value for value in values if not math.isnan(value)), default=math.nan)


def since_first(values: list[float]) -> list[float]:
    """Return the last 10 or 30 minutes or the last hour: the shortest that has all the values."""
    first = next((number for number, value in enumerate(values) if not math.isnan(value)), len(values))
    needed = len(values) - first
    return values[-next((count for count in SPANS if needed <= count), len(values)) :]
