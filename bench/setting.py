"""Cores and flags of a session, and the meters that read a process's cost from /proc; source: proc(5)."""

import mmap
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.server import Server, Target
from pyqd.tools.bench.process import SETTLE_INTERVAL_S, SETTLED_SHARE, TICKS_PER_SECOND, CpuTime, read_cpu_time

SETTLE_DEADLINE_S = 60.0
# Fields of /proc/PID/task/TID/stat behind the name in parentheses, counted from 0.
MINOR_FAULTS_FIELD = 7
MAJOR_FAULTS_FIELD = 9
IN_MEMORY = ("tmpfs", "ramfs")


@dataclass(frozen=True)
class Cores:
    """Cores of server and generator; None: any, as the kernel chooses."""

    server: int | None = None
    generator: int | None = None

    @classmethod
    def choose(cls, server: int | None = None, generator: int | None = None) -> "Cores":
        """Take two of the cores this process may use, or none if there is only one, unless others are named.

        Raises: ValueError for a core that this process may not use.
        """
        allowed = sorted(os.sched_getaffinity(0))
        chosen = cls(*allowed[:2]) if len(allowed) > 1 else cls()
        cores = cls(
            server=chosen.server if server is None else server,
            generator=chosen.generator if generator is None else generator,
        )
        for whose, core in (("server", cores.server), ("generator", cores.generator)):
            if core is not None and core not in allowed:
                raise ValueError(
                    f"core {core} for the {whose}: this process may use {', '.join(map(str, allowed))} only"
                )
        return cores

    @property
    def apart(self) -> bool:
        """True if server and generator have a core of their own each."""
        return None not in (self.server, self.generator) and self.server != self.generator

    def of(self, target: Target) -> tuple[int, ...]:
        """Return the cores target is pinned to: the server's, and also the generator's if one core is not enough."""
        given = (self.server, self.generator) if target.core_count > 1 else (self.server,)
        return tuple(core for core in given if core is not None)

    def pin_generator(self) -> None:
        """Bind this process, which generates the load, to its core."""
        if self.generator is not None:
            os.sched_setaffinity(0, {self.generator})


@dataclass(frozen=True)
class Setting:
    """Settings of all runs of a session. flags: further flags, given to every server."""

    cores: Cores = field(default_factory=Cores)
    data_root: Path | None = None
    flags: tuple[str, ...] = ()

    @property
    def spin(self) -> bool:
        """True if the generator polls: it has a core. Otherwise it leaves the server the rest of their core."""
        return self.cores.generator is not None

    def data_path(self) -> Path:
        """Return the directory for data directories. Raises: OSError if there is no place for temporary files."""
        return (self.data_root or Path(tempfile.gettempdir())).absolute()

    def of(self, target: Target) -> "Setting":
        """Return the setting of a run of target: a server on two cores shares the generator's."""
        return self if target.core_count == 1 else replace(self, cores=replace(self.cores, generator=None))


@dataclass(frozen=True)
class Memory:
    """Memory of a process in bytes.

    private_bytes: Private_Clean + Private_Dirty, the memory that the end of the process would free. anonymous_bytes:
    Pss_Anon, the part without a file: heap, stacks, anonymous maps.
    """

    rss_bytes: int
    private_bytes: int
    anonymous_bytes: int

    def __sub__(self, earlier: "Memory") -> "Memory":
        return Memory(
            self.rss_bytes - earlier.rss_bytes,
            self.private_bytes - earlier.private_bytes,
            self.anonymous_bytes - earlier.anonymous_bytes,
        )


def read_memory(pid: int) -> Memory:
    kib = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if rest.endswith(" kB"):
            kib[name] = int(rest[:-3])
    return Memory(
        rss_bytes=kib["Rss"] * 1024,
        private_bytes=(kib["Private_Clean"] + kib["Private_Dirty"]) * 1024,
        # Kernels before 5.4 do not split Pss.
        anonymous_bytes=kib.get("Pss_Anon", kib["Anonymous"]) * 1024,
    )


def read_main_thread(pid: int) -> tuple[int, int]:
    """Return the page faults and the context switches so far of the main thread of a running process."""
    thread = Path(f"/proc/{pid}/task/{pid}")
    # The name may contain blanks and parentheses; the last ")" ends it.
    fields = (thread / "stat").read_text().rpartition(")")[2].split()
    switches = re.findall(r"voluntary_ctxt_switches:\s*(\d+)", (thread / "status").read_text())
    return int(fields[MINOR_FAULTS_FIELD]) + int(fields[MAJOR_FAULTS_FIELD]), sum(map(int, switches))


def read_core_time_s(core: int) -> float:
    """Return the seconds that processes and the hypervisor took from one core since boot.

    Interrupts are left out: on the loopback device they are network work of server and generator themselves.
    """
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name == f"cpu{core}":
            user, nice, system, _idle, _iowait, _irq, _softirq, steal = map(int, fields[:8])
            return (user + nice + system + steal) / TICKS_PER_SECOND
    raise ValueError(f"no core {core}")


def read_file_system(path: Path) -> str:
    """Return the type of the file system that path is on, as stat(1) calls it."""
    return subprocess.run(["stat", "-f", "-c", "%T", path], capture_output=True, text=True, check=False).stdout.strip()


@dataclass
class Meter:
    """Cost of the body of `metered` for the server, and the time that its cores spent on other processes.

    faults, switches: of the server's main thread, which in pyqd runs the event loop.
    """

    server: CpuTime = field(default_factory=lambda: CpuTime(0.0, 0.0))
    faults: int = 0
    switches: int = 0
    others_s: float = 0.0
    elapsed_s: float = 0.0


@contextmanager
def metered(server: Server) -> Iterator[Meter]:
    """Measure over the body; others_s stays 0 when the server is not pinned."""

    def core_time_s() -> float:
        # On two cores one of them is also the generator's, whose time does not count as foreign.
        own_s = time.process_time() if len(server.cores) > 1 else 0.0
        return sum(map(read_core_time_s, server.cores)) - own_s

    meter = Meter()
    cpu_before, core_before_s, start_s = read_cpu_time(server.pid), core_time_s(), time.monotonic()
    faults, switches = read_main_thread(server.pid)
    yield meter
    meter.elapsed_s = time.monotonic() - start_s
    server.require_alive()
    faults_now, switches_now = read_main_thread(server.pid)
    meter.faults, meter.switches = faults_now - faults, switches_now - switches
    meter.server = read_cpu_time(server.pid) - cpu_before
    # Two roundings to ticks can leave less than nothing.
    meter.others_s = max(0.0, core_time_s() - core_before_s - meter.server.total_s)


def settle(server: Server) -> None:
    """Wait, bounded, until the server is idle."""
    end_s = time.monotonic() + SETTLE_DEADLINE_S
    before = read_cpu_time(server.pid)
    while time.monotonic() < end_s:
        time.sleep(SETTLE_INTERVAL_S)
        server.require_alive()
        now = read_cpu_time(server.pid)
        if (now - before).total_s < SETTLED_SHARE * SETTLE_INTERVAL_S:
            return
        before = now


def warm_memory(size_bytes: int) -> None:
    """Take memory and free it again, so that no server has to wait until the host of a virtual machine gives it."""
    mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()
