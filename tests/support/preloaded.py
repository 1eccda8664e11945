"""Programs of this repository as forks of a process that has loaded their code already.

A start of the interpreter and the imports take the daemon 0.6 s of CPU time, the rest of its start 0.03 s, and the
tests start thousands of daemons. So each process that runs tests keeps one process per program, which has imported the
program's module and forks a child for every start. The child has the command line, directory, environment and standard
files of that start.

Differences to a process that a shell would start: the module's name is not `__main__`; /proc/pid/cmdline and environ
are those of the process that forks; hash seed, address layout, limits and umask are those of its start, which is the
first start of the program in a session; an exit is waited for at once, so the process id may be used again; standard
output of Python counts as seekable; a directory that does not exist is an exit code of 1; no collection of the child
examines the objects of the loaded code.

Tests of the start itself, of limits that are set before it and of a patched program run the interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Protocol

from tests.support.readiness import is_readable

REPOSITORY = Path(__file__).resolve().parents[2]
# Less than the time limit of a test, and enough to load a program on a busy machine.
ANSWER_WAIT_S = 40.0
END_WAIT_S = 10.0
START_BYTES_MAX = 192 << 10
STATUS_BYTES = 4
# The interpreter, the C library and gevent read these at their start, so a process is kept for each set of them.
READ_EARLY = ("PYTHON", "GEVENT", "LD_", "MALLOC", "GLIBC", "LANG", "LC_", "TZ")
# Programs whose code is loaded by `main` only, and the modules that have loaded it.
LOADED_BY = {"pyqd.apps.admin": "tests.support.patched_admin"}


class Process(Protocol):
    """Interface of a running program, which a Popen has too."""

    @property
    def pid(self) -> int: ...

    @property
    def stdin(self) -> IO[bytes] | None: ...

    @property
    def stdout(self) -> IO[bytes] | None: ...

    @property
    def stderr(self) -> IO[bytes] | None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


@dataclass(frozen=True)
class Start:
    command: Sequence[str]
    directory: str
    environment: Mapping[str, str]


class Forked:
    """A running program, with the methods of a Popen. command: for messages. channel: to the process that forked it.

    pipes: for its standard input, output and error, if it was given any. Used by one thread at a time. Raises:
    ChildProcessError if the process that forks ends or does not answer.
    """

    def __init__(self, command: Sequence[str], channel: socket.socket, pipes: Sequence[IO[bytes] | None]) -> None:
        self.args = command
        self.stdin, self.stdout, self.stderr = pipes
        self.returncode: int | None = None
        self._channel = channel
        if not is_readable(channel, ANSWER_WAIT_S):
            raise ChildProcessError(f"cannot start {command}: no answer from its process within {ANSWER_WAIT_S} s")
        content, fds, _, _ = socket.recv_fds(channel, STATUS_BYTES, 1)
        if not content:
            raise ChildProcessError(f"cannot start {command}: its process has ended; its standard error says why")
        self.pid = int.from_bytes(content, "little")
        (self._fd,) = fds
        os.set_inheritable(self._fd, False)

    def poll(self) -> int | None:
        """Return the exit code, below 0 for a signal; None if the program runs."""
        if self.returncode is None and self._has_ended(0.0):
            content = self._channel.recv(STATUS_BYTES)
            # Without the process that has forked it, nobody knows the code.
            self.returncode = int.from_bytes(content, "little", signed=True) if content else -signal.SIGKILL
            self._channel.close()
            os.close(self._fd)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, `timeout` seconds at most. Returns: the exit code. Raises: subprocess.TimeoutExpired."""
        if self.returncode is None and not self._has_ended(timeout):
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, sig: int) -> None:
        """Send a signal unless the program has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _has_ended(self, wait_s: float | None) -> bool:
        if not is_readable(self._channel, wait_s):
            return False
        is_reported = self._channel.recv(STATUS_BYTES, socket.MSG_PEEK) != b""
        return is_reported or is_readable(self._fd, wait_s)


class Preloaded:
    """A process with a module's code that forks. environment: of its start."""

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self._owner = os.getpid()
        path = os.pathsep.join([*filter(None, [environment.get("PYTHONPATH")]), str(REPOSITORY)])
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, module, str(theirs.fileno())],
                # Not the repository: with -m the current directory comes before PYTHONPATH, which may name another one.
                cwd="/",
                env={**environment, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def start(self, start: Start, fds: Sequence[int], pipes: Sequence[IO[bytes] | None]) -> Forked:
        """Fork a child that runs the module. fds: its standard files, which stay open here. pipes: the other ends.

        Raises: ChildProcessError, OSError.
        """
        content = json.dumps(asdict(start)).encode()
        assert len(content) <= START_BYTES_MAX, "command line and environment are too long"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._lock:
            socket.send_fds(self._control, [content], [theirs.fileno(), *fds])
        try:
            return Forked(start.command, ours, pipes)
        except BaseException:
            for end in (ours, *pipes):
                if end is not None:
                    end.close()
            raise

    def has_ended(self) -> bool:
        """Return whether the process has ended, as one that is killed does."""
        return self._process.poll() is not None

    def end(self) -> None:
        """End the process, unless this is a fork of the process that started it. Its children go on."""
        if self._owner != os.getpid():
            return
        # A fork of this process may hold the socket open.
        with self._control, contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(END_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


_kept: dict[tuple[int, str, tuple[tuple[str, str], ...]], Preloaded] = {}
_keeping = threading.Lock()


def spawn(
    command: Sequence[str],
    directory: Path,
    environment: Mapping[str, str],
    *,
    stdout: int,
    stderr: int,
    stdin: int = subprocess.DEVNULL,
) -> Process:
    """Start a program. stdin, stdout, stderr: a descriptor, DEVNULL, or PIPE, as a Popen takes them.

    A command of the form `python -m MODULE`, for a module of this repository, is forked from a process that has loaded
    the module. Raises: OSError, ChildProcessError among them.
    """
    is_own = list(command[:2]) == [sys.executable, "-m"] and command[2].startswith(("pyqd.", "tests."))
    if not is_own or "LD_PRELOAD" in environment:
        return subprocess.Popen(
            command, stdin=stdin, stdout=stdout, stderr=stderr, cwd=directory, env=dict(environment)
        )
    with contextlib.ExitStack() as given:
        fds, pipes = [], []
        for number, wanted in enumerate((stdin, stdout, stderr)):
            fd, pipe = _end_for(wanted, is_input=number == 0, given=given)
            fds.append(fd)
            pipes.append(pipe)
        start = Start(command, str(directory), dict(environment))
        return _preloaded(LOADED_BY.get(command[2], command[2]), environment).start(start, fds, pipes)


def _end_for(wanted: int, *, is_input: bool, given: contextlib.ExitStack) -> tuple[int, IO[bytes] | None]:
    """Return a descriptor for a program, which `given` closes, and this end of its pipe."""
    if wanted == subprocess.PIPE:
        read_fd, write_fd = os.pipe()
        theirs, ours = (read_fd, write_fd) if is_input else (write_fd, read_fd)
        given.callback(os.close, theirs)
        return theirs, open(ours, "wb" if is_input else "rb")
    if wanted == subprocess.DEVNULL:
        theirs = os.open(os.devnull, os.O_RDWR)
        given.callback(os.close, theirs)
        return theirs, None
    return wanted, None


def run(
    command: Sequence[str], directory: Path, environment: Mapping[str, str], content: bytes, wait_s: float
) -> tuple[int, bytes, bytes]:
    """Run a program to its end, within `wait_s` seconds. content: for its standard input.

    Returns: exit code, standard output and error. Raises: subprocess.TimeoutExpired, after killing it; as `spawn`.
    """
    pipe = subprocess.PIPE
    process = spawn(command, directory, environment, stdin=pipe, stdout=pipe, stderr=pipe)
    with ThreadPoolExecutor(3) as threads:
        fed = threads.submit(_feed, process.stdin, content)
        out, error = (threads.submit(_read, end) for end in (process.stdout, process.stderr))
        try:
            code = process.wait(wait_s)
        finally:
            process.kill()
            process.wait()
        fed.result()
        return code, out.result(), error.result()


def completed(
    command: Sequence[str], directory: Path = REPOSITORY, content: str = "", wait_s: float = 30.0
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end in the environment of daemons, as subprocess.run with captured text does; see `run`."""
    code, out, error = run(command, directory, program_environment(), content.encode(), wait_s)
    return subprocess.CompletedProcess(command, code, out.decode(), error.decode())


def program_environment() -> dict[str, str]:
    """Return the environment of programs under test. With one for most of them, most share a process that forks."""
    # REPOSITORY comes last: PYTHONPATH may name another build of the package.
    python_path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join([*python_path, str(REPOSITORY)]),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
    }


def _feed(pipe: IO[bytes] | None, content: bytes) -> None:
    assert pipe is not None
    # A program may end before it has read all.
    with contextlib.suppress(BrokenPipeError), pipe:
        pipe.write(content)


def _read(pipe: IO[bytes] | None) -> bytes:
    assert pipe is not None
    with pipe:
        return pipe.read()


def _preloaded(module: str, environment: Mapping[str, str]) -> Preloaded:
    """Return the process for a module and the variables that are read early; a fork of this process has its own."""
    early = tuple(sorted(item for item in environment.items() if item[0].startswith(READ_EARLY)))
    key = (os.getpid(), module, early)
    with _keeping:
        found = _kept.get(key)
        if found is None or found.has_ended():
            found = _kept[key] = Preloaded(module, environment)
            atexit.register(found.end)
        return found


# The process that forks.

# The web admin's module patches these for gevent's hub, which must not exist before a fork.
_close, _fork, _waitpid, _socket, _selector = os.close, os.fork, os.waitpid, socket.socket, selectors.DefaultSelector


def _serve(control: socket.socket) -> Start | None:
    """Fork a child for each start that is asked for.

    Returns: in a child, its start; None when the other end of the socket is closed.

    The exit code of a child is reported when it has ended.
    """
    with _selector() as selector, contextlib.ExitStack() as held:
        held.enter_context(control)
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.data is None:
                    content, fds, _, _ = socket.recv_fds(control, START_BYTES_MAX, 4)
                    if not content:
                        return None
                    pid = _fork()
                    if pid == 0:
                        for other in selector.get_map().values():
                            if other.data is not None:
                                _close(other.fd)
                                other.data[1].close()
                        return _enter(json.loads(content), fds)
                    for fd in fds[1:]:
                        _close(fd)
                    pidfd, report = os.pidfd_open(pid), _socket(fileno=fds[0])
                    selector.register(pidfd, selectors.EVENT_READ, (pid, report))
                    _report_start(pid, pidfd, report)
                else:
                    selector.unregister(key.fd)
                    _close(key.fd)
                    _report_end(*key.data)


def _report_start(pid: int, pidfd: int, report: socket.socket) -> None:
    """Report the process id of a child, or kill the child if a signal has interrupted the start."""
    try:
        socket.send_fds(report, [pid.to_bytes(STATUS_BYTES, "little")], [pidfd])
    except (BrokenPipeError, ConnectionResetError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def _report_end(pid: int, report: socket.socket) -> None:
    code = os.waitstatus_to_exitcode(_waitpid(pid, 0)[1])
    # The process that runs the tests may have closed its end.
    with report, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        report.send(code.to_bytes(STATUS_BYTES, "little", signed=True))


def _enter(fields: dict[str, object], fds: Sequence[int]) -> Start:
    """Take over what belongs to a start: standard files, directory, environment, signals."""
    start = Start(**fields)  # type: ignore[arg-type]
    _close(fds[0])
    for number, fd in enumerate(fds[1:]):
        os.dup2(fd, number)
        _close(fd)
    os.chdir(start.directory)
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = start.directory
    os.environ.clear()
    os.environ.update(start.environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.orig_argv = list(start.command)
    return start


def _main() -> int:
    """Load a module, and run its main() in a child for each start."""
    name, fd = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    module = importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads cannot be forked"
    # A collection writes to each object, and so copies its page. That of a daemon's exit took 0.15 s of CPU time.
    gc.freeze()
    start = _serve(_socket(fileno=int(fd)))
    if start is None:
        return 0
    sys.argv = [str(module.__file__), *start.command[3:]]
    code: int | None = module.main()
    return code or 0


if __name__ == "__main__":
    sys.exit(_main())
