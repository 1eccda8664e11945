"""Settings and results of a run besides its workload, and the meters that read the server during the run."""

import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.procfs import ThreadEvents, read_core_time_s, read_main_thread
from bench.server import Server, Target
from pyqd.tools.bench.process import CpuTime, read_cpu_time

# A server counts as settled when it used less than this share of a core over one interval.
SETTLED_SHARE = 0.05
SETTLE_INTERVAL_S = 0.25
SETTLE_DEADLINE_S = 60.0


def warm_memory(size_bytes: int) -> None:
    """Take memory and free it again, so that no server has to wait until the host of a virtual machine gives it."""
    mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()


@dataclass(frozen=True)
class Cores:
    """Cores of server and generator; None: any, as the kernel chooses."""

    server: int | None = None
    generator: int | None = None

    @classmethod
    def choose(cls) -> "Cores":
        """Take two of the cores this process may use, or none when there is only one."""
        allowed = sorted(os.sched_getaffinity(0))
        return cls(server=allowed[0], generator=allowed[1]) if len(allowed) > 1 else cls()

    def require_allowed(self) -> None:
        """Check that this process may use both cores. Raises: ValueError."""
        allowed = sorted(os.sched_getaffinity(0))
        for whose, core in (("server", self.server), ("generator", self.generator)):
            if core is not None and core not in allowed:
                raise ValueError(
                    f"core {core} for the {whose}: this process may use {', '.join(map(str, allowed))} only"
                )

    @property
    def apart(self) -> bool:
        """True if server and generator have a core of their own each."""
        return None not in (self.server, self.generator) and self.server != self.generator

    def of(self, target: Target) -> tuple[int, ...]:
        """Return the cores target is pinned to: the server's, and also the generator's if one core is not enough."""
        given = (self.server, self.generator) if target.core_count > 1 else (self.server,)
        return tuple(core for core in given if core is not None)


@dataclass(frozen=True)
class Setting:
    """Settings of all runs of a session. flags: further flags, given to every server."""

    cores: Cores = field(default_factory=Cores)
    data_root: Path | None = None
    flags: tuple[str, ...] = ()

    def data_path(self) -> Path:
        """Return the directory for data directories. Raises: OSError if there is no place for temporary files."""
        return (self.data_root or Path(tempfile.gettempdir())).absolute()

    def of(self, target: Target) -> "Setting":
        """Return the setting of a run of target.

        A server on two cores shares the generator's. A generator without a core of its own sleeps instead of polling,
        and so leaves the server the time that it does not need.
        """
        return self if target.core_count == 1 else replace(self, cores=replace(self.cores, generator=None))


@dataclass(frozen=True)
class Result:
    """One run.

    losses: messages not confirmed, or confirmed but not kept by the server (publish), or published but never delivered
    (the others).    duplicates: kept or delivered once more than published
    problem: why the run counts as failed; "" when it does not.
    figures: by the names in bench.figures.FIGURES.
    """

    workload: str
    target: str
    messages: int
    losses: int = 0
    duplicates: int = 0
    foreign: int = 0
    problem: str = ""
    figures: dict[str, float] = field(default_factory=dict)


@dataclass
class Meter:
    """Cost of the body of `metered` for the server, and the time that its cores spent on other processes.

    loop: events of the server's main thread, which in pyqd runs the event loop.
    """

    server: CpuTime = field(default_factory=lambda: CpuTime(0.0, 0.0))
    loop: ThreadEvents = field(default_factory=ThreadEvents)
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
    loop_before = read_main_thread(server.pid)
    yield meter
    meter.elapsed_s = time.monotonic() - start_s
    server.require_alive()
    meter.loop = read_main_thread(server.pid) - loop_before
    meter.server = read_cpu_time(server.pid) - cpu_before
    # Two roundings to ticks can leave less than nothing.
    meter.others_s = max(0.0, core_time_s() - core_before_s - meter.server.total_s)


def settle(server: Server) -> float:
    """Wait, bounded, until the server is idle; return the seconds waited."""
    start_s = time.monotonic()
    before = read_cpu_time(server.pid)
    while time.monotonic() - start_s < SETTLE_DEADLINE_S:
        time.sleep(SETTLE_INTERVAL_S)
        server.require_alive()
        now = read_cpu_time(server.pid)
        if (now - before).total_s < SETTLED_SHARE * SETTLE_INTERVAL_S:
            break
        before = now
    return time.monotonic() - start_s
