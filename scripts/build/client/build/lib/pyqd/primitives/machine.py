"""Limits that the machine sets on the process: open files, mappings, memory.

Sources: getrlimit(2), proc(5), vm.max_map_count in the kernel's documentation of sysctl, "Control Group v2".
"""

import contextlib
import os
import resource
from pathlib import Path
from typing import Final

MAPPING_COUNT_DEFAULT: Final = 65530
PAGE_BYTES: Final = os.sysconf("SC_PAGESIZE")


def raise_descriptor_limit() -> int:
    """Raise the soft limit to the hard one, as Go's runtime does. Returns: the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def descriptor_max() -> int:
    """Return the limit on open files and sockets of the process."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def mapping_max() -> int:
    """Return the limit on mappings of a process (vm.max_map_count)."""
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        return MAPPING_COUNT_DEFAULT


def mapping_count() -> int:
    """Return the number of mappings of the process. Cost: O(mappings), a millisecond for some thousands."""
    try:
        with open("/proc/self/maps", "rb") as maps:
            return sum(1 for _ in maps)
    except OSError:
        return 0


def available_bytes() -> int:
    """Return the memory that the process may still take: the least of the machine's, control group's and address
    space's.
    """
    found = [_of_machine(), *_of_control_group(), *_of_address_space()]
    return max(0, min(found))


def _of_machine() -> int:
    with open("/proc/meminfo", "rb") as meminfo:
        for line in meminfo:
            if line.startswith(b"MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable; pyqd needs Linux 3.14 or later")


def _of_control_group() -> list[int]:
    """Return the memory that memory.max leaves. Page cache counts as free: the kernel drops it before it refuses
    memory.
    """
    with contextlib.suppress(OSError, ValueError):
        line = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        group = Path("/sys/fs/cgroup") / line.removeprefix("0::").lstrip("/")
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            cached = [line for line in (group / "memory.stat").read_text().splitlines() if line.startswith("file ")]
            used = int((group / "memory.current").read_text()) - int(cached[0].split()[1])
            return [int(limit) - used]
    return []


def _of_address_space() -> list[int]:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return []
    with open("/proc/self/statm", "rb") as statm:
        return [limit - int(statm.read().split()[0]) * PAGE_BYTES]
