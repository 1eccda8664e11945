"""End-to-end latencies of one channel, stored at each FIN and passed on in batches.

The histograms of the window are Python objects. So a FIN stores a number here, and the histograms get the numbers when
the buffer is full, when half of the window is over, and when statistics are read. Without percentiles a channel has no
buffer, and its FINs pay one branch.

Invariant: the buffered values belong to the half of the window that ends at `move_ns`.

Source: docs/nsq/broker-semantics.md, "End-to-end latency percentiles".
"""

cimport cython

from pyqd.hot.primitives.clock cimport mono_ns, wall_ns


@cython.final
cdef class LatencyBuffer:
    """Latencies that no histogram has yet. window: LatencyWindow, with the histograms; its half ends at move_ns."""

    def __init__(self, window, int64_t move_ns):
        self.window = window
        self.move_ns = move_ns

    cdef int note(self, int64_t published_ns) except -1:
        """Store the latency of a message that is finished now; 0 if the clock was set back. published_ns: Unix."""
        cdef int64_t now_ns = mono_ns()
        assert self.count < LATENCIES_PER_BATCH
        if now_ns >= self.move_ns:
            self.flush(now_ns)
        # The precision of a float is one part in 16 million: half a microsecond of ten seconds.
        self.values[self.count] = <float> max(wall_ns() - published_ns, <int64_t> 0)
        self.count += 1
        if self.count == LATENCIES_PER_BATCH:
            self.flush(now_ns)
        return 0

    cpdef int flush(self, int64_t now_ns) except -1:
        """Pass the buffered values to the window. now_ns: monotonic."""
        cdef Py_ssize_t size_bytes = self.count * <Py_ssize_t> sizeof(float)
        values = bytearray((<char*> self.values)[:size_bytes])
        self.count = 0
        self.move_ns = self.window.add(values, now_ns)
        return 0
