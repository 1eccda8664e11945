"""Stepper that runs an operation of a child process one store at a time, and shows every state of its files.

A SIGKILL leaves the stores of all instructions before it and of none after it. So the states of a directory between the
instructions of an operation are all that a kill during it can leave, and each can be examined.

Files change by system calls, after each of which the child stops, and by stores into shared mappings. Those are made
read-only from outside: the first store into one faults, its mapping becomes writable, and the child goes on in single
steps until it has stored nothing for a while. So code that cannot change a file runs at full speed.

A copy of a long body stores thousands of words in a row. Of such a run the stepper shows the first states and then one
in so many: the others differ from these only in how far the copy has come.

Source: ptrace(2), proc(5).
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
from typing import Any

from tests.support.needs import skip_outside_ci

PTRACE_TRACEME = 0
PTRACE_PEEKTEXT = 1
PTRACE_SINGLESTEP = 9
PTRACE_GETREGS = 12
PTRACE_SETREGS = 13
PTRACE_SYSCALL = 24
PTRACE_SETOPTIONS = 0x4200
PTRACE_GETSIGINFO = 0x4202
TRACESYSGOOD = 1
SYSCALL_STOP = signal.SIGTRAP | 0x80
SIGINFO_BYTES = 128
SIGINFO_ADDRESS = 2
# Signals that stop and resume a process group, which the operation does not notice.
PAUSED = (signal.SIGSTOP, signal.SIGCONT)
# user_regs_struct, in words.
REGISTERS = 27
RAX, RDX, RSI, RDI, ORIG_RAX, RIP = 10, 12, 13, 14, 15, 16
NO_SYSTEM_CALL = 2**64 - 1
SYSCALL = b"\x0f\x05"
MPROTECT, MADVISE = 10, 28
READ, READ_WRITE = 1, 3
MADV_POPULATE_READ, MADV_POPULATE_WRITE = 22, 23
# Stores come in groups. After this many steps without one, the child runs at full speed to the next.
QUIET_STEPS = 200
STOPS_MAX = 300_000
# Stores to one file at most this far apart are a run, of which these states are shown. memcpy(3) may run backwards.
RUN_STEP_BYTES_MAX = 256
RUN_STATES_MIN = 48
RUN_STRIDE = 16

# Those of files, beside topics and channels.
DIRECTORIES = ("log", "dues", "notes", "topics", "discarded")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_libc.ptrace.restype = ctypes.c_long
_libc.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def names_in(directory: str) -> list[str]:
    """Return the names in a tree of directories; a directory's end is marked by its own name."""
    found = []
    waiting = [directory]
    while waiting:
        at = waiting.pop()
        found.append(at)
        for name in sorted(os.listdir(at)):
            found.append(name)
            if name.endswith((".topic", ".channel")) or name in (
                "dues",
                "log",
                "notes",
                "topics",
                "discarded",
            ):
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
        self.changed_at = -1
        self.continues_run = False

    def changed(self) -> bool:
        """Return whether the content differs from the last call; `continues_run`: beside the last change."""
        if _libc.memcmp(self.address, self.copy_address, self.size_bytes) == 0:
            return False
        at = self._first_difference()
        self.continues_run = self.changed_at >= 0 and abs(at - self.changed_at) <= RUN_STEP_BYTES_MAX
        self.changed_at = at
        ctypes.memmove(self.copy_address, self.address, self.size_bytes)
        return True

    def _first_difference(self) -> int:
        """Return the offset of the first byte that differs from the copy, by bisection; there is one."""
        start, end = 0, self.size_bytes
        while end - start > 1:
            middle = (start + end) // 2
            same = _libc.memcmp(self.address + start, self.copy_address + start, middle - start) == 0
            start, end = (middle, end) if same else (start, middle)
        return start


class Watch:
    """All files of a directory and their names."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.names: list[str] = []
        self.files: list[Watched] = []
        self.continues_run = False
        self.changed(True)

    def changed(self, names_too: bool) -> bool:
        """Return whether any file differs from the last call; names are only compared if names_too is set."""
        names = names_in(str(self.directory)) if names_too else self.names
        if names != self.names:
            self.names = names
            self.continues_run = False
            self.files = [Watched(path) for path in self.directory.rglob("*") if path.is_file() and path.stat().st_size]
            return True
        changed = [file for file in self.files if file.changed()]
        self.continues_run = len(changed) == 1 and changed[0].continues_run
        return bool(changed)


class Child:
    """A traced process while it is stopped: its registers, its shared mappings, and the way to the next stop."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        # One that the C library has; the child has it at the same address.
        function = ctypes.cast(_libc.syscall, ctypes.c_void_p).value
        assert function is not None
        self._syscall_at = function + ctypes.string_at(function, 64).index(SYSCALL)
        self.ptrace(PTRACE_SETOPTIONS, TRACESYSGOOD)

    def ptrace(self, request: int, data: int = 0) -> None:
        if _libc.ptrace(request, self.pid, None, data) != 0:
            skip_outside_ci(f"a traced process does not do as it is told here (ptrace, request {request})")

    def go(self, request: int) -> int:
        """Run to the next stop. Returns: the signal that gives its reason."""
        self.ptrace(request)
        status = os.waitpid(self.pid, 0)[1]
        assert os.WIFSTOPPED(status), f"the operation ended the process: status {status:#x}"
        return os.WSTOPSIG(status)

    def registers(self) -> Any:
        found = (ctypes.c_ulonglong * REGISTERS)()
        self.ptrace(PTRACE_GETREGS, ctypes.addressof(found))
        return found

    def set_registers(self, registers: Any) -> None:
        self.ptrace(PTRACE_SETREGS, ctypes.addressof(registers))

    def before_system_call(self) -> bool:
        """Return whether the next instruction is a system call."""
        at = self.registers()[RIP]
        return bool(_libc.ptrace(PTRACE_PEEKTEXT, self.pid, at, None) & 0xFFFF == int.from_bytes(SYSCALL, "little"))

    def fault_address(self) -> int:
        siginfo = (ctypes.c_ulonglong * (SIGINFO_BYTES // 8))()
        self.ptrace(PTRACE_GETSIGINFO, ctypes.addressof(siginfo))
        return int(siginfo[SIGINFO_ADDRESS])

    def mappings(self) -> Iterator[tuple[int, int, str]]:
        """Yield begin, end and access of each range of its addresses."""
        for line in Path(f"/proc/{self.pid}/maps").read_text().splitlines():
            extent, access, _ = line.split(maxsplit=2)
            start, end = extent.split("-")
            yield int(start, 16), int(end, 16), access

    def protect(self) -> None:
        """Make all shared mappings read-only that the process may store into."""
        for start, end, access in self.mappings():
            if access.startswith("rw") and access.endswith("s"):
                self._mprotect(start, end, READ)

    def unprotect(self, address: int) -> None:
        """Make the one mapping writable that an address lies in."""
        for start, end, access in self.mappings():
            if start <= address < end:
                assert access == "r--s", f"a store to {address:#x} is a fault of the operation: {access}"
                self._mprotect(start, end, READ_WRITE)

    def _mprotect(self, start: int, end: int, access: int) -> None:
        """Have the process make a system call between two instructions of its own."""
        before = self.registers()
        # Whatever it was stopped in is over: nothing of it is to be made again.
        before[ORIG_RAX] = NO_SYSTEM_CALL
        call = type(before)(*before)
        call[RAX], call[RDI], call[RSI], call[RDX], call[RIP] = MPROTECT, start, end - start, access, self._syscall_at
        self.set_registers(call)
        assert self.go(PTRACE_SINGLESTEP) == signal.SIGTRAP
        assert self.registers()[RAX] == 0, f"mprotect({start:#x}, {end - start}, {access}) failed"
        self.set_registers(before)

    def populate_for_reading(self) -> None:
        """At a system call that prepares pages for writing, prepare them for reading: they are read-only now."""
        registers = self.registers()
        if registers[ORIG_RAX] == MADVISE and registers[RDX] == MADV_POPULATE_WRITE:
            registers[RDX] = MADV_POPULATE_READ
            self.set_registers(registers)


def states_of(directory: Path, operation: Callable[[], object]) -> Iterator[Path]:
    """Yield a copy of the directory for each state that the operation, in a child process, brings it through.

    The copy is removed when the next one is requested. If the system does not let a process trace its child, the test
    is skipped; in continuous integration it fails.
    """
    pid = os.fork()
    if pid == 0:
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
        if not os.WIFSTOPPED(os.waitpid(pid, 0)[1]):
            skip_outside_ci("a process may not trace its child here (ptrace)")
        # The two take turns: on one processor a step costs no wake-up of another. Each worker of xdist has its own.
        worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        for process in (0, pid):
            os.sched_setaffinity(process, {sorted(processors)[worker % len(processors)]})
        copy = directory.parent / f"{directory.name}.copy"
        for _ in _changes(Child(pid), Watch(directory)):
            shutil.copytree(directory, copy)
            yield copy
            shutil.rmtree(copy)
    finally:
        os.sched_setaffinity(0, processors)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _changes(child: Child, watch: Watch) -> Iterator[None]:
    """Take the process to its end, and yield whenever one instruction or system call has changed something.

    Of a long run of stores, most states are passed over.
    """
    child.protect()
    stepping = False
    quiet_steps = 0
    run_states = 0
    for _ in range(STOPS_MAX):
        if stepping and (quiet_steps == QUIET_STEPS or child.before_system_call()):
            child.protect()
            stepping = False
        reason = child.go(PTRACE_SINGLESTEP if stepping else PTRACE_SYSCALL)
        if reason == signal.SIGSEGV:
            child.unprotect(child.fault_address())
            stepping, quiet_steps = True, 0
            continue
        if reason in PAUSED:
            continue
        if reason == SYSCALL_STOP:
            child.populate_for_reading()
            assert child.go(PTRACE_SYSCALL) == SYSCALL_STOP
            child.protect()
        else:
            assert reason in (signal.SIGTRAP, signal.SIGUSR1), f"signal {reason}"
        quiet_steps += 1
        if watch.changed(names_too=not stepping):
            quiet_steps = 0
            run_states = run_states + 1 if stepping and watch.continues_run else 0
            if run_states < RUN_STATES_MIN or run_states % RUN_STRIDE == 0:
                yield
        if reason == signal.SIGUSR1:
            return
    raise AssertionError(f"the operation takes more than {STOPS_MAX} stops")
