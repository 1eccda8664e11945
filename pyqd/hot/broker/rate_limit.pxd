from libc.stdint cimport int64_t, uint64_t

cdef class RateLimit:
    cdef readonly double rate            # tokens per second
    cdef readonly double burst           # tokens kept at most
    cdef double tokens
    cdef int64_t counted_ns              # monotonic; `tokens` is the count as of this time

    cdef int count_until(self, int64_t now_ns) noexcept
    cdef uint64_t available(self, int64_t now_ns) noexcept
    cdef uint64_t whole_tokens(self) noexcept
    cdef int spend(self, uint64_t count) except -1
    cdef int64_t ready_ns(self) noexcept
