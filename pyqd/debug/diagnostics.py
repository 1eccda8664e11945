"""Diagnostics of the process as text for people: stacks of greenlets and threads, and use of memory.

Walks over all objects yield to the loop in between, so that they never hold it for long.

Sources: the documentation of greenlet, tracemalloc and gc.
"""

import gc
import linecache
import sys
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from greenlet import getcurrent, greenlet

from pyqd.primitives.memory import memory_stats

GREENLETS_PER_SLICE = 500
OBJECTS_PER_SLICE = 50_000
FRAMES_MAX = 60
TYPES_SHOWN = 30
LINES_SHOWN_MAX = 500
NO_FRAMES = "in compiled code"

Stack = tuple[tuple[str, int, str], ...]
Pause = Callable[[], None]


def stack_of(frame: FrameType | None) -> Stack:
    """Return a stack as (file, line, function), innermost first."""
    found: list[tuple[str, int, str]] = []
    while frame is not None and len(found) < FRAMES_MAX:
        found.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(found)


def stack_lines(stack: Stack) -> Iterable[str]:
    """Yield a stack's lines, with their source if it can be found."""
    for file, line, function in stack:
        source = linecache.getline(file, line).strip()
        yield f"    {file}:{line} {function}{'    ' + source if source else ''}\n"


def greenlets_text(names: Iterable[tuple[Any, str]], pause: Pause) -> str:
    """Return the stacks of all greenlets, equal ones grouped, and the stacks of all threads.

    names: (greenlet, name) of the known greenlets. Switches: yes, by `pause`.
    """
    name_of = {id(known): name for known, name in names}
    count_of: Counter[tuple[str, Stack]] = Counter()
    current = getcurrent()
    total = 0
    # Not isinstance, which asks the referent of a weak proxy, and raises if that is gone.
    for found in [item for item in gc.get_objects() if issubclass(type(item), greenlet)]:
        if found.dead or not found:
            continue
        total += 1
        frame = sys._getframe() if found is current else found.gr_frame
        # The part after the slash names the greenlet's next callback and contains addresses.
        name = name_of.get(id(found), type(found).__name__)
        count_of[name, stack_of(frame)] += 1
        if total % GREENLETS_PER_SLICE == 0:
            pause()
    parts = [f"{total} greenlets\n"]
    for (name, stack), count in count_of.most_common():
        parts.append(f"\n{count} {name}{'' if stack else ', ' + NO_FRAMES}\n")
        parts += stack_lines(stack)
    return "".join(parts) + "\n" + threads_text()


def threads_text() -> str:
    name_of = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    parts = [f"{len(frames)} threads\n"]
    for ident, frame in frames.items():
        parts.append(f"\n{name_of.get(ident, 'a thread not of Python')}\n")
        parts += stack_lines(stack_of(frame))
    return "".join(parts)


def heap_text(line_count: int, pause: Pause) -> str:
    """Return the use of memory: the process as a whole, objects by type, and allocating lines if tracing is on.

    Switches: yes, by `pause`.
    """
    parts = [f"{name:<25} {value}\n" for name, value in memory_stats().items()]
    parts.append("\nobjects the collector knows, by type\n")
    count_of: Counter[type] = Counter()
    objects = gc.get_objects()
    for start in range(0, len(objects), OBJECTS_PER_SLICE):
        count_of.update(map(type, objects[start : start + OBJECTS_PER_SLICE]))
        pause()
    del objects
    parts += [
        f"{count:>12} {kind.__module__}.{kind.__qualname__}\n" for kind, count in count_of.most_common(TYPES_SHOWN)
    ]
    parts.append("\n")
    return "".join(parts) + traced_text(line_count)


def traced_text(line_count: int) -> str:
    """Return the source lines that hold the most memory. Cost: O(blocks traced), without a pause."""
    if not tracemalloc.is_tracing():
        return "lines of source: not traced; POST /debug/heap/start begins it\n"
    traced, peak = tracemalloc.get_traced_memory()
    own = tracemalloc.get_tracemalloc_memory()
    parts = [f"lines of source: {traced} bytes traced, at most {peak}; tracing itself takes {own}\n"]
    snapshot = tracemalloc.take_snapshot().filter_traces(
        (tracemalloc.Filter(False, tracemalloc.__file__), tracemalloc.Filter(False, linecache.__file__))
    )
    for statistic in snapshot.statistics("lineno")[:line_count]:
        frame = statistic.traceback[0]
        source = linecache.getline(frame.filename, frame.lineno).strip()
        parts.append(
            f"{statistic.size:>12} bytes {statistic.count:>9} blocks  {frame.filename}:{frame.lineno}  {source}\n"
        )
    return "".join(parts)
