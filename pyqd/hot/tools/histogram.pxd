# Histogram of durations with a fixed number of buckets: recording costs some nanoseconds and no memory.
#
#   values below 256 ns          a bucket for each
#   each octave above, to 2**42  128 buckets of the same width
#
# So a bucket is at most 1/128 of its values wide, and its middle at most 0.4 % away from any of them.
# The scheme is that of HdrHistogram, http://hdrhistogram.org
#
# 1. count = sum of counts.          2. most is exact, and no quantile exceeds it.
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef extern from *:
    int leading_zeros "__builtin_clzll"(unsigned long long value) nogil

cdef enum:
    OCTAVE_BUCKETS = 128
    EXACT_MAX = 256
    BUCKET_COUNT = 4608
    DURATION_BITS = 42             # 73 minutes; longer durations count as that


cdef struct Histogram:
    uint64_t[BUCKET_COUNT] counts
    uint64_t count
    int64_t most

cdef inline uint32_t histogram_bucket(int64_t duration_ns) noexcept nogil:
    cdef uint32_t shift
    if duration_ns < EXACT_MAX:
        return <uint32_t>duration_ns
    shift = 56 - leading_zeros(<unsigned long long>duration_ns)
    return shift * OCTAVE_BUCKETS + <uint32_t>(duration_ns >> shift)

cdef inline void histogram_add(Histogram* histogram, int64_t duration_ns) noexcept nogil:
    # Count one duration; one below 0 counts as 0.
    if duration_ns < 0:
        duration_ns = 0
    elif duration_ns >> DURATION_BITS:
        duration_ns = (<int64_t>1 << DURATION_BITS) - 1
    histogram.counts[histogram_bucket(duration_ns)] += 1
    histogram.count += 1
    if duration_ns > histogram.most:
        histogram.most = duration_ns

cdef inline int64_t histogram_quantile(const Histogram* histogram, double share) noexcept nogil:
    # Return the least duration that at least the share (0 .. 1) of all did not exceed, to 0.4 %; 0 if there is none.
    cdef uint64_t rank = <uint64_t>(share * <double>histogram.count)
    cdef uint64_t seen = 0
    cdef uint32_t bucket = 0
    cdef uint32_t shift
    cdef int64_t middle
    if <double>rank < share * <double>histogram.count or rank == 0:
        rank += 1
    if histogram.count == 0:
        return 0
    if rank > histogram.count:
        rank = histogram.count
    while True:
        seen += histogram.counts[bucket]
        if seen >= rank:
            break
        bucket += 1
    shift = 0 if bucket < EXACT_MAX else bucket // OCTAVE_BUCKETS - 1
    middle = (<int64_t>(bucket - shift * OCTAVE_BUCKETS) << shift) + ((<int64_t>1 << shift) >> 1)
    return middle if middle < histogram.most else histogram.most

# A LatencyHistogram with the same durations.
cdef object copy_of(const Histogram* histogram)
