"""Percentiles of the time from publishing a message to its FIN, over a moving window.

As in nsqd there are two sketches, each for half of the window; when a half is over, the older one is discarded. So a
result covers the last half to whole of the window. The sketch is REQ of Apache DataSketches with its accuracy at the
high end: the error of a rank is proportional to its distance from the top, so that 0.999 differs from the maximum,
which is exact. Merging sketches, as for a topic's channels, keeps that accuracy.

This module is imported only with --e2e-processing-latency-percentile: the library needs numpy, which takes some 25 MB.

Source: docs/nsq/broker-semantics.md, "End-to-end latency percentiles"; Cormode, Karnin, Liberty, Thaler, Veselý,
"Relative Error Streaming Quantiles", PODS 2021.
"""

import atexit
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy
from datasketches import req_floats_sketch

from pyqd.broker.channel_settings import int_if_whole
from pyqd.hot.broker.latency import LatencyBuffer
from pyqd.hot.primitives.clock import mono

# Ranks at or above the median are off by less than one in a hundred of their distance from the top, nearly always.
SKETCH_K = 12
HIGH_RANKS_ACCURATE = True


def new_sketch() -> Any:
    """Return an empty sketch of numbers in nanoseconds."""
    return req_floats_sketch(SKETCH_K, HIGH_RANKS_ACCURATE)


class LatencyWindow:
    """The sketches of one channel's latencies. window_ns: of the whole. now_ns: monotonic."""

    def __init__(self, window_ns: int, now_ns: int) -> None:
        self._half_ns = max(window_ns // 2, 1)
        self._current = new_sketch()
        self._older = new_sketch()
        self._half_ends_ns = now_ns + self._half_ns
        _windows.add(self)

    def add(self, values: bytearray, now_ns: int) -> int:
        """Add values of the current half, then switch to the half of now_ns. Returns: the end of that half.

        values: native 32-bit floats in nanoseconds. now_ns: monotonic.
        """
        if values:
            self._current.update(numpy.frombuffer(values, dtype=numpy.float32))
        if now_ns >= self._half_ends_ns:
            halves = (now_ns - self._half_ends_ns) // self._half_ns + 1
            self._older = self._current if halves == 1 else new_sketch()
            self._current = new_sketch()
            self._half_ends_ns += halves * self._half_ns
        return self._half_ends_ns

    def sketches(self) -> Iterator[Any]:
        for sketch in (self._current, self._older):
            if not sketch.is_empty():
                yield sketch

    def forget(self) -> None:
        """Discard the sketches, for good."""
        self._current = self._older = None


_windows: weakref.WeakSet[LatencyWindow] = weakref.WeakSet()


@atexit.register
def forget_all() -> None:
    """Discard all sketches: the library complains about sketches that exist when the interpreter ends."""
    for window in list(_windows):
        window.forget()


def new_buffer(window_ns: int, now_ns: int) -> LatencyBuffer:
    """Return the buffer of a channel, with a new LatencyWindow. window_ns: of the whole. now_ns: monotonic."""
    window = LatencyWindow(window_ns, now_ns)
    return LatencyBuffer(window, window.add(bytearray(), now_ns))


def latency_of(buffers: Iterable[LatencyBuffer], quantiles: Sequence[float]) -> dict[str, Any]:
    """Return the percentiles of all buffers together, in nsqd's shape: nanoseconds, 0 if there are no values."""
    now_ns = mono()
    merged = new_sketch()
    for buffer in buffers:
        buffer.flush(now_ns)
        for sketch in buffer.window.sketches():
            merged.merge(sketch)
    values = [0.0] * len(quantiles) if merged.is_empty() else merged.get_quantiles(quantiles, True)
    return {
        "count": merged.n,
        "percentiles": [
            {"quantile": int_if_whole(quantile), "value": int(value)}
            for quantile, value in zip(quantiles, values, strict=True)
        ],
    }
