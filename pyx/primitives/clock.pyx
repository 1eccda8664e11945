"""Read the system's clocks, as 64-bit nanoseconds.

Two clocks, never mixed: the wall clock stamps messages and makes ids, and may jump; the monotonic clock measures
deadlines. Both are inline functions of the `.pxd`, so that a compiled user pays for the vDSO call alone. A loop reads
them once per pass and hands the value down: what it calls takes the time as an argument and stays testable.

The result of clock_gettime is not looked at: with a valid pointer and these two clocks Linux has no way to fail.
A test may hold both clocks at times that it sets (`hold`): the check for that is a load and a branch beside a call of
some 20 ns. Source: clock_gettime(2). A signed 64-bit count of nanoseconds lasts until the year 2262.
"""


def wall():
    """Return the wall clock in nanoseconds since 1970 (CLOCK_REALTIME)."""
    return wall_ns()


def mono():
    """Return the monotonic clock in nanoseconds (CLOCK_MONOTONIC)."""
    return mono_ns()


def hold(int64_t wall_ns, int64_t mono_ns):
    """Let both clocks stand at these times, for all modules, until they are held elsewhere; 0 releases one of them."""
    held_clock.wall_ns = wall_ns
    held_clock.mono_ns = mono_ns
