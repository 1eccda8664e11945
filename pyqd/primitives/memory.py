"""Memory of the process: statistics of the C library and the garbage collector, and the return of free memory.

Sources: mallinfo(3), malloc_trim(3), proc(5), the documentation of Python's gc module.
"""

import contextlib
import gc
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from cffi import FFI

STATM: Final = "/proc/self/statm"
PAUSES_KEPT: Final = 256

_ffi = FFI()
_ffi.cdef(
    """
    struct mallinfo2 {
        size_t arena, ordblks, smblks, hblks, hblkhd, usmblks, fsmblks, uordblks, fordblks, keepcost;
    };
    struct mallinfo2 mallinfo2(void);
    int malloc_trim(size_t pad);
    """
)
_libc: Any = _ffi.dlopen(None)

_pauses_us: deque[int] = deque(maxlen=PAUSES_KEPT)
_started_ns = 0
_is_frozen = False


def _collecting(phase: str, _info: dict[str, int]) -> None:
    global _started_ns
    if phase == "start":
        _started_ns = time.monotonic_ns()
    else:
        _pauses_us.append((time.monotonic_ns() - _started_ns) // 1000)


def watch_collections() -> None:
    """Start to measure the collector's pauses."""
    if _collecting not in gc.callbacks:
        gc.callbacks.append(_collecting)


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Create long-lived objects in this context: the collector skips them now and until `thaw`.

    A full collection over the objects of 50,000 topics takes a third of a second, during which no client is served.
    """
    global _is_frozen
    gc.disable()
    try:
        yield
        gc.freeze()
        _is_frozen = True
    finally:
        gc.enable()


def thaw() -> None:
    """Let the collector examine all objects again, because some of the frozen ones have become garbage."""
    global _is_frozen
    if _is_frozen:
        # gc.get_freeze_count() would count the objects one by one, which takes some milliseconds.
        _is_frozen = False
        gc.unfreeze()


def pause_us(percent: int) -> int:
    """Return a percentile of the last collections' pauses in microseconds; 0 if none was measured."""
    if not _pauses_us:
        return 0
    ordered = sorted(_pauses_us)
    return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]


def resident_bytes() -> int:
    """Return the resident private memory of the process, which excludes the mapped logs."""
    with open(STATM, "rb") as file:
        _, resident, shared, *_ = map(int, file.read().split())
    return (resident - shared) * os.sysconf("SC_PAGESIZE")


def idle_bytes() -> int:
    """Return the free memory that the C library keeps; 0 if the library does not report it."""
    try:
        return int(_libc.mallinfo2().fordblks)
    except AttributeError:
        return 0


def memory_stats() -> dict[str, int]:
    """Return nsqd's memory keys. Keys without a meaning in CPython are 0.

    heap_objects: blocks the interpreter has allocated. heap_idle_bytes: of the C library alone. gc_total_runs:
    collections so far; the pauses are of the last 256, once they are watched.
    """
    return {
        "heap_objects": sys.getallocatedblocks(),
        "heap_idle_bytes": idle_bytes(),
        "heap_in_use_bytes": resident_bytes(),
        "heap_released_bytes": 0,
        "gc_pause_usec_100": pause_us(100),
        "gc_pause_usec_99": pause_us(99),
        "gc_pause_usec_95": pause_us(95),
        "next_gc_bytes": 0,
        "gc_total_runs": sum(generation["collections"] for generation in gc.get_stats()),
    }


def release_free_memory() -> None:
    """Collect garbage and return the C library's free memory to the system. Blocks meanwhile."""
    gc.collect()
    try:
        _libc.malloc_trim(0)
    except AttributeError:
        # A C library other than glibc returns memory by itself.
        return
