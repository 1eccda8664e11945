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
NEVER: Final = 2**31 - 1
# Measured: 41 for a topic, 33 for a channel, 27 for a connection over TCP and 41 over HTTP.
BLOCKS_PER_OWNER: Final = 36
# Some 100 MB.
UNEXPLAINED_BLOCKS_MAX: Final = 1_000_000
YOUNG: Final = 1

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
    """Create long-lived objects in this context: no collection examines them except a full one."""
    gc.disable()
    try:
        yield
        # From the youngest generation, where the next collection would find them, to the oldest.
        gc.freeze()
        gc.unfreeze()
    finally:
        gc.enable()


def leave_to_exit() -> None:
    """Leave all objects to the end of the process, before the interpreter's last collections.

    These would examine every object, which took 6 s of CPU time with 50,000 topics. All memory goes with the process.
    """
    gc.freeze()


class FullCollections:
    """Full collections of a daemon: none, unless memory grows without a reason.

    A full collection examines all objects and holds the event loop for some 0.2 s with 1,000 topics of 10 channels, or
    40 ms with none. The objects of connections, requests, topics and channels form no cycles, so that they go without
    the collector. If cycles come from elsewhere and outlive the collections of young objects, blocks of the
    interpreter pile up that no topic, channel or connection explains. A full collection then costs less than they do.
    """

    def __init__(self) -> None:
        # Least number without an owner since the last full collection.
        self._least_blocks: int | None = None

    @staticmethod
    def stop_automatic() -> None:
        """Let automatic collections examine young objects only, in the whole process."""
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, NEVER)

    def tend(self, owner_count: int) -> bool:
        """Collect if blocks have piled up; called every few seconds. Returns: whether it collected.

        owner_count: topics, channels and connections at present. Cost: O(pages of the interpreter), 0.1 ms per million
        blocks.
        """
        owned_blocks = BLOCKS_PER_OWNER * owner_count
        blocks = sys.getallocatedblocks() - owned_blocks
        least = blocks if self._least_blocks is None else self._least_blocks
        collects = blocks - least > max(UNEXPLAINED_BLOCKS_MAX, owned_blocks // 2)
        if collects:
            gc.collect()
            least = sys.getallocatedblocks() - owned_blocks
        self._least_blocks = min(blocks, least)
        return collects


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
    """Collect garbage of young objects, and return the C library's free memory to the system. Blocks meanwhile.

    No full collection: `FullCollections` sees to these.
    """
    gc.collect(YOUNG)
    try:
        _libc.malloc_trim(0)
    except AttributeError:
        # A C library other than glibc returns memory by itself.
        return
