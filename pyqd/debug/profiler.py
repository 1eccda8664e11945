"""CPU profiles of this process, recorded by py-spy, which runs beside it and reads its memory.

The kernel may allow a tracer to trace only processes that it has started (Yama), and py-spy did not start this one. So
this process names its tracer first: a shell is started, its process id is allowed to trace, and the shell then becomes
py-spy.

Sources: the documentation of py-spy; prctl(2), PR_SET_PTRACER.
"""

import contextlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any, Final

import gevent
from cffi import FFI

from pyqd.primitives.errors import reason_of

PROGRAM: Final = "py-spy"
SECONDS_MAX: Final = 120
RATE_MAX: Final = 1000
# Time beyond the profile's own: to start, and to write.
EXTRA_S: Final = 30.0
POLL_S: Final = 0.05
WORDS_MAX: Final = 500
SHELL: Final = ("/bin/sh", "-c", 'read -r go && exec "$@"', "sh")
# Frames of compiled code: py-spy shows them on platforms on which it can walk a native stack.
NATIVE: Final = ("--native",) if platform.machine() == "x86_64" else ()
PR_SET_PTRACER: Final = 0x59616D61
SIGNS_OF_NO_PERMISSION: Final = ("permission denied", "operation not permitted", "eperm")

_ffi = FFI()
_ffi.cdef("int prctl(int option, unsigned long a, unsigned long b, unsigned long c, unsigned long d);")
_libc: Any = _ffi.dlopen(None)


class ProfileError(Exception):
    """Reason why there is no profile. status: of HTTP; str() of it is for people."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def search_path() -> str:
    """Return the search path for programs: the directory of this interpreter, then PATH."""
    return os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])


def find_program(path: str) -> str:
    """Return the path of py-spy. Raises: ProfileError 501."""
    found = shutil.which(PROGRAM, path=path)
    if found is None:
        raise ProfileError(501, f"{PROGRAM} is not installed: pip install 'pyqd[profile]'")
    return found


class Profiler:
    """Recorder of one profile at a time. path: the directories searched for py-spy."""

    def __init__(self, path: str | None = None) -> None:
        self._path = search_path() if path is None else path
        self._process: subprocess.Popen[bytes] | None = None
        self._busy = False

    def record(self, seconds: int, rate: int) -> str:
        """Return the stacks of the next seconds in py-spy's format `raw`. rate: samples per second.

        Raises: ProfileError. Switches: yes; the loop goes on meanwhile.
        """
        program = find_program(self._path)
        if self._busy:
            raise ProfileError(503, "a profile is being recorded; only one can be at a time")
        self._busy = True
        try:
            with tempfile.TemporaryDirectory(prefix="pyqd-profile.") as directory:
                return self._record(program, seconds, rate, directory)
        except OSError as error:
            raise ProfileError(503, f"{PROGRAM} could not be run: {reason_of(error)}") from error
        finally:
            self._busy = False

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _record(self, program: str, seconds: int, rate: int, directory: str) -> str:
        stacks = os.path.join(directory, "stacks")
        said = os.path.join(directory, "said")
        command = [program, "record", "--pid", str(os.getpid()), "--duration", str(seconds), "--rate", str(rate)]
        with open(said, "w+b") as output:
            self._process = subprocess.Popen(
                [*SHELL, *command, "--format", "raw", "--nolineno", *NATIVE, "--output", stacks],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=directory,
            )
            try:
                code = self._run(self._process, seconds + EXTRA_S)
            finally:
                self._process = None
        if code == 0 and os.path.exists(stacks):
            with open(stacks, errors="replace") as file:
                return file.read()
        with open(said, errors="replace") as file:
            raise failure(code, file.read())

    def _run(self, process: subprocess.Popen[bytes], limit_s: float) -> int:
        """Let the program start, and wait for its end. Switches: yes."""
        assert process.stdin is not None
        _libc.prctl(PR_SET_PTRACER, process.pid, 0, 0, 0)
        try:
            with contextlib.suppress(BrokenPipeError), process.stdin:
                process.stdin.write(b"\n")
            limit_s += time.monotonic()
            while process.poll() is None and time.monotonic() < limit_s:
                gevent.sleep(POLL_S)
        finally:
            _libc.prctl(PR_SET_PTRACER, 0, 0, 0, 0)
            if process.poll() is None:
                process.kill()
                process.wait()
        return process.returncode


def failure(code: int, said: str) -> ProfileError:
    """Return the error for a py-spy that ended without a profile."""
    words = " ".join(said.partition("Stack backtrace")[0].split())[-WORDS_MAX:]
    if any(sign in said.lower() for sign in SIGNS_OF_NO_PERMISSION):
        return ProfileError(
            503,
            f"{PROGRAM} may not trace this process: {words}\n"
            "It takes the same user and kernel.yama.ptrace_scope of 0 or 1, or CAP_SYS_PTRACE; "
            "in a container --cap-add=SYS_PTRACE",
        )
    return ProfileError(503, f"{PROGRAM} ended with code {code}: {words}")
