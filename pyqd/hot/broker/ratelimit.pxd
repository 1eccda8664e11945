# A token bucket. Design notes: pyx/broker/ratelimit.pyx.
from libc.stdint cimport int64_t, uint64_t

cdef class TokenBucket:
    cdef readonly double rate            # tokens a second
    cdef readonly double burst           # tokens kept at most
    cdef double tokens
    cdef int64_t counted_ns              # monotonic; when `tokens` was right

    cdef int count_until(self, int64_t now_ns) noexcept
    cdef uint64_t whole(self, int64_t now_ns) noexcept
    cdef int spend(self, uint64_t count) except -1
    cdef int64_t ready_ns(self) noexcept
