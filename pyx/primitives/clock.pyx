"""The system's clocks, as 64-bit nanoseconds.

Two clocks, never mixed: the wall clock stamps messages and makes ids, and may jump; the monotonic clock measures
deadlines. Both are inline functions of the `.pxd`, so that a compiled caller pays for the vDSO call alone. A loop reads
them once per pass and passes the time down as an argument, which keeps the callees testable.

The result of clock_gettime is ignored: with a valid pointer and these two clocks Linux cannot fail. A test may hold
both clocks at times that it sets (`hold`); the check costs a load and a branch beside a call of some 20 ns. Source:
clock_gettime(2). A signed 64-bit count of nanoseconds lasts until the year 2262.
"""


def wall():
    """Return the wall clock in nanoseconds since 1970 (CLOCK_REALTIME)."""
    return wall_ns()


def mono():
    """Return the monotonic clock in nanoseconds (CLOCK_MONOTONIC)."""
    return mono_ns()


def hold(int64_t wall_ns, int64_t mono_ns):
    """Hold both clocks at these times for all modules until the next call; 0 releases a clock."""
    held_clock.wall_ns = wall_ns
    held_clock.mono_ns = mono_ns
