"""Run an operation of a child process one instruction at a time, and see every state its files go through.

A SIGKILL leaves the stores of all instructions before it and of none after it. So the states of a directory between the
instructions of an operation are all that a kill during it can leave, and each can be looked at.

Source: ptrace(2).
"""

import contextlib
import ctypes
import mmap
import os
import shutil
import signal
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.needs import skip_outside_ci

PTRACE_TRACEME = 0
PTRACE_PEEKTEXT = 1
PTRACE_PEEKUSER = 3
PTRACE_SINGLESTEP = 9
RIP_OFFSET = 16 * 8
SYSCALL = 0x050F
STEPS_MAX = 3_000_000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_libc.ptrace.restype = ctypes.c_long
_libc.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def names_in(directory: str) -> list[str]:
    """Return what is in a tree of directories, each with its names; a directory's end is marked by its own name."""
    found = []
    waiting = [directory]
    while waiting:
        at = waiting.pop()
        found.append(at)
        for name in sorted(os.listdir(at)):
            found.append(name)
            if name.endswith((".topic", ".channel")) or name in ("log", "parked", "topics", "discarded"):
                waiting.append(os.path.join(at, name))
    return found


class Watched:
    """One file: mapped, with a copy of its content as it was last."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self.map = mmap.mmap(file.fileno(), 0)
        self.copy = bytearray(self.map)
        self.size_bytes = len(self.copy)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.copy_address = ctypes.addressof(ctypes.c_char.from_buffer(self.copy))

    def changed(self) -> bool:
        """Say whether the content is another than at the last call."""
        if _libc.memcmp(self.address, self.copy_address, self.size_bytes) == 0:
            return False
        ctypes.memmove(self.copy_address, self.address, self.size_bytes)
        return True


class Watch:
    """All files of a directory and their names."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.names: list[str] = []
        self.files: list[Watched] = []
        self.changed(True)

    def changed(self, names_too: bool) -> bool:
        """Say whether anything is another than at the last call; names are only looked at when asked for."""
        names = names_in(str(self.directory)) if names_too else self.names
        if names != self.names:
            self.names = names
            self.files = [Watched(path) for path in self.directory.rglob("*") if path.is_file() and path.stat().st_size]
            return True
        changed = [file.changed() for file in self.files]
        return any(changed)


def states_of(directory: Path, operation: Callable[[], object], every: int = 1) -> Iterator[Path]:
    """Yield a copy of the directory for each state that the operation, in a child process, brings it through.

    every: look after so many instructions only. The copy is removed when the next one is asked for. If the system does
    not let a process trace its child, the test is skipped; in continuous integration it fails.
    """
    child = os.fork()
    if child == 0:
        try:
            if _libc.ptrace(PTRACE_TRACEME, 0, None, None) == 0:
                os.kill(os.getpid(), signal.SIGSTOP)
                operation()
                os.kill(os.getpid(), signal.SIGUSR1)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    processors = os.sched_getaffinity(0)
    try:
        if not os.WIFSTOPPED(os.waitpid(child, 0)[1]):
            skip_outside_ci("a process may not trace its child here (ptrace)")
        # The two take turns: on one processor a step costs no wake-up of another. Each worker of xdist has its own.
        worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        for process in (0, child):
            os.sched_setaffinity(process, {sorted(processors)[worker % len(processors)]})
        yield from _step(child, directory, every)
    finally:
        os.sched_setaffinity(0, processors)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _step(child: int, directory: Path, every: int) -> Iterator[Path]:
    watch = Watch(directory)
    copy = directory.parent / f"{directory.name}.copy"
    system_call = False
    for step in range(STEPS_MAX):
        instruction_at = _libc.ptrace(PTRACE_PEEKUSER, child, RIP_OFFSET, None)
        system_call |= _libc.ptrace(PTRACE_PEEKTEXT, child, instruction_at, None) & 0xFFFF == SYSCALL
        if _libc.ptrace(PTRACE_SINGLESTEP, child, None, None) != 0:
            skip_outside_ci("a traced process does not go in single steps here (ptrace)")
        status = os.waitpid(child, 0)[1]
        assert os.WIFSTOPPED(status), f"the operation ended the process: status {status:#x}"
        ended = os.WSTOPSIG(status) != signal.SIGTRAP
        assert not ended or os.WSTOPSIG(status) == signal.SIGUSR1, f"signal {os.WSTOPSIG(status)}"
        if step % every and not ended:
            continue
        if watch.changed(system_call):
            shutil.copytree(directory, copy)
            yield copy
            shutil.rmtree(copy)
        system_call = False
        if ended:
            return
    raise AssertionError(f"the operation takes more than {STEPS_MAX} instructions")
