from libc.stdint cimport int64_t
from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, timespec

cdef enum:
    NS_PER_US = 1000
    NS_PER_MS = 1000000
    NS_PER_S = 1000000000


# Times that a test has set; 0: the system's clock counts.
cdef struct HeldClock:
    int64_t wall_ns
    int64_t mono_ns

cdef HeldClock held_clock


cdef inline int64_t wall_ns() noexcept nogil:
    # Return nanoseconds since 1970-01-01 UTC. May jump either way; for timestamps and ids only.
    cdef timespec now
    if held_clock.wall_ns != 0:
        return held_clock.wall_ns
    clock_gettime(CLOCK_REALTIME, &now)
    return <int64_t>now.tv_sec * NS_PER_S + now.tv_nsec


cdef inline int64_t mono_ns() noexcept nogil:
    # Return nanoseconds since an arbitrary time of this boot. Never goes backwards; for deadlines and durations.
    cdef timespec now
    if held_clock.mono_ns != 0:
        return held_clock.mono_ns
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * NS_PER_S + now.tv_nsec
