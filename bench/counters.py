"""Programs that count events of a daemon from its start to its end: perf, valgrind's callgrind, strace.

Under callgrind the daemon is some fifty times as slow, and strace delays every call: more arrives in a pass, and the
figure is that of a busy daemon. Instructions of the kernel are not counted.

Sources: perf-stat(1); the manual of callgrind; strace(1).
"""

import re
import shutil
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path

from bench.server import RunError, Target

INSTRUCTIONS = "instructions:u"
SYSTEM_CALLS = "raw_syscalls:sys_enter"
# Under callgrind.
SLOWNESS = 30.0
WRITES_WITHIN_S = 10.0
POLL_S = 0.05
# perf opens its counters before the shell becomes the daemon, so that no event of the daemon is missed.
COUNTED_BY_PERF = (
    'perf stat -x, -e "$1" -o "$0" -p $$ & '
    'until find /proc/$!/fd -lname "*perf_event*" | grep -q .; do kill -0 $! || exit 1; sleep 0.01; done; '
    'shift; exec "$@"'
)

_LINES = {
    "perf": re.compile(r"^(\d+),[^,]*,", re.MULTILINE),
    "callgrind": re.compile(r"^(?:summary|totals): (\d+)", re.MULTILINE),
    "strace": re.compile(r"^\s*(\d+) total$", re.MULTILINE),
}


class CounterError(RunError):
    """A figure cannot be counted; str() of it is the reason."""


@dataclass(frozen=True)
class Counter:
    """Counter of one kind of event. name: "perf", "callgrind" or "strace"; event: as perf calls it."""

    name: str
    event: str = INSTRUCTIONS

    def around(self, target: Target, counted: Path) -> Target:
        """Return the target with this counter. counted: the file that holds the figure after its end."""
        own: tuple[str, ...]
        if self.name == "perf":
            own = ("sh", "-c", COUNTED_BY_PERF, str(counted), self.event)
        elif self.name == "strace":
            # The daemon stays the child of this process, so that signals reach it.
            own = ("strace", "-D", "-f", "-c", "-U", "calls,name", "-o", str(counted))
        else:
            own = ("valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={counted}")
        environment = (*target.environment, ("PYTHONHASHSEED", "0"))
        slowness = SLOWNESS if self.name == "callgrind" else target.slowness
        return replace(target, command=(*own, *target.command), environment=environment, slowness=slowness)

    def read(self, counted: Path) -> int:
        """Return the figure of a daemon that has ended. Raises: CounterError."""
        end_s = time.monotonic() + WRITES_WITHIN_S
        while True:
            # perf and strace notice a little later that the process is gone.
            found = _LINES[self.name].search(counted.read_text()) if counted.exists() else None
            if found is not None:
                return int(found[1])
            if time.monotonic() > end_s:
                raise CounterError(f"{self.name} has left no count")
            time.sleep(POLL_S)


def perf_counts(event: str) -> bool:
    """Return whether perf is installed and may count the event here."""
    if not shutil.which("perf"):
        return False
    tried = subprocess.run(["perf", "stat", "-x,", "-e", event, "true"], capture_output=True, text=True, check=False)
    return tried.returncode == 0 and _LINES["perf"].search(tried.stderr) is not None


def find_instruction_counter() -> Counter:
    """Return this machine's counter of instructions. Raises: CounterError."""
    if perf_counts(INSTRUCTIONS):
        return Counter("perf", INSTRUCTIONS)
    if shutil.which("valgrind"):
        return Counter("callgrind")
    raise CounterError("no instructions: perf has no such counter here, and valgrind is not installed")


def find_call_counter() -> Counter:
    """Return this machine's counter of system calls. Raises: CounterError."""
    if perf_counts(SYSTEM_CALLS):
        return Counter("perf", SYSTEM_CALLS)
    if shutil.which("strace"):
        return Counter("strace")
    raise CounterError("no system calls: perf may not count them here, and strace is not installed")
