from libc.stdint cimport int64_t

cdef enum:
    LATENCIES_PER_BATCH = 512

cdef class LatencyBuffer:
    cdef float[LATENCIES_PER_BATCH] values   # nanoseconds
    cdef int count
    cdef readonly object window          # LatencyWindow: `add` takes values, and returns the next `move_ns`
    cdef readonly int64_t move_ns        # monotonic: when half of the window is over

    cdef int note(self, int64_t published_ns) except -1
    cpdef int flush(self, int64_t now_ns) except -1
