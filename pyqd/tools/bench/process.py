"""Process at the other end of a connection on this machine, and its CPU time. Source: proc(5)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat behind the name in parentheses, counted from 0.
UTIME_FIELD: Final = 11
STIME_FIELD: Final = 12
# A process has settled if it uses less than this share of a core over one interval.
SETTLED_SHARE: Final = 0.05
SETTLE_INTERVAL_S: Final = 0.25
# Fields of a line of /proc/net/tcp.
LOCAL_FIELD: Final = 1
REMOTE_FIELD: Final = 2
INODE_FIELD: Final = 9


@dataclass(frozen=True)
class CpuTime:
    """CPU time of a whole process, all threads, in seconds."""

    user_s: float
    system_s: float

    @property
    def total_s(self) -> float:
        return self.user_s + self.system_s

    def __sub__(self, earlier: CpuTime) -> CpuTime:
        return CpuTime(user_s=self.user_s - earlier.user_s, system_s=self.system_s - earlier.system_s)


def read_cpu_time(pid: int) -> CpuTime:
    """Return the CPU time of a running process so far; the kernel rounds each part to one tick (10 ms)."""
    # The name may contain blanks and parentheses; the last ")" ends it.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return CpuTime(
        user_s=int(fields[UTIME_FIELD]) / TICKS_PER_SECOND,
        system_s=int(fields[STIME_FIELD]) / TICKS_PER_SECOND,
    )


async def settled(pid: int, wait_s: float) -> None:
    """Wait until a process uses little CPU time, at most so long: after a load it may still write to its disk."""
    deadline_s = time.monotonic() + wait_s
    with contextlib.suppress(OSError):
        used_s = read_cpu_time(pid).total_s
        while time.monotonic() < deadline_s:
            await asyncio.sleep(SETTLE_INTERVAL_S)
            before_s, used_s = used_s, read_cpu_time(pid).total_s
            if used_s - before_s < SETTLED_SHARE * SETTLE_INTERVAL_S:
                return


def serving_process(connection: socket.socket) -> int | None:
    """Return the id of the process that serves a TCP connection; None if it is not on this machine or not visible."""
    inode = inode_between(connection.getpeername(), connection.getsockname())
    return None if inode is None else owner_of(inode)


def inode_between(local: tuple[str, int], remote: tuple[str, int]) -> str | None:
    ends = {(one, other) for one in kernel_forms(local) for other in kernel_forms(remote)}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if (fields[LOCAL_FIELD], fields[REMOTE_FIELD]) in ends:
                return fields[INODE_FIELD]
    return None


def kernel_forms(address: tuple[str, int]) -> Iterator[str]:
    """Yield an address as the kernel writes it; one of IPv4 also as IPv6 sockets show it."""
    host, port = address[:2]
    if ":" in host:
        packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    else:
        packed = socket.inet_aton(host)
        yield f"{words(packed)}:{port:04X}"
        packed = b"\0" * 10 + b"\xff\xff" + packed
    yield f"{words(packed)}:{port:04X}"


def words(packed: bytes) -> str:
    """Return an address in words of the machine's byte order, in hexadecimal."""
    return "".join(
        f"{int.from_bytes(packed[start : start + 4], sys.byteorder):08X}" for start in range(0, len(packed), 4)
    )


def owner_of(inode: str) -> int | None:
    """Return a process that has the socket with this inode open; None if none is visible."""
    wanted = f"socket:[{inode}]"
    for directory in Path("/proc").glob("[0-9]*/fd"):
        try:
            if any(os.readlink(entry) == wanted for entry in directory.iterdir()):
                return int(directory.parent.name)
        except OSError:
            # The process has ended, or belongs to another user.
            continue
    return None
