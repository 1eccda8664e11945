"""Percentiles of the time from publishing a message to its FIN, over a moving window.

As in nsqd there are two histograms, each for half of the window; when a half is over, the older one is discarded. So a
result covers the last half to whole of the window. A bucket of a histogram holds the 32-bit floats with the same upper
16 bits: exponent, and 7 bits of the mantissa. So a percentile is off by at most 0.4 % of its value at every rank, the
maximum is exact, and histograms of several channels add up to that of their topic.

This module is imported only with --e2e-processing-latency-percentile.

Source: docs/nsq/broker-semantics.md, "End-to-end latency percentiles".
"""

import math
import struct
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Final

from pyqd.broker.channel_settings import int_if_whole
from pyqd.hot.broker.latency import LatencyBuffer
from pyqd.hot.primitives.clock import mono

BUCKET_SHIFT: Final = 16
MIDDLE: Final = 1 << (BUCKET_SHIFT - 1)
_BITS: Final = struct.Struct("=I")
_FLOAT: Final = struct.Struct("=f")


def float_of(bits: int) -> float:
    """Return the float with these bits."""
    value: float = _FLOAT.unpack(_BITS.pack(bits))[0]
    return value


class Histogram:
    """Numbers of values by bucket; values are not negative. count: of all."""

    def __init__(self) -> None:
        self.count = 0
        self._counts: Counter[int] = Counter()
        # The bits of floats that are not negative have the order of the floats.
        self._largest = 0

    def add(self, values: bytearray) -> None:
        """Count values: native 32-bit floats, at least one."""
        bits = memoryview(values).cast("I")
        self.count += len(bits)
        self._counts.update([each >> BUCKET_SHIFT for each in bits])
        self._largest = max(self._largest, *bits)

    def merge(self, other: "Histogram") -> None:
        self.count += other.count
        self._counts.update(other._counts)
        self._largest = max(self._largest, other._largest)

    def quantiles(self, quantiles: Sequence[float]) -> list[float]:
        """Return for each quantile the smallest value that at least this part of all reaches; 0 if there are none."""
        if not self.count:
            return [0.0] * len(quantiles)
        buckets = sorted(self._counts)
        ranks = list(accumulate(self._counts[bucket] for bucket in buckets))
        return [self._value_at(max(1, math.ceil(quantile * self.count)), buckets, ranks) for quantile in quantiles]

    def _value_at(self, rank: int, buckets: Sequence[int], ranks: Sequence[int]) -> float:
        """Return the value of a rank from 1 on. ranks: of the last value of each bucket."""
        if rank >= self.count:
            return float_of(self._largest)
        bucket = buckets[bisect_left(ranks, rank)]
        return float_of(min(bucket << BUCKET_SHIFT | MIDDLE, self._largest))


class LatencyWindow:
    """The histograms of one channel's latencies. window_ns: of the whole. now_ns: monotonic."""

    def __init__(self, window_ns: int, now_ns: int) -> None:
        self._half_ns = max(window_ns // 2, 1)
        self._current = Histogram()
        self._older = Histogram()
        self._half_ends_ns = now_ns + self._half_ns

    def add(self, values: bytearray, now_ns: int) -> int:
        """Add values of the current half, then switch to the half of now_ns. Returns: the end of that half.

        values: native 32-bit floats in nanoseconds. now_ns: monotonic.
        """
        if values:
            self._current.add(values)
        if now_ns >= self._half_ends_ns:
            halves = (now_ns - self._half_ends_ns) // self._half_ns + 1
            self._older = self._current if halves == 1 else Histogram()
            self._current = Histogram()
            self._half_ends_ns += halves * self._half_ns
        return self._half_ends_ns

    def histograms(self) -> Iterator[Histogram]:
        """Yield those that hold values."""
        for histogram in (self._current, self._older):
            if histogram.count:
                yield histogram


def new_buffer(window_ns: int, now_ns: int) -> LatencyBuffer:
    """Return the buffer of a channel, with a new LatencyWindow. window_ns: of the whole. now_ns: monotonic."""
    window = LatencyWindow(window_ns, now_ns)
    return LatencyBuffer(window, window.add(bytearray(), now_ns))


def latency_of(buffers: Iterable[LatencyBuffer], quantiles: Sequence[float]) -> dict[str, Any]:
    """Return the percentiles of all buffers together, in nsqd's shape: nanoseconds, 0 if there are no values."""
    now_ns = mono()
    merged = Histogram()
    for buffer in buffers:
        buffer.flush(now_ns)
        for histogram in buffer.window.histograms():
            merged.merge(histogram)
    return {
        "count": merged.count,
        "percentiles": [
            {"quantile": int_if_whole(quantile), "value": int(value)}
            for quantile, value in zip(quantiles, merged.quantiles(quantiles), strict=True)
        ],
    }
