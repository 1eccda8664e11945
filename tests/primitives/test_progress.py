"""Progress of tools: on a real terminal, and without one."""

import fcntl
import io
import os
import pty
import re
import struct
import sys
import termios
import threading

import pytest

from pyqd.primitives.progress import Progress


class Terminal:
    """Terminal that keeps all that is written to it."""

    def __init__(self) -> None:
        self._master, slave = pty.openpty()
        # Rows and columns; in a terminal without columns there is no bar.
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        self.stream = open(slave, "w")  # noqa: SIM115
        self._read = bytearray()
        self._reader = threading.Thread(target=self._keep)
        self._reader.start()

    def _keep(self) -> None:
        # EIO once the other end is closed.
        while True:
            try:
                self._read += os.read(self._master, 4096)
            except OSError:
                return

    def text(self) -> str:
        """Close the terminal and return its output."""
        self.stream.close()
        self._reader.join(10)
        os.close(self._master)
        return self._read.decode().replace("\r\n", "\n")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setattr("pyqd.primitives.progress.REFRESH_S", 0.0)


def lines_of(text: str) -> list[str]:
    """Return the texts that were on the terminal, one after the other, without control sequences."""
    return [line for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)) if line.strip()]


def test_a_terminal_gets_a_bar_which_is_gone_at_the_end() -> None:
    terminal = Terminal()
    with Progress("reading", 4, "runs", stream=terminal.stream) as progress:
        assert progress.on_terminal
        progress.advance(3, "1 failed")
        progress.describe("writing")
    text = terminal.text()
    lines = lines_of(text)
    assert any(re.match(r"reading .* 75% 3 of 4 runs 0:00:00 gone, \S+ left 1 failed", line) for line in lines), lines
    assert re.match(r"writing .* 75% 3 of 4 runs", lines[-1])
    # The last line is erased.
    assert text.endswith("\x1b[2K")


def test_a_bar_without_a_total_counts() -> None:
    terminal = Terminal()
    with Progress("", None, "cases", stream=terminal.stream) as progress:
        progress.move_to(12)
    assert "12 cases 0:00:00 gone" in lines_of(terminal.text())[-1]


def test_a_line_that_is_printed_beside_a_bar_stands_alone() -> None:
    terminal = Terminal()
    with Progress("", 4, "runs", stream=terminal.stream) as progress:
        progress.say("a row of the table")
    assert "a row of the table" in lines_of(terminal.text())


@pytest.mark.parametrize("line_s", [None, 0.0])
def test_elsewhere_there_are_lines_if_they_are_asked_for(line_s: float | None) -> None:
    stream = io.StringIO()
    with Progress("run 7", 4000, "rows", stream=stream, line_s=line_s, initial=1000) as progress:
        progress.move_to(3000, "1 of 3 ranges")
        progress.say("a message")
    lines = stream.getvalue().splitlines()
    assert lines.pop() == "a message"
    assert len(lines) == (line_s is not None)
    for line in lines:
        assert re.fullmatch(r"run 7: 75%, 3,000 of 4,000 rows, [0-9,]+ rows per second, 1 of 3 ranges", line)


def test_a_quiet_one_writes_nothing() -> None:
    terminal, stream = Terminal(), io.StringIO()
    for each in (terminal.stream, stream):
        with Progress("", 4, "runs", stream=each, quiet=True, line_s=0.0) as progress:
            progress.advance()
            progress.say("a message")
    assert (terminal.text(), stream.getvalue()) == ("", "")


def test_without_rich_a_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    terminal = Terminal()
    with Progress("", 4, "runs", stream=terminal.stream, line_s=0.0) as progress:
        progress.advance()
    assert re.fullmatch(r"25%, 1 of 4 runs, [0-9,]+ runs per second\n", terminal.text())
