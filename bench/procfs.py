"""Readings of a process's cost from /proc; source: proc(5)."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from pyqd.tools.bench.process import TICKS_PER_SECOND

# Fields of /proc/PID/task/TID/stat behind the name in parentheses, counted from 0.
MINOR_FAULTS_FIELD = 7
MAJOR_FAULTS_FIELD = 9


@dataclass(frozen=True)
class Memory:
    """Memory of a process in bytes.

    private_bytes: Private_Clean + Private_Dirty, the memory that the end of the process would free. anonymous_bytes:
    Pss_Anon, the part without a file: heap, stacks, anonymous maps.
    """

    rss_bytes: int
    private_bytes: int
    anonymous_bytes: int


@dataclass(frozen=True)
class ThreadEvents:
    """Page faults, minor and major, and context switches, voluntary and involuntary, of one thread."""

    faults: int = 0
    switches: int = 0

    def __sub__(self, earlier: "ThreadEvents") -> "ThreadEvents":
        return ThreadEvents(self.faults - earlier.faults, self.switches - earlier.switches)


def read_main_thread(pid: int) -> ThreadEvents:
    """Return the events so far of the main thread of a running process."""
    thread = Path(f"/proc/{pid}/task/{pid}")
    # The name may contain blanks and parentheses; the last ")" ends it.
    fields = (thread / "stat").read_text().rpartition(")")[2].split()
    switches = re.findall(r"voluntary_ctxt_switches:\s*(\d+)", (thread / "status").read_text())
    return ThreadEvents(
        faults=int(fields[MINOR_FAULTS_FIELD]) + int(fields[MAJOR_FAULTS_FIELD]), switches=sum(map(int, switches))
    )


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


def read_file_system(path: Path) -> str:
    """Return the type of the file system that path is on, "" if the kernel does not report it."""
    place = str(path.resolve())
    found, longest = "", -1
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    for line in mounts:
        mount, _, source = line.partition(" - ")
        # Blanks in names are written as octal numbers.
        point = re.sub(r"\\([0-7]{3})", lambda digits: chr(int(digits[1], 8)), mount.split()[4]).rstrip("/")
        # Of two mounts at the same place the later one is visible.
        if (place + "/").startswith(point + "/") and len(point) >= longest:
            found, longest = source.split()[0], len(point)
    return found


def read_cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return "unknown"


def read_memory_total() -> int:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
