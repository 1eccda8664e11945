"""First step of every program: standard streams that can be used, and signals that do not end it by accident.

A program may be started with closed standard streams, as by `pyqd 2>&-`. Then Python has None for them, `print` writes
log lines to standard output instead, and the next socket or file gets the number of the missing descriptor.

Light to import: a program calls `begin_program` before it loads the rest of its code, which takes up to a second.
"""

import errno
import fcntl
import io
import os
import signal
import sys
from typing import Final, TextIO

STDOUT: Final = 1
STDERR: Final = 2
EXIT_FAILED: Final = 1
# They have no meaning in any program but SIGUSR2 in pyqd, which then handles it. Go's programs ignore them too.
IGNORED_SIGNALS: Final = (signal.SIGUSR1, signal.SIGUSR2)

_missed_hangups: list[int] = []


class _StandardOutput(io.FileIO):
    """Standard output of a program that ends with exit code 1 and a line on standard error if it cannot be written."""

    def __init__(self, program: str, hint: str) -> None:
        super().__init__(STDOUT, "w", closefd=False)
        self._program, self._hint = program, hint

    def write(self, data: memoryview) -> int | None:  # type: ignore[override]
        """Write bytes. Raises: SystemExit; BrokenPipeError if the reader of a pipe has gone."""
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            reason = "it is closed" if error.errno == errno.EBADF else error.strerror
            discard_stdout()
            print(f"{self._program}: cannot write to standard output: {reason}{self._hint}", file=sys.stderr)
            raise SystemExit(EXIT_FAILED) from None


class _StandardError(io.FileIO):
    """Standard error that drops what cannot be written, as to a full disk: no program fails because of its log."""

    def __init__(self) -> None:
        super().__init__(STDERR, "w", closefd=False)

    def write(self, data: memoryview) -> int | None:  # type: ignore[override]
        try:
            written = super().write(data)
        except OSError:
            written = None
        # None is a full pipe that does not block.
        return len(data) if written is None else written


def begin_program(program: str, hint: str = "", *, holds_hangups: bool = False) -> None:
    """Repair standard streams, and ignore signals without a meaning. A second call has no effect.

    program: its name in the error for standard output that cannot be written; hint: the end of that error.
    holds_hangups: SIGHUP does not end a program that will handle it; see `missed_hangup`.
    """
    _open_closed_descriptors()
    # Not in place of another object, such as that of a test runner or of a first call.
    if sys.stdout is sys.__stdout__:
        sys.stdout = _stream(_StandardOutput(program, hint), sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _stream(_StandardError(), sys.stderr)
    for number in IGNORED_SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.SIG_IGN)
    if holds_hangups and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda number, _frame: _missed_hangups.append(number))


def missed_hangup() -> bool:
    """Return whether a SIGHUP came before the program had a handler of its own; True once."""
    was_missed = bool(_missed_hangups)
    _missed_hangups.clear()
    return was_missed


def is_stdout_closed() -> bool:
    """Return whether standard output was closed when the program began, or is open for reading only."""
    return sys.stdout is None or fcntl.fcntl(STDOUT, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY


def discard_stdout() -> None:
    """Drop what is buffered for standard output: the interpreter would write it again when it ends."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, STDOUT)
    os.close(null)


def _open_closed_descriptors() -> None:
    """Open /dev/null for standard descriptors that are closed, for reading only: output that matters must fail."""
    for descriptor in (0, STDOUT, STDERR):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free number is this one. Programs that this one starts get it too.
            os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)


def _stream(raw: io.FileIO, former: TextIO | None) -> TextIO:
    """Return a text stream over raw with the encoding of the former one. Each line is written at once."""
    encoding = "utf-8" if former is None else former.encoding
    errors = "backslashreplace" if former is None else former.errors
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors, line_buffering=True)
